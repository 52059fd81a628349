//! Approvals: listed, waited for, answered.

mod live;

use std::time::Duration;

use axum::{
    extract::State,
    http::HeaderMap,
    response::{IntoResponse as _, Response},
};
use sandbar_api::{AnswerApproval, Approval, ApprovalList, ApprovalState, Code, HumanDuration, Problem};
use sandbar_engine::{ApprovalQuery, Engine};
use serde::Deserialize;
use utoipa::IntoParams;

use crate::{
    App,
    access::Calling,
    extract::{Path, Query, SecretJson},
    problem::{Result, bad_request, shutting_down},
    registry::{Routes, routes},
    sse,
};

const MAX_LIMIT: u32 = 1000;
/// Read at once while following.
const BATCH: u32 = 256;
/// Below the timeouts of common proxies and clients.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

pub(super) fn routes() -> Routes {
    Routes::default().routes(routes!(list)).routes(routes!(get)).routes(routes!(answer))
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
struct ApprovalPath {
    /// The approval's id.
    approval: String,
}

#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "describes what `list_query` reads: repeated keys are beyond serde's query format")]
struct ListParameters {
    /// Repeat it for several; all when absent.
    state: Option<Vec<ApprovalState>>,
    /// Only those of this sandbox: its id or name.
    sandbox: Option<String>,
    /// The newest so many.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
}

fn list_query(pairs: Vec<(String, String)>) -> std::result::Result<ApprovalQuery, Problem> {
    let mut query = ApprovalQuery::default();
    for (key, value) in pairs {
        match key.as_str() {
            "state" => {
                let state = value.parse().map_err(|error: String| {
                    let states = ApprovalState::ALL.map(ApprovalState::as_str).join(", ");
                    bad_request(format!("{}.", error.escape_debug()), format!("Use one of {states}."))
                })?;
                query.states.push(state);
            }
            "sandbox" => query.sandbox = Some(value),
            "limit" => {
                let limit = value.parse().ok().filter(|limit| (1..=MAX_LIMIT).contains(limit));
                query.limit = Some(limit.ok_or_else(|| {
                    let detail = format!("`{}` is not a limit.", value.escape_debug());
                    bad_request(detail, format!("Use a number from 1 to {MAX_LIMIT}."))
                })?);
            }
            other => {
                let detail = format!("`{}` is not a parameter of this route.", other.escape_debug());
                return Err(bad_request(detail, "Use state, sandbox and limit."));
            }
        }
    }
    Ok(query)
}

/// List or follow approvals
///
/// Newest last. An agent's token sees those of its own session. With `Accept: text/event-stream` those that are open, then
/// each one whenever something happens to it, live: `data` is the approval as it is by then, `event` its state, `id` the
/// number of an event of the log. Resume with `Last-Event-ID`.
#[utoipa::path(
    get, path = "/v1/approvals", operation_id = "list_approvals", tag = "approvals",
    params(
        ListParameters,
        ("Last-Event-ID" = Option<u64>, Header, description = "Where to go on, for a live stream."),
    ),
    responses(
        (status = 200, description = "The approvals.",
            content((ApprovalList = "application/json"), (Approval = "text/event-stream"))),
        (status = 400, description = "`bad_request`"),
        (status = 404, description = "`unknown_sandbox`"),
        (status = 410, description = "`events_dropped`, with `first_kept`: begin anew"),
    )
)]
async fn list(
    State(app): State<App>,
    Calling(caller): Calling,
    pairs: Query<Vec<(String, String)>>,
    headers: HeaderMap,
) -> Result<Response> {
    let query = list_query(pairs.0)?;
    if sse::wanted(&headers) {
        return live::follow(&app, caller, query, &headers).await;
    }
    let approvals = app.engine.approvals(&caller, query).await?;
    Ok(axum::Json(ApprovalList { approvals }).into_response())
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct WaitQuery {
    /// Answer only when it is no longer open, or after this long, at most 60s.
    #[param(value_type = Option<String>, example = "30s")]
    wait: Option<String>,
}

/// Get an approval, or wait for its answer
#[utoipa::path(
    get, path = "/v1/approvals/{approval}", operation_id = "get_approval", tag = "approvals",
    params(ApprovalPath, WaitQuery),
    responses(
        (status = 200, description = "The approval; still open if nobody answered in time.", body = Approval),
        (status = 400, description = "`bad_duration`"),
        (status = 404, description = "`unknown_approval`"),
        (status = 503, description = "`shutting_down`, while waiting"),
    )
)]
async fn get(
    State(app): State<App>,
    Calling(caller): Calling,
    Path(path): Path<ApprovalPath>,
    Query(query): Query<WaitQuery>,
) -> Result<axum::Json<Approval>> {
    let wait = query.wait.as_deref().map_or(Ok(Duration::ZERO), patience)?;
    tokio::select! {
        approval = app.engine.approval(&caller, &path.approval, wait) => Ok(axum::Json(approval?)),
        () = app.closing.cancelled() => Err(shutting_down().into()),
    }
}

