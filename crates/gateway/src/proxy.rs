//! What a sandbox can ask of its gate: CONNECT, plain requests in absolute form, and the LLM endpoints.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
};

use hyper::{
    Method, Request, Response, StatusCode, Uri,
    body::Incoming,
    header::{CONTENT_TYPE, HeaderValue},
    http::uri::Scheme,
};
use sandbar_policy::Host;

use crate::{
    Direction,
    body::{Body, full},
    connect::{Passage, connect},
    dial::Reach,
    facts::Record,
    forward::{Bridge, judged},
    gate::{Gate, Pulse},
    llm,
    pool::{Pool, Wire},
    refusal::{Form, Refusal},
};

const PAGE: &str = "This is a sandbox's way out, an HTTP proxy.\n\n\
    Hosts that the sandbox's rules allow are reached by CONNECT, or http:// URLs in absolute form.\n\
    LLM endpoints are under /llm/openai/v1 and /llm/anthropic.\n";

/// One client's connection.
pub(crate) struct Proxy {
    pub(crate) gate: Arc<Gate>,
    pub(crate) reach: Arc<Reach>,
    pub(crate) pulse: Arc<Pulse>,
    /// Where it was accepted.
    own: SocketAddr,
    /// What the connection becomes when it no longer speaks HTTP.
    after: Mutex<Option<After>>,
    /// Connections to the server of the last plain request: clients tend to stay with one.
    last: Mutex<Option<Arc<Pool>>>,
}

pub(crate) enum After {
    Passage(Box<Passage>),
    Bridge(Box<Bridge>),
}

impl Proxy {
    pub(crate) fn new(gate: Arc<Gate>, reach: Arc<Reach>, pulse: Arc<Pulse>, own: SocketAddr) -> Self {
        Self { gate, reach, pulse, own, after: Mutex::default(), last: Mutex::default() }
    }

    pub(crate) async fn answer(&self, request: Request<Incoming>) -> Response<Body> {
        if request.method() == Method::CONNECT {
            return match connect(&self.gate, &self.reach, &self.pulse, request).await {
                Ok((response, passage)) => {
                    self.then(After::Passage(Box::new(passage)));
                    response
                }
                Err(response) => response,
            };
        }
        if (request.uri().scheme().is_some() || request.uri().authority().is_some()) && !self.is_own(request.uri()) {
            return self.plain(request).await;
        }
        let path = request.uri().path();
        if path == "/" {
            let mut response = Response::new(full(PAGE));
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
            return response;
        }
        if path.starts_with("/llm/") {
            return llm::handle(request, &self.gate.gateway, &self.gate.warden, &self.gate.llm).await;
        }
        let detail = "There is nothing at this path of the proxy itself.";
        let fix = "Use it as a proxy: CONNECT for https, http:// URLs in absolute form.";
        Refusal::new(StatusCode::NOT_FOUND, "not_found", detail, fix).response(Form::of(request.headers()))
    }

    /// Clients that know no exceptions from the proxy ask the gate itself through the gate.
    fn is_own(&self, uri: &Uri) -> bool {
        let asked = uri.authority().and_then(|authority| Host::parse_authority(authority.as_str(), 80).ok());
        let own = [Host::Ip(self.own.ip()), Host::Name("localhost".into())];
        uri.scheme() == Some(&Scheme::HTTP)
            && asked.is_some_and(|(host, port)| own.contains(&host) && port == self.own.port())
    }

    async fn plain(&self, request: Request<Incoming>) -> Response<Body> {
        let form = Form::of(request.headers());
        let target = request.uri().authority().map_or("", |authority| authority.as_str());
        let refuse = |refusal: Refusal| {
            let mut record = Record::new(&self.gate.warden, Direction::Request, target, 0)
                .request(request.method().as_str(), request.uri().path());
            record.denied(refusal.reason());
            refusal.response(form)
        };
        if request.uri().scheme() != Some(&Scheme::HTTP) {
            return refuse(Refusal::bad_request("Only http:// is proxied in absolute form."));
        }
        let (host, port) = match Host::parse_authority(target, 80) {
            Ok(parsed) => parsed,
            Err(error) => return refuse(Refusal::bad_request(format!("The URL cannot be used: {error}."))),
        };
        if request.method() == Method::TRACE && self.gate.has_grant(&host) {
            let detail = "TRACE is refused towards hosts of secrets.";
            return refuse(Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "method_refused", detail, "Use GET."));
        }
        let record = Record::new(&self.gate.warden, Direction::Request, &host.to_string(), port)
            .request(request.method().as_str(), request.uri().path());
        let pool = self.pool(host, port);
        let (response, bridge) = judged(&self.gate, &pool, &self.pulse, None, request, record).await;
        if let Some(bridge) = bridge {
            self.then(After::Bridge(Box::new(bridge)));
        }
        response
    }

    fn pool(&self, host: Host, port: u16) -> Arc<Pool> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        match &*last {
            Some(pool) if pool.host == host && pool.port == port => Arc::clone(pool),
            _ => {
                let pool =
                    Arc::new(Pool::new(Arc::clone(&self.gate), Arc::clone(&self.reach), host, port, Wire::Plain));
                *last = Some(Arc::clone(&pool));
                pool
            }
        }
    }

    fn then(&self, after: After) {
        *self.after.lock().unwrap_or_else(PoisonError::into_inner) = Some(after);
    }

    /// Once, after the last answer.
    pub(crate) fn take_after(&self) -> Option<After> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.after.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}
