//! What is outside: servers on loopback under made-up names that note every byte they get, the DNS server that knows these
//! names and notes every question, and the LLM vendor. None of them trusts the gate: what arrived is what got out.

use std::{
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::{TcpListener, UdpSocket},
};
use tokio_rustls::TlsAcceptor;

use crate::{roots::Roots, support::Outcome, upstream::Upstream};

/// All names of these attacks are below it.
const DOMAIN: &str = "out.test";
/// The operator listed no more than this: it stands for what is public.
const LISTED: Ipv4Addr = Ipv4Addr::LOCALHOST;
/// Stands for a private address, with a server that nobody must reach.
const HIDDEN: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

#[derive(Debug, Clone, Default)]
pub(crate) struct Connection {
    pub(crate) at: &'static str,
    pub(crate) raw: Vec<u8>,
    /// The heads of its requests, as a server that trusts nobody reads them.
    pub(crate) heads: Vec<String>,
}

type Log = Arc<Mutex<Vec<Connection>>>;

pub(crate) struct Outside {
    pub(crate) plain: u16,
    pub(crate) tls: u16,
    /// Shows a certificate for the same names that nobody trusts.
    pub(crate) forged: u16,
    pub(crate) dns: SocketAddr,
    pub(crate) upstream: Upstream,
    /// Port 443 of an address of its own, where this user may have it; as `https.out.test`.
    pub(crate) has_https: bool,
    roots: Roots,
    log: Log,
    asked: Arc<Mutex<Vec<String>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Not shared with another run on this machine.
fn https() -> Ipv4Addr {
    let [.., a, b] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, 43, a, b)
}

impl Outside {
    pub(crate) async fn open() -> Outcome<Self> {
        let roots = Roots::new()?;
        let mut config = (*roots.server(&format!("*.{DOMAIN}"))?).clone();
        // In HTTP/2 nothing could be read here.
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let log = Log::default();
        let (plain, hidden) = loop {
            let plain = TcpListener::bind((LISTED, 0)).await?;
            // The same port at another address, as a name that changes its mind would have it.
            if let Ok(hidden) = TcpListener::bind((HIDDEN, plain.local_addr()?.port())).await {
                break (plain, hidden);
            }
        };
        let tls = TcpListener::bind((LISTED, 0)).await?;
        let ports = (plain.local_addr()?.port(), tls.local_addr()?.port());
        tokio::spawn(serve(plain, "plain", None, log.clone()));
        tokio::spawn(serve(hidden, "hidden", None, log.clone()));
        tokio::spawn(serve(tls, "tls", Some(acceptor.clone()), log.clone()));
        let stranger = TlsAcceptor::from(Roots::new()?.server(&format!("*.{DOMAIN}"))?);
        let listener = TcpListener::bind((LISTED, 0)).await?;
        let forged = listener.local_addr()?.port();
        tokio::spawn(serve(listener, "forged", Some(stranger), log.clone()));
        let listener = TcpListener::bind((https(), 443)).await;
        let has_https = listener.is_ok();
        if let Ok(listener) = listener {
            tokio::spawn(serve(listener, "https", Some(acceptor), log.clone()));
        }
        let socket = UdpSocket::bind((LISTED, 0)).await?;
        let (dns, asked) = (socket.local_addr()?, Arc::<Mutex<Vec<String>>>::default());
        tokio::spawn(names(socket, asked.clone()));
        let upstream = Upstream::start(Some(&format!("llm.{DOMAIN}"))).await?;
        Ok(Self { plain: ports.0, tls: ports.1, forged, dns, upstream, has_https, roots, log, asked })
    }

    /// What the operator's server is told about all this.
    pub(crate) fn furnish(&self, home: &Path) -> Outcome {
        let certificate = self.upstream.certificate.as_deref().ok_or("no certificate")?;
        std::fs::write(home.join("outside.pem"), format!("{}{certificate}", self.roots.pem))?;
        let (dns, port) = (self.dns, self.upstream.address.port());
        let listed =
            if self.has_https { format!("\"{LISTED}/32\", \"{}/32\"", https()) } else { format!("\"{LISTED}/32\"") };
        let text = format!(
            r#"[network]
private = [{listed}]
dns = ["{dns}"]
roots = "outside.pem"

[upstream.vendor]
format = "openai"
url = "https://llm.{DOMAIN}:{port}/v1"
secret = "OPENAI_API_KEY"

[upstream.other]
format = "anthropic"
url = "https://llm.{DOMAIN}:{port}"
secret = "OPENAI_API_KEY"

[model.small]
upstream = "vendor"
max_output = 100
image_tokens = 100
input_usd = 1
output_usd = 2

[model.large]
upstream = "vendor"
max_output = 100000
input_usd = 100
output_usd = 200

[model.claude]
upstream = "other"
max_output = 100
input_usd = 3
output_usd = 15
"#
        );
        Ok(std::fs::write(home.join("gateway.toml"), text)?)
    }

