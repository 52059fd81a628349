//! Headers at the border: those about one connection stay with it, lengths are what was parsed, and what is ours stays
//! outside.

use axum::{
    body::{Body, HttpBody as _},
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Version, header, request::Parts},
    response::Response,
};

/// About the connection and not about the message.
const HOP: [HeaderName; 8] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

fn strip_hops(headers: &mut HeaderMap) {
    let listed: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in listed.iter().chain(&HOP) {
        headers.remove(name);
    }
}

fn switch(headers: &mut HeaderMap) {
    headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
}

/// A length is passed on only as it was parsed: a second opinion about it is how one request is made to look like two.
pub(super) fn to_server(head: &mut Parts, body: &Body, switches: bool) {
    let headers = &mut head.headers;
    let stated = headers.remove(header::CONTENT_LENGTH).is_some();
    strip_hops(headers);
    // We have said so ourselves by reading the body.
    headers.remove(header::EXPECT);
    if switches {
        switch(headers);
        return;
    }
    // The connection is for this one request; a server that knows it lets go of it at once.
    headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    if stated && let Some(length) = body.size_hint().exact() {
        headers.insert(header::CONTENT_LENGTH, length.into());
    }
}

pub(super) fn to_client<B: hyper::body::Body>(answer: &mut hyper::Response<B>, is_head: bool, switches: bool) {
    // As an answer of 1.0 its end would be that of the connection, and what broke off could not be told from it.
    *answer.version_mut() = Version::HTTP_11;
    let bodiless = is_head || answer.status() == StatusCode::NOT_MODIFIED;
    let known = bodiless || answer.body().size_hint().exact().is_some();
    let headers = answer.headers_mut();
    strip_hops(headers);
    if switches {
        headers.remove(header::CONTENT_LENGTH);
        switch(headers);
    } else if !known {
        headers.remove(header::CONTENT_LENGTH);
    }
}

/// Name and value of each cookie.
pub(crate) fn cookies(headers: &HeaderMap) -> impl Iterator<Item = (&str, &str)> {
    let lists = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    lists.flat_map(|list| list.split(';')).map(|pair| pair.trim().split_once('=').unwrap_or((pair.trim(), "")))
}

/// Takes the cookies out that are ours. A header that is no text is dropped: what is in it cannot be told.
pub(crate) fn strip_cookies(headers: &mut HeaderMap, ours: &[&str]) {
    let kept: Vec<String> = cookies(headers)
        .filter(|(name, _)| !name.is_empty() && !ours.contains(name))
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    headers.remove(header::COOKIE);
    if let Ok(value) = HeaderValue::from_str(&kept.join("; "))
        && !kept.is_empty()
    {
        headers.insert(header::COOKIE, value);
    }
}

/// Takes out all whose names begin so.
pub(crate) fn strip_prefixed(headers: &mut HeaderMap, prefix: &str) {
    let names: Vec<HeaderName> = headers.keys().filter(|name| name.as_str().starts_with(prefix)).cloned().collect();
    for name in names {
        headers.remove(name);
    }
}

/// Of answers from inside: what would reach beyond the host they come from, or tell a proxy in front of us what to send.
pub(crate) fn strip_reach(response: &mut Response) {
    for name in ["clear-site-data", "alt-svc", "x-accel-redirect", "x-sendfile"] {
        response.headers_mut().remove(name);
    }
}
