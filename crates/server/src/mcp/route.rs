//! The route of a session's tools. An agent's token reaches those of its own session; of others it does not even learn
//! whether they are there.

use std::sync::Arc;

use axum::{
    body::Body,
    extract::{Request, State},
    http::StatusCode,
    response::{IntoResponse as _, Response},
};
use futures_util::StreamExt as _;
use sandbar_api::{Code, Problem};
use tokio::{sync::Notify, task::JoinError};

use super::{Place, patience, refusal};
use crate::{
    App,
    access::Calling,
    extract::Path,
    problem::{Refused, Result, shutting_down},
    proxy,
    registry::{Routes, routes},
    routes::SessionPath,
};

const MCP_SESSION: &str = "mcp-session-id";
const REVISION: &str = "mcp-protocol-version";
/// From this revision on; they are dates.
const SESSIONLESS: &[u8] = b"2026-07-28";

pub(crate) fn routes() -> Routes {
    Routes::default().routes(routes!(call, listen, leave))
}

/// Call the session's tools
///
/// MCP over Streamable HTTP: a JSON-RPC message of at most 4 MiB, answered as MCP says. The tools work in the session's
/// newest sandbox. For an agent's token of this session, or an operator's; docs/mcp.md tells about the tools.
#[utoipa::path(
    post, path = "/v1/sessions/{session}/mcp", operation_id = "mcp_call", tag = "sessions", params(SessionPath),
    request_body(content = serde_json::Value, content_type = "application/json"),
    responses(
        (status = 200, description = "The answer, as an event stream or as JSON.",
            content((String = "text/event-stream"), (serde_json::Value = "application/json"))),
        (status = 202, description = "A notification was taken."),
        (status = 403, description = "`forbidden`: for a viewer's token."),
        (status = 404, description = "`unknown_session`: also of an MCP session, which is then to be opened again."),
        (status = 406, description = "`not_acceptable`: the Accept header does not name both application/json and text/event-stream."),
        (status = 410, description = "`session_ended`"),
        (status = 413, description = "`too_large`: the message is larger than 4 MiB."),
        (status = 415, description = "`unsupported_media`: the message is not JSON-RPC, or not declared as JSON."),
        (status = 429, description = "`too_many` MCP sessions are open."),
        (status = 503, description = "`shutting_down` while the tool ran; what it runs goes on."),
    )
)]
async fn call(app: State<App>, caller: Calling, path: Path<SessionPath>, request: Request) -> Result<Response> {
    serve(app, caller, path, request).await
}

/// Listen to an MCP session
///
/// What the server says unasked, and with Last-Event-ID the rest of an answer that broke off; for protocol revisions
/// that have MCP sessions.
#[utoipa::path(
    get, path = "/v1/sessions/{session}/mcp", operation_id = "mcp_listen", tag = "sessions", params(SessionPath),
    responses(
        (status = 200, description = "The stream.", body = String, content_type = "text/event-stream"),
        (status = 403, description = "`forbidden`: for a viewer's token."),
        (status = 404, description = "`unknown_session`: also of an MCP session."),
        (status = 406, description = "`not_acceptable`: the Accept header does not name text/event-stream."),
    )
)]
async fn listen(app: State<App>, caller: Calling, path: Path<SessionPath>, request: Request) -> Result<Response> {
    // It stands for hours, and ends with the token that opened it.
    let over = proxy::until(&app, Some(caller.0.clone()));
    let answer = serve(app, caller, path, request).await?;
    Ok(answer.map(|body| Body::from_stream(body.into_data_stream().take_until(over))))
}

/// Close an MCP session
///
/// Calls that still run in it are cancelled, and their commands killed. The sandbox stays as it is.
#[utoipa::path(
    delete, path = "/v1/sessions/{session}/mcp", operation_id = "mcp_close", tag = "sessions", params(SessionPath),
    responses(
        (status = 204, description = "Closed."),
        (status = 403, description = "`forbidden`: for a viewer's token."),
        (status = 404, description = "`unknown_session`: also of an MCP session."),
    )
)]
async fn leave(app: State<App>, caller: Calling, path: Path<SessionPath>, request: Request) -> Result<Response> {
    // On its own task: whoever leaves does not wait for long, and what runs for it ends all the same.
    let mut answer = tokio::spawn(serve(app, caller, path, request)).await.map_err(|error| failed(&error))??;
    // What rmcp answers is taken for a failure by the official Python client.
    if answer.status() == StatusCode::ACCEPTED {
        *answer.status_mut() = StatusCode::NO_CONTENT;
    }
    Ok(answer)
}

fn failed(error: &JoinError) -> Refused {
    let detail = format!("Closing the MCP session failed: {error}.");
    Refused(Problem::new(Code::Internal, detail, "Look into the server's log."))
}

/// A session that is not the caller's is answered like one that is not there, which is what MCP clients understand.
fn hidden(problem: Problem, session: &str) -> Problem {
    if problem.code != Code::Forbidden {
        return problem;
    }
    Problem::new(
        Code::UnknownSession,
        format!("There is no session `{}` for this token.", session.escape_debug()),
        "An agent's token is for the tools of its own session: name that one, or use another token.",
    )
}

async fn serve(
    State(app): State<App>,
    Calling(caller): Calling,
    Path(path): Path<SessionPath>,
    mut request: Request,
) -> Result<Response> {
    let placed = app.engine.session_place(&caller, &path.session).await;
    let (session, sandbox) = placed.map_err(|problem| hidden(problem, &path.session))?;
    // Such revisions have no MCP sessions: what looks like the id of one means nothing, to rmcp neither.
    if request.headers().get(REVISION).is_some_and(|revision| revision.as_bytes() >= SESSIONLESS) {
        request.headers_mut().remove(MCP_SESSION);
    }
    let known = request.headers().get(MCP_SESSION).map(|id| String::from_utf8_lossy(id.as_bytes()).into_owned());
    if let Some(id) = &known {
        app.mcp.clients.check(id, &session, &caller.owner)?;
    }
    let owner = caller.owner.clone();
    let begun = Arc::new(Notify::new());
    let place = Place { app: app.clone(), caller, session: session.clone(), sandbox, begun: begun.clone() };
    request.extensions_mut().insert(place);
    let (service, closing) = (app.mcp.service.clone(), app.closing.clone());
    let answering = async move {
        tokio::select! {
            biased;
            // First, or rmcp would answer as if something had failed.
            () = closing.cancelled_owned() => Refused(shutting_down()).into_response(),
            answer = service.handle(request) => refusal::told(answer.map(Body::new)).await,
        }
    };
    let answer = patience::answered(Box::pin(answering), &begun).await;
    if known.is_none()
        && let Some(opened) = answer.headers().get(MCP_SESSION).and_then(|opened| opened.to_str().ok())
    {
        app.mcp.clients.bind(opened, session, owner).await?;
    }
    Ok(answer)
}
