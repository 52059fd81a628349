//! One HTTP/1.1 connection, by the shortest way: a socket, perhaps CONNECT, perhaps TLS, a request, an answer.

use std::{
    io::{self, Read, Write},
    net::TcpStream,
    sync::Arc,
    time::Duration,
};

use rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned,
    client::Resumption,
    pki_types::{CertificateDer, ServerName, pem::PemObject as _},
};

use crate::{Outcome, Words};

/// Nothing here takes so long; a client that hangs would hang the whole run.
const PATIENCE: Duration = Duration::from_secs(30);
const ROOM: usize = 256 * 1024;

/// Where to, and by which way.
pub(crate) struct Target {
    /// Whom to connect to: the server, a proxy or the gate.
    dial: String,
    /// What CONNECT asks for, if it is a proxy.
    connect: Option<String>,
    /// The server's name and what trusts it, if it speaks TLS.
    tls: Option<(ServerName<'static>, Arc<ClientConfig>)>,
    host: String,
    /// Below which the LLM endpoints are.
    pub(crate) base: String,
}

impl Target {
    pub(crate) fn read(words: &Words) -> Outcome<Self> {
        let optional = |name: &str| words.0.get(name).cloned();
        let tls = optional("name").map(|name| Outcome::Ok((ServerName::try_from(name)?, trust(words.text("roots")?)?)));
        let dial = words.text("dial")?.to_owned();
        let host = optional("connect").unwrap_or_else(|| dial.clone());
        let base = optional("base").unwrap_or_default();
        Ok(Self { dial, connect: optional("connect"), tls: tls.transpose()?, host, base })
    }

    pub(crate) fn open(&self) -> Outcome<Line> {
        let mut socket = TcpStream::connect(&self.dial)?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        if let Some(target) = &self.connect {
            write!(Whole(&mut socket), "CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n")?;
            let mut reader = Reader::new();
            let head = reader.head(&mut socket)?;
            if head.status != 200 || reader.filled > reader.taken {
                return Err(format!("CONNECT was answered with {}", head.status).into());
            }
        }
        let wire = match &self.tls {
            None => Wire::Plain(socket),
            Some((name, config)) => {
                let session = ClientConnection::new(Arc::clone(config), name.clone())?;
                Wire::Tls(Box::new(StreamOwned::new(session, socket)))
            }
        };
        Ok(Line { wire, reader: Reader::new() })
    }

    pub(crate) fn get(&self, path: &str) -> Vec<u8> {
        format!("GET {path} HTTP/1.1\r\nHost: {}\r\n\r\n", self.host).into_bytes()
    }

    pub(crate) fn post(&self, path: &str, body: &str) -> Vec<u8> {
        let (host, base, length) = (&self.host, &self.base, body.len());
        format!(
            "POST {base}{path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer none\r\nContent-Type: application/json\r\n\
             Content-Length: {length}\r\n\r\n{body}"
        )
        .into_bytes()
    }
}

/// Each connection is a stranger, as those of short-lived programs are: no session is resumed.
fn trust(paths: &str) -> Outcome<Arc<ClientConfig>> {
    let mut roots = RootCertStore::empty();
    for path in paths.split(',') {
        for certificate in CertificateDer::pem_file_iter(path)? {
            roots.add(certificate?)?;
        }
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    config.resumption = Resumption::disabled();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

enum Wire {
    Plain(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Read for Wire {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.read(into),
            Self::Tls(stream) => stream.read(into),
        }
    }
}

/// So that a request leaves in one packet.
struct Whole<'s>(&'s mut TcpStream);

impl Whole<'_> {
    fn write_fmt(&mut self, text: std::fmt::Arguments<'_>) -> io::Result<()> {
        self.0.write_all(text.to_string().as_bytes())
    }
}

pub(crate) struct Line {
    wire: Wire,
    reader: Reader,
}

impl Line {
    pub(crate) fn send(&mut self, request: &[u8]) -> Outcome {
        match &mut self.wire {
            Wire::Plain(socket) => socket.write_all(request)?,
            Wire::Tls(stream) => {
                stream.write_all(request)?;
                stream.flush()?;
            }
        }
        Ok(())
    }

