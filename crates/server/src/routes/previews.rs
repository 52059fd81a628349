//! Links to previews, and tokens for the router: what lets a browser or a program in to one sandbox's ports.

use axum::{extract::State, http::StatusCode};
use chrono::{TimeDelta, Utc};
use sandbar_api::{Code, CreatePreview, CreateRouterToken, Preview, Problem, RouterToken, network::GATE_PORT};

use super::SandboxPath;
use crate::{
    App,
    access::Calling,
    codes,
    extract::{Json, Path},
    preview::{Invitation, Place},
    problem::{Refused, Result, bad_request},
    registry::{Routes, routes},
};

const LONGEST: TimeDelta = TimeDelta::days(30);

pub(super) fn routes() -> Routes {
    Routes::default().routes(routes!(open)).routes(routes!(mint))
}

/// Make a link to a preview
///
/// The link leads to a host name that belongs to this sandbox and port alone. It works once, for ten minutes, and lets one
/// browser in for half a day, or until the token that made it is revoked or expires. Nothing need listen on the port yet.
#[utoipa::path(
    post, path = "/v1/sandboxes/{sandbox}/previews", operation_id = "create_preview", tag = "ports",
    params(SandboxPath), request_body = CreatePreview,
    responses(
        (status = 201, description = "The link.", body = Preview),
        (status = 400, description = "`bad_json`; `bad_request`: no such port, or a server that does not listen on TCP"),
        (status = 403, description = "`forbidden`: a viewer's or an agent's token"),
        (status = 404, description = "`unknown_sandbox`"),
        (status = 410, description = "`sandbox_gone`"),
    )
)]
async fn open(
    State(app): State<App>,
    Path(path): Path<SandboxPath>,
    Calling(caller): Calling,
    Json(request): Json<CreatePreview>,
) -> Result<(StatusCode, axum::Json<Preview>)> {
    if request.port == 0 {
        return Err(Refused(bad_request("There is no port 0.", "Give a port from 1 to 65535.")));
    }
    if request.port == GATE_PORT {
        let detail = format!("Port {GATE_PORT} is the sandbox's own way out, for programs inside only.");
        return Err(Refused(bad_request(detail, "Give the port that a server inside listens on.")));
    }
    let sandbox = app.engine.get(&path.sandbox).await?.id;
    let place = Place { sandbox, port: request.port };
    let base = app.site.preview_url(&place.label()).ok_or_else(|| {
        let detail = "This server does not listen on TCP, where browsers could reach it.";
        Refused(bad_request(detail, "Use a server that was started with `sandbar up`."))
    })?;
    let expires_at = Utc::now() + codes::LIFETIME;
    let code = app.preview_codes.make(Invitation { place, owner: caller.owner }).map_err(|_| {
        let fix = "Check that /dev/urandom and getrandom(2) work.";
        Refused(Problem::new(Code::Internal, "The system gives no random numbers.", fix))
    })?;
    let url = format!("{base}/.sandbar/enter#code={code}");
    Ok((StatusCode::CREATED, axum::Json(Preview { url, expires_at })))
}

/// Make a token for the router
///
/// A scoped token of agent-sandbox: good at `/router` for this one sandbox until it expires. It is kept nowhere and cannot
/// be revoked.
#[utoipa::path(
    post, path = "/v1/sandboxes/{sandbox}/router-token", operation_id = "create_router_token", tag = "ports",
    params(SandboxPath), request_body = CreateRouterToken,
    responses(
        (status = 201, description = "The token.", body = RouterToken),
        (status = 400, description = "`bad_json`; `bad_duration`: less than a second or more than 30 days"),
        (status = 403, description = "`forbidden`: a viewer's or an agent's token"),
        (status = 404, description = "`unknown_sandbox`"),
        (status = 410, description = "`sandbox_gone`"),
    )
)]
async fn mint(
    State(app): State<App>,
    Path(path): Path<SandboxPath>,
    Json(request): Json<CreateRouterToken>,
) -> Result<(StatusCode, axum::Json<RouterToken>)> {
    let ttl = TimeDelta::from_std(request.ttl.0).ok();
    let ttl = ttl.filter(|ttl| (TimeDelta::seconds(1)..=LONGEST).contains(ttl)).ok_or_else(|| {
        let detail = format!("A router's token cannot be good for {}.", request.ttl);
        Refused(Problem::new(Code::BadDuration, detail, "Give 1s to 30d."))
    })?;
    let sandbox = app.engine.get(&path.sandbox).await?.id;
    // Whole seconds are what it carries, and it is over at the one it names.
    let seconds = (Utc::now() + ttl).timestamp();
    let expires_at = chrono::DateTime::from_timestamp(seconds + 1, 0).unwrap_or_default();
    let token = app.router_key.mint(sandbox.as_str(), expires_at).map_err(|error| {
        Refused(Problem::new(Code::Internal, format!("The token could not be written: {error}."), "Report it."))
    })?;
    Ok((StatusCode::CREATED, axum::Json(RouterToken { token, expires_at })))
}
