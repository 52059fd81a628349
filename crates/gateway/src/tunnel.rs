//! Tunnels: bytes both ways, unseen but for the first ones of the client, which must not ask for another server than the
//! one that was allowed.

use std::{
    future::poll_fn,
    io,
    pin::{Pin, pin},
    sync::atomic::{AtomicU64, Ordering},
    task::{Poll, ready},
    time::Duration,
};

use bytes::BytesMut;
use sandbar_policy::Host;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::TcpStream,
};
use tokio_util::io::poll_read_buf;

use crate::{
    client::Client,
    facts::{Record, Traffic},
    gate::Pulse,
    hello::{LIMIT, Peek, peek},
};

const CHUNK: usize = 64 * 1024;
/// For the rest of a line that may become a request: who has sent a word and waits for the server speaks another protocol.
const GRACE: Duration = Duration::from_secs(1);
/// What HTTP/2 begins with where nothing was agreed on before.
pub(crate) const HTTP2: &[u8] = b"PRI * HTTP/2.0\r\n";
/// A fatal alert, unrecognized_name: what TLS clients show their users when the name is refused.
pub(crate) const UNRECOGNIZED_NAME: [u8; 7] = [21, 3, 3, 0, 2, 2, 112];

/// What the client's first bytes are.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum First {
    Tls {
        sni: Option<String>,
    },
    /// The first line of a request.
    Http,
    /// The beginning of a line, and no more of it for a while.
    Unsaid,
    Other,
}

/// Why a client is not heard.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unheard {
    #[error("its first bytes are nothing that can be judged")]
    Malformed,
    #[error("its greeting did not come in time")]
    Timeout,
    #[error("the connection ended before its first bytes")]
    Gone,
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Reads until the first bytes can be told. `buffer` keeps them. What looks like TLS or may become a request has to be
/// whole within `patience`, and the latter be gone on with within `grace`, if there is one. Before the first byte there
/// is only a limit if `hurry`.
pub(crate) async fn first(
    client: &mut (impl AsyncRead + Unpin),
    buffer: &mut BytesMut,
    patience: Duration,
    grace: Option<Duration>,
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
            let mut most = None;
            match peek(buffer) {
                Peek::Hello { sni } => return Ok(First::Tls { sni }),
                Peek::NotTls => match is_http(buffer) {
                    Some(true) => return Ok(First::Http),
                    Some(false) => return Ok(First::Other),
                    None => most = grace,
                },
                Peek::NeedMore => {}
                Peek::Malformed => return Err(Unheard::Malformed),
            }
            if buffer.len() >= LIMIT {
                return Err(Unheard::Malformed);
            }
            buffer.reserve(2048);
            let read = client.read_buf(buffer);
            let count = match most {
                Some(most) => match tokio::time::timeout(most, read).await {
                    Ok(count) => count?,
                    Err(_) => return Ok(First::Unsaid),
                },
                None => read.await?,
            };
            if count == 0 {
                return Err(Unheard::Gone);
            }
        }
    };
    tokio::time::timeout(patience, told).await.map_err(|_| Unheard::Timeout)?
}

/// Whether a request begins here, of any method and as leniently as some server might read it; nothing while its first
/// line is not whole. What other protocols begin with has no `HTTP/` in its first line, or is no line.
fn is_http(bytes: &[u8]) -> Option<bool> {
    let line = bytes.trim_ascii_start();
    let (line, whole) = match line.iter().position(|byte| *byte == b'\n') {
        Some(end) => (&line[..end], true),
        None => (line, false),
    };
    if line.iter().any(|byte| byte.is_ascii_control() && !byte.is_ascii_whitespace()) {
        return Some(false);
    }
    let mut words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    let method = words.next().unwrap_or_default();
    if !method.iter().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte)) {
        return Some(false);
    }
    // HTTP/0.9 has no version
    let old = method == b"GET" && words.clone().next().is_some_and(|path| path.starts_with(b"/"));
    let versioned = |word: &[u8]| word.get(..5).is_some_and(|start| start.eq_ignore_ascii_case(b"HTTP/"));
    whole.then(|| old || words.any(versioned))
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
    /// A secret may go to this host: TLS, which could carry it, is handed back to be terminated.
    pub(crate) secret: bool,
}

/// How a client's bytes are passed on.
#[derive(Debug, PartialEq, Eq)]
enum Sight {
    Unseen,
    Watched,
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
    /// Whether what follows may be copied, unseen or only as long as it does not become a request.
    async fn judge(&self, client: &mut (impl AsyncRead + Unpin), ahead: &mut BytesMut) -> Result<Sight, Stop> {
        let https = self.port == 443;
        let first = match first(client, ahead, self.patience, Some(GRACE), https).await {
            Ok(first) => first,
            Err(Unheard::Gone) if ahead.is_empty() => return Ok(Sight::Unseen),
            Err(Unheard::Io(error)) => return Err(Stop::Io(error)),
            Err(error) => return Err(Stop::Denied(error.to_string())),
        };
        match &first {
            First::Tls { sni } => {
                // who connects to another port by an address's name may well leave it out
                if sni.is_some() || https || self.secret {
                    agrees(self.host, sni.as_deref()).map_err(Stop::Denied)?;
                }
                if self.secret { Err(Stop::Terminate(first)) } else { Ok(Sight::Unseen) }
            }
            _ if https => Err(Stop::Denied("its first bytes are no TLS, which port 443 is for".into())),
            // its Host may be another one's, so that each request is judged
            First::Http => Err(Stop::Terminate(first)),
            First::Unsaid => Ok(Sight::Watched),
            First::Other => Ok(Sight::Unseen),
        }
    }
}

