//! A client's connection, and where it comes from: a listener in the sandbox's network or, where there can be none, whoever
//! carries connections from there.

use std::{
    fmt, io,
    net::{Ipv4Addr, SocketAddr},
    pin::Pin,
    task::{Context, Poll},
};

use futures_util::{Stream, StreamExt as _};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
};

use crate::sockets::{Busy, Share, Socket};

trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

type Carried = Box<dyn Duplex>;

/// What a gate serves. Whoever comes in by it is the sandbox's.
pub struct Entrance(Kind);

enum Kind {
    Listener(TcpListener),
    Carried { port: u16, connections: Pin<Box<dyn Stream<Item = Carried> + Send>>, over: bool },
}

impl Entrance {
    /// Connections that are carried here. Clients inside find the gate at this port of their loopback.
    pub fn carried<C>(port: u16, connections: impl Stream<Item = C> + Send + 'static) -> Self
    where
        C: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let connections = Box::pin(connections.map(|connection| Box::new(connection) as Carried));
        Self(Kind::Carried { port, connections, over: false })
    }

    /// The next client. Given up, it loses none.
    pub(crate) async fn accept(&mut self) -> io::Result<Client> {
        match &mut self.0 {
            Kind::Listener(listener) => listener.accept().await.map(|(stream, _)| Client(Wire::Socket(stream))),
            Kind::Carried { over: true, .. } => std::future::pending().await,
            Kind::Carried { port, connections, over } => match connections.next().await {
                Some(carried) => Ok(Client(Wire::Carried { carried, port: *port })),
                None => {
                    *over = true;
                    Err(io::Error::new(io::ErrorKind::UnexpectedEof, "nobody carries connections here any more"))
                }
            },
        }
    }
}

impl From<TcpListener> for Entrance {
    fn from(listener: TcpListener) -> Self {
        Self(Kind::Listener(listener))
    }
}

impl fmt::Debug for Entrance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Listener(listener) => f.debug_tuple("Listener").field(listener).finish(),
            Kind::Carried { port, .. } => f.debug_tuple("Carried").field(port).finish(),
        }
    }
}

pub(crate) struct Client(Wire);

enum Wire {
    Socket(TcpStream),
    Carried { carried: Carried, port: u16 },
}

impl Client {
    /// Where it was accepted, as it sees it. Answers leave at once from then on, as carried ones do anyway.
    pub(crate) fn accepted_at(&self) -> io::Result<SocketAddr> {
        match &self.0 {
            Wire::Socket(stream) => stream.set_nodelay(true).and_then(|()| stream.local_addr()),
            Wire::Carried { port, .. } => Ok((Ipv4Addr::LOCALHOST, *port).into()),
        }
    }

    /// Waits for room among the clients of its gate.
    pub(crate) fn place<'s>(&self, share: &'s Share) -> impl Future<Output = Result<Socket, Busy>> + use<'s> {
        let is_socket = matches!(self.0, Wire::Socket(_));
        async move { if is_socket { share.client().await } else { share.carried().await } }
    }
}

impl AsyncRead for Client {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match &mut self.0 {
            Wire::Socket(stream) => Pin::new(stream).poll_read(cx, buf),
            Wire::Carried { carried, .. } => Pin::new(carried).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Client {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.0 {
            Wire::Socket(stream) => Pin::new(stream).poll_write(cx, bytes),
            Wire::Carried { carried, .. } => Pin::new(carried).poll_write(cx, bytes),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.0 {
            Wire::Socket(stream) => Pin::new(stream).poll_flush(cx),
            Wire::Carried { carried, .. } => Pin::new(carried).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.0 {
            Wire::Socket(stream) => Pin::new(stream).poll_shutdown(cx),
            Wire::Carried { carried, .. } => Pin::new(carried).poll_shutdown(cx),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.0 {
            Wire::Socket(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Wire::Carried { carried, .. } => Pin::new(carried).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match &self.0 {
            Wire::Socket(stream) => stream.is_write_vectored(),
            Wire::Carried { carried, .. } => carried.is_write_vectored(),
        }
    }
}
