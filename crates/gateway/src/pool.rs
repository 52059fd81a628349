//! Connections to one server, for as long as one client's connection lives: one of HTTP/2 or a few of HTTP/1.1. They are
//! never shared between clients, so that no client can be answered with what another one asked for.

use std::sync::{Arc, Mutex, PoisonError};

use hyper::{
    Request, Response, StatusCode,
    body::Incoming,
    client::conn::{http1, http2},
    header::HeaderValue,
    http::uri::Scheme,
};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use sandbar_policy::Host;

use crate::{
    body::Body,
    dial::{Alpn, Chosen, Connected, Reach},
    gate::Gate,
    headers,
    refusal::{Refusal, place},
    sockets::Busy,
};

/// HTTP/1.1 connections kept for the next request.
const IDLE: usize = 8;
const HEAD: usize = 128 * 1024;
/// What a server may send before it is read, for each stream and for all of them: enough for 10 MB/s at 50 ms.
const WINDOWS: (u32, u32) = (512 << 10, 1 << 20);
/// What is taken from a sender before the other side has taken it.
pub(crate) const UNSENT: usize = 64 * 1024;

pub(crate) struct Pool {
    gate: Arc<Gate>,
    reach: Arc<Reach>,
    pub(crate) host: Host,
    pub(crate) port: u16,
    pub(crate) tls: bool,
    /// HTTP/2 without TLS, where nobody can be asked whether it is spoken.
    h2c: bool,
    /// As it goes into Host and `:authority`.
    authority: HeaderValue,
    open: Mutex<Open>,
    /// One looks whether the server speaks HTTP/2 while the others wait; holds how the last look failed.
    looking: tokio::sync::Mutex<(u64, Option<Refusal>)>,
}

/// How the server is spoken to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wire {
    Tls,
    Plain,
    /// As a client does that begins with HTTP/2 in plain, for servers that know nothing else.
    PlainHttp2,
}

#[derive(Default)]
struct Open {
    http1: Vec<http1::SendRequest<Body>>,
    http2: Option<http2::SendRequest<Body>>,
    /// It chose HTTP/1.1: nobody needs to wait for anybody.
    only_http1: bool,
    looks: u64,
}

enum Sender {
    Http1(http1::SendRequest<Body>),
    Http2(http2::SendRequest<Body>),
}

impl Pool {
    pub(crate) fn new(gate: Arc<Gate>, reach: Arc<Reach>, host: Host, port: u16, wire: Wire) -> Self {
        let (tls, h2c) = (wire == Wire::Tls, wire == Wire::PlainHttp2);
        let default = if tls { 443 } else { 80 };
        let name = match &host {
            Host::Ip(std::net::IpAddr::V6(ip)) => format!("[{ip}]"),
            host => host.to_string(),
        };
        let text = if port == default { name } else { format!("{name}:{port}") };
        let authority = HeaderValue::try_from(text).unwrap_or_else(|_| HeaderValue::from_static(""));
        let (open, looking) = (Mutex::default(), tokio::sync::Mutex::default());
        Self { gate, reach, host, port, tls, h2c, authority, open, looking }
    }

