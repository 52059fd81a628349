//! Headers on every answer: nothing is sniffed, framed, embedded, cached or leaked by Referer.

use axum::{
    extract::Request,
    http::{HeaderName, HeaderValue, header},
    middleware::Next,
    response::Response,
};

/// For answers that are data: they load nothing and run nothing.
const DATA_POLICY: &str = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
/// For our own pages.
pub(crate) const PAGE_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const ALWAYS: [(HeaderName, &str); 4] = [
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];
/// A route may say otherwise.
const UNLESS_SET: [(HeaderName, &str); 2] =
    [(header::CONTENT_SECURITY_POLICY, DATA_POLICY), (header::CACHE_CONTROL, "no-store")];

pub(crate) async fn harden(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    harden_answer(&mut response);
    response
}

/// For answers of ours that come by another way.
pub(crate) fn harden_answer(response: &mut Response) {
    let headers = response.headers_mut();
    for (name, value) in ALWAYS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    for (name, value) in UNLESS_SET {
        headers.entry(name).or_insert(HeaderValue::from_static(value));
    }
}
