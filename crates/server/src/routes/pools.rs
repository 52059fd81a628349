//! Pools: how many sandboxes of a template are kept warm.

use axum::{extract::State, http::StatusCode};
use sandbar_api::{Pool, PoolList, SetPool};
use sandbar_engine::Engine;
use serde::Deserialize;
use utoipa::IntoParams;

use crate::{
    extract::{Json, Path},
    problem::Result,
    registry::{Routes, routes},
};

pub(super) fn routes() -> Routes {
    Routes::default().routes(routes!(list)).routes(routes!(set, remove))
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
struct PoolPath {
    /// The template's name.
    template: String,
}

/// List pools
#[utoipa::path(
    get, path = "/v1/pools", operation_id = "list_pools", tag = "pools",
    responses((status = 200, description = "The pools, with how many can be claimed now.", body = PoolList))
)]
async fn list(State(engine): State<Engine>) -> Result<axum::Json<PoolList>> {
    Ok(axum::Json(PoolList { pools: engine.pools().await? }))
}

/// Set the size of a pool
///
/// Answers at once; the pool fills, or shrinks, in the background. A creation with the template then claims a warm
/// sandbox. 0 ends the pool.
#[utoipa::path(
    put, path = "/v1/pools/{template}", operation_id = "set_pool", tag = "pools", params(PoolPath),
    request_body = SetPool,
    responses(
        (status = 200, description = "The pool as it is now.", body = Pool),
        (status = 400, description = "`bad_json`, `bad_request`, `bad_template`"),
        (status = 404, description = "`unknown_template`, `unknown_provider`"),
    )
)]
async fn set(
    State(engine): State<Engine>,
    Path(path): Path<PoolPath>,
    Json(request): Json<SetPool>,
) -> Result<axum::Json<Pool>> {
    Ok(axum::Json(engine.set_pool(&path.template, request.size).await?))
}

/// End a pool
///
/// Answers when its warm sandboxes are gone; those that were claimed are not touched.
#[utoipa::path(
    delete, path = "/v1/pools/{template}", operation_id = "delete_pool", tag = "pools", params(PoolPath),
    responses(
        (status = 204, description = "There is no such pool any more."),
        (status = 404, description = "`unknown_template`"),
    )
)]
async fn remove(State(engine): State<Engine>, Path(path): Path<PoolPath>) -> Result<StatusCode> {
    engine.set_pool(&path.template, 0).await?;
    Ok(StatusCode::NO_CONTENT)
}