    /// Sends it, over a connection that stands or a new one. `upgrade` needs HTTP/1.1 and a connection of its own.
    pub(crate) async fn send(&self, request: Request<Body>, upgrade: bool) -> Result<Response<Incoming>, Refusal> {
        if upgrade {
            let sender = self.connect(Some(Alpn::Http1)).await?;
            return self.pass(sender, request, false).await.map_err(|(refusal, _)| refusal);
        }
        let (sender, reused) = match self.take() {
            Some(sender) => (sender, true),
            None => (self.obtain().await?, false),
        };
        match self.pass(sender, request, true).await {
            // the server had closed it meanwhile, and nothing was sent
            Err((_, Some(request))) if reused => {
                let sender = self.obtain().await?;
                self.pass(sender, *request, true).await.map_err(|(refusal, _)| refusal)
            }
            result => result.map_err(|(refusal, _)| refusal),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One that can be used at once.
    fn take(&self) -> Option<Sender> {
        let mut open = self.lock();
        if let Some(http2) = open.http2.take_if(|http2| http2.is_closed()) {
            drop(http2);
        }
        if let Some(http2) = &open.http2 {
            return Some(Sender::Http2(http2.clone()));
        }
        open.http1.retain(|http1| !http1.is_closed());
        let at = open.http1.iter().position(http1::SendRequest::is_ready)?;
        Some(Sender::Http1(open.http1.swap_remove(at)))
    }

    async fn obtain(&self) -> Result<Sender, Refusal> {
        let (only_http1, before) = {
            let open = self.lock();
            (open.only_http1, open.looks)
        };
        if only_http1 || !(self.tls || self.h2c) {
            return self.connect(Some(Alpn::Any)).await;
        }
        let mut looking = self.looking.lock().await;
        if let Some(sender) = self.take() {
            return Ok(sender);
        }
        // who waited for a look that failed does not look again
        if let (looks, Some(refusal)) = &*looking
            && *looks > before
        {
            return Err(refusal.clone());
        }
        let looked = self.connect(Some(Alpn::Any)).await;
        let looks = {
            let mut open = self.lock();
            open.looks += 1;
            open.looks
        };
        *looking = (looks, looked.as_ref().err().cloned());
        looked
    }

    async fn connect(&self, tls: Option<Alpn>) -> Result<Sender, Refusal> {
        let tls = if self.tls { tls } else { None };
        let place = self.gate.share.server().await.map_err(|Busy| Refusal::busy())?;
        let Connected { stream, h2 } = self
            .reach
            .dial(&self.host, self.port, tls, Chosen::BySandbox(&self.gate), place)
            .await
            .map_err(|error| Refusal::unreachable(&self.host, self.port, &error))?;
        let io = TokioIo::new(stream);
        if h2 || self.h2c {
            let (sender, connection) = http2::Builder::new(TokioExecutor::new())
                .timer(TokioTimer::new())
                .initial_stream_window_size(WINDOWS.0)
                .initial_connection_window_size(WINDOWS.1)
                .max_header_list_size(HEAD as u32)
                .max_send_buf_size(UNSENT)
                .handshake(io)
                .await
                .map_err(|error| self.broken(&error))?;
            tokio::spawn(connection);
            self.lock().http2 = Some(sender.clone());
            return Ok(Sender::Http2(sender));
        }
        let (sender, connection) = http1::Builder::new()
            .preserve_header_case(true)
            .max_buf_size(HEAD)
            .handshake(io)
            .await
            .map_err(|error| self.broken(&error))?;
        tokio::spawn(connection.with_upgrades());
        if tls == Some(Alpn::Any) {
            self.lock().only_http1 = true;
        }
        Ok(Sender::Http1(sender))
    }

    /// On failure the request comes back if nothing of it was sent.
    async fn pass(
        &self,
        sender: Sender,
        request: Request<Body>,
        keep: bool,
    ) -> Result<Response<Incoming>, (Refusal, Option<Box<Request<Body>>>)> {
        let (mut parts, body) = request.into_parts();
        let h2 = matches!(sender, Sender::Http2(_));
        let scheme = if self.tls { Scheme::HTTPS } else { Scheme::HTTP };
        if headers::address(&mut parts, &self.authority, h2.then_some(scheme)).is_err() {
            return Err((Refusal::bad_request("The request's target cannot be sent on."), None));
        }
        let request = Request::from_parts(parts, body);
        let sent = match sender {
            Sender::Http2(mut http2) => http2.try_send_request(request).await,
            Sender::Http1(mut http1) => {
                let sent = http1.try_send_request(request).await;
                if sent.is_ok() && keep {
                    let mut open = self.lock();
                    open.http1.retain(|http1| !http1.is_closed());
                    if open.http1.len() < IDLE && self.gate.share.is_ample() {
                        open.http1.push(http1);
                    }
                }
                sent
            }
        };
        sent.map_err(|mut failed| {
            let back = failed.take_message().map(Box::new);
            (self.broken(failed.error()), back)
        })
    }

    fn broken(&self, error: &hyper::Error) -> Refusal {
        let place = place(&self.host, self.port);
        let cause = if error.is_incomplete_message() || error.is_canceled() || error.is_closed() {
            "it closed the connection before it answered".to_owned()
        } else if error.is_parse() {
            "what it answered is no HTTP".to_owned()
        } else {
            std::error::Error::source(error).map_or_else(|| error.to_string(), |source| format!("{error}: {source}"))
        };
        Refusal::new(
            StatusCode::BAD_GATEWAY,
            "upstream_failed",
            format!("{place} was reached but failed: {cause}."),
            "Try again; if it stays, look at the server.",
        )
    }
}
