//! Secrets: set and removed by admins, listed by all without their values, which nothing gives back.

use axum::{extract::State, http::StatusCode};
use sandbar_api::{SecretInfo, SecretList, SetSecret};
use sandbar_engine::Engine;
use serde::Deserialize;
use utoipa::IntoParams;

use crate::{
    extract::{Path, SecretJson},
    problem::Result,
    registry::{Routes, routes},
};

pub(super) fn listed() -> Routes {
    Routes::default().routes(routes!(list))
}

pub(super) fn managed() -> Routes {
    Routes::default().routes(routes!(set, remove))
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
struct SecretPath {
    /// The secret's name: 1 to 64 of A-Z, 0-9 and `_`, starting with a letter.
    secret: String,
}

/// List secrets
///
/// Names, hosts and places. Values are never given back.
#[utoipa::path(
    get, path = "/v1/secrets", operation_id = "list_secrets", tag = "secrets",
    responses((status = 200, description = "The secrets, without their values.", body = SecretList))
)]
async fn list(State(engine): State<Engine>) -> Result<axum::Json<SecretList>> {
    Ok(axum::Json(SecretList { secrets: engine.secrets().await? }))
}

/// Set a secret
///
/// Makes it, or replaces its hosts, its place and, if one is given, its value, for the next request of every sandbox that
/// may use it. It is stored encrypted. Bodies are at most 64 KiB, values 16 KiB.
#[utoipa::path(
    put, path = "/v1/secrets/{secret}", operation_id = "set_secret", tag = "secrets", params(SecretPath),
    request_body = SetSecret,
    responses(
        (status = 200, description = "Set.", body = SecretInfo),
        (status = 400, description = "`bad_json`; `bad_name`; `bad_secret`: no or bad hosts, a bad place, no value where there is none yet"),
        (status = 507, description = "`disk_full`"),
    )
)]
async fn set(
    State(engine): State<Engine>,
    Path(path): Path<SecretPath>,
    SecretJson(request): SecretJson<SetSecret>,
) -> Result<axum::Json<SecretInfo>> {
    Ok(axum::Json(engine.set_secret(&path.secret, request).await?))
}

/// Remove a secret
///
/// No request carries it from now on.
#[utoipa::path(
    delete, path = "/v1/secrets/{secret}", operation_id = "remove_secret", tag = "secrets", params(SecretPath),
    responses((status = 204, description = "Gone."), (status = 404, description = "`unknown_secret`"))
)]
async fn remove(State(engine): State<Engine>, Path(path): Path<SecretPath>) -> Result<StatusCode> {
    engine.remove_secret(&path.secret).await?;
    Ok(StatusCode::NO_CONTENT)
}
