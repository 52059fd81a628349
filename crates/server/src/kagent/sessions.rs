//! `/api/sessions`: a conversation is begun, looked at and deleted.

use axum::{
    body::to_bytes,
    extract::{Request, State},
    http::{HeaderMap, StatusCode},
};
use sandbar_api::{Code, Session, check, workspace};
use sandbar_engine::{Caller, ConversationId, Engine, NewConversation};
use serde::{Deserialize, Serialize};
use utoipa::IntoParams;

use super::{
    TITLE,
    fault::{Fault, KagentError, Result},
    user,
};
use crate::{
    access::Calling,
    extract::{Path, Query},
    registry::{Routes, routes},
};

const MOST: usize = 64 * 1024;

pub(super) fn routes() -> Routes {
    Routes::default().routes(routes!(create)).routes(routes!(get, delete))
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub(super) struct ConversationPath {
    /// The id that the user gave the conversation.
    pub(super) session_id: String,
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct OfUser {
    /// The user whose conversation it is; the caller itself when absent, also from the header X-User-Id.
    pub(super) user_id: Option<String>,
}

#[derive(Deserialize, utoipa::ToSchema)]
pub(super) struct KagentCreate {
    /// `namespace/name` of the agent.
    agent_ref: Option<String>,
    /// The user's own id of the conversation, 1 to 512 bytes; made up when absent.
    id: Option<String>,
    /// For people.
    name: Option<String>,
}

#[derive(Serialize, utoipa::ToSchema)]
pub(super) struct KagentSession {
    id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    user_id: String,
    agent_ref: Option<String>,
    /// The session's own id.
    session: String,
    created_at: String,
}

impl From<Session> for KagentSession {
    fn from(session: Session) -> Self {
        Self {
            id: session.external_id.unwrap_or_else(|| session.id.to_string()),
            name: session.labels.get(TITLE).cloned().or(session.name),
            user_id: session.user.unwrap_or(session.owner),
            agent_ref: session.agent,
            session: session.id.to_string(),
            created_at: session.created_at.to_rfc3339(),
        }
    }
}

#[derive(Serialize, utoipa::ToSchema)]
pub(super) struct Wrapped<T> {
    error: bool,
    data: T,
    message: &'static str,
}

#[derive(Serialize, utoipa::ToSchema)]
pub(super) struct Nothing {}

pub(super) fn wrapped<T>(data: T, message: &'static str) -> axum::Json<Wrapped<T>> {
    axum::Json(Wrapped { error: false, data, message })
}

/// One of the user's that was not deleted.
pub(super) async fn standing(engine: &Engine, user: &str, id: &str, failed: &str) -> Result<Session> {
    match engine.conversation(user, id).await {
        Ok(session) if session.deleted_at.is_none() => Ok(session),
        Ok(_) => Err(Fault::not_found()),
        Err(problem) => Err(Fault::of(problem, failed)),
    }
}

/// Begins it, or finds it where it was begun before.
/// What a conversation is begun for.
pub(super) enum Begin {
    /// To be worked in later, under that title.
    Alone(Option<String>),
    WithSandbox,
}

pub(super) async fn begun(
    engine: &Engine,
    caller: &Caller,
    id: ConversationId,
    agent: &str,
    asked: Begin,
) -> Result<Session> {
    if workspace::check_agent(agent).is_err() {
        return Err(Fault::bad(format!("Invalid agent reference format: {agent}"), None));
    }
    let (title, provides, failed) = match asked {
        Begin::Alone(title) => (title, false, "Failed to create session"),
        Begin::WithSandbox => (None, true, "Failed to create sandbox"),
    };
    let labels = title.map(|title| (TITLE.to_owned(), title)).into_iter().collect();
    if let Err(problem) = check::labels(&labels) {
        return Err(Fault::bad("Invalid request body", Some(problem.fix)));
    }
    let new = NewConversation { name: None, labels, agent: Some(agent.to_owned()), id: Some(id), provides };
    engine.begin_conversation(caller, new).await.map_err(|problem| match problem.code {
        Code::BadName => Fault::bad("Invalid request body", Some(problem.fix)),
        _ => Fault::of(problem, failed),
    })
}

/// Begin a conversation
///
/// As kagent does it. Without a sandbox: that is made when it is asked for. Beginning it again gives the same one.
#[utoipa::path(
    post, path = "/api/sessions", operation_id = "kagent_create_session", tag = "sessions", params(OfUser),
    request_body = KagentCreate,
    responses(
        (status = 201, description = "Begun, or there already.", body = Wrapped<KagentSession>),
        (status = 400, description = "What is wrong with the request.", body = KagentError),
        (status = 401, description = "No token.", body = KagentError),
        (status = 403, description = "For operators and admins.", body = KagentError),
        (status = 409, description = "The id is another agent's conversation.", body = KagentError),
        (status = 500, description = "`Failed to create session`", body = KagentError),
    )
)]
async fn create(
    State(engine): State<Engine>,
    Calling(caller): Calling,
    Query(of): Query<OfUser>,
    headers: HeaderMap,
    request: Request,
) -> Result<(StatusCode, axum::Json<Wrapped<KagentSession>>)> {
    let bad = |cause: String| Fault::bad("Invalid request body", Some(cause));
    let body = to_bytes(request.into_body(), MOST).await.map_err(|error| bad(error.to_string()))?;
    let asked: KagentCreate = serde_json::from_slice(&body).map_err(|error| bad(error.to_string()))?;
    let user = user::of(&caller, &headers, of.user_id.as_deref())?;
    let agent = asked.agent_ref.filter(|agent| !agent.is_empty());
    let agent = agent.ok_or_else(|| Fault::bad("agent_ref is required", None))?;
    let (id, title) = (asked.id.filter(|id| !id.is_empty()), asked.name.filter(|name| !name.is_empty()));
    let session = begun(&engine, &caller, ConversationId { user, id }, &agent, Begin::Alone(title)).await?;
    Ok((StatusCode::CREATED, wrapped(session.into(), "Successfully created session")))
}

