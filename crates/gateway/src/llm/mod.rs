//! The LLM endpoints: OpenAI Chat Completions, Responses and Embeddings under `/llm/openai/v1/`, Anthropic Messages under
//! `/llm/anthropic/v1/`. Bodies pass byte for byte but for what a budget needs.
//!
//! A request becomes a [`plan`] (pure: which model, what is reserved, which bytes are sent); a [`call`] carries it out.

mod bound;
mod call;
mod catalogue;
mod content;
mod desk;
mod edit;
#[cfg(test)]
mod fuzz;
mod hold;
mod incoming;
mod meter;
mod models;
mod outgoing;
mod plan;
mod pool;
mod refusal;
mod relay;
mod route;
mod scan;
mod select;
mod sse;
mod tree;
mod unbounded;
mod usage;

pub use catalogue::{CapField, Catalogue, Format, Model, Upstream};
pub(crate) use desk::Desk;
pub(crate) use pool::Pool;
pub use usage::Usage;

use std::sync::Arc;

use hyper::{Request, Response, body::Incoming};

use self::{
    call::Call,
    outgoing::Outgoing,
    refusal::Refusal,
    route::{Endpoint, Route},
};
use crate::{Gateway, Warden, body::Body};

/// A request whose path begins with `/llm/`.
pub(crate) async fn handle(
    request: Request<Incoming>,
    gateway: &Gateway,
    warden: &Arc<dyn Warden>,
    desk: &Desk,
) -> Response<Body> {
    match route::route(request.method(), request.uri().path()) {
        Route::Call(endpoint) => match call(endpoint, request, gateway, warden, desk).await {
            Ok(call) => call.start().await,
            Err(refusal) => refusal.response(endpoint.format()),
        },
        Route::Models(format) => models::response(&warden.catalogue(), format),
        Route::Nothing(format) => {
            let message = format!("there is nothing here; there are {}", route::there(format));
            Refusal::not_found(message).response(format)
        }
    }
}

async fn call(
    endpoint: Endpoint,
    request: Request<Incoming>,
    gateway: &Gateway,
    warden: &Arc<dyn Warden>,
    desk: &Desk,
) -> Result<Call, Refusal> {
    let place = desk.admit()?;
    let reach = gateway.reach();
    let (head, body) = request.into_parts();
    let taken = desk.take(&head.headers, body, &reach.settings).await?;
    let (catalogue, switched, held) = (warden.catalogue(), warden.model(), warden.budget());
    let large = taken.large.is_some();
    let plan = move || plan::plan(endpoint, taken.body, &catalogue, switched.as_deref(), &held);
    // reading megabytes would hold up everybody else's chunks
    let plan = if large { tokio::task::spawn_blocking(plan).await.map_err(|_| Refusal::ending())? } else { plan() };
    let mut plan = plan?;
    let body = std::mem::take(&mut plan.body);
    let outgoing = Outgoing::new(endpoint, head.uri.query(), &head.headers, &plan.selected, warden.as_ref(), body)?;
    let (gateway, warden) = (gateway.clone(), Arc::clone(warden));
    Ok(Call { endpoint, gateway, warden, reach, plan, outgoing, place, large: taken.large })
}
