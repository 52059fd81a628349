//! What the server found and does not know; for admins, who decide about it.

use axum::{extract::State, http::StatusCode};
use sandbar_api::{AdoptQuarantined, Adopted, QuarantineList};
use sandbar_engine::Engine;
use serde::Deserialize;
use utoipa::IntoParams;

use crate::{
    access::Calling,
    extract::{Json, Path},
    problem::Result,
    registry::{Routes, routes},
};

pub(super) fn routes() -> Routes {
    Routes::default().routes(routes!(list)).routes(routes!(adopt)).routes(routes!(remove))
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
struct QuarantinePath {
    /// The id, as the list shows it.
    id: String,
}

/// List the quarantine
///
/// Sandboxes, snapshots and output of processes that the server found at a start and that its database does not know.
/// Oldest first. They are kept until somebody adopts or removes them.
#[utoipa::path(
    get, path = "/v1/quarantine", operation_id = "list_quarantine", tag = "quarantine",
    responses((status = 200, description = "What is in quarantine.", body = QuarantineList))
)]
async fn list(State(engine): State<Engine>) -> Result<axum::Json<QuarantineList>> {
    Ok(axum::Json(QuarantineList { quarantined: engine.quarantined().await? }))
}

/// Adopt a sandbox or a snapshot
///
/// The database knows it from now on. A sandbox keeps its files and gets a session of its own; its rules, secrets and
/// environment are those of its template.
#[utoipa::path(
    post, path = "/v1/quarantine/{id}/adopt", operation_id = "adopt_quarantined", tag = "quarantine",
    params(QuarantinePath), request_body = AdoptQuarantined,
    responses(
        (status = 201, description = "Adopted.", body = Adopted),
        (status = 400, description = "`bad_json`, `bad_name`; `bad_request`: its files do not name the template, or the template is of another provider"),
        (status = 404, description = "`unknown_quarantined`, `unknown_template`"),
        (status = 409, description = "`name_taken`"),
        (status = 422, description = "`declined`: output without its process, or a snapshot of an earlier version, can only be removed"),
        (status = 507, description = "`disk_full`"),
    )
)]
async fn adopt(
    State(engine): State<Engine>,
    Calling(caller): Calling,
    Path(path): Path<QuarantinePath>,
    Json(request): Json<AdoptQuarantined>,
) -> Result<(StatusCode, axum::Json<Adopted>)> {
    Ok((StatusCode::CREATED, axum::Json(engine.adopt_quarantined(&caller, &path.id, request).await?)))
}

/// Remove from the quarantine
///
/// Ends the sandbox if it runs, and removes its files for good.
#[utoipa::path(
    delete, path = "/v1/quarantine/{id}", operation_id = "remove_quarantined", tag = "quarantine",
    params(QuarantinePath),
    responses((status = 204, description = "Gone."), (status = 404, description = "`unknown_quarantined`"))
)]
async fn remove(State(engine): State<Engine>, Path(path): Path<QuarantinePath>) -> Result<StatusCode> {
    engine.remove_quarantined(&path.id).await?;
    Ok(StatusCode::NO_CONTENT)
}