/// Look at a conversation
///
/// As kagent does it: the user's own, and of others not even whether they are there.
#[utoipa::path(
    get, path = "/api/sessions/{session_id}", operation_id = "kagent_get_session", tag = "sessions",
    params(ConversationPath, OfUser),
    responses(
        (status = 200, description = "The conversation.", body = Wrapped<KagentSession>),
        (status = 400, description = "What is wrong with the request.", body = KagentError),
        (status = 401, description = "No token.", body = KagentError),
        (status = 404, description = "`Session not found`", body = KagentError),
        (status = 500, description = "`Failed to get session`", body = KagentError),
    )
)]
async fn get(
    State(engine): State<Engine>,
    Calling(caller): Calling,
    Path(path): Path<ConversationPath>,
    Query(of): Query<OfUser>,
    headers: HeaderMap,
) -> Result<axum::Json<Wrapped<KagentSession>>> {
    let user = user::of(&caller, &headers, of.user_id.as_deref())?;
    let session = standing(&engine, &user, user::session(&path.session_id)?, "Failed to get session").await?;
    Ok(wrapped(session.into(), "Successfully retrieved session"))
}

/// Delete a conversation
///
/// As kagent does it, with its sandbox, its files and its token. Deleting it again is fine.
#[utoipa::path(
    delete, path = "/api/sessions/{session_id}", operation_id = "kagent_delete_session", tag = "sessions",
    params(ConversationPath, OfUser),
    responses(
        (status = 200, description = "Gone.", body = Wrapped<Nothing>),
        (status = 400, description = "What is wrong with the request.", body = KagentError),
        (status = 401, description = "No token.", body = KagentError),
        (status = 403, description = "For operators and admins.", body = KagentError),
        (status = 404, description = "`Session not found`", body = KagentError),
        (status = 500, description = "`Failed to delete session`", body = KagentError),
    )
)]
async fn delete(
    State(engine): State<Engine>,
    Calling(caller): Calling,
    Path(path): Path<ConversationPath>,
    Query(of): Query<OfUser>,
    headers: HeaderMap,
) -> Result<axum::Json<Wrapped<Nothing>>> {
    const FAILED: &str = "Failed to delete session";
    let user = user::of(&caller, &headers, of.user_id.as_deref())?;
    let found = engine.conversation(&user, user::session(&path.session_id)?).await;
    let session = found.map_err(|problem| Fault::of(problem, FAILED))?;
    engine.delete_session(session.id.as_str()).await.map_err(|problem| Fault::of(problem, FAILED))?;
    Ok(wrapped(Nothing {}, "Session deleted successfully"))
}
