//! What a session may use: its budget and its model; and the models and named sets there are.

use axum::extract::State;
use sandbar_api::{Budget, GatewayInfo, SetBudget, SwitchModel};
use sandbar_engine::Engine;

use super::SessionPath;
use crate::{
    access::Calling,
    extract::{Json, Path},
    problem::Result,
    registry::{Routes, routes},
};

pub(super) fn routes() -> Routes {
    Routes::default().routes(routes!(get, set)).routes(routes!(model)).routes(routes!(gateway))
}

/// Get the budget of a session
///
/// Its limits, what it and its sub-sessions used, and what calls under way hold. An agent's token sees its own session's.
#[utoipa::path(
    get, path = "/v1/sessions/{session}/budget", operation_id = "get_budget", tag = "budgets", params(SessionPath),
    responses(
        (status = 200, description = "The budget.", body = Budget),
        (status = 404, description = "`unknown_session`, `unknown_sandbox`"),
    )
)]
async fn get(
    State(engine): State<Engine>,
    Calling(caller): Calling,
    Path(path): Path<SessionPath>,
) -> Result<axum::Json<Budget>> {
    Ok(axum::Json(engine.budget(&caller, &path.session).await?))
}

/// Set the budget of a session
///
/// All limits at once, for the next call: one that is absent is none, and `{}` removes the budget. Limits below what was
/// used are fine: nothing more is let through.
#[utoipa::path(
    put, path = "/v1/sessions/{session}/budget", operation_id = "set_budget", tag = "budgets", params(SessionPath),
    request_body = SetBudget,
    responses(
        (status = 200, description = "The budget now.", body = Budget),
        (status = 400, description = "`bad_json`, `bad_budget`"),
        (status = 404, description = "`unknown_session`, `unknown_sandbox`"),
    )
)]
async fn set(
    State(engine): State<Engine>,
    Path(path): Path<SessionPath>,
    Json(request): Json<SetBudget>,
) -> Result<axum::Json<Budget>> {
    Ok(axum::Json(engine.set_budget(&path.session, request).await?))
}

/// Switch the model of a session
///
/// Its next calls go to this model, whatever they ask for; a call in another wire format is refused. Without a model they
/// go where they say.
#[utoipa::path(
    put, path = "/v1/sessions/{session}/model", operation_id = "switch_model", tag = "budgets", params(SessionPath),
    request_body = SwitchModel,
    responses(
        (status = 200, description = "Switched.", body = Budget),
        (status = 400, description = "`bad_json`"),
        (status = 404, description = "`unknown_session`, `unknown_sandbox`, `unknown_model`"),
    )
)]
async fn model(
    State(engine): State<Engine>,
    Path(path): Path<SessionPath>,
    Json(request): Json<SwitchModel>,
) -> Result<axum::Json<Budget>> {
    Ok(axum::Json(engine.switch_model(&path.session, request).await?))
}

/// Get what the gateway is configured with
///
/// Upstreams, models, prices, aliases and named sets of rules, as `gateway.toml` and `sets.toml` of the home say; and
/// what is wrong with these files.
#[utoipa::path(
    get, path = "/v1/gateway", operation_id = "get_gateway", tag = "budgets",
    responses((status = 200, description = "The configuration.", body = GatewayInfo))
)]
async fn gateway(State(engine): State<Engine>) -> Result<axum::Json<GatewayInfo>> {
    Ok(axum::Json(engine.gateway_info().await?))
}