    /// To its end; gives its length.
    pub(crate) fn answer(&mut self) -> Outcome<u64> {
        let mut length = 0;
        self.read(|part| {
            length += part.len() as u64;
            true
        })?;
        Ok(length)
    }

    /// Part by part, as long as `take` wants more. Anything but 200 is an error with what it said.
    pub(crate) fn read(&mut self, mut take: impl FnMut(&[u8]) -> bool) -> Outcome {
        let head = self.reader.head(&mut self.wire)?;
        let mut refused = Vec::new();
        let mut take = |part: &[u8]| match head.status {
            200 => take(part),
            _ => {
                refused.extend_from_slice(part);
                true
            }
        };
        match head.length {
            Some(length) => drop(self.reader.pass(&mut self.wire, length, &mut take)?),
            None => loop {
                let size = self.reader.line(&mut self.wire)?;
                let size = u64::from_str_radix(size.trim(), 16)?;
                if size > 0 && !self.reader.pass(&mut self.wire, size, &mut take)? {
                    return Ok(());
                }
                self.reader.line(&mut self.wire)?;
                if size == 0 {
                    break;
                }
            },
        }
        if head.status == 200 {
            return Ok(());
        }
        Err(format!("answered {}: {}", head.status, String::from_utf8_lossy(&refused)).into())
    }
}

struct Head {
    status: u16,
    /// Absent: in chunks.
    length: Option<u64>,
}

struct Reader {
    room: Vec<u8>,
    taken: usize,
    filled: usize,
}

impl Reader {
    fn new() -> Self {
        Self { room: vec![0; ROOM], taken: 0, filled: 0 }
    }

    fn more(&mut self, from: &mut impl Read) -> Outcome {
        if self.taken == self.filled {
            (self.taken, self.filled) = (0, 0);
        } else if self.filled == self.room.len() {
            self.room.copy_within(self.taken..self.filled, 0);
            (self.taken, self.filled) = (0, self.filled - self.taken);
        }
        match from.read(&mut self.room[self.filled..])? {
            0 => Err("the connection was closed".into()),
            count => {
                self.filled += count;
                Ok(())
            }
        }
    }

    fn until(&mut self, from: &mut impl Read, end: &[u8]) -> Outcome<String> {
        loop {
            let waiting = &self.room[self.taken..self.filled];
            if let Some(at) = waiting.windows(end.len()).position(|window| window == end) {
                let text = String::from_utf8_lossy(&waiting[..at]).into_owned();
                self.taken += at + end.len();
                return Ok(text);
            }
            self.more(from)?;
        }
    }

    fn line(&mut self, from: &mut impl Read) -> Outcome<String> {
        self.until(from, b"\r\n")
    }

    fn head(&mut self, from: &mut impl Read) -> Outcome<Head> {
        let text = self.until(from, b"\r\n\r\n")?.to_ascii_lowercase();
        let status = text.split(' ').nth(1).ok_or("no status")?.parse()?;
        let told = |name: &str| text.lines().find_map(|line| line.strip_prefix(name));
        let length = told("content-length:").map(|length| length.trim().parse()).transpose()?;
        let chunked = told("transfer-encoding:").is_some();
        Ok(Head { status, length: if chunked { None } else { Some(length.unwrap_or(0)) } })
    }

    /// Whether `take` wanted all of it.
    fn pass(&mut self, from: &mut impl Read, mut left: u64, take: &mut impl FnMut(&[u8]) -> bool) -> Outcome<bool> {
        while left > 0 {
            if self.taken == self.filled {
                self.more(from)?;
            }
            let count = (self.filled - self.taken).min(usize::try_from(left)?);
            let wanted = take(&self.room[self.taken..self.taken + count]);
            self.taken += count;
            left -= count as u64;
            if !wanted {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