fn patience(text: &str) -> std::result::Result<Duration, Problem> {
    let HumanDuration(wait) = text.parse().map_err(|error| {
        Problem::new(Code::BadDuration, format!("{error}."), "Write it with a unit, for example 30s.")
    })?;
    Ok(wait.min(LONGEST_WAIT))
}

/// Answer an approval
///
/// Exactly one answer counts, and only before the deadline. An agent's token answers nothing. What a terminal asks is
/// answered by typing: `delivery` says whether that has happened, and `pending` becomes `typed` or `refused` by itself.
#[utoipa::path(
    post, path = "/v1/approvals/{approval}/answer", operation_id = "answer_approval", tag = "approvals",
    params(ApprovalPath), request_body = AnswerApproval,
    responses(
        (status = 200, description = "Answered, by this request.", body = Approval),
        (status = 400, description = "`bad_json`; `bad_answer`: none of its choices, text where it takes none or none \
            where it takes text, or text with control characters"),
        (status = 403, description = "`forbidden`: an agent, or a role below the one it asks for"),
        (status = 404, description = "`unknown_approval`"),
        (status = 409, description = "`approval_closed`: answered, expired or withdrawn before; `screen_moved`: the \
            terminal shows something else by now and nothing was typed; `wrong_state`: the sandbox is paused"),
        (status = 413, description = "`too_large`"),
    )
)]
async fn answer(
    State(engine): State<Engine>,
    Calling(caller): Calling,
    Path(path): Path<ApprovalPath>,
    SecretJson(request): SecretJson<AnswerApproval>,
) -> Result<axum::Json<Approval>> {
    Ok(axum::Json(engine.answer_approval(&caller, &path.approval, request).await?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(pairs: &[(&str, &str)]) -> std::result::Result<ApprovalQuery, Code> {
        let pairs = pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        list_query(pairs).map_err(|problem| problem.code)
    }

    #[test]
    fn filters() -> std::result::Result<(), Code> {
        let query = parse(&[("state", "open"), ("state", "expired"), ("sandbox", "a"), ("limit", "1000")])?;
        assert_eq!(query.states, [ApprovalState::Open, ApprovalState::Expired]);
        assert_eq!((query.sandbox.as_deref(), query.limit), (Some("a"), Some(1000)));
        for bad in [("state", "closed"), ("limit", "0"), ("limit", "1001"), ("limit", "x"), ("session", "x")] {
            assert_eq!(parse(&[bad]).err(), Some(Code::BadRequest), "{bad:?}");
        }
        Ok(())
    }

    #[test]
    fn waits_are_durations_and_end() {
        assert_eq!(patience("30s"), Ok(Duration::from_secs(30)));
        assert_eq!(patience("1d"), Ok(LONGEST_WAIT));
        for bad in ["", "30", "soon"] {
            assert_eq!(patience(bad).map_err(|problem| problem.code), Err(Code::BadDuration), "{bad}");
        }
    }
}
