//! Webhooks, for admins: whoever may add one chooses where the server sends what happens.

use axum::{extract::State, http::StatusCode};
use sandbar_api::{CreateWebhook, NewWebhook, Webhook, WebhookList, WebhookTest};
use sandbar_engine::Engine;
use serde::Deserialize;
use utoipa::IntoParams;

use crate::{
    extract::{Path, SecretJson},
    problem::Result,
    registry::{Routes, routes},
};

pub(super) fn routes() -> Routes {
    Routes::default().routes(routes!(add, list)).routes(routes!(show, remove)).routes(routes!(test))
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
struct WebhookPath {
    /// The webhook's id or name.
    webhook: String,
}

/// Add a webhook
///
/// Events of its kinds that happen from now on are POSTed to its URL: in order, at least once, signed as Standard Webhooks
/// has it. The answer is the only place where its secret is shown. There may be 64.
#[utoipa::path(
    post, path = "/v1/webhooks", operation_id = "add_webhook", tag = "webhooks", request_body = CreateWebhook,
    responses(
        (status = 201, description = "The webhook and its signing secret.", body = NewWebhook),
        (status = 400, description = "`bad_json`, `bad_name`; `bad_webhook`: a URL or a kind that is not usable"),
        (status = 409, description = "`name_taken`"),
        (status = 429, description = "`too_many`"),
        (status = 507, description = "`disk_full`"),
    )
)]
async fn add(
    State(engine): State<Engine>,
    // Some URLs have a credential in them.
    SecretJson(request): SecretJson<CreateWebhook>,
) -> Result<(StatusCode, axum::Json<NewWebhook>)> {
    Ok((StatusCode::CREATED, axum::Json(engine.add_webhook(request).await?)))
}

/// List webhooks
#[utoipa::path(
    get, path = "/v1/webhooks", operation_id = "list_webhooks", tag = "webhooks",
    responses((status = 200, description = "The webhooks, without their secrets.", body = WebhookList))
)]
async fn list(State(engine): State<Engine>) -> Result<axum::Json<WebhookList>> {
    Ok(axum::Json(WebhookList { webhooks: engine.webhooks().await? }))
}

/// Show a webhook
#[utoipa::path(
    get, path = "/v1/webhooks/{webhook}", operation_id = "get_webhook", tag = "webhooks", params(WebhookPath),
    responses(
        (status = 200, description = "The webhook, without its secret.", body = Webhook),
        (status = 404, description = "`unknown_webhook`"),
    )
)]
async fn show(State(engine): State<Engine>, Path(path): Path<WebhookPath>) -> Result<axum::Json<Webhook>> {
    Ok(axum::Json(engine.webhook(&path.webhook).await?))
}

/// Remove a webhook
///
/// Nothing is sent to it any more; what is being sent is cut off.
#[utoipa::path(
    delete, path = "/v1/webhooks/{webhook}", operation_id = "remove_webhook", tag = "webhooks", params(WebhookPath),
    responses((status = 204, description = "Gone."), (status = 404, description = "`unknown_webhook`"))
)]
async fn remove(State(engine): State<Engine>, Path(path): Path<WebhookPath>) -> Result<StatusCode> {
    engine.remove_webhook(&path.webhook).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Test a webhook
///
/// Sends a notice of type `webhook.test`, once, and answers when that went through or did not: a minute at most.
#[utoipa::path(
    post, path = "/v1/webhooks/{webhook}/test", operation_id = "test_webhook", tag = "webhooks", params(WebhookPath),
    responses(
        (status = 200, description = "What became of it.", body = WebhookTest),
        (status = 404, description = "`unknown_webhook`"),
        (status = 429, description = "`too_many`: another test waits already"),
    )
)]
async fn test(State(engine): State<Engine>, Path(path): Path<WebhookPath>) -> Result<axum::Json<WebhookTest>> {
    Ok(axum::Json(engine.test_webhook(&path.webhook).await?))
}
