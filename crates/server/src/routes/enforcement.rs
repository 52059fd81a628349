//! What holds a sandbox: the profiles to choose from, and the report of what is in force.

use axum::{Json, extract::State};
use sandbar_api::{Enforcement, Profile, profile::ProfileList};
use sandbar_engine::Engine;

use super::SandboxPath;
use crate::{
    extract::Path,
    problem::Result,
    registry::{Routes, routes},
};

pub(super) fn routes() -> Routes {
    Routes::default().routes(routes!(enforcement)).routes(routes!(profiles))
}

/// What is in force
///
/// For each layer what was asked, what is in force, and the evidence of a probe that runs inside this very sandbox while
/// you wait. The sandbox has to run; of a paused one the last report is told, if there is one.
#[utoipa::path(
    get, path = "/v1/sandboxes/{sandbox}/enforcement", operation_id = "get_enforcement", tag = "sandboxes",
    params(SandboxPath),
    responses(
        (status = 200, description = "The report.", body = Enforcement),
        (status = 404, description = "`unknown_sandbox`"),
        (status = 409, description = "`wrong_state`"),
        (status = 410, description = "`sandbox_gone`"),
        (status = 502, description = "`guest_unreachable`"),
    )
)]
async fn enforcement(State(engine): State<Engine>, Path(path): Path<SandboxPath>) -> Result<Json<Enforcement>> {
    Ok(Json(engine.enforcement(&path.sandbox).await?))
}

/// List isolation profiles
///
/// What each asks of every layer. A template names one, and may ask for something else of single layers.
#[utoipa::path(
    get, path = "/v1/profiles", operation_id = "list_profiles", tag = "templates",
    responses((status = 200, description = "The profiles, each at least as tight as the one before.", body = ProfileList))
)]
async fn profiles() -> Json<ProfileList> {
    Json(ProfileList { profiles: Profile::names().filter_map(Profile::named).collect() })
}
