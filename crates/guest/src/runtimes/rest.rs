//! sandboxd's REST port: files, whether it is there, and what its processes are told. Codes and texts are the contract's.

mod files;
mod range;
mod time;

use std::{collections::BTreeMap, sync::Arc};

use axum::{
    Json, Router,
    extract::{Request, State},
    http::{
        Method, StatusCode,
        header::{ALLOW, WWW_AUTHENTICATE},
    },
    response::{IntoResponse as _, Response},
};
use serde_json::json;

use super::{
    serving::{SHUTTING_DOWN, Serving},
    token,
};
use crate::error::{Code, Fault};

/// Whose values are shown, and parts of names that withhold them.
const PREFIX: &str = "SANDBOX_";
const SECRETIVE: [&str; 10] =
    ["TOKEN", "SECRET", "PASSWORD", "PASSWD", "CRED", "KEY", "AUTH", "BEARER", "PRIVATE", "CERT"];

struct Rest {
    serving: Arc<Serving>,
    root: String,
    token: String,
}

pub(super) fn app(serving: &Arc<Serving>) -> Router {
    let asked = serving.sandboxd.clone().unwrap_or_default();
    let rest = Rest { serving: Arc::clone(serving), root: asked.root, token: asked.token };
    // Not by routes: what a path means is decided before its escapes are undone.
    Router::new().fallback(answer).with_state(Arc::new(rest))
}

async fn answer(State(rest): State<Arc<Rest>>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let (path, method) = (head.uri.path(), head.method.clone());
    if path == "/v1/health" {
        return if method == Method::GET { health(&rest.serving) } else { not_allowed("GET") };
    }
    if !token::is_borne(&rest.token, &head.headers) {
        let refused = refuse(StatusCode::UNAUTHORIZED, "UNAUTHENTICATED", "a valid bearer token is required");
        return ([(WWW_AUTHENTICATE, "Bearer")], refused).into_response();
    }
    if path == "/v1/metadata" {
        return if method == Method::GET { metadata(&rest.serving) } else { not_allowed("GET") };
    }
    let below = match path.strip_prefix("/v1/files") {
        Some("") => "",
        Some(below) if below.starts_with('/') => below,
        _ => return refuse(StatusCode::NOT_FOUND, "NOT_FOUND", "there is no such route"),
    };
    let outcome = match method {
        Method::GET => files::get(&rest, below, &head).await,
        Method::HEAD => files::head(&rest, below).await,
        Method::PUT => files::put(&rest, below, &head, body).await,
        Method::DELETE => files::delete(&rest, below, &head).await,
        _ => return not_allowed("GET, HEAD, PUT, DELETE"),
    };
    outcome.unwrap_or_else(|fault| problem(&fault))
}

fn health(serving: &Serving) -> Response {
    if serving.is_draining() {
        return refuse(StatusCode::SERVICE_UNAVAILABLE, "UNAVAILABLE", SHUTTING_DOWN);
    }
    Json(json!({ "status": "ok", "uptime_seconds": serving.since.elapsed().as_secs() })).into_response()
}

fn metadata(serving: &Serving) -> Response {
    let env = serving.common().env;
    let shown: BTreeMap<_, _> = env.into_iter().filter(|(name, _)| is_shown(name)).collect();
    Json(json!({ "env": shown })).into_response()
}

fn is_shown(name: &str) -> bool {
    let upper = name.to_ascii_uppercase();
    name.starts_with(PREFIX) && !SECRETIVE.iter().any(|part| upper.contains(part))
}

fn not_allowed(methods: &'static str) -> Response {
    let refused = refuse(StatusCode::METHOD_NOT_ALLOWED, "INVALID_ARGUMENT", "the method is not allowed here");
    ([(ALLOW, methods)], refused).into_response()
}

fn refuse(status: StatusCode, code: &str, message: &str) -> Response {
    (status, Json(json!({ "code": code, "message": message }))).into_response()
}

fn problem(fault: &Fault) -> Response {
    match fault.code {
        Code::FileForbidden => refuse(StatusCode::FORBIDDEN, "PERMISSION_DENIED", &fault.message),
        Code::UnknownFile => refuse(StatusCode::NOT_FOUND, "NOT_FOUND", "path does not exist within the sandbox"),
        Code::DirectoryNotEmpty => refuse(StatusCode::CONFLICT, "CONFLICT", &fault.message),
        Code::BadRequest | Code::BadPath | Code::WrongFileKind | Code::TooLarge => {
            refuse(StatusCode::BAD_REQUEST, "INVALID_ARGUMENT", &fault.message)
        }
        _ => refuse(StatusCode::INTERNAL_SERVER_ERROR, "INTERNAL", &fault.message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_sounds_secret_is_withheld() {
        assert!(is_shown("SANDBOX_NAME") && is_shown("SANDBOX_"));
        for name in ["NAME", "MY_SANDBOX_NAME", "sandbox_name", "SANDBOX_API_KEY", "SANDBOX_monkey", "SANDBOX_MyToken"]
        {
            assert!(!is_shown(name), "{name}");
        }
        for part in SECRETIVE {
            assert!(!is_shown(&format!("SANDBOX_A{part}B")), "{part}");
        }
    }
}
