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
use sandbar_policy::{Host, TunnelOptions};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::TcpStream,
};
use tokio_util::io::poll_read_buf;

use crate::{
    client::Client,
    facts::{Record, Traffic},
    first::{First, Unheard, agrees, first, is_http},
    gate::Pulse,
    hello::LIMIT,
    refusal::place,
    request_line::RequestLine,
};

const CHUNK: usize = 64 * 1024;
/// For the rest of a line that may become a request: who has sent a word and waits for the server speaks another protocol.
const GRACE: Duration = Duration::from_secs(1);
const NO_TLS: &str = "its first bytes are no TLS, which port 443 is for";
/// A fatal alert, unrecognized_name: what TLS clients show their users when the name is refused.
pub(crate) const UNRECOGNIZED_NAME: [u8; 7] = [21, 3, 3, 0, 2, 2, 112];

/// How the client's first bytes are judged.
pub(crate) struct Screen<'h> {
    pub(crate) host: &'h Host,
    pub(crate) port: u16,
    /// For the greeting.
    pub(crate) patience: Duration,
    /// A secret may go to this host: TLS, which could carry it, is handed back to be terminated.
    pub(crate) secret: bool,
    /// As the rules say.
    pub(crate) options: TunnelOptions,
}

/// How a client's bytes are passed on.
#[derive(Debug, PartialEq, Eq)]
enum Sight {
    Unseen,
    /// As long as no request begins among them.
    Guarded,
    /// The same; and their first line is not whole yet.
    FirstLine,
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
        let TunnelOptions { ech, raw } = self.options;
        // what the two ports are for, unless a rule says that it is something else
        let (https, http) = (self.port == 443 && !raw, self.port == 80 && !raw);
        let grace = (!http).then_some(GRACE);
        let first = match first(client, ahead, self.patience, grace, https).await {
            Ok(first) => first,
            Err(Unheard::Gone) if ahead.is_empty() || raw => return Ok(Sight::Unseen),
            Err(Unheard::Io(error)) => return Err(Stop::Io(error)),
            Err(error) => return Err(Stop::Denied(error.to_string())),
        };
        match &first {
            First::Tls { sni, ech: has_ech } => {
                // who connects to another port by an address's name may well leave it out
                if sni.is_some() || self.port == 443 || self.secret {
                    agrees(self.host, sni.as_deref()).map_err(Stop::Denied)?;
                }
                if self.secret {
                    return Err(Stop::Terminate(first));
                }
                if *has_ech && !ech {
                    return Err(Stop::Denied(self.encrypted()));
                }
                // a server that expects no TLS takes the greeting for a line, and what follows for requests
                Ok(if self.port == 443 || raw { Sight::Unseen } else { Sight::Guarded })
            }
            First::Http if self.port == 443 => Err(Stop::Denied(NO_TLS.into())),
            _ if https => Err(Stop::Denied(NO_TLS.into())),
            // its Host may be another one's, so that each request is judged
            First::Http => Err(Stop::Terminate(first)),
            _ if raw => Ok(Sight::Unseen),
            _ if http => Err(Stop::Denied(format!(
                "its first line is no request, which port 80 is for; a rule `{} raw` lets other protocols pass",
                self.place()
            ))),
            First::Unsaid => Ok(Sight::FirstLine),
            First::Other => Ok(Sight::Guarded),
        }
    }

    /// Real and made-up ECH cannot be told apart, by design, so both are refused.
    fn encrypted(&self) -> String {
        let place = place(self.host, self.port);
        format!(
            "part of its TLS greeting is encrypted (ECH) and may ask for another server than {place}; turn ECH off in the \
             program, allow it with the rule `{place} ech`, or have TLS terminated with the rule `{place} /**`"
        )
    }

    /// What begins in the middle of a tunnel was judged by nobody, whatever Host it has.
    fn late(&self) -> Stop {
        let place = self.place();
        Stop::Denied(format!(
            "a request began in the middle of it, which is not judged there; a rule `{place} raw` lets all bytes pass"
        ))
    }

    /// For a rule about this port alone.
    fn place(&self) -> String {
        format!("{}:{}", place(self.host, 443), self.port)
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
        let mut line = RequestLine::default();
        let mut guard = |bytes: &[u8]| match sight {
            Sight::Guarded | Sight::FirstLine if line.ends_in(bytes) => Err(screen.late()),
            _ => Ok(()),
        };
        guard(ahead)?;
        // before, it is not known whether it stays a tunnel
        record.opened();
        send(&mut server_write, ahead, &traffic.sent, pulse).await?;
        if sight == Sight::FirstLine {
            watch(&mut client_read, &mut server_write, ahead, &mut guard, traffic, pulse).await?;
        }
        *ahead = BytesMut::new();
        pump(client_read, server_write, &traffic.sent, pulse, guard).await
    };
    let down = pump(server_read, client_write, &traffic.received, pulse, |_| Ok(()));
    tokio::try_join!(up, down).map(|_| ())
}

