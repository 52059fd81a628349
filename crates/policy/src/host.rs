//! Host names: what may be matched at all. Parsed once, then matched, resolved and compared as the same value.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

/// Why a text is no host that may be asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{}` is not a host: {cause}", .text.escape_debug())]
pub struct BadHost {
    pub text: String,
    pub cause: &'static str,
}

/// A lower-case name of letters, digits, hyphens and dots (no trailing dot, labels of 1 to 63, at most 253 in all, the
/// last label not a number), or an IP address in the one way it is usually written (`[v6]` without brackets; no octal,
/// hex or short forms: those parsers disagree about). A v4 address mapped into v6 is the v4 address.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Host {
    Name(String),
    Ip(IpAddr),
}

impl Host {
    /// As in a CONNECT target, a URL's authority, an SNI or a Host header, without the port; v6 with or without brackets.
    pub fn parse(text: &str) -> Result<Self, BadHost> {
        read(text).map_err(|cause| BadHost { text: text.to_owned(), cause })
    }

    /// `host:port` as in CONNECT and Host headers; the default port when there is none. v6 needs its brackets here, since
    /// without them the port could be part of the address.
    pub fn parse_authority(text: &str, default_port: u16) -> Result<(Self, u16), BadHost> {
        split(text)
            .and_then(|(host, port)| Ok((read(host)?, port.map_or(Ok(default_port), read_port)?)))
            .map_err(|cause| BadHost { text: text.to_owned(), cause })
    }
}

fn split(text: &str) -> Result<(&str, Option<&str>), &'static str> {
    let end = match text.strip_prefix('[') {
        Some(rest) => rest.find(']').map(|end| end + 2).ok_or("`[` has no `]`")?,
        None => text.find(':').unwrap_or(text.len()),
    };
    match text.split_at(end) {
        (host, "") => Ok((host, None)),
        (host, rest) => match rest.strip_prefix(':') {
            Some(port) if port.contains(':') => Err("an IPv6 address before a port needs brackets"),
            Some(port) => Ok((host, Some(port))),
            None => Err("only a port may follow `]`"),
        },
    }
}

/// 1 to 65535 in decimal, without sign or leading zeros.
pub(crate) fn read_port(text: &str) -> Result<u16, &'static str> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit()) && !text.starts_with('0');
    text.parse().ok().filter(|_| plain).ok_or("a port is a number from 1 to 65535")
}

fn read(text: &str) -> Result<Host, &'static str> {
    if let Some(inner) = text.strip_prefix('[') {
        let inner = inner.strip_suffix(']').ok_or("`[` has no `]`")?;
        return read_v6(inner);
    }
    let lower = text.to_ascii_lowercase();
    if lower.contains(':') && lower.bytes().all(|byte| byte.is_ascii_hexdigit() || matches!(byte, b':' | b'.')) {
        return read_v6(&lower);
    }
    if let Ok(ip) = lower.parse::<Ipv4Addr>() {
        return Ok(Host::Ip(ip.into()));
    }
    check_name(&lower)?;
    Ok(Host::Name(lower))
}

fn read_v6(text: &str) -> Result<Host, &'static str> {
    match text.parse::<Ipv6Addr>() {
        Ok(ip) => Ok(Host::Ip(IpAddr::V6(ip).to_canonical())),
        Err(_) if text.contains('%') => Err("an address with a zone belongs to one link only"),
        Err(_) => Err("it is no IPv6 address"),
    }
}

fn check_name(name: &str) -> Result<(), &'static str> {
    if name.is_empty() {
        return Err("it is empty");
    }
    if name.len() > 253 {
        return Err("it is longer than 253 characters");
    }
    if !name.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.')) {
        return Err(odd_character(name));
    }
    let mut last = "";
    for label in name.split('.') {
        match label {
            "" if name.ends_with('.') && name.len() > 1 => return Err("leave out the dot at its end"),
            "" => return Err("two dots, or one at its start, leave an empty label"),
            label if label.len() > 63 => return Err("a label is longer than 63 characters"),
            label if label.starts_with('-') || label.ends_with('-') => return Err("a label starts or ends with `-`"),
            label => last = label,
        }
    }
    // What some resolver would take for an IPv4 address: 2130706433, 0x7f.1, 0177.0.0.1, 127.1, 256.256.256.256.
    if last.bytes().all(|byte| byte.is_ascii_digit()) || last.starts_with("0x") {
        return Err("it ends in a number but is no IPv4 address as usually written: four numbers up to 255");
    }
    Ok(())
}

