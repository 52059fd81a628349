//! `/api/sessions/{session_id}/sandbox`: the conversation's place to work, and its tools.

use std::collections::BTreeMap;

use axum::{
    extract::State,
    http::{HeaderMap, StatusCode},
};
use sandbar_api::{Workspace, workspace};
use sandbar_engine::{ConversationId, Engine};
use serde::{Deserialize, Serialize};
use utoipa::IntoParams;

use super::{
    fault::{Fault, KagentError, Result},
    sessions::{Begin, ConversationPath, Nothing, OfUser, Wrapped, begun, standing, wrapped},
    user,
};
use crate::{
    access::Calling,
    extract::{Path, Query},
    registry::{Routes, routes},
    routes::workspaces::{Here, patience, shown},
};

const FAILED: &str = "Failed to create sandbox";
const FAILED_STATUS: &str = "Failed to get sandbox status";
const NO_AGENT: &str = "Session has no agent reference";

pub(super) fn routes() -> Routes {
    Routes::default().routes(routes!(provide, look, delete))
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct Asked {
    /// The user whose conversation it is; the caller itself when absent, also from the header X-User-Id.
    user_id: Option<String>,
    /// Whether the conversation is begun if there is none; `false` when absent.
    create: Option<bool>,
    /// `namespace/name` of the agent, for one that is begun.
    agent: Option<String>,
    /// Answer after this many seconds, ready (200) or not (202); 300 when absent, and at most.
    wait: Option<String>,
}

#[derive(Serialize, utoipa::ToSchema)]
struct SandboxResponse {
    sandbox_id: String,
    mcp_url: String,
    #[schema(example = "streamable-http")]
    protocol: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    headers: BTreeMap<String, String>,
    ready: bool,
}

impl From<Workspace> for SandboxResponse {
    fn from(workspace: Workspace) -> Self {
        Self {
            sandbox_id: workspace.sandbox_id.map(String::from).unwrap_or_default(),
            mcp_url: workspace.mcp_url,
            protocol: workspace.protocol,
            headers: workspace.headers,
            ready: workspace.ready,
        }
    }
}

/// Provide a conversation's sandbox
///
/// As kagent does it: idempotent, blocks until it is ready, for five minutes at most. A client with less patience says so with
/// `wait` and asks again after a 202.
#[utoipa::path(
    post, path = "/api/sessions/{session_id}/sandbox", operation_id = "kagent_provide_sandbox", tag = "sessions",
    params(ConversationPath, Asked),
    responses(
        (status = 200, description = "Ready.", body = SandboxResponse),
        (status = 202, description = "Not ready in the time that was given.", body = SandboxResponse),
        (status = 400, description = "`Failed to get session_id from path`, `Failed to get user ID`, `Session has no agent reference`, `Invalid agent reference format: <ref>`, `Workspace is not enabled for this agent`", body = KagentError),
        (status = 401, description = "No token.", body = KagentError),
        (status = 403, description = "For operators and admins.", body = KagentError),
        (status = 404, description = "`Session not found`", body = KagentError),
        (status = 409, description = "A person paused it; or the id is another agent's conversation.", body = KagentError),
        (status = 500, description = "`Failed to fetch agent CRD`, `Failed to create sandbox`", body = KagentError),
    )
)]
async fn provide(
    State(engine): State<Engine>,
    Calling(caller): Calling,
    Path(path): Path<ConversationPath>,
    Query(asked): Query<Asked>,
    headers: HeaderMap,
    Here(here): Here,
) -> Result<(StatusCode, axum::Json<SandboxResponse>)> {
    let id = user::session(&path.session_id)?;
    let user = user::of(&caller, &headers, asked.user_id.as_deref())?;
    let wait = asked.wait.as_deref().map(patience).transpose();
    let wait = wait.map_err(|problem| Fault::bad("Invalid wait", Some(problem.fix)))?;
    let here = here.map_err(|problem| Fault::of(problem, FAILED))?;
    let session = match asked.create.unwrap_or(false) {
        true => {
            let agent = asked.agent.filter(|agent| !agent.is_empty()).ok_or_else(|| Fault::bad(NO_AGENT, None))?;
            begun(&engine, &caller, ConversationId { user, id: Some(id.to_owned()) }, &agent, Begin::WithSandbox)
                .await?
        }
        false => standing(&engine, &user, id, FAILED).await?,
    };
    let agent = session.agent.ok_or_else(|| Fault::bad(NO_AGENT, None))?;
    if workspace::check_agent(&agent).is_err() {
        return Err(Fault::bad(format!("Invalid agent reference format: {agent}"), None));
    }
    let found = engine.workspace(&caller, session.id.as_str(), wait).await;
    let found = found.map_err(|problem| Fault::of(problem, FAILED))?;
    let status = if found.ready { StatusCode::OK } else { StatusCode::ACCEPTED };
    Ok((status, axum::Json(shown(&here, &caller, found).into())))
}

