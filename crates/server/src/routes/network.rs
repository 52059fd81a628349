//! The network of a sandbox: its rules and the secrets it may use, changed live.

use axum::extract::State;
use sandbar_api::{AddRules, Network};
use sandbar_engine::Engine;
use serde::Deserialize;
use utoipa::IntoParams;

use super::SandboxPath;
use crate::{
    access::Calling,
    extract::{Json, Path, Query},
    problem::Result,
    registry::{Routes, routes},
};

pub(super) fn routes() -> Routes {
    Routes::default().routes(routes!(network)).routes(routes!(add, remove)).routes(routes!(grant, revoke))
}

/// Get the network of a sandbox
///
/// The rules in force, those of its template and its own, and the names of the secrets it may use.
#[utoipa::path(
    get, path = "/v1/sandboxes/{sandbox}/network", operation_id = "get_network", tag = "network", params(SandboxPath),
    responses(
        (status = 200, description = "Its network.", body = Network),
        (status = 404, description = "`unknown_sandbox`"),
        (status = 410, description = "`sandbox_gone`"),
    )
)]
async fn network(State(engine): State<Engine>, Path(path): Path<SandboxPath>) -> Result<axum::Json<Network>> {
    Ok(axum::Json(engine.network(&path.sandbox).await?))
}

/// Add rules
///
/// For the next request the sandbox makes. `deny` counts before `ask` before `allow`; what no rule names is denied. A
/// rule it has already with another effect changes its effect. What the new rules do not do is told in `findings`.
#[utoipa::path(
    post, path = "/v1/sandboxes/{sandbox}/network/rules", operation_id = "add_rules", tag = "network",
    params(SandboxPath), request_body = AddRules,
    responses(
        (status = 200, description = "Its network now.", body = Network),
        (status = 400, description = "`bad_json`; `bad_rule`: malformed, of an unknown set, or too many"),
        (status = 404, description = "`unknown_sandbox`"),
        (status = 410, description = "`sandbox_gone`"),
    )
)]
async fn add(
    State(engine): State<Engine>,
    Calling(caller): Calling,
    Path(path): Path<SandboxPath>,
    Json(request): Json<AddRules>,
) -> Result<axum::Json<Network>> {
    Ok(axum::Json(engine.add_rules(&caller, &path.sandbox, request).await?))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct RuleQuery {
    /// The rule's text.
    #[param(example = "api.github.com")]
    rule: String,
}

/// Remove a rule
///
/// One of the sandbox's own; those of its template stay.
#[utoipa::path(
    delete, path = "/v1/sandboxes/{sandbox}/network/rules", operation_id = "remove_rule", tag = "network",
    params(SandboxPath, RuleQuery),
    responses(
        (status = 200, description = "Its network now.", body = Network),
        (status = 400, description = "`bad_rule`"),
        (status = 404, description = "`unknown_sandbox`, `unknown_rule`"),
        (status = 410, description = "`sandbox_gone`"),
    )
)]
async fn remove(
    State(engine): State<Engine>,
    Calling(caller): Calling,
    Path(path): Path<SandboxPath>,
    Query(query): Query<RuleQuery>,
) -> Result<axum::Json<Network>> {
    Ok(axum::Json(engine.remove_rule(&caller, &path.sandbox, &query.rule).await?))
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
struct GrantPath {
    /// The sandbox's id or name.
    sandbox: String,
    /// The secret's name.
    secret: String,
}

/// Let a sandbox use a secret
///
/// The gateway puts it in from the next request on; the sandbox never holds more than a placeholder. Processes started
/// from now on have the placeholder in a variable of the secret's name.
#[utoipa::path(
    put, path = "/v1/sandboxes/{sandbox}/secrets/{secret}", operation_id = "grant_secret", tag = "network",
    params(GrantPath),
    responses(
        (status = 200, description = "Its network now.", body = Network),
        (status = 404, description = "`unknown_sandbox`, `unknown_secret`"),
        (status = 410, description = "`sandbox_gone`"),
    )
)]
async fn grant(
    State(engine): State<Engine>,
    Calling(caller): Calling,
    Path(path): Path<GrantPath>,
) -> Result<axum::Json<Network>> {
    Ok(axum::Json(engine.grant_secret(&caller, &path.sandbox, &path.secret).await?))
}

/// Take a secret from a sandbox
///
/// From the next request on. One that its template grants stays.
#[utoipa::path(
    delete, path = "/v1/sandboxes/{sandbox}/secrets/{secret}", operation_id = "revoke_secret", tag = "network",
    params(GrantPath),
    responses(
        (status = 200, description = "Its network now.", body = Network),
        (status = 404, description = "`unknown_sandbox`, `unknown_secret`"),
        (status = 410, description = "`sandbox_gone`"),
    )
)]
async fn revoke(
    State(engine): State<Engine>,
    Calling(caller): Calling,
    Path(path): Path<GrantPath>,
) -> Result<axum::Json<Network>> {
    Ok(axum::Json(engine.revoke_secret(&caller, &path.sandbox, &path.secret).await?))
}
