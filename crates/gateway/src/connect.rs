//! CONNECT: decided before anything is resolved, then either a tunnel, or terminated where rules look into requests or a
//! secret may have to be put in.

use std::sync::Arc;

use bytes::BytesMut;
use hyper::{Request, Response, StatusCode, body::Incoming, upgrade::OnUpgrade};
use hyper_util::rt::TokioIo;
use sandbar_policy::{Decision, Effect, Host, Verdict};
use tokio::{io::AsyncWriteExt as _, net::TcpStream};

use crate::{
    Direction,
    body::{Body, empty},
    client::Client,
    dial::{Chosen, DialError, Reach},
    facts::Record,
    first::{Unheard, first},
    gate::{Felt, Gate, Pulse},
    refusal::{Form, Refusal},
    sockets::Socket,
    terminate::Terminated,
    tunnel::{Screen, Stop, UNRECOGNIZED_NAME, relay},
};

/// What a connection becomes when the answer to CONNECT has been written.
pub(crate) struct Passage {
    client: OnUpgrade,
    host: Host,
    port: u16,
    /// The rule by which a person allowed the connection.
    approved: Option<String>,
    record: Record,
    way: Way,
}

enum Way {
    /// `secret`: one may go there, so that what could carry it is terminated after all.
    Tunnel {
        server: TcpStream,
        place: Socket,
        secret: bool,
    },
    Terminate,
}

pub(crate) async fn connect(
    gate: &Gate,
    reach: &Reach,
    pulse: &Pulse,
    mut request: Request<Incoming>,
) -> Result<(Response<Body>, Passage), Response<Body>> {
    let form = Form::of(request.headers());
    let target = request.uri().authority().map_or("", |authority| authority.as_str());
    let (host, port) = match Host::parse_authority(target, 443) {
        Ok(parsed) => parsed,
        Err(error) => {
            let refusal = Refusal::bad_request(format!("CONNECT cannot be carried out: {error}."));
            Record::new(&gate.warden, Direction::Tunnel, target, 0).denied(refusal.reason());
            return Err(refusal.response(form));
        }
    };
    let mut record = Record::new(&gate.warden, Direction::Tunnel, &host.to_string(), port);
    let refuse = |refusal: Refusal, record: &mut Record| {
        if refusal.status == StatusCode::FORBIDDEN {
            record.denied(refusal.reason());
        } else {
            record.failed(refusal.reason());
        }
        refusal.response(form)
    };
    let verdict = gate.warden.policy().connect(&host, port);
    let mut approved = None;
    let inspect = match verdict {
        Verdict::Inspect => {
            record.decided(&Decision { effect: Effect::Allow, rule: None });
            true
        }
        Verdict::Decided(decision) => {
            record.decided(&decision);
            if let Err(refusal) = gate.carry_out(&decision, &host, port, None, pulse).await {
                return Err(refuse(refusal, &mut record));
            }
            if decision.effect == Effect::Ask {
                approved = decision.rule;
            }
            // rules that came while a person was asked may look into requests
            approved.is_some() && gate.warden.policy().connect(&host, port) == Verdict::Inspect
        }
    };
    let secret = gate.has_grant(&host);
    let way = if inspect || (secret && port == 443) {
        Way::Terminate
    } else {
        let Ok(place) = gate.share.server().await else { return Err(refuse(Refusal::busy(), &mut record)) };
        let dialled = reach.dial(&host, port, None, Chosen::BySandbox(gate), place).await;
        match dialled.map(|connected| connected.stream.into_plain()) {
            Ok(Some((server, place))) => Way::Tunnel { server, place, secret },
            Ok(None) => {
                let error = DialError::Tls("it was not asked for".into());
                return Err(refuse(Refusal::unreachable(&host, port, &error), &mut record));
            }
            Err(error) => return Err(refuse(Refusal::unreachable(&host, port, &error), &mut record)),
        }
    };
    let client = hyper::upgrade::on(&mut request);
    Ok((Response::new(empty()), Passage { client, host, port, approved, record, way }))
}

impl Passage {
    pub(crate) async fn run(mut self, gate: &Arc<Gate>, reach: &Arc<Reach>, pulse: &Arc<Pulse>) {
        let upgraded = match self.client.await {
            Ok(upgraded) => upgraded,
            Err(error) => return self.record.failed(format!("the client was lost: {error}")),
        };
        let Ok(parts) = upgraded.downcast::<TokioIo<Felt<Client>>>() else {
            return self.record.failed("the client's connection is of an unknown kind");
        };
        let mut client = parts.io.into_inner().inner;
        let mut ahead = BytesMut::from(&parts.read_buf[..]);
        let patience = reach.settings.head_timeout;
        let first = match self.way {
            Way::Tunnel { mut server, place: _place, secret } => {
                let options = gate.warden.policy().tunnel_options(&self.host, self.port);
                let screen = Screen { host: &self.host, port: self.port, patience, secret, options };
                match relay(&mut client, &mut server, &mut ahead, &screen, &self.record, pulse).await {
                    Ok(()) => return self.record.done(None),
                    Err(Stop::Io(error)) => return self.record.failed(format!("the connection broke: {error}")),
                    Err(Stop::Denied(cause)) => return refuse(client, self.record, cause).await,
                    Err(Stop::Terminate(first)) => first,
                }
            }
            Way::Terminate => match first(&mut client, &mut ahead, patience, None, true).await {
                Ok(first) => first,
                // nothing was asked of anybody
                Err(Unheard::Gone) if ahead.is_empty() => return self.record.forget(),
                Err(error) => return refuse(client, self.record, error.to_string()).await,
            },
        };
        let terminated = Terminated::new(gate, reach, pulse, self.host, self.port, self.approved);
        Box::pin(terminated.serve(client, ahead, first, self.record)).await;
    }
}

/// Nothing more is heard of a client that asks for another server; the alert tells its user why.
pub(crate) async fn refuse(mut client: Client, mut record: Record, cause: String) {
    record.denied(format!("the connection was closed: {cause}"));
    // best effort: the client may be gone, or not speak TLS at all
    drop(client.write_all(&UNRECOGNIZED_NAME).await);
    drop(client.shutdown().await);
}