/// Look at a conversation's sandbox
///
/// As kagent does it; it may not be ready.
#[utoipa::path(
    get, path = "/api/sessions/{session_id}/sandbox", operation_id = "kagent_get_sandbox", tag = "sessions",
    params(ConversationPath, OfUser),
    responses(
        (status = 200, description = "The sandbox.", body = SandboxResponse),
        (status = 400, description = "`Failed to get session_id from path`, `Failed to get user ID`", body = KagentError),
        (status = 401, description = "No token.", body = KagentError),
        (status = 404, description = "`No sandbox found for session`", body = KagentError),
        (status = 500, description = "`Failed to get sandbox status`", body = KagentError),
    )
)]
async fn look(
    State(engine): State<Engine>,
    Calling(caller): Calling,
    Path(path): Path<ConversationPath>,
    Query(of): Query<OfUser>,
    headers: HeaderMap,
    Here(here): Here,
) -> Result<axum::Json<SandboxResponse>> {
    let none = || Fault::new(StatusCode::NOT_FOUND, "No sandbox found for session");
    let id = user::session(&path.session_id)?;
    let user = user::of(&caller, &headers, of.user_id.as_deref())?;
    let found = match engine.conversation(&user, id).await {
        Ok(session) if session.deleted_at.is_none() => engine.workspace_now(&caller, session.id.as_str()).await,
        Ok(_) => return Err(none()),
        Err(problem) => Err(problem),
    };
    let found = found.map_err(|problem| match problem.code {
        sandbar_api::Code::UnknownSession | sandbar_api::Code::SessionEnded => none(),
        _ => Fault::of(problem, FAILED_STATUS),
    })?;
    if found.sandbox.is_none() {
        return Err(none());
    }
    let here = here.map_err(|problem| Fault::of(problem, FAILED_STATUS))?;
    Ok(axum::Json(shown(&here, &caller, found).into()))
}

/// Delete a conversation's sandbox
///
/// With its files; the conversation stays, and the next request provides a new one. Repeating it is fine.
#[utoipa::path(
    delete, path = "/api/sessions/{session_id}/sandbox", operation_id = "kagent_delete_sandbox", tag = "sessions",
    params(ConversationPath, OfUser),
    responses(
        (status = 200, description = "Gone.", body = Wrapped<Nothing>),
        (status = 400, description = "`Failed to get session_id from path`, `Failed to get user ID`", body = KagentError),
        (status = 401, description = "No token.", body = KagentError),
        (status = 403, description = "For operators and admins.", body = KagentError),
        (status = 404, description = "`Session not found`", body = KagentError),
        (status = 500, description = "`Failed to delete sandbox`", body = KagentError),
    )
)]
async fn delete(
    State(engine): State<Engine>,
    Calling(caller): Calling,
    Path(path): Path<ConversationPath>,
    Query(of): Query<OfUser>,
    headers: HeaderMap,
) -> Result<axum::Json<Wrapped<Nothing>>> {
    const FAILED: &str = "Failed to delete sandbox";
    let user = user::of(&caller, &headers, of.user_id.as_deref())?;
    let session = standing(&engine, &user, user::session(&path.session_id)?, FAILED).await?;
    engine.delete_workspace(session.id.as_str()).await.map_err(|problem| Fault::of(problem, FAILED))?;
    Ok(wrapped(Nothing {}, "Sandbox deleted successfully"))
}
