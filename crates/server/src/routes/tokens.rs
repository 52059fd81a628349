//! Tokens, for admins.

use axum::{extract::State, http::StatusCode};
use sandbar_api::{CreateToken, NewToken, TokenList};
use sandbar_engine::Engine;
use serde::Deserialize;
use utoipa::IntoParams;

use crate::{
    extract::{Json, Path},
    problem::Result,
    registry::{Routes, routes},
};

pub(super) fn routes() -> Routes {
    Routes::default().routes(routes!(create, list)).routes(routes!(revoke))
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
struct TokenPath {
    /// The token's id.
    token: String,
}

/// Create a token
///
/// The answer is the only place where its secret is shown. An agent's token needs the `session` it is bound to.
#[utoipa::path(
    post, path = "/v1/tokens", operation_id = "create_token", tag = "tokens", request_body = CreateToken,
    responses(
        (status = 201, description = "The token and its secret.", body = NewToken),
        (status = 400, description = "`bad_json`, `bad_name`, `bad_duration`; `bad_request`: an agent without a session, or another role with one"),
        (status = 404, description = "`unknown_session`"),
    )
)]
async fn create(
    State(engine): State<Engine>,
    Json(request): Json<CreateToken>,
) -> Result<(StatusCode, axum::Json<NewToken>)> {
    Ok((StatusCode::CREATED, axum::Json(engine.create_token(request).await?)))
}

/// List tokens
#[utoipa::path(
    get, path = "/v1/tokens", operation_id = "list_tokens", tag = "tokens",
    responses((status = 200, description = "The tokens, without their secrets.", body = TokenList))
)]
async fn list(State(engine): State<Engine>) -> Result<axum::Json<TokenList>> {
    Ok(axum::Json(TokenList { tokens: engine.tokens().await? }))
}

/// Revoke a token
///
/// It stops working at once.
#[utoipa::path(
    delete, path = "/v1/tokens/{token}", operation_id = "revoke_token", tag = "tokens", params(TokenPath),
    responses((status = 204, description = "Revoked."), (status = 404, description = "`unknown_token`"))
)]
async fn revoke(State(engine): State<Engine>, Path(path): Path<TokenPath>) -> Result<StatusCode> {
    engine.revoke_token(&path.token).await?;
    Ok(StatusCode::NO_CONTENT)
}
