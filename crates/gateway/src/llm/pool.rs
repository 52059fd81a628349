//! Connections to upstreams, kept for the next call of whichever sandbox: a handshake costs more than all that is done
//! here. HTTP/1.1 connections are taken one call at a time, HTTP/2 ones are shared.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use bytes::Bytes;
use http_body_util::Full;
use hyper::{
    Request, Response,
    body::Incoming,
    client::conn::{TrySendError, http1, http2},
};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use sandbar_policy::Host;

use super::{Upstream, room::Shared};
use crate::{
    Gateway,
    dial::{Alpn, Chosen},
};

/// Shorter than vendors keep idle connections, so that a call seldom meets one that is just being closed.
const IDLE: Duration = Duration::from_secs(30);
/// Idle HTTP/1.1 connections to one upstream.
const KEPT: usize = 256;
/// Calls on one HTTP/2 connection; what servers usually grant.
const STREAMS: usize = 100;
/// What an upstream may send ahead of a client that does not read. A connection has room for all of its streams: sandboxes
/// share it, and one that does not read must not hold up the others.
const STREAM_WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = STREAMS as u32 * STREAM_WINDOW;
const PING: Duration = Duration::from_secs(30);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Place {
    tls: bool,
    host: Host,
    port: u16,
}

#[derive(Clone)]
enum Known {
    Http1,
    Http2,
}

#[derive(Default)]
struct Shelf {
    idle: Vec<(Instant, http1::SendRequest<Full<Bytes>>)>,
    shared: Vec<(http2::SendRequest<Full<Bytes>>, Arc<()>)>,
    known: Option<Known>,
    /// Held while a connection that may be shared is made, so that calls which come together wait for one.
    making: Arc<tokio::sync::Mutex<()>>,
    /// When none could be made, and why: those who waited for it need not find out one after the other.
    failed: Option<(Instant, String)>,
}

#[derive(Clone, Default)]
pub(crate) struct Pool {
    /// Memory for requests on their way to an upstream.
    pub(super) memory: Shared,
    shelves: Arc<Mutex<HashMap<Place, Shelf>>>,
}

/// A connection for one call.
pub(super) struct Lease {
    pool: Pool,
    place: Place,
    line: Line,
    /// Used before: the server may have closed it since.
    pub(super) kept: bool,
}

enum Line {
    Http1(http1::SendRequest<Full<Bytes>>),
    Http2 { sender: http2::SendRequest<Full<Bytes>>, _users: Arc<()> },
}

impl Pool {
    /// One that stands, or a new one; why there is none reads on after "UPSTREAM cannot be reached: ".
    pub(super) async fn lease(&self, gateway: &Gateway, upstream: &Upstream) -> Result<Lease, String> {
        let place = Place { tls: upstream.tls, host: upstream.host.clone(), port: upstream.port };
        let (kept, known, making) = self.take(&place);
        if let Some(line) = kept {
            return Ok(self.leased(place, line, true));
        }
        if matches!(known, Some(Known::Http1)) {
            return self.make(gateway, place).await;
        }
        let waiting = Instant::now();
        let _making = making.lock().await;
        if let (Some(line), ..) = self.take(&place) {
            return Ok(self.leased(place, line, true));
        }
        if let Some((when, cause)) = &self.shelves().entry(place.clone()).or_default().failed
            && *when > waiting
        {
            return Err(cause.clone());
        }
        let made = self.make(gateway, place.clone()).await;
        if let Err(cause) = &made {
            self.shelves().entry(place).or_default().failed = Some((Instant::now(), cause.clone()));
        }
        made
    }

    async fn make(&self, gateway: &Gateway, place: Place) -> Result<Lease, String> {
        let tls = place.tls.then_some(Alpn::Any);
        let connected = gateway.dial(&place.host, place.port, tls, Chosen::ByOperator).await;
        let connected = connected.map_err(|error| error.to_string())?;
        let io = TokioIo::new(connected.stream);
        let line = if connected.h2 {
            let mut builder = http2::Builder::new(TokioExecutor::new());
            builder.timer(TokioTimer::new()).keep_alive_interval(PING);
            builder.initial_stream_window_size(STREAM_WINDOW).initial_connection_window_size(CONNECTION_WINDOW);
            let (sender, connection) = builder.handshake(io).await.map_err(|error| error.to_string())?;
            tokio::spawn(connection);
            let users = Arc::new(());
            self.shelves().entry(place.clone()).or_default().shared.push((sender.clone(), Arc::clone(&users)));
            Line::Http2 { sender, _users: users }
        } else {
            let (sender, connection) = http1::handshake(io).await.map_err(|error| error.to_string())?;
            tokio::spawn(connection);
            Line::Http1(sender)
        };
        let known = if connected.h2 { Known::Http2 } else { Known::Http1 };
        self.shelves().entry(place.clone()).or_default().known = Some(known);
        Ok(self.leased(place, line, false))
    }

    fn take(&self, place: &Place) -> (Option<Line>, Option<Known>, Arc<tokio::sync::Mutex<()>>) {
        let mut shelves = self.shelves();
        let shelf = shelves.entry(place.clone()).or_default();
        shelf.tidy();
        let shared = shelf.shared.iter().find(|(_, users)| Arc::strong_count(users) <= STREAMS);
        let line = match shared {
            Some((sender, users)) => Some(Line::Http2 { sender: sender.clone(), _users: Arc::clone(users) }),
            None => shelf.idle.pop().map(|(_, sender)| Line::Http1(sender)),
        };
        (line, shelf.known.clone(), Arc::clone(&shelf.making))
    }

    fn leased(&self, place: Place, line: Line, kept: bool) -> Lease {
        Lease { pool: self.clone(), place, line, kept }
    }

    fn shelves(&self) -> MutexGuard<'_, HashMap<Place, Shelf>> {
        self.shelves.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shelf {
    fn tidy(&mut self) {
        self.idle.retain(|(since, sender)| since.elapsed() < IDLE && !sender.is_closed());
        self.shared.retain(|(sender, _)| !sender.is_closed());
    }
}

impl Lease {
    pub(super) fn h2(&self) -> bool {
        matches!(self.line, Line::Http2 { .. })
    }

    /// The request comes back in the error if it was certainly not sent.
    pub(super) async fn send(
        &mut self,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, TrySendError<Request<Full<Bytes>>>> {
        match &mut self.line {
            Line::Http1(sender) => sender.try_send_request(request).await,
            Line::Http2 { sender, .. } => sender.try_send_request(request).await,
        }
    }

    /// After the answer was read to its end.
    pub(super) async fn give_back(self) {
        let Line::Http1(mut sender) = self.line else { return };
        if sender.ready().await.is_err() {
            return;
        }
        let mut shelves = self.pool.shelves();
        let shelf = shelves.entry(self.place).or_default();
        shelf.tidy();
        if shelf.idle.len() < KEPT {
            shelf.idle.push((Instant::now(), sender));
        }
    }
}