    /// Whether it arrived anywhere, in a head, a body or a tunnel.
    pub(crate) fn saw(&self, word: &str) -> bool {
        lock(&self.log).iter().any(|one| one.raw.windows(word.len()).any(|window| window == word.as_bytes()))
    }

    /// Connections in which it arrived.
    pub(crate) fn with(&self, word: &str) -> Vec<Connection> {
        let has = |one: &&Connection| one.raw.windows(word.len()).any(|window| window == word.as_bytes());
        lock(&self.log).iter().filter(has).cloned().collect()
    }

    pub(crate) fn connections(&self, at: &str) -> usize {
        lock(&self.log).iter().filter(|one| one.at == at).count()
    }

    /// Names that were asked for, in order.
    pub(crate) fn asked(&self) -> Vec<String> {
        lock(&self.asked).clone()
    }
}

async fn serve(listener: TcpListener, at: &'static str, tls: Option<TlsAcceptor>, log: Log) {
    while let Ok((stream, _)) = listener.accept().await {
        let number = {
            let mut log = lock(&log);
            log.push(Connection { at, ..Connection::default() });
            log.len() - 1
        };
        let (tls, log) = (tls.clone(), log.clone());
        tokio::spawn(async move {
            let _over = match tls {
                None => converse(stream, number, &log).await,
                Some(tls) => {
                    // What is no TLS would be noted nowhere else.
                    let mut first = [0; 1024];
                    let count = stream.peek(&mut first).await.unwrap_or(0);
                    lock(&log)[number].raw.extend_from_slice(&first[..count]);
                    match tls.accept(stream).await {
                        Ok(stream) => converse(stream, number, &log).await,
                        Err(error) => Err(error),
                    }
                }
            };
        });
    }
}

/// Answers whatever it is asked, by its path; a tunnel through it swallows all.
async fn converse(mut stream: impl AsyncRead + AsyncWrite + Unpin, number: usize, log: &Log) -> std::io::Result<()> {
    let mut waiting = vec![];
    loop {
        let mut chunk = [0; 16 * 1024];
        let count = stream.read(&mut chunk).await?;
        if count == 0 {
            return Ok(());
        }
        lock(log)[number].raw.extend_from_slice(&chunk[..count]);
        waiting.extend_from_slice(&chunk[..count]);
        while let Some((head, end)) = request(&waiting) {
            waiting.drain(..end);
            lock(log)[number].heads.push(head.clone());
            let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
            if head.starts_with("CONNECT ") {
                stream.write_all(b"HTTP/1.1 200 Connected\r\n\r\n").await?;
                continue;
            }
            if path.contains("/endless") {
                stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").await?;
                loop {
                    stream.write_all(b"1000\r\n").await?;
                    stream.write_all(&[b'x'; 0x1000]).await?;
                    stream.write_all(b"\r\n").await?;
                }
            }
            let more = match path.split_once("/to=") {
                Some((_, to)) => format!("HTTP/1.1 302 Found\r\nLocation: {to}\r\n"),
                None => "HTTP/1.1 200 OK\r\n".to_owned(),
            };
            let body = format!("arrived {path}\n");
            stream.write_all(format!("{more}Content-Length: {}\r\n\r\n{body}", body.len()).as_bytes()).await?;
        }
    }
}

/// The first request that is whole: its head, and where it ends.
fn request(bytes: &[u8]) -> Option<(String, usize)> {
    let start = bytes.windows(4).position(|window| window == b"\r\n\r\n")? + 4;
    let head = String::from_utf8_lossy(&bytes[..start]).into_owned();
    let field = |name: &str| {
        let found = head.lines().find(|line| line.to_ascii_lowercase().starts_with(name))?;
        found.split_once(':').map(|(_, value)| value.trim().to_ascii_lowercase())
    };
    if field("transfer-encoding:").is_some_and(|value| value.contains("chunked")) {
        let mut at = start;
        loop {
            let line = bytes.get(at..)?.windows(2).position(|window| window == b"\r\n")?;
            let size = std::str::from_utf8(&bytes[at..at + line]).ok()?.split(';').next()?.trim();
            let size = usize::from_str_radix(size, 16).ok()?;
            at += line + 2 + size + 2;
            if bytes.len() < at {
                return None;
            }
            if size == 0 {
                return Some((head, at));
            }
        }
    }
    let length = field("content-length:").and_then(|value| value.parse().ok()).unwrap_or(0);
    (bytes.len() >= start + length).then_some((head, start + length))
}

