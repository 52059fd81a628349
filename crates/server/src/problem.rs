//! The one place where a problem becomes a response, whoever found it.

use axum::{
    body::Body,
    http::{HeaderValue, Method, StatusCode, Uri, header},
    response::{IntoResponse, Response},
};
use futures_util::TryStreamExt as _;
use sandbar_api::{Code, Problem};
use sandbar_engine::ByteStream;

pub(crate) const CONTENT_TYPE: &str = "application/problem+json";

/// A request that was refused or failed.
#[derive(Debug)]
pub(crate) struct Refused(pub(crate) Problem);

pub(crate) type Result<T> = std::result::Result<T, Refused>;

impl From<Problem> for Refused {
    fn from(problem: Problem) -> Self {
        Self(problem)
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let Self(problem) = self;
        let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        if status.is_server_error() {
            tracing::warn!(code = problem.code.as_str(), detail = problem.detail, "request failed");
        }
        let mut response = (status, axum::Json(&problem)).into_response();
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(CONTENT_TYPE));
        if status == StatusCode::UNAUTHORIZED {
            let challenge = HeaderValue::from_static("Bearer realm=\"sandbar\"");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, challenge);
        }
        // For callers that do not speak JSON.
        response.extensions_mut().insert(problem);
        response
    }
}

pub(crate) fn bad_request(detail: impl Into<String>, fix: impl Into<String>) -> Problem {
    Problem::new(Code::BadRequest, detail, fix)
}

pub(crate) fn shutting_down() -> Problem {
    Problem::new(
        Code::ShuttingDown,
        "The server is shutting down; sandboxes and their processes go on.",
        "Connect again when it is back, and resume where this ended.",
    )
}

pub(crate) async fn unknown_route(uri: Uri) -> Refused {
    let detail = format!("There is nothing at `{}`.", uri.path().escape_debug());
    Refused(Problem::new(Code::UnknownRoute, detail, "See /docs for the routes."))
}

/// The router adds the Allow header.
pub(crate) async fn method_not_allowed(method: Method, uri: Uri) -> Refused {
    let detail = format!("`{}` does not take {method}.", uri.path().escape_debug());
    Refused(Problem::new(Code::MethodNotAllowed, detail, "Use a method of the Allow header; see /docs."))
}

/// A body that is sent as it is produced. When it fails the status is long gone: the connection is broken off, so that
/// nobody takes the part for the whole.
pub(crate) fn streamed(bytes: ByteStream) -> Body {
    Body::from_stream(bytes.inspect_err(|problem| {
        tracing::warn!(code = problem.code.as_str(), detail = problem.detail, "an answer broke off");
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_keeps_its_status_and_the_problem_content_type() {
        for code in Code::ALL {
            let response = Refused(Problem::new(*code, "What.", "Fix.")).into_response();
            assert_eq!(response.status().as_u16(), code.status(), "{}", code.as_str());
            assert_eq!(response.headers()[header::CONTENT_TYPE], CONTENT_TYPE);
            assert_eq!(response.headers().contains_key(header::WWW_AUTHENTICATE), code.status() == 401);
        }
    }
}
