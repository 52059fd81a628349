//! Liveness and readiness, for supervisors: open to everybody, and telling nothing else.

use axum::{
    Json,
    extract::{Request, State},
    http::StatusCode,
};

use crate::{
    App,
    access::Channel,
    health::Health,
    problem::{Refused, Result},
    registry::{Routes, routes},
};

pub(super) fn routes() -> Routes {
    Routes::default().routes(routes!(healthz)).routes(routes!(readyz))
}

/// Whether the server lives
///
/// A server that stands by answers for itself, without TLS; behind TLS it passes this on like everything else, and
/// `up --health-listen` tells of the server itself.
#[utoipa::path(
    get, path = "/healthz", operation_id = "healthz", tag = "health", security(()),
    responses((status = 200, description = "It does.", body = Health))
)]
async fn healthz(State(app): State<App>, request: Request) -> Json<Health> {
    let channel = Some(Channel::of(&request)).filter(|channel| *channel == Channel::Socket);
    let url = channel.and_then(|channel| app.site.base(channel, request.uri(), request.headers()));
    Json(Health { url, ..Health::lives(app.version) })
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
