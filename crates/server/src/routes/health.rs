//! Liveness and readiness, for supervisors: open to everybody, and telling nothing else.

use axum::{
    Json,
    extract::{Request, State},
    http::StatusCode,
};
use serde::Serialize;
use utoipa::ToSchema;

use crate::{
    App,
    access::Channel,
    problem::{Refused, Result},
    registry::{Routes, routes},
};

pub(super) fn routes() -> Routes {
    Routes::default().routes(routes!(healthz)).routes(routes!(readyz))
}

#[derive(Serialize, ToSchema)]
struct Health {
    #[schema(example = "ok")]
    status: &'static str,
    version: &'static str,
    /// Where it listens on TCP, if it does; told over the owner's socket alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    url: Option<String>,
}

/// Whether the server lives
#[utoipa::path(
    get, path = "/healthz", operation_id = "healthz", tag = "health", security(()),
    responses((status = 200, description = "It does.", body = Health))
)]
async fn healthz(State(app): State<App>, request: Request) -> Json<Health> {
    let channel = Some(Channel::of(&request)).filter(|channel| *channel == Channel::Socket);
    let url = channel.and_then(|channel| app.site.base(channel, request.uri(), request.headers()));
    Json(Health { status: "ok", version: app.version, url })
}

/// Whether the server can do its work
///
/// The store takes writes and a provider can make sandboxes.
#[utoipa::path(
    get, path = "/readyz", operation_id = "readyz", tag = "health", security(()),
    responses((status = 200, description = "It can.", body = Health), (status = 503, description = "Why it cannot."))
)]
async fn readyz(State(app): State<App>) -> Result<Json<Health>> {
    match app.engine.ready().await {
        Ok(()) => Ok(Json(Health { status: "ready", version: app.version, url: None })),
        // Whatever the cause, supervisors look for this status.
        Err(mut problem) => {
            problem.status = StatusCode::SERVICE_UNAVAILABLE.as_u16();
            Err(Refused(problem))
        }
    }
}
