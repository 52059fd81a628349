//! Sandboxes: create, list, get, delete.

use axum::{
    extract::State,
    http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header},
    response::{IntoResponse as _, Response},
};
use sandbar_api::{Code, CreateSandbox, Problem, Sandbox, SandboxPage, SandboxState};
use sandbar_engine::{Engine, ListQuery};
use serde::Serialize;
use utoipa::IntoParams;

use super::SandboxPath;
use crate::{
    access::Calling,
    extract::{Json, Path, Query},
    problem::{Result, bad_request},
    registry::{Routes, routes},
};

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const IDEMPOTENCY_REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");
const MAX_KEY: usize = 255;

pub(super) fn routes() -> Routes {
    Routes::default().routes(routes!(create, list)).routes(routes!(get, delete))
}

/// Create a sandbox
///
/// Answers when it is ready. With an Idempotency-Key a repeat of the same request gives the same sandbox. Where the
/// template has a pool, a warm sandbox is claimed.
#[utoipa::path(
    post, path = "/v1/sandboxes", operation_id = "create_sandbox", tag = "sandboxes",
    params(("Idempotency-Key" = Option<String>, Header, description = "Up to 255 visible characters of your choice.")),
    request_body = CreateSandbox,
    responses(
        (status = 201, description = "Created.", body = Sandbox, headers(("Location" = String, description = "Its path."))),
        (status = 200, description = "Created by an earlier request with this key; as it is now.", body = Sandbox,
            headers(
                ("Idempotency-Replayed" = String, description = "`true`"),
                ("Location" = String, description = "Its path."),
            )),
        (status = 400, description = "`bad_json`, `bad_name`, `bad_label`, `bad_env`, `bad_duration`, `bad_path`, `bad_template`, `bad_rule`"),
        (status = 404, description = "`unknown_template`, `unknown_provider`, `unknown_snapshot`, `unknown_secret`, `unknown_session`"),
        (status = 409, description = "`name_taken`"),
        (status = 413, description = "`too_large`"),
        (status = 415, description = "`unsupported_media`"),
        (status = 422, description = "`idempotency_mismatch`, `not_enforceable`, `declined`"),
        (status = 507, description = "`disk_full`"),
    )
)]
async fn create(
    State(engine): State<Engine>,
    Calling(caller): Calling,
    headers: HeaderMap,
    Json(request): Json<CreateSandbox>,
) -> Result<Response> {
    let key = idempotency_key(&headers)?;
    let outcome = engine.create(&caller, request, key).await?;
    Ok(made(&outcome.sandbox, &format!("/v1/sandboxes/{}", outcome.sandbox.id), outcome.replayed))
}

/// What was made now, or before with the same key, and where it is.
pub(super) fn made(what: &impl Serialize, path: &str, replayed: bool) -> Response {
    let mut response = axum::Json(what).into_response();
    if replayed {
        response.headers_mut().insert(IDEMPOTENCY_REPLAYED, HeaderValue::from_static("true"));
    } else {
        *response.status_mut() = StatusCode::CREATED;
    }
    if let Ok(location) = HeaderValue::from_str(path) {
        response.headers_mut().insert(header::LOCATION, location);
    }
    response
}

pub(crate) fn idempotency_key(headers: &HeaderMap) -> std::result::Result<Option<&str>, Problem> {
    let Some(value) = headers.get(IDEMPOTENCY_KEY) else { return Ok(None) };
    let usable = |text: &&str| (1..=MAX_KEY).contains(&text.len());
    value.to_str().ok().filter(usable).map(Some).ok_or_else(|| {
        let detail = "The Idempotency-Key header is empty, too long or not visible ASCII.";
        bad_request(detail, format!("Use 1 to {MAX_KEY} visible characters, for example a UUID."))
    })
}

#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "describes what `list_query` reads: repeated keys are beyond serde's query format")]
struct ListParameters {
    /// `key=value`; repeat it for several, all of which must hold.
    label: Option<Vec<String>>,
    /// Repeat it for several; all but deleted ones when absent.
    state: Option<Vec<SandboxState>>,
    /// 100 when absent.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
    /// The `next_cursor` of the page before.
    cursor: Option<String>,
}

