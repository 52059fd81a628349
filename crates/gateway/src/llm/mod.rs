//! The LLM endpoints: OpenAI Chat Completions, Responses and Embeddings under `/llm/openai/v1/`, Anthropic Messages under
//! `/llm/anthropic/v1/`. Bodies pass byte for byte but for what a budget needs.
//!
//! A request becomes a [`plan`] (pure: which model, what is reserved, which bytes are sent); a [`call`] carries it out.

mod asked;
mod betas;
mod bound;
mod call;
mod catalogue;
mod content;
mod desk;
mod edit;
mod fact;
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
mod room;
mod route;
mod scan;
mod select;
mod sse;
mod tree;
mod unbounded;
mod usage;
mod wide;

pub use catalogue::{CapField, Catalogue, Format, Model, Upstream};
pub(crate) use desk::Desk;
pub(crate) use pool::Pool;
pub use usage::Usage;

use std::{sync::Arc, time::Instant};

use hyper::{Request, Response, body::Incoming};

use self::{
    asked::Asked,
    call::Call,
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
        Route::Call(endpoint) => {
            let began = Instant::now();
            match call(endpoint, request, gateway, warden, desk, began).await {
                Ok(call) => call.start().await,
                Err(refusal) => {
                    fact::record(warden.as_ref(), endpoint, &refusal, began);
                    refusal.response(endpoint.format())
                }
            }
        }
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
    began: Instant,
) -> Result<Call, Refusal> {
    let place = desk.admit()?;
    let reach = gateway.reach();
    let (head, body) = request.into_parts();
    let memory = &gateway.llm.memory;
    let taken = desk.take(&head.headers, body, &reach.settings, &memory.room).await?;
    let query = head.uri.query().map(str::to_owned);
    let is_large = taken.is_large();
    let asked = Asked { endpoint, query, headers: head.headers, body: taken.body, is_large };
    let (plan, outgoing) = asked.plan(warden.as_ref(), memory, &reach.settings).await?;
    let (gateway, warden, share) = (gateway.clone(), Arc::clone(warden), Some(taken.share));
    Ok(Call { began, gateway, warden, reach, asked, plan, outgoing, place, share })
}
