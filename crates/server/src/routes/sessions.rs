//! Sessions: create, list, get, restart, delete. What they may use is in `budgets`.

use axum::{
    extract::State,
    http::{HeaderMap, StatusCode},
    response::Response,
};
use sandbar_api::{Code, CreateSession, Problem, Process, RestartSession, Session, SessionPage};
use sandbar_engine::{Engine, SessionOutcome, SessionQuery};
use utoipa::IntoParams;

use super::{
    SessionPath,
    sandboxes::{idempotency_key, made},
};
use crate::{
    access::Calling,
    extract::{Json, Path, Query},
    problem::{Result, bad_request},
    registry::{Routes, routes},
};

pub(super) fn routes() -> Routes {
    Routes::default().routes(routes!(create, list)).routes(routes!(get, delete)).routes(routes!(restart))
}

/// Create a session
///
/// Makes a sandbox of the template in a new session, and starts the command in a terminal of it. Answers when all of that
/// is done; what fails leaves nothing behind. With an Idempotency-Key a repeat of the same request gives the same session.
#[utoipa::path(
    post, path = "/v1/sessions", operation_id = "create_session", tag = "sessions",
    params(("Idempotency-Key" = Option<String>, Header, description = "Up to 255 visible characters of your choice.")),
    request_body = CreateSession,
    responses(
        (status = 201, description = "Created.", body = Session, headers(("Location" = String, description = "Its path."))),
        (status = 200, description = "Created by an earlier request with this key; as it is now.", body = Session,
            headers(
                ("Idempotency-Replayed" = String, description = "`true`"),
                ("Location" = String, description = "Its path."),
            )),
        (status = 400, description = "`bad_json`, `bad_name`, `bad_label`, `bad_env`, `bad_duration`, `bad_path`, `bad_command`, `bad_template`, `bad_rule`"),
        (status = 403, description = "`forbidden`: binding a directory of the host needs the owner's socket or an admin token."),
        (status = 404, description = "`unknown_template`, `unknown_provider`, `unknown_secret`"),
        (status = 409, description = "`name_taken`, of a session or of a sandbox"),
        (status = 410, description = "`session_ended`: the parent was deleted."),
        (status = 422, description = "`command_not_found`, `command_not_executable`, `idempotency_mismatch`, `not_enforceable`, `declined`"),
        (status = 507, description = "`disk_full`"),
    )
)]
async fn create(
    State(engine): State<Engine>,
    Calling(caller): Calling,
    headers: HeaderMap,
    Json(request): Json<CreateSession>,
) -> Result<Response> {
    let SessionOutcome { session, replayed } =
        engine.create_session(&caller, request, idempotency_key(&headers)?).await?;
    Ok(made(&session, &format!("/v1/sessions/{}", session.id), replayed))
}

#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "describes what `list_query` reads: repeated keys are beyond serde's query format")]
struct ListParameters {
    /// `key=value`; repeat it for several, all of which must hold.
    label: Option<Vec<String>>,
    /// Also those that have ended; `false` when absent.
    ended: Option<bool>,
    /// 100 when absent.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
    /// The `next_cursor` of the page before.
    cursor: Option<String>,
}

fn list_query(pairs: Vec<(String, String)>) -> std::result::Result<SessionQuery, Problem> {
    let mut query = SessionQuery::default();
    for (key, value) in pairs {
        let not = |what: &str, fix: &str| bad_request(format!("`{}` is not {what}.", value.escape_debug()), fix);
        match key.as_str() {
            "label" => {
                let (key, label) = value.split_once('=').ok_or_else(|| {
                    let detail = format!("`{}` is not a label to filter by.", value.escape_debug());
                    Problem::new(Code::BadLabel, detail, "Write `label=key=value`; percent-encode the value.")
                })?;
                query.labels.insert(key.to_owned(), label.to_owned());
            }
            "ended" => query.ended = value.parse().map_err(|_| not("true or false", "Use true or false."))?,
            "limit" => {
                query.limit = Some(value.parse().map_err(|_| not("a limit", "Use a number from 1 to 1000."))?);
            }
            "cursor" => query.cursor = Some(value),
            other => {
                let detail = format!("`{}` is not a parameter of this route.", other.escape_debug());
                return Err(bad_request(detail, "Use label, ended, limit and cursor."));
            }
        }
    }
    Ok(query)
}

