//! What the headers of a request ask for, judged as the contract says. An address is judged and then ignored: where a
//! request goes is never the caller's to choose beyond the sandbox and its port.

use std::{net::IpAddr, time::Duration};

use axum::http::HeaderMap;

use super::{LONGEST, answer::Refusal};

const DEFAULT_NAMESPACE: &str = "default";
const DEFAULT_PORT: u16 = 8888;

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Ask {
    /// The sandbox's id or name.
    pub(super) id: String,
    pub(super) namespace: String,
    pub(super) port: u16,
    pub(super) timeout: Option<Duration>,
    /// It names an address or a uid, which a scoped token may not.
    pub(super) aims: bool,
}

impl Ask {
    pub(super) fn of(headers: &HeaderMap) -> Result<Self, Refusal> {
        let id = one(headers, "x-sandbox-id", Refusal::BadId)?.ok_or(Refusal::NoId)?;
        let namespace = one(headers, "x-sandbox-namespace", Refusal::BadNamespace)?.unwrap_or(DEFAULT_NAMESPACE);
        let port = match one(headers, "x-sandbox-port", Refusal::BadPort)? {
            Some(text) => port(text).ok_or(Refusal::BadPort)?,
            None => DEFAULT_PORT,
        };
        if !is_label(id) {
            return Err(Refusal::BadId);
        }
        if !is_label(namespace) {
            return Err(Refusal::BadNamespace);
        }
        let address = one(headers, "x-sandbox-pod-ip", Refusal::BadAddress)?;
        if address.is_some_and(|text| !text.parse().is_ok_and(may_be_a_pod)) {
            return Err(Refusal::BadAddress);
        }
        let timeout = headers.get("x-sandbox-timeout").and_then(|value| seconds(value.to_str().ok()?));
        Ok(Self {
            id: id.to_owned(),
            namespace: namespace.to_owned(),
            port,
            timeout,
            aims: address.is_some() || headers.contains_key("x-sandbox-uid"),
        })
    }

    /// There is no other namespace here.
    pub(super) fn is_elsewhere(&self) -> bool {
        self.namespace != DEFAULT_NAMESPACE
    }

    pub(super) fn unreachable(&self) -> Refusal {
        Refusal::Unreachable(self.id.clone())
    }
}

/// Its value; said twice it is as wrong as one that makes no sense, and empty it was not said.
fn one<'a>(headers: &'a HeaderMap, name: &str, bad: Refusal) -> Result<Option<&'a str>, Refusal> {
    let mut values = headers.get_all(name).iter();
    match (values.next().map(|value| value.to_str()), values.next()) {
        (None, _) => Ok(None),
        (Some(Ok(text)), None) => Ok(Some(text.trim()).filter(|text| !text.is_empty())),
        _ => Err(bad),
    }
}

fn is_label(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    text.len() <= 63 && text.bytes().all(inner) && !text.starts_with('-') && !text.ends_with('-')
}

fn port(text: &str) -> Option<u16> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|port| digits && *port != 0)
}

fn may_be_a_pod(address: IpAddr) -> bool {
    let address = address.to_canonical();
    let link_local = match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    !(address.is_unspecified() || address.is_loopback() || address.is_multicast() || link_local)
}

/// What makes no sense is as if it had not been said.
fn seconds(text: &str) -> Option<Duration> {
    let seconds: f64 = text.trim().parse().ok()?;
    let seconds = Some(seconds).filter(|seconds| seconds.is_finite() && *seconds > 0.0)?;
    Some(Duration::try_from_secs_f64(seconds).unwrap_or(LONGEST).min(LONGEST))
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderName, HeaderValue};

    use super::*;

    fn ask(list: &[(&'static str, &'static str)]) -> Result<Ask, Refusal> {
        let mut headers = HeaderMap::new();
        for (name, value) in list {
            headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        Ask::of(&headers)
    }

    const ID: (&str, &str) = ("x-sandbox-id", "web");

    #[test]
    fn what_is_not_said_is_the_default() {
        let asked =
            ask(&[ID, ("x-sandbox-port", "")]).map(|ask| (ask.namespace.clone(), ask.port, ask.timeout, ask.aims));
        assert_eq!(asked, Ok(("default".to_owned(), 8888, None, false)));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let long = "a123456789012345678901234567890123456789012345678901234567890123";
        for (list, want) in [
            (&[][..], Refusal::NoId),
            (&[("x-sandbox-id", " ")], Refusal::NoId),
            (&[("x-sandbox-id", "Web")], Refusal::BadId),
            (&[("x-sandbox-id", "web.")], Refusal::BadId),
            (&[("x-sandbox-id", "-web")], Refusal::BadId),
            (&[("x-sandbox-id", "a/../b")], Refusal::BadId),
            (&[("x-sandbox-id", long)], Refusal::BadId),
            (&[ID, ID], Refusal::BadId),
            (&[ID, ("x-sandbox-namespace", "a_b")], Refusal::BadNamespace),
            (&[ID, ("x-sandbox-port", "0")], Refusal::BadPort),
            (&[ID, ("x-sandbox-port", "65536")], Refusal::BadPort),
            (&[ID, ("x-sandbox-port", "+80")], Refusal::BadPort),
            (&[ID, ("x-sandbox-port", "80@evil.example")], Refusal::BadPort),
        ] {
            assert_eq!(ask(list), Err(want), "{list:?}");
        }
    }

    #[test]
    fn addresses_are_judged() {
        for (address, good) in [
            ("10.1.2.3", true),
            ("fd00::1", true),
            ("127.0.0.1", false),
            ("::1", false),
            ("::ffff:127.0.0.1", false),
            ("0.0.0.0", false),
            ("::", false),
            ("169.254.169.254", false),
            ("::ffff:169.254.169.254", false),
            ("fe80::1", false),
            ("224.0.0.1", false),
            ("ff02::1", false),
            ("evil.example", false),
            ("10.1.2.3:80", false),
            ("[fd00::1]", false),
        ] {
            let asked = ask(&[ID, ("x-sandbox-pod-ip", address)]).map(|ask| ask.aims);
            assert_eq!(asked, if good { Ok(true) } else { Err(Refusal::BadAddress) }, "{address}");
        }
    }

    #[test]
    fn timeouts_are_honoured_within_bounds() {
        for (text, want) in [
            ("60", Some(60.0)),
            ("0.5", Some(0.5)),
            ("1000", Some(180.0)),
            ("1e300", Some(180.0)),
            ("0", None),
            ("-1", None),
            ("NaN", None),
            ("inf", None),
            ("soon", None),
        ] {
            let asked = ask(&[ID, ("x-sandbox-timeout", text)]).map(|ask| ask.timeout);
            assert_eq!(asked, Ok(want.map(Duration::from_secs_f64)), "{text}");
        }
    }
}
