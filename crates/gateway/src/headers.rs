//! Headers on their way: what belongs to one hop stays there, and HTTP/1.1 and HTTP/2 are translated into each other.

use hyper::{
    HeaderMap, Uri, Version,
    header::{
        CONNECTION, COOKIE, EXPECT, HOST, HeaderName, HeaderValue, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE,
        TRANSFER_ENCODING, UPGRADE,
    },
    http::{request, uri},
};

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
const HTTP2_SETTINGS: HeaderName = HeaderName::from_static("http2-settings");
/// What the gateway itself says, as in `sandbar-refusal`, begins with it.
const OWN: &str = "sandbar-";

/// The protocol a request asks to go on with, if it may. HTTP by another name would go on without being judged.
pub(crate) fn upgrade(version: Version, headers: &HeaderMap) -> Option<HeaderValue> {
    if version != Version::HTTP_11 {
        return None;
    }
    let asked = headers.get_all(CONNECTION).iter().filter_map(|value| value.to_str().ok());
    if !asked.flat_map(|value| value.split(',')).any(|option| option.trim().eq_ignore_ascii_case("upgrade")) {
        return None;
    }
    let mut protocols = headers.get_all(UPGRADE).iter();
    let (Some(protocol), None) = (protocols.next(), protocols.next()) else { return None };
    let text = protocol.to_str().ok()?.to_ascii_lowercase();
    let other_http = |name: &str| name.is_empty() || ["h2", "h3", "http", "tls"].iter().any(|no| name.starts_with(no));
    (!text.split(',').any(|name| other_http(name.trim()))).then(|| protocol.clone())
}

/// Takes out what is between two neighbours; with `upgrade`, what asks for it stays.
pub(crate) fn strip(headers: &mut HeaderMap, upgrade: Option<&HeaderValue>) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .filter(|name| *name != TE)
        .collect();
    for name in &named {
        headers.remove(name);
    }
    let trailers = headers.get_all(TE).iter().any(|te| {
        te.to_str().is_ok_and(|te| te.split(',').any(|coding| coding.trim().eq_ignore_ascii_case("trailers")))
    });
    for name in [
        CONNECTION,
        TE,
        TRANSFER_ENCODING,
        UPGRADE,
        PROXY_AUTHORIZATION,
        PROXY_AUTHENTICATE,
        KEEP_ALIVE,
        PROXY_CONNECTION,
        HTTP2_SETTINGS,
    ] {
        headers.remove(name);
    }
    if trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
    if let Some(protocol) = upgrade {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, protocol.clone());
    }
}

/// Takes out of a server's headers or trailers what a client would read as the gateway's own word.
pub(crate) fn strip_own(headers: &mut HeaderMap) {
    let own: Vec<HeaderName> = headers.keys().filter(|name| name.as_str().starts_with(OWN)).cloned().collect();
    for name in own {
        headers.remove(name);
    }
}

/// Makes a request fit the server's connection: `authority` is what was judged, whatever the client wrote. `h2` is the
/// scheme where HTTP/2 is spoken, which names it.
pub(crate) fn address(
    parts: &mut request::Parts,
    authority: &HeaderValue,
    h2: Option<uri::Scheme>,
) -> Result<(), uri::InvalidUriParts> {
    // the gateway itself has answered it to the client
    parts.headers.remove(EXPECT);
    let mut uri = std::mem::take(&mut parts.uri).into_parts();
    if uri.path_and_query.is_none() {
        uri.path_and_query = Some(uri::PathAndQuery::from_static("/"));
    }
    if h2.is_some() {
        parts.headers.remove(HOST);
        uri.scheme = h2;
        uri.authority = uri::Authority::try_from(authority.as_bytes()).ok();
        parts.version = Version::HTTP_2;
    } else {
        uri.scheme = None;
        uri.authority = None;
        join_cookies(&mut parts.headers);
        parts.headers.insert(HOST, authority.clone());
        parts.version = Version::HTTP_11;
    }
    parts.uri = Uri::from_parts(uri)?;
    Ok(())
}

/// HTTP/2 lets a client send them one by one, HTTP/1.1 does not.
fn join_cookies(headers: &mut HeaderMap) {
    let cookies: Vec<&[u8]> = headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if cookies.len() < 2 {
        return;
    }
    let sensitive = headers.get_all(COOKIE).iter().any(HeaderValue::is_sensitive);
    if let Ok(mut joined) = HeaderValue::from_bytes(&cookies.join(&b"; "[..])) {
        joined.set_sensitive(sensitive);
        headers.insert(COOKIE, joined);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value))).collect()
    }

    #[test]
    fn what_belongs_to_one_hop_stays_there() {
        let mut some = headers(&[
            ("connection", "close, x-mine"),
            ("x-mine", "1"),
            ("proxy-authorization", "Basic eDp5"),
            ("proxy-connection", "keep-alive"),
            ("te", "gzip, trailers"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "websocket"),
            ("accept", "*/*"),
        ]);
        strip(&mut some, None);
        assert_eq!(some, headers(&[("te", "trailers"), ("accept", "*/*")]));
    }

    #[test]
    fn nobody_else_speaks_in_the_gateways_name() {
        let mut some = headers(&[
            ("sandbar-refusal", "network_denied"),
            ("sandbar-refusal", "busy"),
            ("sandbar-", "x"),
            ("x-sandbar-refusal", "stays"),
            ("sandbar", "stays"),
        ]);
        strip_own(&mut some);
        assert_eq!(some, headers(&[("x-sandbar-refusal", "stays"), ("sandbar", "stays")]));
    }

    #[test]
    fn http_by_another_name_is_no_upgrade() {
        let asks = |protocol| {
            upgrade(Version::HTTP_11, &headers(&[("connection", "keep-alive, Upgrade"), ("upgrade", protocol)]))
                .is_some()
        };
        assert!(asks("websocket") && asks("SPDY/3.1") && asks("tcp"));
        for protocol in ["h2c", "H2C", "HTTP/2.0", "websocket, h2c", "TLS/1.2", "", " "] {
            assert!(!asks(protocol), "{protocol}");
        }
        assert!(upgrade(Version::HTTP_11, &headers(&[("upgrade", "websocket")])).is_none());
    }

    #[test]
    fn cookies_are_joined_for_http1() {
        let mut two = headers(&[("cookie", "a=1"), ("cookie", "b=2")]);
        join_cookies(&mut two);
        assert_eq!(two, headers(&[("cookie", "a=1; b=2")]));
    }
}
