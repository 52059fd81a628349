//! Snapshots of a sandbox's files, and forks: sandboxes made from what another one is now.

use axum::{
    extract::State,
    http::{HeaderName, StatusCode, header},
};
use sandbar_api::{CreateSnapshot, Fork, Forked, Snapshot, SnapshotList};
use sandbar_engine::Engine;
use serde::Deserialize;
use utoipa::IntoParams;

use super::SandboxPath;
use crate::{
    access::Calling,
    extract::{Json, Path},
    problem::Result,
    registry::{Routes, routes},
};

pub(super) fn routes() -> Routes {
    Routes::default().routes(routes!(create)).routes(routes!(list)).routes(routes!(get, delete)).routes(routes!(fork))
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
struct SnapshotPath {
    /// The snapshot's id or name.
    snapshot: String,
}

/// Take a snapshot
///
/// Keeps the root and the workspace as they are at one moment, also while processes write; memory and processes are not
/// kept. A snapshot outlives its sandbox. Make sandboxes from it with `from` of a creation.
#[utoipa::path(
    post, path = "/v1/sandboxes/{sandbox}/snapshots", operation_id = "create_snapshot", tag = "snapshots",
    params(SandboxPath), request_body = CreateSnapshot,
    responses(
        (status = 201, description = "Taken.", body = Snapshot, headers(("Location" = String, description = "Its path."))),
        (status = 400, description = "`bad_json`, `bad_name`"),
        (status = 404, description = "`unknown_sandbox`"),
        (status = 409, description = "`wrong_state`, `name_taken`; `workspace_bound`: a directory of the host is not ours to keep"),
        (status = 410, description = "`sandbox_gone`"),
        (status = 422, description = "`not_enforceable`: it runs and cannot be paused meanwhile; `declined`"),
        (status = 507, description = "`disk_full`"),
    )
)]
async fn create(
    State(engine): State<Engine>,
    Calling(caller): Calling,
    Path(path): Path<SandboxPath>,
    Json(request): Json<CreateSnapshot>,
) -> Result<(StatusCode, [(HeaderName, String); 1], axum::Json<Snapshot>)> {
    let snapshot = engine.snapshot(&caller, &path.sandbox, request).await?;
    let location = format!("/v1/snapshots/{}", snapshot.id);
    Ok((StatusCode::CREATED, [(header::LOCATION, location)], axum::Json(snapshot)))
}

/// List snapshots
///
/// Oldest first.
#[utoipa::path(
    get, path = "/v1/snapshots", operation_id = "list_snapshots", tag = "snapshots",
    responses((status = 200, description = "The snapshots.", body = SnapshotList))
)]
async fn list(State(engine): State<Engine>) -> Result<axum::Json<SnapshotList>> {
    Ok(axum::Json(SnapshotList { snapshots: engine.snapshots().await? }))
}

/// Get a snapshot
#[utoipa::path(
    get, path = "/v1/snapshots/{snapshot}", operation_id = "get_snapshot", tag = "snapshots", params(SnapshotPath),
    responses(
        (status = 200, description = "The snapshot.", body = Snapshot),
        (status = 404, description = "`unknown_snapshot`"),
    )
)]
async fn get(State(engine): State<Engine>, Path(path): Path<SnapshotPath>) -> Result<axum::Json<Snapshot>> {
    Ok(axum::Json(engine.snapshot_named(&path.snapshot).await?))
}

/// Delete a snapshot
///
/// Sandboxes that were made from it keep their files. Repeating it is fine.
#[utoipa::path(
    delete, path = "/v1/snapshots/{snapshot}", operation_id = "delete_snapshot", tag = "snapshots",
    params(SnapshotPath),
    responses((status = 204, description = "Gone."), (status = 404, description = "`unknown_snapshot`"))
)]
async fn delete(State(engine): State<Engine>, Path(path): Path<SnapshotPath>) -> Result<StatusCode> {
    engine.delete_snapshot(&path.snapshot).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Fork a sandbox
///
/// Makes up to 100 independent sandboxes with the files it has at this moment and the same template and environment;
/// names, ids and sessions are their own. Answers when all are ready; if one cannot be made, none is.
#[utoipa::path(
    post, path = "/v1/sandboxes/{sandbox}/fork", operation_id = "fork_sandbox", tag = "snapshots",
    params(SandboxPath), request_body = Fork,
    responses(
        (status = 201, description = "Forked.", body = Forked),
        (status = 400, description = "`bad_json`, `bad_request`, `bad_name`, `bad_label`, `bad_duration`"),
        (status = 404, description = "`unknown_sandbox`, `unknown_provider`"),
        (status = 409, description = "`wrong_state`, `name_taken`; `workspace_bound`: a directory of the host is not ours to copy"),
        (status = 410, description = "`sandbox_gone`"),
        (status = 422, description = "`not_enforceable`, `declined`"),
        (status = 507, description = "`disk_full`"),
    )
)]
async fn fork(
    State(engine): State<Engine>,
    Calling(caller): Calling,
    Path(path): Path<SandboxPath>,
    Json(request): Json<Fork>,
) -> Result<(StatusCode, axum::Json<Forked>)> {
    let sandboxes = engine.fork(&caller, &path.sandbox, request).await?;
    Ok((StatusCode::CREATED, axum::Json(Forked { sandboxes })))
}