/// What a name leads to; most lead to where the servers are.
fn answer(name: &str, turn: usize) -> Vec<Record> {
    let v4 = |a, b, c, d| Record::A(Ipv4Addr::new(a, b, c, d));
    let first = name.split('.').next().unwrap_or_default();
    match first {
        "https" => vec![Record::A(https())],
        "private" => vec![v4(10, 0, 0, 1)],
        "neighbour" => vec![Record::A(HIDDEN)],
        "metadata" => vec![v4(169, 254, 169, 254)],
        "unspecified" => vec![v4(0, 0, 0, 0)],
        "mixed" => vec![Record::A(LISTED), Record::A(HIDDEN)],
        "mixed-six" => vec![Record::A(LISTED), Record::Aaaa(Ipv6Addr::LOCALHOST)],
        "alias" => vec![Record::Cname(format!("neighbour.{DOMAIN}")), Record::A(HIDDEN)],
        "mapped" => vec![Record::Aaaa(HIDDEN.to_ipv6_mapped())],
        "nat64" => vec![Record::Aaaa(Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, 0x7f00, 2))],
        "loopback-six" => vec![Record::Aaaa(Ipv6Addr::LOCALHOST)],
        "rebind" if turn % 2 == 1 => vec![Record::A(HIDDEN)],
        _ => vec![Record::A(LISTED)],
    }
}

enum Record {
    A(Ipv4Addr),
    Aaaa(Ipv6Addr),
    Cname(String),
}

fn labels(name: &str) -> Vec<u8> {
    let label = |label: &str| [&[label.len() as u8][..], label.as_bytes()].concat();
    [name.split('.').flat_map(label).collect::<Vec<_>>(), vec![0]].concat()
}

async fn names(socket: UdpSocket, asked: Arc<Mutex<Vec<String>>>) {
    let (mut buffer, mut turn) = ([0; 1500], 0);
    while let Ok((count, from)) = socket.recv_from(&mut buffer).await {
        let Some(question) = buffer.get(12..count) else { continue };
        let (mut name, mut at) = (vec![], 0);
        while let Some(length) = question.get(at).map(|length| usize::from(*length)).filter(|length| *length > 0) {
            name.push(String::from_utf8_lossy(question.get(at + 1..at + 1 + length).unwrap_or_default()).into_owned());
            at += 1 + length;
        }
        let name = name.join(".");
        let is_a = question.get(at + 1..at + 3) == Some(&[0, 1]);
        lock(&asked).push(name.clone());
        // Of the name as a whole; what is asked for decides which of them are told.
        let records = answer(&name, turn);
        turn += usize::from(is_a && name.starts_with("rebind"));
        let mut told = vec![];
        let mut number = 0;
        let mut owner = vec![0xc0, 12];
        for record in records {
            let (kind, data) = match &record {
                Record::A(ip) if is_a => (1, ip.octets().to_vec()),
                Record::Aaaa(ip) if !is_a => (28, ip.octets().to_vec()),
                Record::Cname(target) => (5, labels(target)),
                _ => continue,
            };
            number += 1;
            told.extend_from_slice(&owner);
            // Not to be kept.
            told.extend_from_slice(&[0, kind, 0, 1, 0, 0, 0, 0, 0, data.len() as u8]);
            told.extend_from_slice(&data);
            if let Record::Cname(target) = &record {
                owner = labels(target);
            }
        }
        let mut reply = buffer[..2].to_vec();
        reply.extend_from_slice(&[0x81, 0x80, 0, 1, 0, number, 0, 0, 0, 0]);
        reply.extend_from_slice(question.get(..at + 5).unwrap_or_default());
        reply.extend_from_slice(&told);
        let _sent = socket.send_to(&reply, from).await;
    }
}

/// What a client does that asks twice, once to check and once to connect.
pub(crate) async fn resolve(dns: SocketAddr, name: &str) -> Outcome<Ipv4Addr> {
    let socket = UdpSocket::bind((LISTED, 0)).await?;
    let head = [0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    socket.send_to(&[&head[..], &labels(name), &[0, 1, 0, 1]].concat(), dns).await?;
    let mut reply = [0; 512];
    let count = tokio::time::timeout(Duration::from_secs(30), socket.recv(&mut reply)).await??;
    let last: [u8; 4] = reply[..count].last_chunk().copied().ok_or("no answer")?;
    Ok(last.into())
}