/// Passes on the rest of a first line, but never what would make a request of it: it is too late to judge that.
async fn watch(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    line: &mut BytesMut,
    guard: &mut impl FnMut(&[u8]) -> Result<(), Stop>,
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
        guard(&line[passed..])?;
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

/// One direction, until its end, which is passed on, or until `guard` objects to what would be passed on next.
async fn pump<E: From<io::Error>>(
    from: impl AsyncRead,
    to: impl AsyncWrite,
    count: &AtomicU64,
    pulse: &Pulse,
    mut guard: impl FnMut(&[u8]) -> Result<(), E>,
) -> Result<(), E> {
    let (mut from, mut to) = (pin!(from), pin!(to));
    let mut kept = None;
    loop {
        let buffer = read(from.as_mut(), &mut kept).await?;
        if buffer.is_empty() {
            return Ok(to.shutdown().await?);
        }
        guard(&buffer)?;
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
    let up = pump(client_read, server_write, &traffic.sent, pulse, |_| io::Result::Ok(()));
    let down = pump(server_read, client_write, &traffic.received, pulse, |_| Ok(()));
    tokio::try_join!(up, down).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn judged(port: u16, options: TunnelOptions, mut said: &[u8]) -> Result<Sight, String> {
        let host = Host::Name("a.example".into());
        let screen = Screen { host: &host, port, patience: Duration::from_secs(30), secret: false, options };
        screen.judge(&mut said, &mut BytesMut::new()).await.map_err(|stop| match stop {
            Stop::Denied(cause) => cause,
            stop => format!("{stop:?}"),
        })
    }

    #[tokio::test(start_paused = true)]
    async fn the_ports_of_http_are_for_http_unless_a_rule_says_otherwise() {
        let raw = TunnelOptions { raw: true, ech: false };
        for (port, says) in [(80, "port 80 is for; a rule `a.example:80 raw`"), (443, "port 443 is for")] {
            for said in [&b"SSH-2.0-x\r\n"[..], b"\0\0\0\x08", b"junk\r\nGET / HTTP/1.1\r\nHost: b.example\r\n\r\n"] {
                let told = judged(port, TunnelOptions::default(), said).await;
                assert!(told.as_ref().is_err_and(|told| told.contains(says)), "{port}: {told:?}");
                assert_eq!(judged(port, raw, said).await, Ok(Sight::Unseen));
            }
        }
        assert_eq!(judged(22, TunnelOptions::default(), b"SSH-2.0-x\r\n").await, Ok(Sight::Guarded));
        assert_eq!(judged(22, raw, b"SSH-2.0-x\r\n").await, Ok(Sight::Unseen));
    }

    #[tokio::test(start_paused = true)]
    async fn raw_is_about_neither_http_nor_tls() {
        let raw = TunnelOptions { raw: true, ech: false };
        for port in [80, 8080] {
            let told = judged(port, raw, b"GET / HTTP/1.1\r\n\r\n").await;
            assert_eq!(told, Err("Terminate(Http)".into()), "requests are judged all the same");
        }
        assert!(judged(8443, raw, b"\x16\x03\x01\0\x04\x02\0\0\0").await.is_err(), "no greeting is no greeting");
    }
}
