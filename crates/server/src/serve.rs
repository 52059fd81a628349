//! Accept loops and connections: who is let in, how long a silent peer is waited for, and how all of it ends.

use std::{
    convert::Infallible,
    future::pending,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::{Router, body::Body, extract::Request};
use hyper::body::Incoming;
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::{
        conn::auto::Builder,
        graceful::{GracefulShutdown, Watcher},
    },
    service::TowerToHyperService,
};
use rustix::net::sockopt;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream, UnixStream},
    task::JoinSet,
    time::{Sleep, sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tower::Service as _;

use crate::{
    Server,
    access::Channel,
    bind::Entrance,
    certificate::Certificate,
    slots::{Connection, Shares, Slot, Slots},
};

/// For a TLS handshake and the first bytes of a connection.
const PATIENCE: Duration = Duration::from_secs(10);
/// For the next HTTP/1 request on a connection, from the end of the answer before to the end of its head. Hyper has one
/// clock for both the idle time and the head; clients that keep connections expect them to last about this long.
const NEXT_REQUEST: Duration = Duration::from_secs(75);
/// Of silence, after which a TCP peer is asked for a sign of life.
const KEEPALIVE: Duration = Duration::from_secs(60);
/// For requests under way when the server shuts down.
const GRACE: Duration = Duration::from_secs(5);
const GRACE_STEPS: u32 = 5;
/// One chunk of output or of a file: more would wait in memory for a slow reader. Also bounds a request's head.
const BUFFER: usize = 64 * 1024;
/// Enough for a file transfer at the speed of a local disk.
const WINDOW: u32 = 1024 * 1024;
/// Of all requests of an HTTP/2 connection together: some that are not read on must not stop the others.
const SHARED_WINDOW: u32 = 16 * WINDOW;
/// At a time, on one HTTP/2 connection.
const MAX_STREAMS: u32 = 200;

impl Server {
    /// Answers until `shutdown`; then stops accepting, ends event streams, and waits a little for other requests.
    pub async fn serve(self, shutdown: CancellationToken) -> Result<(), io::Error> {
        let Self { tcp, socket, socket_path, router, app } = self;
        let (listener, tls) = match tcp {
            Some(Entrance { listener, tls, .. }) => (Some(listener), tls),
            None => (None, None),
        };
        let graceful = GracefulShutdown::new();
        let mut connections = JoinSet::new();
        // Descriptors are shared with the sandboxes' connections; the owner's socket is not counted.
        let slots = Slots::new(Shares::here());
        loop {
            tokio::select! {
                () = shutdown.cancelled() => break,
                Some(ended) = connections.join_next() => {
                    if let Err(error) = ended {
                        tracing::error!(%error, "a connection's task failed");
                    }
                }
                () = slots.freed.notified() => {}
                accepted = accept(listener.as_ref()), if slots.has_room() => match accepted {
                    Ok(stream) => {
                        let (tls, router, watcher) = (tls.clone(), router.clone(), graceful.watcher());
                        let slot = slots.take();
                        connections.spawn(async move {
                            let needed = slot.clone();
                            tokio::select! {
                                () = entered(stream, tls, slot, router, watcher) => {}
                                () = needed.ended() => tracing::debug!("closed a connection that showed no token"),
                            }
                        });
                    }
                    Err(error) => breathe(&error).await,
                },
                accepted = socket.accept() => match accepted {
                    Ok((stream, _)) if is_owner(&stream) => {
                        connections.spawn(connection(stream, Channel::Socket, None, router.clone(), graceful.watcher()));
                    }
                    Ok(_) => tracing::warn!("refused another user on the Unix socket"),
                    Err(error) => breathe(&error).await,
                },
            }
        }
        drop((listener, socket));
        let removed = std::fs::remove_file(&socket_path);
        app.closing.cancel();
        app.sockets.close();
        let ended = async { tokio::join!(graceful.shutdown(), app.sockets.wait()) };
        tokio::select! {
            biased;
            _ = ended => {}
            () = grace() => {
                tracing::warn!("requests were still under way after {} s and are broken off", GRACE.as_secs());
            }
        }
        connections.shutdown().await;
        match removed {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

/// In steps: for a process that stood still the longest time is one of them, and its requests have the others.
async fn grace() {
    for _ in 0..GRACE_STEPS {
        sleep(GRACE / GRACE_STEPS).await;
    }
}

async fn accept(listener: Option<&TcpListener>) -> io::Result<TcpStream> {
    match listener {
        Some(listener) => {
            let (stream, _) = listener.accept().await?;
            // Answers and frames are written whole; waiting to merge them only adds latency.
            stream.set_nodelay(true)?;
            // A connection to a port has no pings of its own; the kernel asks whether its peer is still there.
            sockopt::set_socket_keepalive(&stream, true)?;
            sockopt::set_tcp_keepidle(&stream, KEEPALIVE)?;
            sockopt::set_tcp_keepintvl(&stream, KEEPALIVE)?;
            Ok(stream)
        }
        None => pending().await,
    }
}

/// Out of descriptors, most likely: accepting again at once would spin.
async fn breathe(error: &io::Error) {
    tracing::warn!(%error, "cannot accept a connection");
    sleep(Duration::from_millis(100)).await;
}

/// The socket's mode already keeps others out; this holds when somebody loosened it. Root can do everything anyway.
fn is_owner(stream: &UnixStream) -> bool {
    let own = rustix::process::geteuid().as_raw();
    stream.peer_cred().is_ok_and(|peer| peer.uid() == own || peer.uid() == 0)
}

async fn entered(stream: TcpStream, tls: Option<Arc<Certificate>>, slot: Arc<Slot>, router: Router, watcher: Watcher) {
    match tls {
        None => connection(stream, Channel::Tcp, Some(slot), router, watcher).await,
        Some(tls) => match timeout(PATIENCE, tls.acceptor().accept(stream)).await {
            Ok(Ok(stream)) => connection(stream, Channel::Tcp, Some(slot), router, watcher).await,
            Ok(Err(error)) => tracing::debug!(%error, "TLS handshake failed"),
            Err(_) => tracing::debug!("TLS handshake took too long"),
        },
    }
}

pub(crate) async fn connection<T>(
    stream: T,
    channel: Channel,
    slot: Option<Arc<Slot>>,
    router: Router,
    watcher: Watcher,
) where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let counted = slot.as_ref().map(Connection::of);
    let service = tower::service_fn(move |mut request: hyper::Request<Incoming>| {
        request.extensions_mut().insert(channel);
        if let Some(counted) = &counted {
            request.extensions_mut().insert(counted.clone());
        }
        let request: Request = request.map(Body::new);
        let answering: axum::routing::future::RouteFuture<Infallible> = router.clone().call(request);
        answering
    });
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(NEXT_REQUEST).max_buf_size(BUFFER);
    builder
        .http2()
        .timer(TokioTimer::new())
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(SHARED_WINDOW)
        .max_concurrent_streams(MAX_STREAMS)
        .max_send_buf_size(BUFFER)
        .keep_alive_interval(Duration::from_secs(30));
    let io = TokioIo::new(Opening::new(stream, slot));
    let serving = builder.serve_connection_with_upgrades(io, TowerToHyperService::new(service)).into_owned();
    if let Err(error) = watcher.watch(serving).await {
        tracing::debug!(error, "a connection ended early");
    }
}

/// Long enough to tell HTTP/1 from HTTP/2.
const OPENING_BYTES: usize = 24;

/// A stream that fails unless its first bytes come soon: hyper's own timeouts start when it knows the protocol.
struct Opening<T> {
    stream: T,
    /// Held as long as the stream, which outlives HTTP where the protocol is changed.
    _slot: Option<Arc<Slot>>,
    seen: usize,
    deadline: Pin<Box<Sleep>>,
}

impl<T> Opening<T> {
    fn new(stream: T, slot: Option<Arc<Slot>>) -> Self {
        Self { stream, _slot: slot, seen: 0, deadline: Box::pin(sleep(PATIENCE)) }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Opening<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        if self.seen < OPENING_BYTES && self.deadline.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        self.seen += buf.filled().len() - before;
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Opening<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_process_that_stood_still_has_grace_left() {
        let mut grace = std::pin::pin!(grace());
        assert!(timeout(Duration::ZERO, &mut grace).await.is_err());
        tokio::time::advance(GRACE * 10).await;
        assert!(timeout(GRACE / 2, &mut grace).await.is_err());
        assert!(timeout(GRACE, &mut grace).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_peer_is_not_waited_for() {
        let (mut peer, ours) = duplex(64);
        let mut stream = Opening::new(ours, None);
        peer.write_all(b"GET").await.unwrap_or_else(|error| panic!("{error}"));
        let mut buffer = [0; 64];
        assert_eq!(stream.read(&mut buffer).await.ok(), Some(3));
        assert_eq!(stream.read(&mut buffer).await.map_err(|error| error.kind()), Err(io::ErrorKind::TimedOut));
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_has_spoken_may_be_silent() {
        let (mut peer, ours) = duplex(64);
        let mut stream = Opening::new(ours, None);
        peer.write_all(&[b'x'; OPENING_BYTES]).await.unwrap_or_else(|error| panic!("{error}"));
        let mut buffer = [0; 64];
        assert_eq!(stream.read(&mut buffer).await.ok(), Some(OPENING_BYTES));
        let silent = timeout(PATIENCE * 10, stream.read(&mut buffer)).await;
        assert!(silent.is_err());
    }
}
