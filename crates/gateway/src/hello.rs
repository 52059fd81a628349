//! The first bytes of a connection: whether they are TLS, and which server they ask for. Pure; it sees what an attacker
//! wrote, so that it never panics and never reads past a length.

/// The most that is looked at before it is given up on: a whole record's worth and more, far above what clients send.
pub(crate) const LIMIT: usize = 20 * 1024;

const HANDSHAKE: u8 = 22;
const CLIENT_HELLO: u8 = 1;
const SERVER_NAME: u16 = 0;
const HOST_NAME: u8 = 0;
/// ECH, its drafts, and what was there before it (ESNI).
const ENCRYPTED: [u16; 7] = [0xfe0d, 0xfe0c, 0xfe0b, 0xfe0a, 0xfe09, 0xfe08, 0xffce];

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Peek {
    /// Like TLS so far.
    NeedMore,
    NotTls,
    Hello {
        /// As it was written; a name is not yet known to be one.
        sni: Option<String>,
        /// Whether part of it is encrypted, which may ask for another name (ECH).
        ech: bool,
    },
    /// It begins like TLS and goes on as nothing that could be judged.
    Malformed,
}

pub(crate) fn peek(bytes: &[u8]) -> Peek {
    let Some(first) = bytes.first() else { return Peek::NeedMore };
    if *first != HANDSHAKE || bytes.get(1).is_some_and(|major| *major != 3) {
        return Peek::NotTls;
    }
    match gather(bytes) {
        Ok(Some(message)) => match hello(&message) {
            Some((sni, ech)) => Peek::Hello { sni, ech },
            None => Peek::Malformed,
        },
        Ok(None) if bytes.len() >= LIMIT => Peek::Malformed,
        Ok(None) => Peek::NeedMore,
        Err(Malformed) => Peek::Malformed,
    }
}

struct Malformed;

/// The first handshake message, put together from as many records as it was cut into; absent while some are missing.
fn gather(bytes: &[u8]) -> Result<Option<Vec<u8>>, Malformed> {
    let mut message = Vec::new();
    let mut rest = Reader(bytes);
    while !rest.0.is_empty() {
        let (Some(kind), Some(major), Some(_), Some(length)) = (rest.u8(), rest.u8(), rest.u8(), rest.u16()) else {
            return Ok(None);
        };
        // an empty record is forbidden, and one above 2^14 is too long
        if kind != HANDSHAKE || major != 3 || length == 0 || length > 1 << 14 {
            return Err(Malformed);
        }
        let part = rest.take(usize::from(length));
        message.extend_from_slice(part.unwrap_or(rest.0));
        if message.first().is_some_and(|kind| *kind != CLIENT_HELLO) {
            return Err(Malformed);
        }
        if let [_, a, b, c, body @ ..] = message.as_slice() {
            let length = usize::from(*a) << 16 | usize::from(*b) << 8 | usize::from(*c);
            if length > LIMIT {
                return Err(Malformed);
            }
            if let Some(body) = body.get(..length) {
                return Ok(Some(body.to_vec()));
            }
        }
        if part.is_none() {
            return Ok(None);
        }
    }
    Ok(None)
}

/// The server name of a ClientHello's body, and whether it may have another, encrypted one; absent if the body is none.
fn hello(body: &[u8]) -> Option<(Option<String>, bool)> {
    let mut body = Reader(body);
    body.take(2 + 32)?;
    let session = body.u8()?;
    body.take(usize::from(session))?;
    let ciphers = body.u16()?;
    body.take(usize::from(ciphers))?;
    let compressions = body.u8()?;
    body.take(usize::from(compressions))?;
    if body.0.is_empty() {
        return Some((None, false));
    }
    let length = body.u16()?;
    let mut extensions = Reader(body.take(usize::from(length))?);
    if !body.0.is_empty() {
        return None;
    }
    let (mut found, mut encrypted) = (None, false);
    while !extensions.0.is_empty() {
        let kind = extensions.u16()?;
        let length = extensions.u16()?;
        let content = extensions.take(usize::from(length))?;
        encrypted |= ENCRYPTED.contains(&kind);
        if kind != SERVER_NAME {
            continue;
        }
        // two of them, or two names in one, are what two parsers read differently
        if found.is_some() {
            return None;
        }
        found = Some(server_name(content)?);
    }
    Some((found, encrypted))
}

fn server_name(content: &[u8]) -> Option<String> {
    let mut content = Reader(content);
    let length = content.u16()?;
    let mut list = Reader(content.take(usize::from(length))?);
    if !content.0.is_empty() || list.u8()? != HOST_NAME {
        return None;
    }
    let length = list.u16()?;
    let name = list.take(usize::from(length))?;
    if !list.0.is_empty() || name.is_empty() || !name.iter().all(u8::is_ascii_graphic) {
        return None;
    }
    String::from_utf8(name.to_vec()).ok()
}

struct Reader<'b>(&'b [u8]);