fn list_query(pairs: Vec<(String, String)>) -> std::result::Result<ListQuery, Problem> {
    let mut query = ListQuery::default();
    for (key, value) in pairs {
        match key.as_str() {
            "label" => {
                let (key, label) = value.split_once('=').ok_or_else(|| {
                    let detail = format!("`{}` is not a label to filter by.", value.escape_debug());
                    Problem::new(Code::BadLabel, detail, "Write `label=key=value`; percent-encode the value.")
                })?;
                query.labels.insert(key.to_owned(), label.to_owned());
            }
            "state" => {
                let state = value.parse().map_err(|error: String| {
                    let states = SandboxState::ALL.map(SandboxState::as_str).join(", ");
                    bad_request(format!("{}.", error.escape_debug()), format!("Use one of {states}."))
                })?;
                query.states.push(state);
            }
            "limit" => {
                let limit = value.parse().map_err(|_| {
                    bad_request(format!("`{}` is not a limit.", value.escape_debug()), "Use a number from 1 to 1000.")
                })?;
                query.limit = Some(limit);
            }
            "cursor" => query.cursor = Some(value),
            other => {
                let detail = format!("`{}` is not a parameter of this route.", other.escape_debug());
                return Err(bad_request(detail, "Use label, state, limit and cursor."));
            }
        }
    }
    Ok(query)
}

/// List sandboxes
///
/// Oldest first, in pages.
#[utoipa::path(
    get, path = "/v1/sandboxes", operation_id = "list_sandboxes", tag = "sandboxes", params(ListParameters),
    responses(
        (status = 200, description = "A page.", body = SandboxPage),
        (status = 400, description = "`bad_request`, `bad_label`, `bad_cursor`"),
    )
)]
async fn list(State(engine): State<Engine>, pairs: Query<Vec<(String, String)>>) -> Result<axum::Json<SandboxPage>> {
    Ok(axum::Json(engine.list(list_query(pairs.0)?).await?))
}

/// Get a sandbox
#[utoipa::path(
    get, path = "/v1/sandboxes/{sandbox}", operation_id = "get_sandbox", tag = "sandboxes", params(SandboxPath),
    responses(
        (status = 200, description = "The sandbox.", body = Sandbox),
        (status = 404, description = "`unknown_sandbox`"),
        (status = 410, description = "`sandbox_gone`: nobody has this name any more. By id a deleted one is still found."),
    )
)]
async fn get(State(engine): State<Engine>, Path(path): Path<SandboxPath>) -> Result<axum::Json<Sandbox>> {
    Ok(axum::Json(engine.get(&path.sandbox).await?))
}

/// Delete a sandbox
///
/// Ends its processes and removes its files; answers when they are gone. Repeating it is fine.
#[utoipa::path(
    delete, path = "/v1/sandboxes/{sandbox}", operation_id = "delete_sandbox", tag = "sandboxes", params(SandboxPath),
    responses((status = 204, description = "Gone."), (status = 404, description = "`unknown_sandbox`"))
)]
async fn delete(State(engine): State<Engine>, Path(path): Path<SandboxPath>) -> Result<StatusCode> {
    engine.delete(&path.sandbox).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(pairs: &[(&str, &str)]) -> std::result::Result<ListQuery, Code> {
        let pairs = pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        list_query(pairs).map_err(|problem| problem.code)
    }

    #[test]
    fn filters_repeat() -> std::result::Result<(), Code> {
        let query =
            parse(&[("label", "a=b=c"), ("label", "d="), ("state", "ready"), ("state", "failed"), ("limit", "7")])?;
        assert_eq!(query.labels.get("a").map(String::as_str), Some("b=c"));
        assert_eq!(query.labels.get("d").map(String::as_str), Some(""));
        assert_eq!(query.states, [SandboxState::Ready, SandboxState::Failed]);
        assert_eq!(query.limit, Some(7));
        Ok(())
    }

    #[test]
    fn filters_that_are_refused() {
        for (pair, code) in [
            (("label", "a"), Code::BadLabel),
            (("state", "happy"), Code::BadRequest),
            (("limit", "-1"), Code::BadRequest),
            (("token", "sbt_x"), Code::BadRequest),
        ] {
            assert_eq!(parse(&[pair]).err(), Some(code), "{pair:?}");
        }
    }

    #[test]
    fn idempotency_keys() {
        let with = |value: &str| HeaderMap::from_iter(HeaderValue::from_str(value).ok().map(|v| (IDEMPOTENCY_KEY, v)));
        assert_eq!(idempotency_key(&HeaderMap::new()), Ok(None));
        assert_eq!(idempotency_key(&with("k-1")), Ok(Some("k-1")));
        for bad in [String::new(), "ü".to_owned(), "x".repeat(256)] {
            assert!(idempotency_key(&with(&bad)).is_err(), "{bad}");
        }
    }
}
