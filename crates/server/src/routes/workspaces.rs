//! The workspace of a session: asked for, looked at, deleted. In the words of kagent it is the same, in `kagent`.

use std::{collections::BTreeMap, time::Duration};

use axum::{
    extract::{FromRequestParts, State},
    http::{StatusCode, request::Parts},
};
use sandbar_api::{Code, HumanDuration, Problem, Role, SessionId, Workspace, workspace};
use sandbar_engine::{Caller, Engine, NewConversation};
use serde::Deserialize;
use utoipa::IntoParams;

use super::SessionPath;
use crate::{
    App,
    access::{Calling, Channel},
    extract::{Path, Query},
    problem::{Refused, Result, bad_request},
    registry::{Routes, routes},
};

pub(super) fn routes() -> Routes {
    Routes::default().routes(routes!(provide, look, delete))
}

/// Where the server was called, which is where its tools are; or why that cannot be said.
pub(crate) struct Here(pub(crate) std::result::Result<String, Problem>);

impl FromRequestParts<App> for Here {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self> {
        let channel = parts.extensions.get::<Channel>().copied().unwrap_or(Channel::Tcp);
        let here = app.site.base(channel, &parts.uri, &parts.headers);
        Ok(Self(here.ok_or_else(|| {
            Problem::new(
                Code::BadRequest,
                "This server listens on no TCP address, so that its tools have no URL.",
                "Start it with --listen, or call /v1/sessions/{session}/mcp over the Unix socket.",
            )
        })))
    }
}

/// What a caller is told of a workspace. Who may not act in it is not told how.
pub(crate) fn shown(here: &str, caller: &Caller, found: sandbar_engine::Workspace) -> Workspace {
    let sandbar_engine::Workspace { session, sandbox, secret, ready } = found;
    let secret = secret.filter(|_| caller.role >= Role::Operator);
    let headers = secret.map(|secret| ("Authorization".to_owned(), format!("Bearer {secret}")));
    Workspace {
        mcp_url: format!("{here}/v1/sessions/{session}/mcp"),
        session,
        sandbox_id: sandbox.map(|sandbox| sandbox.id),
        protocol: workspace::PROTOCOL.to_owned(),
        headers: headers.into_iter().collect::<BTreeMap<_, _>>(),
        ready,
    }
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct Asked {
    /// Whether the session is begun if there is none of that name; `false` when absent.
    create: Option<bool>,
    /// Of a session that is begun: whose configuration in `workspaces.toml` holds; `default` when absent.
    agent: Option<String>,
    /// Answer after this many seconds, ready or not; 300 when absent, and at most.
    wait: Option<String>,
}

pub(crate) fn patience(text: &str) -> std::result::Result<Duration, Problem> {
    let seconds = text.parse().ok().map(Duration::from_secs);
    let duration = || text.parse::<HumanDuration>().ok().map(|duration| duration.0);
    seconds.or_else(duration).ok_or_else(|| {
        bad_request(format!("`{}` is no time to wait.", text.escape_debug()), "Give seconds, for example wait=25.")
    })
}

/// Provide a session's workspace
///
/// Finds the session's newest sandbox and brings it back if idleness put it away, it was stopped or it failed; makes one if
/// there is none, by the configuration of the session's agent. Answers when it can be worked in. Repeating it is fine, also at
/// the same time: there is one. What was begun goes on if the caller goes away.
#[utoipa::path(
    post, path = "/v1/sessions/{session}/sandbox", operation_id = "provide_workspace", tag = "sessions",
    params(SessionPath, Asked),
    responses(
        (status = 200, description = "Ready.", body = Workspace),
        (status = 202, description = "Not ready in the time that was given; ask again.", body = Workspace),
        (status = 400, description = "`bad_request`, `bad_name`, `bad_workspace_config`, `bad_template`"),
        (status = 404, description = "`unknown_session`, `unknown_template`, `unknown_provider`, `unknown_secret`"),
        (status = 409, description = "`wrong_state`: a person paused it; `workspace_disabled`; `name_taken`: the session is another agent's"),
        (status = 410, description = "`session_ended`"),
        (status = 422, description = "`not_enforceable`, `declined`"),
        (status = 503, description = "`not_ready` within five minutes"),
        (status = 507, description = "`disk_full`"),
    )
)]
async fn provide(
    State(engine): State<Engine>,
    Calling(caller): Calling,
    Path(path): Path<SessionPath>,
    Query(asked): Query<Asked>,
    Here(here): Here,
) -> Result<(StatusCode, axum::Json<Workspace>)> {
    let here = here?;
    let wait = asked.wait.as_deref().map(patience).transpose()?;
    // An id names a session that was begun.
    let create = asked.create.unwrap_or(false) && path.session.parse::<SessionId>().is_err();
    if asked.agent.is_some() && !create {
        let fix = "Give `create=true` and a name, or no agent: a session has the one it was begun with.";
        return Err(bad_request("An agent is named for a session that is not to be begun.", fix).into());
    }
    let mut session = path.session;
    if create {
        // By its name alone: what a sandbox of another session is called is no conversation.
        let new =
            NewConversation { name: Some(session), agent: asked.agent, provides: true, ..NewConversation::default() };
        session = engine.begin_conversation(&caller, new).await?.id.to_string();
    }
    let found = engine.workspace(&caller, &session, wait).await?;
    let status = if found.ready { StatusCode::OK } else { StatusCode::ACCEPTED };
    Ok((status, axum::Json(shown(&here, &caller, found))))
}

/// Look at a session's workspace
///
/// As it is now: nothing is made or brought back. An agent's token sees its own session's. The headers are for operators and
/// admins, and there once the workspace was provided.
#[utoipa::path(
    get, path = "/v1/sessions/{session}/sandbox", operation_id = "get_workspace", tag = "sessions",
    params(SessionPath),
    responses(
        (status = 200, description = "The workspace; without a `sandbox_id` if there is none.", body = Workspace),
        (status = 404, description = "`unknown_session`"),
        (status = 410, description = "`session_ended`"),
    )
)]
async fn look(
    State(engine): State<Engine>,
    Calling(caller): Calling,
    Path(path): Path<SessionPath>,
    Here(here): Here,
) -> Result<axum::Json<Workspace>> {
    let found = engine.workspace_now(&caller, &path.session).await?;
    Ok(axum::Json(shown(&here?, &caller, found)))
}

/// Delete a session's workspace
///
/// Its sandbox with all files. The session stays, and the next request provides a new one. Repeating it is fine.
#[utoipa::path(
    delete, path = "/v1/sessions/{session}/sandbox", operation_id = "delete_workspace", tag = "sessions",
    params(SessionPath),
    responses(
        (status = 204, description = "Gone."),
        (status = 404, description = "`unknown_session`"),
        (status = 410, description = "`session_ended`"),
    )
)]
async fn delete(State(engine): State<Engine>, Path(path): Path<SessionPath>) -> Result<StatusCode> {
    engine.delete_workspace(&path.session).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_is_in_seconds_or_with_a_unit() {
        for (text, want) in [("25", 25), ("0", 0), ("2m", 120)] {
            assert_eq!(patience(text), Ok(Duration::from_secs(want)), "{text}");
        }
        for text in ["", "-1", "soon", "1.5"] {
            assert_eq!(patience(text).map_err(|problem| problem.code), Err(Code::BadRequest), "{text}");
        }
    }
}
