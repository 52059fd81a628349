//! The routes, each registered together with its description, so that router and OpenAPI document cannot drift.
//!
//! A route is in one of three groups, and its group decides what stands in front of it: `open` nothing but the checks
//! of Host and Origin, `guarded` a token, `admin` an admin's token. What is not listed is guarded too. Which of the guarded
//! ones are for agents is said in `roles`.

mod approvals;
mod attach;
mod budgets;
mod docs;
mod enforcement;
mod events;
pub(crate) mod exec;
pub(crate) mod files;
mod health;
mod host;
mod kubernetes;
mod life;
mod metrics;
mod network;
pub(crate) mod output;
mod page;
mod pools;
mod ports;
mod previews;
mod processes;
mod quarantine;
mod range;
pub(crate) mod sandboxes;
mod secrets;
mod sessions;
mod sign_in;
mod snapshots;
mod templates;
mod terminals;
mod tokens;
mod usage;
mod webhooks;
pub(crate) mod workspaces;

use axum::{Router, middleware};
use serde::Deserialize;
use utoipa::IntoParams;

use crate::{
    App, access, grpc, headers, kagent, mcp, observe, preview, problem, query, registry::Routes, roles,
    router as agent_sandbox,
};

pub(crate) use docs::DOCUMENT;

fn open() -> Routes {
    Routes::default().merge(health::routes()).merge(sign_in::open()).merge(docs::routes())
}

fn guarded() -> Routes {
    Routes::default()
        .merge(sandboxes::routes())
        .merge(life::routes())
        .merge(snapshots::routes())
        .merge(enforcement::routes())
        .merge(exec::routes())
        .merge(processes::routes())
        .merge(output::routes())
        .merge(terminals::routes())
        .merge(attach::routes())
        .merge(files::routes())
        .merge(ports::routes())
        .merge(previews::routes())
        .merge(events::routes())
        .merge(templates::routes())
        .merge(pools::routes())
        .merge(network::routes())
        .merge(secrets::listed())
        .merge(approvals::routes())
        .merge(sessions::routes())
        .merge(workspaces::routes())
        .merge(kagent::routes())
        .merge(mcp::routes())
        .merge(budgets::routes())
        .merge(usage::routes())
        .merge(host::routes())
        .merge(kubernetes::routes())
        .merge(metrics::routes())
        .merge(sign_in::guarded())
}

fn admin() -> Routes {
    tokens::routes().merge(secrets::managed()).merge(webhooks::routes()).merge(quarantine::routes())
}

/// The document as the routes alone make it.
#[cfg(test)]
pub(crate) fn documented() -> utoipa::openapi::OpenApi {
    Routes::default().merge(open()).merge(guarded()).merge(admin()).into_document()
}

/// Layers are read from the bottom up: the last one sees a request first.
pub(crate) fn router(app: &App) -> Router {
    let [open, guarded, admin] = [open(), guarded(), admin()].map(Routes::into_router);
    let guarded = guarded
        .route_layer(middleware::from_fn(query::refuse_unknown))
        .merge(
            admin
                .route_layer(middleware::from_fn(query::refuse_unknown))
                .route_layer(middleware::from_fn(roles::admin_only)),
        )
        .merge(grpc::guarded(app))
        .fallback(problem::unknown_route)
        .method_not_allowed_fallback(problem::method_not_allowed)
        .layer(middleware::from_fn_with_state(app.clone(), access::authenticate));
    open.merge(grpc::open(app))
        .method_not_allowed_fallback(problem::method_not_allowed)
        .merge(guarded)
        // It knows its callers by itself, and answers in the words of its own contract.
        .merge(agent_sandbox::routes())
        // Before any token is looked at: a rebound name must not learn whether one is valid.
        .layer(middleware::from_fn_with_state(app.clone(), access::site))
        .layer(middleware::from_fn(headers::harden))
        .layer(middleware::from_fn(kagent::answer))
        .layer(middleware::from_fn_with_state(app.clone(), preview::divert))
        .layer(middleware::from_fn_with_state(app.clone(), observe::observe))
        .layer(middleware::from_fn(grpc::answer))
        .with_state(app.clone())
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
struct SandboxPath {
    /// The sandbox's id or name.
    sandbox: String,
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
struct ProcessPath {
    /// The sandbox's id or name.
    sandbox: String,
    /// The process's id.
    process: String,
}

#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub(crate) struct SessionPath {
    /// A session's id or name, or the id or name of a sandbox that belongs to it.
    pub(crate) session: String,
}
