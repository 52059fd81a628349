//! A judged request on its way to its server and the answer back: secrets put in, bodies streamed and counted, upgrades
//! carried through. Both plain requests and those of terminated connections take this way.

use std::sync::Arc;

use hyper::{Request, Response, StatusCode, body::Incoming, upgrade::OnUpgrade};
use hyper_util::rt::TokioIo;

use crate::{
    body::{Body, Counted, End, FromServer, drain, empty, stream},
    facts::Record,
    gate::{Gate, Pulse, Seen},
    headers,
    pool::Pool,
    refusal::{Form, Refusal},
    secrets,
    sockets::{Busy, Flight},
    tunnel,
};

/// An upgraded request: its two sides go on as connections when the answer has been written.
pub(crate) struct Bridge {
    client: OnUpgrade,
    server: OnUpgrade,
    record: Record,
    _flight: Flight,
}

impl Bridge {
    pub(crate) async fn run(mut self, pulse: &Pulse) {
        let (client, server) = match tokio::try_join!(self.client, self.server) {
            Ok(both) => both,
            Err(error) => return self.record.failed(format!("the upgrade failed: {error}")),
        };
        let traffic = self.record.traffic.clone();
        // how such a connection ends is its own business: both ends just drop it
        match tunnel::bridge(TokioIo::new(client), TokioIo::new(server), &traffic, pulse).await {
            Ok(()) => self.record.done(Some(StatusCode::SWITCHING_PROTOCOLS)),
            Err(error) => self.record.failed(format!("the connection broke: {error}")),
        }
    }
}

/// Judges a request by the rules as they are now and carries it through. `approved` is the rule by which a person allowed
/// the whole connection already.
pub(crate) async fn judged(
    gate: &Gate,
    pool: &Pool,
    pulse: &Arc<Pulse>,
    approved: Option<&str>,
    request: Request<Incoming>,
    mut record: Record,
) -> (Response<Body>, Option<Bridge>) {
    let form = Form::of(request.headers());
    // before anything else, so that those who wait for a person are counted too
    let flight = match gate.share.request().await {
        Ok(flight) => flight,
        Err(Busy) => {
            let refusal = Refusal::busy();
            record.failed(refusal.reason());
            return (refusal.response(form), None);
        }
    };
    let (method, path) = (request.method().as_str(), request.uri().path());
    let decision = gate.warden.policy().request(&pool.host, pool.port, method, path);
    record.decided(&decision);
    let known = approved.is_some() && approved == decision.rule.as_deref();
    if !(known && decision.effect == sandbar_policy::Effect::Ask)
        && let Err(refusal) = gate.carry_out(&decision, &pool.host, pool.port, Some(Seen { method, path }), pulse).await
    {
        record.denied(refusal.reason());
        drain(request).await;
        return (refusal.response(form), None);
    }
    match forward(gate, pool, request, record, flight).await {
        Ok(answer) => answer,
        Err((refusal, mut record)) => {
            if refusal.status == StatusCode::FORBIDDEN {
                record.denied(refusal.reason());
            } else {
                record.failed(refusal.reason());
            }
            (refusal.response(form), None)
        }
    }
}

type Unsent = (Refusal, Box<Record>);

async fn forward(
    gate: &Gate,
    pool: &Pool,
    mut request: Request<Incoming>,
    mut record: Record,
    flight: Flight,
) -> Result<(Response<Body>, Option<Bridge>), Unsent> {
    let upgrade = headers::upgrade(request.version(), request.headers());
    let client = upgrade.is_some().then(|| hyper::upgrade::on(&mut request));
    let (mut parts, body) = request.into_parts();
    headers::strip(&mut parts.headers, upgrade.as_ref());
    let used = record.used.clone();
    let body = match secrets::inject(&*gate.warden, &pool.host, pool.port, pool.tls, &mut parts, body, &used) {
        Ok(body) => body,
        Err(refusal) => return Err((refusal, Box::new(record))),
    };
    let counted = Counted::new(body, Arc::clone(&record.traffic.sent), (), |(), _| {});
    let mut response = match pool.send(Request::from_parts(parts, stream(counted)), client.is_some()).await {
        Ok(response) => response,
        Err(refusal) => return Err((refusal, Box::new(record))),
    };
    let status = response.status();
    used.mask(&mut response);
    if let (StatusCode::SWITCHING_PROTOCOLS, Some(client)) = (status, client) {
        let server = hyper::upgrade::on(&mut response);
        let (mut parts, _) = response.into_parts();
        headers::strip(&mut parts.headers, upgrade.as_ref());
        headers::strip_own(&mut parts.headers);
        return Ok((Response::from_parts(parts, empty()), Some(Bridge { client, server, record, _flight: flight })));
    }
    let (mut parts, body) = response.into_parts();
    headers::strip(&mut parts.headers, None);
    headers::strip_own(&mut parts.headers);
    if hyper::body::Body::is_end_stream(&body) {
        record.done(Some(status));
        return Ok((Response::from_parts(parts, stream(body)), None));
    }
    let received = Arc::clone(&record.traffic.received);
    let body =
        Counted::new(FromServer(body), received, (record, status, flight), |(record, status, _), end| match end {
            End::Whole => record.done(Some(*status)),
            End::Broken(cause) => record.failed(format!("the answer broke off: {cause}")),
        });
    Ok((Response::from_parts(parts, stream(body)), None))
}
