//! What changes the state of a sandbox that exists: stop, start, pause, resume.

use axum::{Json, extract::State};
use sandbar_api::Sandbox;
use sandbar_engine::Engine;

use super::SandboxPath;
use crate::{
    extract::Path,
    problem::Result,
    registry::{Routes, routes},
};

pub(super) fn routes() -> Routes {
    Routes::default().routes(routes!(stop)).routes(routes!(start)).routes(routes!(pause)).routes(routes!(resume))
}

/// Stop a sandbox
///
/// Ends its processes and keeps its files.
#[utoipa::path(
    post, path = "/v1/sandboxes/{sandbox}/stop", operation_id = "stop_sandbox", tag = "sandboxes", params(SandboxPath),
    responses(
        (status = 200, description = "Stopped.", body = Sandbox),
        (status = 404, description = "`unknown_sandbox`"),
        (status = 409, description = "`wrong_state`"),
        (status = 410, description = "`sandbox_gone`"),
    )
)]
async fn stop(State(engine): State<Engine>, Path(path): Path<SandboxPath>) -> Result<Json<Sandbox>> {
    Ok(Json(engine.stop(&path.sandbox).await?))
}

/// Start a stopped sandbox
#[utoipa::path(
    post, path = "/v1/sandboxes/{sandbox}/start", operation_id = "start_sandbox", tag = "sandboxes", params(SandboxPath),
    responses(
        (status = 200, description = "Ready again.", body = Sandbox),
        (status = 404, description = "`unknown_sandbox`"),
        (status = 409, description = "`wrong_state`"),
        (status = 410, description = "`sandbox_gone`"),
        (status = 422, description = "`not_enforceable`"),
    )
)]
async fn start(State(engine): State<Engine>, Path(path): Path<SandboxPath>) -> Result<Json<Sandbox>> {
    Ok(Json(engine.start(&path.sandbox).await?))
}

/// Pause a sandbox
///
/// Holds every process still, with its memory; answers when they stand. Until it is resumed, what needs the sandbox to
/// run gets 409. Pausing a paused one is fine.
#[utoipa::path(
    post, path = "/v1/sandboxes/{sandbox}/pause", operation_id = "pause_sandbox", tag = "sandboxes", params(SandboxPath),
    responses(
        (status = 200, description = "Paused.", body = Sandbox),
        (status = 404, description = "`unknown_sandbox`"),
        (status = 409, description = "`wrong_state`"),
        (status = 410, description = "`sandbox_gone`"),
        (status = 422, description = "`not_enforceable`, `declined`"),
    )
)]
async fn pause(State(engine): State<Engine>, Path(path): Path<SandboxPath>) -> Result<Json<Sandbox>> {
    Ok(Json(engine.pause(&path.sandbox).await?))
}

/// Resume a paused sandbox
///
/// Its processes go on where they stood. Resuming one that runs is fine.
#[utoipa::path(
    post, path = "/v1/sandboxes/{sandbox}/resume", operation_id = "resume_sandbox", tag = "sandboxes",
    params(SandboxPath),
    responses(
        (status = 200, description = "Ready again.", body = Sandbox),
        (status = 404, description = "`unknown_sandbox`"),
        (status = 409, description = "`wrong_state`"),
        (status = 410, description = "`sandbox_gone`"),
        (status = 422, description = "`declined`"),
    )
)]
async fn resume(State(engine): State<Engine>, Path(path): Path<SandboxPath>) -> Result<Json<Sandbox>> {
    Ok(Json(engine.resume(&path.sandbox).await?))
}
