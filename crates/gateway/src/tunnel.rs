//! Tunnels: bytes both ways, unseen but for the first ones of the client, which must not ask for another server than the
//! one that was allowed.

use std::{
    io,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use bytes::BytesMut;
use sandbar_policy::Host;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::{
        TcpStream,
        tcp::{ReadHalf, WriteHalf},
    },
};

use crate::{
    facts::Traffic,
    gate::Pulse,
    hello::{LIMIT, Peek, peek},
};

const CHUNK: usize = 64 * 1024;
/// A fatal alert, unrecognized_name: what TLS clients show their users when the name is refused.
pub(crate) const UNRECOGNIZED_NAME: [u8; 7] = [21, 3, 3, 0, 2, 2, 112];

/// What the client's first bytes are.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum First {
    Tls {
        sni: Option<String>,
    },
    /// A method and a blank.
    Http,
    Other,
}

/// Why a client is not heard.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unheard {
    #[error("its first bytes are no TLS that can be judged")]
    Malformed,
    #[error("its TLS greeting did not come in time")]
    Timeout,
    #[error("the connection ended before its first bytes")]
    Gone,
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Reads until the first bytes can be told. `buffer` keeps them. What looks like TLS has to be whole within `patience`;
/// before the first byte there is only a limit if `hurry`.
pub(crate) async fn first(
    client: &mut (impl AsyncRead + Unpin),
    buffer: &mut BytesMut,
    patience: Duration,
    hurry: bool,
) -> Result<First, Unheard> {
    if buffer.is_empty() {
        let read = async { client.read_buf(buffer).await };
        let count = if hurry {
            tokio::time::timeout(patience, read).await.map_err(|_| Unheard::Timeout)??
        } else {
            read.await?
        };
        if count == 0 {
            return Err(Unheard::Gone);
        }
    }
    let told = async {
        loop {
            match peek(buffer) {
                Peek::Hello { sni } => return Ok(First::Tls { sni }),
                Peek::NotTls => return Ok(if is_http(buffer) { First::Http } else { First::Other }),
                Peek::NeedMore if buffer.len() < LIMIT => {
                    buffer.reserve(2048);
                    if client.read_buf(buffer).await? == 0 {
                        return Err(Unheard::Gone);
                    }
                }
                Peek::NeedMore | Peek::Malformed => return Err(Unheard::Malformed),
            }
        }
    };
    tokio::time::timeout(patience, told).await.map_err(|_| Unheard::Timeout)?
}

/// Enough to tell HTTP from what else begins with letters: a known method, or HTTP/2's preface.
fn is_http(bytes: &[u8]) -> bool {
    const METHODS: [&[u8]; 10] =
        [b"GET ", b"HEAD ", b"POST ", b"PUT ", b"DELETE ", b"OPTIONS ", b"PATCH ", b"TRACE ", b"CONNECT ", b"PRI "];
    METHODS.iter().any(|method| bytes.starts_with(method) || (bytes.len() < method.len() && method.starts_with(bytes)))
}

/// Whether a greeting asks for the host that was allowed; else why it does not.
pub(crate) fn agrees(host: &Host, sni: Option<&str>) -> Result<(), String> {
    match (host, sni) {
        (Host::Ip(_), None) => Ok(()),
        (_, None) => Err(format!("the TLS greeting names no server, and {host} was asked for")),
        (_, Some(name)) if Host::parse(name).as_ref() == Ok(host) => Ok(()),
        (_, Some(name)) => {
            Err(format!("the TLS greeting asks for `{}`, and {host} was asked for", name.escape_debug()))
        }
    }
}

/// How the client's first bytes are judged.
pub(crate) struct Screen<'h> {
    pub(crate) host: &'h Host,
    pub(crate) port: u16,
    /// For the greeting.
    pub(crate) patience: Duration,
    /// A secret may go to this host: what could carry it is handed back to be terminated.
    pub(crate) secret: bool,
}

/// Why a tunnel ended before its time.
#[derive(Debug)]
pub(crate) enum Stop {
    Io(io::Error),
    Denied(String),
    Terminate(First),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl Screen<'_> {
    /// Whether what follows may be copied unseen.
    async fn judge(&self, client: &mut (impl AsyncRead + Unpin), ahead: &mut BytesMut) -> Result<(), Stop> {
        let https = self.port == 443;
        let first = match first(client, ahead, self.patience, https).await {
            Ok(first) => first,
            Err(Unheard::Gone) if ahead.is_empty() => return Ok(()),
            Err(Unheard::Io(error)) => return Err(Stop::Io(error)),
            Err(error) => return Err(Stop::Denied(error.to_string())),
        };
        match &first {
            First::Tls { sni } => {
                // who connects to another port by an address's name may well leave it out
                if sni.is_some() || https || self.secret {
                    agrees(self.host, sni.as_deref()).map_err(Stop::Denied)?;
                }
                if self.secret { Err(Stop::Terminate(first)) } else { Ok(()) }
            }
            _ if https => Err(Stop::Denied("its first bytes are no TLS, which port 443 is for".into())),
            First::Http if self.secret => Err(Stop::Terminate(first)),
            First::Http | First::Other => Ok(()),
        }
    }
}