impl<'b> Reader<'b> {
    fn take(&mut self, count: usize) -> Option<&'b [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn u8(&mut self) -> Option<u8> {
        self.take(1).map(|bytes| bytes[0])
    }

    fn u16(&mut self) -> Option<u16> {
        self.take(2).map(|bytes| u16::from_be_bytes([bytes[0], bytes[1]]))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// What rustls sends.
    fn real(name: &str) -> Vec<u8> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_root_certificates(rustls::RootCertStore::empty())
            .with_no_client_auth();
        let name = rustls::pki_types::ServerName::try_from(name.to_owned()).expect("name");
        let mut client = rustls::ClientConnection::new(Arc::new(config), name).expect("client");
        let mut bytes = Vec::new();
        client.write_tls(&mut bytes).expect("hello");
        bytes
    }

    /// The same message in records of `size` bytes.
    fn cut(hello: &[u8], size: usize) -> Vec<u8> {
        let mut cut = Vec::new();
        for part in hello[5..].chunks(size) {
            cut.extend_from_slice(&[22, 3, 1]);
            cut.extend_from_slice(&u16::try_from(part.len()).expect("a record").to_be_bytes());
            cut.extend_from_slice(part);
        }
        cut
    }

    #[test]
    fn the_name_is_found_however_it_is_cut() {
        let whole = real("example.org");
        let expected = Peek::Hello { sni: Some("example.org".into()), ech: false };
        for length in 0..whole.len() {
            assert_eq!(peek(&whole[..length]), Peek::NeedMore, "{length} bytes");
        }
        assert_eq!(peek(&whole), expected);
        for size in [1, 2, 3, 4, 5, 50, 511] {
            assert_eq!(peek(&cut(&whole, size)), expected, "records of {size}");
        }
        let mut early = whole.clone();
        early.extend_from_slice(b"early data of any kind");
        assert_eq!(peek(&early), expected);
    }

    #[test]
    fn no_name_is_no_name() {
        assert_eq!(peek(&real("192.0.2.1")), Peek::Hello { sni: None, ech: false });
    }

    #[test]
    fn other_protocols_are_told_at_once() {
        for first in [&b"GET / HTTP/1.1\r\n"[..], b"SSH-2.0-x", b"\x00", b"\x16\x02", b"\x80\x2e\x01\x03\x01"] {
            assert_eq!(peek(first), Peek::NotTls);
        }
        assert_eq!(peek(b""), Peek::NeedMore);
        assert_eq!(peek(b"\x16"), Peek::NeedMore);
    }

    #[test]
    fn what_cannot_be_judged_is_malformed() {
        // another handshake message, an empty record, a record of another kind in between
        assert_eq!(peek(&[22, 3, 1, 0, 4, 2, 0, 0, 0]), Peek::Malformed);
        assert_eq!(peek(&[22, 3, 1, 0, 0]), Peek::Malformed);
        assert_eq!(peek(&[22, 3, 1, 0, 1, 1, 23, 3, 3, 0, 1, 0]), Peek::Malformed);
        // a length that never ends
        assert_eq!(peek(&[22, 3, 1, 0, 4, 1, 255, 255, 255]), Peek::Malformed);
        // two server names
        let mut twice = real("example.org");
        let name = b"example.org";
        let at = twice.windows(name.len()).position(|window| window == name).expect("the name");
        twice[at + 3] = 0;
        assert_eq!(peek(&twice), Peek::Malformed, "a NUL in the name");
    }

    /// As rustls makes one up, which nobody can tell from a real one.
    #[test]
    fn an_encrypted_part_is_found() {
        let provider = rustls::crypto::aws_lc_rs::default_provider();
        let suite = rustls::crypto::aws_lc_rs::hpke::ALL_SUPPORTED_SUITES[0];
        let (key, _) = suite.generate_key_pair().expect("a key");
        let mode = rustls::client::EchMode::Grease(rustls::client::EchGreaseConfig::new(suite, key));
        let config = rustls::ClientConfig::builder_with_provider(Arc::new(provider))
            .with_ech(mode)
            .expect("ECH")
            .with_root_certificates(rustls::RootCertStore::empty())
            .with_no_client_auth();
        let name = rustls::pki_types::ServerName::try_from("example.org").expect("a name");
        let mut client = rustls::ClientConnection::new(Arc::new(config), name).expect("client");
        let mut bytes = Vec::new();
        client.write_tls(&mut bytes).expect("hello");
        let found = Peek::Hello { sni: Some("example.org".into()), ech: true };
        assert_eq!(peek(&bytes), found);
        assert_eq!(peek(&cut(&bytes, 7)), found);
    }

    #[test]
    fn two_names_are_malformed() {
        let extension = [0, 0, 0, 6, 0, 4, 0, 0, 1, b'a'];
        let mut body = vec![3, 3];
        body.extend_from_slice(&[0; 32]);
        body.extend_from_slice(&[0, 0, 2, 0, 0, 1, 0]);
        for times in [1, 2] {
            let mut body = body.clone();
            body.extend_from_slice(&u16::to_be_bytes(10 * times));
            for _ in 0..times {
                body.extend_from_slice(&extension);
            }
            assert_eq!(hello(&body).is_some(), times == 1, "{times}");
        }
    }

    #[test]
    fn fuzz_peek() {
        bolero::check!().for_each(|bytes: &[u8]| {
            let whole = peek(bytes);
            // what is decided stays decided, whatever follows
            if !matches!(whole, Peek::NeedMore) {
                let mut longer = bytes.to_vec();
                longer.extend_from_slice(b"\x16\x03\x01\x00\x01\x01");
                assert_eq!(peek(&longer), whole);
            }
        });
    }

    #[test]
    fn fuzz_peek_mutated() {
        let whole = real("example.org");
        bolero::check!().with_type::<(u16, u8, u16)>().for_each(|(at, value, length)| {
            let mut bytes = whole.clone();
            let at = usize::from(*at) % bytes.len();
            bytes[at] = *value;
            bytes.truncate(usize::from(*length) % (whole.len() + 1));
            if let Peek::Hello { sni: Some(name), .. } = peek(&bytes) {
                assert!(name.bytes().all(|byte| byte.is_ascii_graphic()));
            }
        });
    }
}