/// List sessions
///
/// Oldest first, in pages. An agent's token sees its own.
#[utoipa::path(
    get, path = "/v1/sessions", operation_id = "list_sessions", tag = "sessions", params(ListParameters),
    responses(
        (status = 200, description = "A page.", body = SessionPage),
        (status = 400, description = "`bad_request`, `bad_label`, `bad_cursor`"),
    )
)]
async fn list(
    State(engine): State<Engine>,
    Calling(caller): Calling,
    pairs: Query<Vec<(String, String)>>,
) -> Result<axum::Json<SessionPage>> {
    Ok(axum::Json(engine.sessions(&caller, list_query(pairs.0)?).await?))
}

/// Get a session
///
/// With its sandboxes, running terminals, open approvals and what it used. An agent's token sees its own.
#[utoipa::path(
    get, path = "/v1/sessions/{session}", operation_id = "get_session", tag = "sessions", params(SessionPath),
    responses(
        (status = 200, description = "The session.", body = Session),
        (status = 404, description = "`unknown_session`"),
        (status = 410, description = "`session_ended`: nobody has this name any more. By id a deleted one is still found."),
    )
)]
async fn get(
    State(engine): State<Engine>,
    Calling(caller): Calling,
    Path(path): Path<SessionPath>,
) -> Result<axum::Json<Session>> {
    Ok(axum::Json(engine.session(&caller, &path.session).await?))
}

/// Start a command of a session again
///
/// One that was started with `restart` and does not run: it was given up because it kept dying, waits for its time, was
/// killed, or ended with its sandbox. What went wrong before is forgiven.
#[utoipa::path(
    post, path = "/v1/sessions/{session}/restart", operation_id = "restart_session", tag = "sessions",
    params(SessionPath), request_body = RestartSession,
    responses(
        (status = 201, description = "Started.", body = Process),
        (status = 400, description = "`bad_json`, `bad_request`: several commands could be meant."),
        (status = 404, description = "`unknown_session`, `unknown_process`"),
        (status = 409, description = "`already_running`, `wrong_state`"),
        (status = 422, description = "`command_not_found`, `command_not_executable`"),
        (status = 507, description = "`disk_full`"),
    )
)]
async fn restart(
    State(engine): State<Engine>,
    Path(path): Path<SessionPath>,
    Json(request): Json<RestartSession>,
) -> Result<(StatusCode, axum::Json<Process>)> {
    let process = engine.restart_session(&path.session, request.process.as_ref()).await?;
    Ok((StatusCode::CREATED, axum::Json(process)))
}

/// Delete a session
///
/// With all its sandboxes; its open approvals are withdrawn. Answers when they are gone; repeating it is fine. Sessions
/// below it stay, and what they use still counts for it.
#[utoipa::path(
    delete, path = "/v1/sessions/{session}", operation_id = "delete_session", tag = "sessions", params(SessionPath),
    responses((status = 204, description = "Gone."), (status = 404, description = "`unknown_session`"))
)]
async fn delete(State(engine): State<Engine>, Path(path): Path<SessionPath>) -> Result<StatusCode> {
    engine.delete_session(&path.session).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(pairs: &[(&str, &str)]) -> std::result::Result<SessionQuery, Code> {
        let pairs = pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        list_query(pairs).map_err(|problem| problem.code)
    }

    #[test]
    fn filters_are_taken_or_refused() -> std::result::Result<(), Code> {
        let query = parse(&[("label", "a=b=c"), ("label", "d="), ("ended", "true"), ("limit", "7"), ("cursor", "x")])?;
        assert_eq!(query.labels.get("a").map(String::as_str), Some("b=c"));
        assert_eq!(query.labels.get("d").map(String::as_str), Some(""));
        assert_eq!((query.ended, query.limit, query.cursor.as_deref()), (true, Some(7), Some("x")));
        for (pair, code) in [
            (("label", "a"), Code::BadLabel),
            (("ended", "1"), Code::BadRequest),
            (("limit", "-1"), Code::BadRequest),
            (("state", "ready"), Code::BadRequest),
        ] {
            assert_eq!(parse(&[pair]).err(), Some(code), "{pair:?}");
        }
        Ok(())
    }
}
