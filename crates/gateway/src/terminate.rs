//! Terminated connections: the client's TLS ends here, with a certificate of the sandbox's own authority, and each request
//! is judged. CONNECT host, SNI and Host or `:authority` have to be one and the same before anything is sent.

use std::{
    convert::Infallible,
    sync::{Arc, Mutex, PoisonError},
};

use bytes::BytesMut;
use hyper::{
    Method, Request, Response, StatusCode, Version,
    body::Incoming,
    header::HOST,
    server::conn::{http1, http2},
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use sandbar_policy::Host;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use crate::{
    Direction,
    accept::{HEAD, HEADERS},
    body::{Body, drain},
    client::Client,
    connect::refuse,
    dial::Reach,
    facts::Record,
    first::{First, HTTP2, agrees},
    forward::{Bridge, judged},
    gate::{Felt, Gate, Pulse},
    pool::{Pool, UNSENT, Wire},
    refusal::{Form, Refusal, place},
    stream::Replay,
};

/// Requests of one HTTP/2 connection at a time: as many as clients assume before they are told. A gate bounds them all.
const STREAMS: u32 = 100;
/// What a client may send before it is read, for each of them and for all.
const WINDOWS: (u32, u32) = (256 << 10, 1 << 20);

pub(crate) struct Terminated {
    gate: Arc<Gate>,
    reach: Arc<Reach>,
    pulse: Arc<Pulse>,
    host: Host,
    port: u16,
    approved: Option<String>,
}

/// A terminated connection whose client was heard.
struct Heard {
    terminated: Terminated,
    pool: Pool,
    bridge: Mutex<Option<Bridge>>,
}

impl Terminated {
    pub(crate) fn new(
        gate: &Arc<Gate>,
        reach: &Arc<Reach>,
        pulse: &Arc<Pulse>,
        host: Host,
        port: u16,
        approved: Option<String>,
    ) -> Self {
        Self { gate: Arc::clone(gate), reach: Arc::clone(reach), pulse: Arc::clone(pulse), host, port, approved }
    }

    /// `record` tells what becomes of the connection if no request is heard; requests have their own.
    pub(crate) async fn serve(self, client: Client, ahead: BytesMut, first: First, mut record: Record) {
        let sni = match first {
            // whatever part of it is encrypted goes no further
            First::Tls { sni, .. } => sni,
            First::Http if self.port != 443 => {
                record.forget();
                let h2 = ahead.starts_with(HTTP2);
                let io = Felt { inner: Replay { ahead, inner: client }, pulse: Arc::clone(&self.pulse) };
                let heard = self.heard(if h2 { Wire::PlainHttp2 } else { Wire::Plain });
                return if h2 { heard.http2(io).await } else { heard.http1(io).await };
            }
            First::Http | First::Unsaid | First::Other => {
                return refuse(client, record, "its first bytes are no TLS, and requests are judged here".into()).await;
            }
        };
        if let Err(cause) = agrees(&self.host, sni.as_deref()) {
            return refuse(client, record, cause).await;
        }
        let config = match self.gate.authority.server(&self.host) {
            Ok(config) => config,
            Err(error) => return record.failed(error.to_string()),
        };
        let io = Felt { inner: Replay { ahead, inner: client }, pulse: Arc::clone(&self.pulse) };
        let accept = TlsAcceptor::from(config).accept(io);
        let stream = match tokio::time::timeout(self.reach.settings.head_timeout, accept).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => {
                return record.failed(format!("TLS with the client failed (does it trust the sandbox's CA?): {error}"));
            }
            Err(_) => return record.failed("TLS with the client timed out"),
        };
        record.forget();
        let h2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        let heard = self.heard(Wire::Tls);
        if h2 { heard.http2(stream).await } else { heard.http1(stream).await }
    }

    fn heard(self, wire: Wire) -> Arc<Heard> {
        let pool = Pool::new(Arc::clone(&self.gate), Arc::clone(&self.reach), self.host.clone(), self.port, wire);
        Arc::new(Heard { terminated: self, pool, bridge: Mutex::new(None) })
    }
}

