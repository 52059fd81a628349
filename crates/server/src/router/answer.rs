//! The router's own answers, in the words of its contract, and what its answers from inside may carry.

use axum::{
    Json,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde_json::json;

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

/// It comes from the API's origin, and so it must set, allow and run nothing there.
pub(super) fn confine(mut response: Response) -> Response {
    proxy::strip_reach(&mut response);
    let headers = response.headers_mut();
    proxy::strip_prefixed(headers, "access-control-");
    for name in
        ["set-cookie", "strict-transport-security", "service-worker-allowed", "content-security-policy-report-only"]
    {
        headers.remove(name);
    }
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    response
}
