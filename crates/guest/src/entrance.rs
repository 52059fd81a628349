//! Where the server comes in: a Unix socket that only it can reach, or a TCP port that anybody may reach and that opens
//! for whoever holds one of its keys.

use std::{
    io,
    os::{fd::OwnedFd, unix::net::UnixListener as StdListener},
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use futures_util::stream::{self, BoxStream, StreamExt as _};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpStream, UnixListener, UnixStream},
};
use tokio_rustls::server::TlsStream;
use tonic::transport::server::Connected;

use crate::tls;

pub enum Entrance {
    /// Listens outside the sandbox: whoever can open its path is the server.
    Unix(OwnedFd),
    /// Listens on TCP; the server proves by TLS 1.3 that it has the private part of one of the keys, which are given as
    /// DER of their SubjectPublicKeyInfo.
    Tls { listener: OwnedFd, server_keys: Vec<Vec<u8>> },
}

/// Accepting fails when descriptors run out, which passes.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

pub(crate) type Connections = BoxStream<'static, io::Result<Connection>>;

/// Nothing of TLS is touched for a Unix socket: an idle guest's memory is a promise.
pub(crate) fn connections(entrance: Entrance) -> io::Result<Connections> {
    match entrance {
        Entrance::Unix(listener) => {
            let listener = StdListener::from(listener);
            listener.set_nonblocking(true)?;
            Ok(local(UnixListener::from_std(listener)?).boxed())
        }
        Entrance::Tls { listener, server_keys } => Ok(tls::connections(listener, server_keys)?.boxed()),
    }
}

fn local(listener: UnixListener) -> impl stream::Stream<Item = io::Result<Connection>> {
    stream::unfold(listener, |listener| async {
        loop {
            match listener.accept().await {
                Ok((connection, _)) => return Some((Ok(Connection::Unix(connection)), listener)),
                Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
            }
        }
    })
}

/// One of the server's.
pub(crate) enum Connection {
    Unix(UnixStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Connected for Connection {
    type ConnectInfo = ();

    fn connect_info(&self) -> Self::ConnectInfo {}
}

impl AsyncRead for Connection {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Unix(stream) => Pin::new(stream).poll_read(context, buffer),
            Self::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Unix(stream) => Pin::new(stream).poll_write(context, data),
            Self::Tls(stream) => Pin::new(stream).poll_write(context, data),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Unix(stream) => Pin::new(stream).poll_flush(context),
            Self::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Unix(stream) => Pin::new(stream).poll_write_vectored(context, slices),
            Self::Tls(stream) => Pin::new(stream).poll_write_vectored(context, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Unix(stream) => stream.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
        }
    }
}