/// The most telling one of what does not belong there.
fn odd_character(name: &str) -> &'static str {
    let told = [
        ('@', "it has a user name in it"),
        ('%', "nothing is percent-encoded in a host"),
        ('/', "only the host is wanted, without scheme or path"),
        (':', "only the host is wanted, without a port"),
        ('*', "only rules may have a `*`"),
    ];
    if name.chars().any(char::is_control) {
        return "it has a control character in it";
    }
    if !name.is_ascii() {
        return "write international names in their ASCII form, `xn--…`";
    }
    let found = told.iter().find(|(odd, _)| name.contains(*odd));
    found.map_or("only letters, digits, `-` and `.` may be in a host", |(_, cause)| cause)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_hosts() {
        let long = [&"a".repeat(63), &"b".repeat(63), &"c".repeat(63), &"d".repeat(61)].map(|l| l.as_str()).join(".");
        let table = [
            ("example.org", "example.org"),
            ("API.GitHub.COM", "api.github.com"),
            ("localhost", "localhost"),
            ("a-b.c--d.x", "a-b.c--d.x"),
            ("xn--bcher-kva.example", "xn--bcher-kva.example"),
            ("3com.com", "3com.com"),
            ("1.2.3.4.example.org", "1.2.3.4.example.org"),
            ("1.2.3.4x", "1.2.3.4x"),
            ("127.0.0.1", "127.0.0.1"),
            ("::1", "::1"),
            ("[::1]", "::1"),
            ("[2001:DB8:0:0::1]", "2001:db8::1"),
            ("::ffff:127.0.0.1", "127.0.0.1"),
            ("[::ffff:7f00:1]", "127.0.0.1"),
            ("::127.0.0.1", "::7f00:1"),
            (&long, &long),
        ];
        for (text, shown) in table {
            assert_eq!(Host::parse(text).map(|host| host.to_string()), Ok(shown.to_owned()), "{text}");
        }
        assert_eq!(Host::parse("127.0.0.1"), Ok(Host::Ip(Ipv4Addr::LOCALHOST.into())));
        assert_eq!(Host::parse("LOCALHOST"), Ok(Host::Name("localhost".into())));
    }

    #[test]
    fn bad_hosts() {
        let (label, name) = ("a".repeat(64), "a.".repeat(126) + "aa");
        let table: &[(&str, &str)] = &[
            ("", "empty"),
            ("attacker\0.google.com", "control"),
            ("a\r\nb.org", "control"),
            ("a\tb", "control"),
            (" example.org", "only letters"),
            ("a_b.org", "only letters"),
            ("ex\u{e4}mple.org", "xn--"),
            ("example\u{3002}org", "xn--"),
            ("\u{ff41}.org", "xn--"),
            ("example.org.", "leave out the dot"),
            (".", "empty label"),
            (".example.org", "empty label"),
            ("example..org", "empty label"),
            ("-a.org", "`-`"),
            ("a-.org", "`-`"),
            (&label, "63"),
            (&name, "253"),
            ("2130706433", "four numbers"),
            ("0x7f000001", "four numbers"),
            ("0x7f.1", "four numbers"),
            ("127.0.0.0x1", "four numbers"),
            ("0177.0.0.1", "four numbers"),
            ("127.1", "four numbers"),
            ("127.0.0.01", "four numbers"),
            ("256.1.1.1", "four numbers"),
            ("1.2.3.4.5", "four numbers"),
            ("1.2.3.4.", "leave out the dot"),
            ("example%2eorg", "percent"),
            ("fe80::1%eth0", "percent"),
            ("[fe80::1%25eth0]", "zone"),
            ("user@example.org", "user name"),
            ("user:pass@example.org", "user name"),
            ("example.org:443", "without a port"),
            ("https://example.org", "scheme or path"),
            ("example.org/x", "scheme or path"),
            ("*.example.org", "rules"),
            ("[127.0.0.1]", "no IPv6"),
            ("[::1", "no `]`"),
            ("[]", "no IPv6"),
            ("[example.org]", "no IPv6"),
            ("::1]", "without a port"),
            (":::", "no IPv6"),
            ("1:2", "no IPv6"),
            ("a\\b", "only letters"),
        ];
        for (text, cause) in table {
            match Host::parse(text) {
                Err(bad) => assert!(bad.cause.contains(cause), "{text:?}: {}", bad.cause),
                Ok(host) => panic!("{text:?} became {host:?}"),
            }
        }
        let told = Host::parse("a\0b").map_err(|bad| bad.to_string());
        assert_eq!(told, Err("`a\\0b` is not a host: it has a control character in it".into()));
    }

    #[test]
    fn authorities() {
        let table = [
            ("example.org", Ok("example.org 443")),
            ("Example.org:8443", Ok("example.org 8443")),
            ("10.0.0.1:1", Ok("10.0.0.1 1")),
            ("[::1]", Ok("::1 443")),
            ("[::1]:65535", Ok("::1 65535")),
            ("::1", Err("brackets")),
            ("::1:443", Err("brackets")),
            ("example.org:", Err("65535")),
            ("example.org:0", Err("65535")),
            ("example.org:0443", Err("65535")),
            ("example.org:+443", Err("65535")),
            ("example.org:65536", Err("65535")),
            ("example.org:443 ", Err("65535")),
            ("example.org:\u{664}", Err("65535")),
            ("[::1]443", Err("only a port")),
            ("[::1", Err("no `]`")),
            (":443", Err("empty")),
            ("", Err("empty")),
            ("user@example.org:443", Err("user name")),
            ("user:pass@example.org", Err("65535")),
            ("example.org:443:443", Err("brackets")),
        ];
        for (text, wanted) in table {
            match (Host::parse_authority(text, 443), wanted) {
                (Ok((host, port)), Ok(wanted)) => assert_eq!(format!("{host} {port}"), wanted),
                (Err(bad), Err(cause)) => assert!(bad.cause.contains(cause) && bad.text == text, "{text:?}: {bad}"),
                (got, _) => panic!("{text:?}: {got:?}"),
            }
        }
    }
}