impl Heard {
    async fn http1(self: Arc<Self>, io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        let service = service_fn(|request| {
            let heard = Arc::clone(&self);
            async move { Ok::<_, Infallible>(heard.answer(request).await) }
        });
        let served = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(self.terminated.reach.settings.head_timeout)
            .preserve_header_case(true)
            .max_headers(HEADERS)
            .max_buf_size(HEAD)
            .serve_connection(TokioIo::new(io), service)
            .with_upgrades()
            .await;
        if let Err(error) = served {
            tracing::debug!(%error, "a terminated connection ended");
        }
        let bridge = self.bridge.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(bridge) = bridge {
            bridge.run(&self.terminated.pulse).await;
        }
    }

    async fn http2(self: Arc<Self>, io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        let over = CancellationToken::new();
        let _ends_streams = over.clone().drop_guard();
        let service = service_fn(|request| {
            let heard = Arc::clone(&self);
            async move { Ok::<_, Infallible>(heard.answer(request).await) }
        });
        let served = http2::Builder::new(Streams(over))
            .timer(TokioTimer::new())
            .max_concurrent_streams(STREAMS)
            .max_header_list_size(HEAD as u32)
            .initial_stream_window_size(WINDOWS.0)
            .initial_connection_window_size(WINDOWS.1)
            .max_send_buf_size(UNSENT)
            .serve_connection(TokioIo::new(io), service)
            .await;
        if let Err(error) = served {
            tracing::debug!(%error, "a terminated connection ended");
        }
    }

    async fn answer(&self, request: Request<Incoming>) -> Response<Body> {
        let Terminated { gate, pulse, host, port, approved, .. } = &self.terminated;
        let form = Form::of(request.headers());
        let mut record = Record::new(&gate.warden, Direction::Request, &host.to_string(), *port)
            .request(request.method().as_str(), request.uri().path());
        if let Err(refusal) = self.check(&request) {
            record.denied(refusal.reason());
            drain(request).await;
            return refusal.response(form);
        }
        let (response, bridge) = judged(gate, &self.pool, pulse, approved.as_deref(), request, record).await;
        if bridge.is_some() {
            *self.bridge.lock().unwrap_or_else(PoisonError::into_inner) = bridge;
        }
        response
    }

    /// Whether the request is for the very server that the connection was allowed for.
    fn check(&self, request: &Request<Incoming>) -> Result<(), Refusal> {
        let Terminated { gate, host, port, .. } = &self.terminated;
        let not_allowed = |detail: &str| {
            let fix = "Ask the proxy itself for another connection.";
            Err(Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "method_refused", detail, fix))
        };
        match *request.method() {
            Method::CONNECT => return not_allowed("CONNECT is not carried out inside a connection."),
            Method::TRACE if gate.has_grant(host) => {
                return not_allowed("TRACE is refused where secrets are put in, because it would show them.");
            }
            _ => {}
        }
        let mut named: Vec<&[u8]> = request.headers().get_all(HOST).iter().map(|host| host.as_bytes()).collect();
        let in_target = request.uri().authority().map(|authority| authority.as_str().as_bytes());
        if request.version() == Version::HTTP_2 {
            named.extend(in_target);
        } else if in_target.is_some() {
            return Err(Refusal::bad_request("The request's target has to be a path inside a connection."));
        } else if named.len() > 1 {
            return Err(Refusal::bad_request("The request has more than one Host."));
        }
        if named.is_empty() {
            return Err(Refusal::bad_request("The request names no host."));
        }
        let default = if self.pool.tls { 443 } else { 80 };
        for name in named {
            let name = String::from_utf8_lossy(name);
            let (found, at) = Host::parse_authority(&name, default)
                .map_err(|error| Refusal::bad_request(format!("The request's Host cannot be used: {error}.")))?;
            if (&found, at) != (host, *port) {
                return Err(Refusal::new(
                    StatusCode::MISDIRECTED_REQUEST,
                    "misdirected",
                    format!("The connection is for {}, the request for {}.", place(host, *port), place(&found, at)),
                    "Connect to each host by itself; nothing was sent.",
                ));
            }
        }
        Ok(())
    }
}

/// Runs the requests of one HTTP/2 connection, no longer than it.
#[derive(Clone)]
struct Streams(CancellationToken);

impl<F> hyper::rt::Executor<F> for Streams
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, stream: F) {
        let over = self.0.clone();
        tokio::spawn(async move {
            tokio::select! {
                () = over.cancelled_owned() => {}
                () = stream => {}
            }
        });
    }
}
