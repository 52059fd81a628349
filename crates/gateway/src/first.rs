//! The first bytes of a client in a connection that it asked for: what they are, and whether they ask for the server that
//! was allowed.

use std::{io, time::Duration};

use bytes::BytesMut;
use sandbar_policy::Host;
use tokio::io::{AsyncRead, AsyncReadExt as _};

use crate::hello::{LIMIT, Peek, peek};

/// What HTTP/2 begins with where nothing was agreed on before.
pub(crate) const HTTP2: &[u8] = b"PRI * HTTP/2.0\r\n";

/// What the client's first bytes are.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum First {
    Tls {
        sni: Option<String>,
        /// Part of it is encrypted.
        ech: bool,
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
                Peek::Hello { sni, ech } => return Ok(First::Tls { sni, ech }),
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
pub(crate) fn is_http(bytes: &[u8]) -> Option<bool> {
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
    // HTTP/0.9 has no version; what it asks for may name a host
    let asks = |path: &[u8]| path.starts_with(b"/") || path.windows(3).any(|part| part == b"://");
    let old = method == b"GET" && words.clone().next().is_some_and(asks);
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
            "GET http://b.example/\r\n",
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
