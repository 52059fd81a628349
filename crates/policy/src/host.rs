//! Host names: what may be matched at all. Parsed once, then matched, resolved and compared as the same value.

use std::{fmt, net::IpAddr};

/// Why a text is no host that may be asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{}` is not a host: {cause}", .text.escape_debug())]
pub struct BadHost {
    pub text: String,
    pub cause: &'static str,
}

/// A lower-case name of letters, digits, hyphens and dots (no trailing dot, labels of 1 to 63, at most 253 in all, the
/// last label not a number), or an IP address in the one way it is usually written (`[v6]` without brackets; no octal,
/// hex or short forms: those parsers disagree about).
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Host {
    Name(String),
    Ip(IpAddr),
}

impl Host {
    /// As in a CONNECT target, a URL's authority, an SNI or a Host header, without the port; v6 with or without brackets.
    pub fn parse(text: &str) -> Result<Self, BadHost> {
        let _ = text;
        Err(BadHost { text: text.to_owned(), cause: "not built" })
    }

    /// `host:port` as in CONNECT and Host headers; the default port when there is none.
    pub fn parse_authority(text: &str, default_port: u16) -> Result<(Self, u16), BadHost> {
        let _ = default_port;
        Self::parse(text).map(|host| (host, default_port))
    }
}

/// v6 without brackets.
impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Ip(ip) => write!(f, "{ip}"),
        }
    }
}
