//! Failures as kagent's clients know them: `{"error": "<message>[: <cause>]"}`, without the cause where it is the server's.

use axum::{
    body::{Body, to_bytes},
    extract::Request,
    http::{StatusCode, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use sandbar_api::{Code, Problem};
use serde::Serialize;
use serde_json::json;

use super::{SESSION_NOT_FOUND, serves};
use crate::problem::CONTENT_TYPE;

/// A problem document is far smaller.
const MOST: usize = 64 * 1024;

#[derive(Debug, Serialize, utoipa::ToSchema)]
pub(super) struct KagentError {
    #[schema(example = "Session not found")]
    error: String,
}

#[derive(Debug)]
pub(super) struct Fault {
    status: StatusCode,
    message: String,
    cause: Option<String>,
}

pub(super) type Result<T> = std::result::Result<T, Fault>;

impl Fault {
    pub(super) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), cause: None }
    }

    pub(super) fn bad(message: impl Into<String>, cause: Option<String>) -> Self {
        Self { cause, ..Self::new(StatusCode::BAD_REQUEST, message) }
    }

    pub(super) fn not_found() -> Self {
        Self::new(StatusCode::NOT_FOUND, SESSION_NOT_FOUND)
    }

    /// What the engine said; `failed` is what was to be done.
    pub(super) fn of(problem: Problem, failed: &str) -> Self {
        match problem.code {
            Code::UnknownSession | Code::SessionEnded => Self::not_found(),
            Code::WorkspaceDisabled => Self::bad("Workspace is not enabled for this agent", None),
            Code::BadWorkspaceConfig | Code::BadTemplate | Code::UnknownTemplate => {
                tracing::error!(detail = problem.detail, "the workspace of an agent is not usable");
                Self::new(StatusCode::INTERNAL_SERVER_ERROR, "Failed to fetch agent CRD")
            }
            // Not kagent's: a person put it away, or said so.
            Code::WrongState | Code::NameTaken => Self {
                status: StatusCode::CONFLICT,
                message: failed.to_owned(),
                cause: Some(format!("{} {}", problem.detail, problem.fix)),
            },
            _ => {
                tracing::warn!(code = problem.code.as_str(), detail = problem.detail, failed);
                Self::new(StatusCode::INTERNAL_SERVER_ERROR, failed)
            }
        }
    }
}

impl IntoResponse for Fault {
    fn into_response(self) -> Response {
        let cause = self.cause.filter(|_| !self.status.is_server_error());
        let error = cause.map_or(self.message.clone(), |cause| format!("{}: {cause}", self.message));
        (self.status, axum::Json(KagentError { error })).into_response()
    }
}

/// What was refused before it came here, by the layers that stand in front of every route, said in these words.
pub(crate) async fn answer(request: Request, next: Next) -> Response {
    let ours = serves(request.uri().path());
    let response = next.run(request).await;
    let is_problem = response.headers().get(header::CONTENT_TYPE).is_some_and(|kind| kind == CONTENT_TYPE);
    if !ours || !is_problem {
        return response;
    }
    let (mut head, body) = response.into_parts();
    let problem = to_bytes(body, MOST).await.ok().and_then(|body| serde_json::from_slice::<Problem>(&body).ok());
    let error = match problem {
        Some(problem) if !head.status.is_server_error() => {
            format!("{}: {} {}", problem.title, problem.detail, problem.fix)
        }
        Some(problem) => problem.title,
        None => head.status.canonical_reason().unwrap_or("Failed").to_owned(),
    };
    let body = Body::from(json!({ "error": error }).to_string());
    head.headers.remove(header::CONTENT_LENGTH);
    head.headers.insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
    Response::from_parts(head, body)
}