/// Copies both ways until both are done; the server may speak first. Half-closed connections stay half-open. `ahead` is
/// what the client has sent already, and keeps what was not passed on.
pub(crate) async fn relay(
    client: &mut Client,
    server: &mut TcpStream,
    ahead: &mut BytesMut,
    screen: &Screen<'_>,
    record: &Record,
    pulse: &Pulse,
) -> Result<(), Stop> {
    let traffic = &record.traffic;
    let (mut client_read, client_write) = tokio::io::split(client);
    let (server_read, mut server_write) = server.split();
    let up = async {
        let sight = screen.judge(&mut client_read, ahead).await?;
        // before, it is not known whether it stays a tunnel
        record.opened();
        send(&mut server_write, ahead, &traffic.sent, pulse).await?;
        if sight == Sight::Watched {
            watch(&mut client_read, &mut server_write, ahead, traffic, pulse).await?;
        }
        *ahead = BytesMut::new();
        pump(client_read, server_write, &traffic.sent, pulse).await.map_err(Stop::Io)
    };
    let down = async { pump(server_read, client_write, &traffic.received, pulse).await.map_err(Stop::Io) };
    tokio::try_join!(up, down).map(|_| ())
}

/// Passes on the rest of a first line, but never what would make a request of it: it is too late to judge that.
async fn watch(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    line: &mut BytesMut,
    traffic: &Traffic,
    pulse: &Pulse,
) -> Result<(), Stop> {
    loop {
        let passed = line.len();
        line.reserve(2048);
        if from.read_buf(line).await? == 0 {
            return Ok(());
        }
        let told = is_http(line);
        if told == Some(true) || told.is_none() && line.len() >= LIMIT {
            return Err(Stop::Denied("its first line came in pieces, and would have become a request".into()));
        }
        send(to, &line[passed..], &traffic.sent, pulse).await?;
        if told == Some(false) {
            return Ok(());
        }
    }
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

/// One direction, until its end, which is passed on.
async fn pump(from: impl AsyncRead, to: impl AsyncWrite, count: &AtomicU64, pulse: &Pulse) -> io::Result<()> {
    let (mut from, mut to) = (pin!(from), pin!(to));
    let mut kept = None;
    loop {
        let buffer = read(from.as_mut(), &mut kept).await?;
        if buffer.is_empty() {
            return to.shutdown().await;
        }
        send(&mut to, &buffer, count, pulse).await?;
        to.flush().await?;
        kept = Some(buffer);
    }
}

/// A buffer exists only while there is something to read, so that a silent connection holds none.
async fn read(mut from: Pin<&mut impl AsyncRead>, kept: &mut Option<BytesMut>) -> io::Result<BytesMut> {
    poll_fn(|cx| {
        let mut buffer = kept.take().unwrap_or_else(|| BytesMut::with_capacity(CHUNK));
        buffer.clear();
        ready!(poll_read_buf(from.as_mut(), cx, &mut buffer))?;
        Poll::Ready(Ok(buffer))
    })
    .await
}

/// The same for what was never judged as a tunnel, such as upgraded requests.
pub(crate) async fn bridge(
    client: impl AsyncRead + AsyncWrite,
    server: impl AsyncRead + AsyncWrite,
    traffic: &Traffic,
    pulse: &Pulse,
) -> io::Result<()> {
    let (client_read, client_write) = tokio::io::split(client);
    let (server_read, server_write) = tokio::io::split(server);
    let up = pump(client_read, server_write, &traffic.sent, pulse);
    let down = pump(server_read, client_write, &traffic.received, pulse);
    tokio::try_join!(up, down).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn http_is_told_from_other_letters() {
        for line in [
            "GET / HTTP/1.1\r\nHost: x",
            "PRI * HTTP/2.0\r\n",
            "PROPFIND /x HTTP/1.1\n",
            "get\t/x  http/1.0\r\n",
            "\r\n\r\nGET / HTTP/1.1\r\n",
            "F00 / HTTP/1.1\rHost: x\r\n",
            "GET /old\r\n",
        ] {
            assert_eq!(is_http(line.as_bytes()), Some(true), "{line}");
            let whole = line.trim_start().find('\n').expect("a line") + line.len() - line.trim_start().len();
            for cut in 0..whole {
                assert_eq!(is_http(&line.as_bytes()[..cut]), None, "{line} cut at {cut} may become one");
            }
        }
        for line in [
            "SSH-2.0-OpenSSH_9.9\r\n",
            "EHLO example.org\r\n",
            "CONNECT {\"verbose\":false}\r\n",
            "*1\r\n$4\r\nPING\r\n",
            "GET key\r\n",
            "\0\u{1}",
            "AMQP\0\0\u{9}\u{1}",
            "{\"id\":1}",
            "\u{13}BitTorrent protocol",
        ] {
            assert_eq!(is_http(line.as_bytes()), Some(false), "{line}");
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
