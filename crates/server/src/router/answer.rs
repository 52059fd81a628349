//! The router's own answers, in the words of its contract, and what its answers from inside may carry.

use axum::{
    Json,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde_json::json;

use super::PREFIX;
use crate::proxy;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    Unauthenticated,
    Forbidden,
    NoId,
    BadId,
    BadNamespace,
    BadPort,
    BadAddress,
    Method,
    Unreachable(String),
    Slow(String),
    Busy(String),
    NotReady(String),
    Internal,
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let (status, detail) = match self {
            Self::Unauthenticated => (StatusCode::UNAUTHORIZED, "unauthenticated".to_owned()),
            Self::Forbidden => (StatusCode::FORBIDDEN, "forbidden".to_owned()),
            Self::NoId => (StatusCode::BAD_REQUEST, "X-Sandbox-ID header is required.".to_owned()),
            Self::BadId => (StatusCode::BAD_REQUEST, "Invalid sandbox ID format.".to_owned()),
            Self::BadNamespace => (StatusCode::BAD_REQUEST, "Invalid namespace format.".to_owned()),
            Self::BadPort => (StatusCode::BAD_REQUEST, "Invalid port format.".to_owned()),
            Self::BadAddress => (StatusCode::BAD_REQUEST, "Invalid target IP address.".to_owned()),
            Self::Method => (StatusCode::METHOD_NOT_ALLOWED, "CONNECT is not passed on.".to_owned()),
            Self::Unreachable(id) => {
                (StatusCode::BAD_GATEWAY, format!("Could not connect to the backend sandbox: {id}"))
            }
            Self::Slow(id) => {
                (StatusCode::GATEWAY_TIMEOUT, format!("The backend sandbox did not answer in time: {id}"))
            }
            Self::Busy(why) => (StatusCode::TOO_MANY_REQUESTS, why),
            Self::NotReady(why) => (StatusCode::SERVICE_UNAVAILABLE, why),
            Self::Internal => {
                (StatusCode::INTERNAL_SERVER_ERROR, "The router failed; see the server's log.".to_owned())
            }
        };
        let mut response = (status, Json(json!({"detail": detail}))).into_response();
        if status == StatusCode::UNAUTHORIZED {
            let challenge = HeaderValue::from_static("Bearer realm=\"sandbar\"");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, challenge);
        }
        response
    }
}

/// What a browser may make of an answer from inside, were it ever shown one: nothing.
const POLICY: &str = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; sandbox";

/// Headers that would set, keep or load something at the origin they are taken from.
const ACTING: [&str; 8] = [
    "set-cookie",
    "strict-transport-security",
    "service-worker-allowed",
    "content-security-policy-report-only",
    "refresh",
    "nel",
    "report-to",
    "reporting-endpoints",
];

/// It comes from the API's origin, and so it must set, allow, run and keep nothing there, nor lead there.
pub(super) fn confine(mut response: Response, port: u16) -> Response {
    proxy::strip_reach(&mut response);
    let headers = response.headers_mut();
    proxy::strip_prefixed(headers, "access-control-");
    let led = headers.remove(header::LOCATION).and_then(|place| within(place.to_str().ok()?, port)?.parse().ok());
    if let Some(place) = led {
        headers.insert(header::LOCATION, place);
    }
    for name in ACTING {
        headers.remove(name);
    }
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    // Whose answer it is, a header of the request says, which caches do not look at.
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Where a redirection leads as clients of the router see it, if that is a path of the server inside. Clients follow with
/// the method and the token they came with: led out of here, they would do to the API what the sandbox tells them.
fn within(place: &str, port: u16) -> Option<String> {
    let path = place.strip_prefix(&format!("http://127.0.0.1:{port}")).unwrap_or(place);
    let climbs = |part: &str| matches!(part.to_ascii_lowercase().replace("%2e", ".").as_str(), "." | "..");
    let stays = path.starts_with('/')
        && !path.starts_with("//")
        && !path.contains(['\\', '\t', ' '])
        && !path.split(['?', '#']).next()?.split('/').any(climbs);
    stays.then(|| format!("{PREFIX}{path}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirections_stay_with_the_sandbox() {
        for (place, want) in [
            ("/list/?a=../b", Some("/router/list/?a=../b")),
            ("/v1/sandboxes/other", Some("/router/v1/sandboxes/other")),
            ("http://127.0.0.1:8888/list/", Some("/router/list/")),
            ("http://127.0.0.1:88881/list/", None),
            ("http://127.0.0.1:7227/v1/sandboxes/other", None),
            ("https://evil.example/", None),
            ("//evil.example/", None),
            ("/\\evil.example/", None),
            ("/../v1/sandboxes/other", None),
            ("/a/%2E%2e/../v1/tokens", None),
            ("v1/tokens", None),
            ("", None),
        ] {
            assert_eq!(within(place, 8888).as_deref(), want, "{place}");
        }
    }
}