/// Copies both ways until both are done; the server may speak first. Half-closed connections stay half-open. `ahead` is
/// what the client has sent already, and keeps what was not passed on.
pub(crate) async fn relay(
    client: &mut TcpStream,
    server: &mut TcpStream,
    ahead: &mut BytesMut,
    screen: &Screen<'_>,
    traffic: &Traffic,
    pulse: &Pulse,
) -> Result<(), Stop> {
    let (mut client_read, client_write) = client.split();
    let (server_read, mut server_write) = server.split();
    let up = async {
        screen.judge(&mut client_read, ahead).await?;
        send(&mut server_write, ahead, &traffic.sent, pulse).await?;
        *ahead = BytesMut::new();
        pump(client_read, server_write, &traffic.sent, pulse).await.map_err(Stop::Io)
    };
    let down = async { pump(server_read, client_write, &traffic.received, pulse).await.map_err(Stop::Io) };
    tokio::try_join!(up, down).map(|_| ())
}

async fn send(to: &mut (impl AsyncWrite + Unpin), bytes: &[u8], count: &AtomicU64, pulse: &Pulse) -> io::Result<()> {
    if bytes.is_empty() {
        return Ok(());
    }
    to.write_all(bytes).await?;
    count.fetch_add(bytes.len() as u64, Ordering::Relaxed);
    pulse.beat(bytes.len());
    Ok(())
}

/// One direction. The buffer exists only while there is something to copy, so that a silent connection holds none.
pub(crate) async fn pump(
    from: ReadHalf<'_>,
    mut to: WriteHalf<'_>,
    count: &AtomicU64,
    pulse: &Pulse,
) -> io::Result<()> {
    loop {
        from.readable().await?;
        let mut buffer = Vec::with_capacity(CHUNK);
        loop {
            match from.try_read_buf(&mut buffer) {
                Ok(0) => return to.shutdown().await,
                Ok(_) => send(&mut to, &buffer, count, pulse).await?,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
            buffer.clear();
        }
    }
}

/// The same for connections that are no sockets, such as upgraded requests.
pub(crate) async fn bridge(
    client: impl AsyncRead + AsyncWrite,
    server: impl AsyncRead + AsyncWrite,
    traffic: &Traffic,
    pulse: &Pulse,
) -> io::Result<()> {
    let (client_read, client_write) = tokio::io::split(client);
    let (server_read, server_write) = tokio::io::split(server);
    let up = copy(client_read, server_write, &traffic.sent, pulse);
    let down = copy(server_read, client_write, &traffic.received, pulse);
    tokio::try_join!(up, down).map(|_| ())
}

async fn copy(from: impl AsyncRead, to: impl AsyncWrite, count: &AtomicU64, pulse: &Pulse) -> io::Result<()> {
    let (mut from, mut to) = (std::pin::pin!(from), std::pin::pin!(to));
    let mut buffer = BytesMut::with_capacity(CHUNK / 8);
    loop {
        if from.read_buf(&mut buffer).await? == 0 {
            return to.shutdown().await;
        }
        send(&mut to, &buffer, count, pulse).await?;
        to.flush().await?;
        buffer.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn http_is_told_from_other_letters() {
        for bytes in [&b"GET / HTTP/1.1"[..], b"POST /x", b"PRI * HTTP/2.0", b"DEL"] {
            assert!(is_http(bytes));
        }
        for bytes in [&b"SSH-2.0-OpenSSH"[..], b"GETTING", b"\x00\x01", b"EHLO example.org"] {
            assert!(!is_http(bytes));
        }
    }

    #[test]
    fn a_greeting_has_to_agree() {
        let name = Host::Name("example.org".into());
        let address = Host::Ip([192, 0, 2, 1].into());
        assert!(agrees(&name, Some("EXAMPLE.org")).is_ok());
        assert!(agrees(&address, None).is_ok());
        assert!(agrees(&name, None).is_err());
        assert!(agrees(&name, Some("www.example.org")).is_err());
        assert!(agrees(&address, Some("example.org")).is_err());
        assert!(agrees(&name, Some("example.org\0.evil")).is_err());
    }
}
