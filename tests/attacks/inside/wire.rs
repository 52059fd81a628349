//! A client of the gate that says exactly what it is told to, byte for byte, and shows all that came back: an attacker's
//! own, since no library would send most of it.

use std::{
    io::{self, Read, Write},
    net::{TcpListener, TcpStream},
    sync::Arc,
    time::Duration,
};

use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, SignatureScheme, StreamOwned,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    pki_types::{CertificateDer, ServerName, UnixTime},
};

use super::Got;

pub(super) const GATE: &str = "127.0.0.1:7228";
/// For an answer that has to come.
const PATIENCE: Duration = Duration::from_secs(30);

/// Steps as words: `send:BASE64`, `slow:BASE64` (a byte at a time), `many:N:BASE64`, `head` (up to an empty line),
/// `tls:SNI:ALPN` and `shred:SNI:ALPN` (the greeting in records of one byte), `rest:MS` (until that much silence),
/// `answer:MS` (the same once an answer has begun), `wait:MS`; first of all `at:ADDRESS` for another place than the gate.
pub(super) fn talk(words: &[&str]) -> Got {
    let (place, words) = match words.first().and_then(|word| word.strip_prefix("at:")) {
        Some(place) => (place, &words[1..]),
        None => (GATE, words),
    };
    let mut line = Line::Plain(TcpStream::connect(place)?);
    let mut heard = vec![];
    for word in words {
        if let Err(error) = line.step(word, &mut heard) {
            heard.extend_from_slice(format!("[{error}]").as_bytes());
        }
    }
    Ok(heard.escape_ascii().to_string())
}

enum Line {
    Plain(TcpStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
}

impl Line {
    fn tcp(&self) -> &TcpStream {
        match self {
            Self::Plain(tcp) => tcp,
            Self::Tls(tls) => &tls.sock,
        }
    }

    fn step(&mut self, word: &str, heard: &mut Vec<u8>) -> io::Result<()> {
        let (verb, rest) = word.split_once(':').unwrap_or((word, ""));
        self.tcp().set_nodelay(true)?;
        self.tcp().set_read_timeout(Some(PATIENCE))?;
        self.tcp().set_write_timeout(Some(PATIENCE))?;
        match verb {
            "send" => {
                let bytes = decode(rest)?;
                self.write_all(&bytes)?;
                self.flush()
            }
            "slow" => decode(rest)?.chunks(1).try_for_each(|byte| {
                self.write_all(byte)?;
                self.flush()
            }),
            "many" => {
                let (count, bytes) = rest.split_once(':').ok_or_else(|| io::Error::other("no count"))?;
                let bytes = decode(bytes)?;
                for _ in 0..count.parse::<usize>().map_err(io::Error::other)? {
                    self.write_all(&bytes)?;
                }
                self.flush()
            }
            "head" => {
                let mut byte = [0];
                let from = heard.len();
                while !heard[from..].ends_with(b"\r\n\r\n") {
                    match self.read(&mut byte)? {
                        0 => return Err(io::Error::other("the end")),
                        _ => heard.push(byte[0]),
                    }
                }
                Ok(())
            }
            "tls" | "shred" => self.greet(rest, verb == "shred"),
            "wait" => {
                std::thread::sleep(Duration::from_millis(rest.parse().map_err(io::Error::other)?));
                Ok(())
            }
            "rest" | "answer" => {
                let silence = Duration::from_millis(rest.parse().map_err(io::Error::other)?);
                let (from, mut chunk) = (heard.len(), [0; 16 * 1024]);
                loop {
                    let awaited = verb == "answer" && !is_answer(&heard[from..]);
                    self.tcp().set_read_timeout(Some(if awaited { PATIENCE } else { silence }))?;
                    match self.read(&mut chunk) {
                        Ok(0) => return Ok(()),
                        Ok(count) if heard.len() < 1 << 20 => heard.extend_from_slice(&chunk[..count]),
                        Ok(_) => return Err(io::Error::other("a mebibyte is enough")),
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                        Err(error) => return Err(error),
                    }
                }
            }
            _ => Err(io::Error::other(format!("no step {word}"))),
        }
    }

    /// The handshake; whose certificate it is does not matter to an attacker.
    fn greet(&mut self, rest: &str, shred: bool) -> io::Result<()> {
        let (sni, alpn) = rest.split_once(':').unwrap_or((rest, ""));
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Anybody))
            .with_no_client_auth();
        config.enable_sni = !sni.is_empty();
        config.alpn_protocols = alpn.split(',').filter(|name| !name.is_empty()).map(|name| name.into()).collect();
        let name = if sni.is_empty() { "nobody.test" } else { sni };
        let name = ServerName::try_from(name.to_owned()).map_err(io::Error::other)?;
        let mut greeting = ClientConnection::new(Arc::new(config), name).map_err(io::Error::other)?;
        let mut tcp = self.tcp().try_clone()?;
        if shred {
            let mut whole = vec![];
            greeting.write_tls(&mut whole)?;
            // A record's head, then its length, of which one byte is left.
            let (head, body) = whole.split_at(5);
            for byte in body {
                tcp.write_all(&[head[0], head[1], head[2], 0, 1, *byte])?;
            }
        }
        while greeting.is_handshaking() {
            greeting.complete_io(&mut tcp)?;
        }
        *self = Self::Tls(Box::new(StreamOwned::new(greeting, tcp)));
        Ok(())
    }
}

impl Read for Line {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(tcp) => tcp.read(buffer),
            Self::Tls(tls) => tls.read(buffer),
        }
    }
}

impl Write for Line {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(tcp) => tcp.write(bytes),
            Self::Tls(tls) => tls.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(tcp) => tcp.flush(),
            Self::Tls(tls) => tls.flush(),
        }
    }
}

/// Whether there is more of it than what HTTP/2 begins with.
fn is_answer(mut heard: &[u8]) -> bool {
    while let [0, high, low, kind, _, _, _, _, _, rest @ ..] = heard {
        // Settings, pings and windows are nobody's answer.
        if ![4, 6, 8].contains(kind) {
            return true;
        }
        heard = rest.get(usize::from(u16::from_be_bytes([*high, *low]))..).unwrap_or_default();
    }
    heard.first().is_some_and(|first| *first != 0)
}

fn decode(text: &str) -> io::Result<Vec<u8>> {
    sandbar_api::bytes::decode(text).ok_or_else(|| io::Error::other("no base64"))
}

#[derive(Debug)]
struct Anybody;

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        rustls::crypto::aws_lc_rs::default_provider().signature_verification_algorithms.supported_schemes()
    }
}

/// Whoever connects is passed on to the gate: another process of the sandbox, as a second hop.
pub(super) fn relay(port: &str) -> Got {
    let listener = TcpListener::bind(format!("127.0.0.1:{port}"))?;
    super::say("listening");
    for client in listener.incoming() {
        let (mut client, mut gate) = (client?, TcpStream::connect(GATE)?);
        let (mut from, mut to) = (client.try_clone()?, gate.try_clone()?);
        std::thread::spawn(move || {
            let _over = io::copy(&mut from, &mut to);
        });
        let _over = io::copy(&mut gate, &mut client);
    }
    Ok("it ended".into())
}
