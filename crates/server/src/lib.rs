//! The HTTP surface over the engine: REST, event streams, gRPC, the docs page and metrics, on one TCP listener and one Unix
//! socket. It decides who may call and how an answer looks on the wire; what happens is decided by the engine.

mod access;
mod bind;
mod certificate;
mod codes;
mod extract;
mod grpc;
mod headers;
mod health;
mod kagent;
mod mcp;
mod observe;
#[cfg(test)]
mod openapi;
mod preview;
mod problem;
mod proxy;
mod query;
mod registry;
mod roles;
mod router;
mod routes;
mod serve;
mod sign_in;
mod slots;
mod sse;
mod standby;
mod upload;

#[cfg(test)]
mod tests;

use std::{ops::Deref, sync::Arc};

use axum::extract::FromRef;
use sandbar_engine::Engine;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub use bind::{BindError, Entrance, Options, Server};
pub use certificate::Tls;
pub use health::HealthListener;

/// What every request may reach.
#[derive(Clone)]
struct App(Arc<Surface>);

struct Surface {
    engine: Engine,
    site: access::Site,
    sign_in: sign_in::SignIn,
    meters: observe::Meters,
    router_key: router::Key,
    preview_codes: codes::Codes<preview::Invitation>,
    version: &'static str,
    mcp: mcp::Endpoint,
    /// Cancelled when the server shuts down: streams end themselves.
    closing: CancellationToken,
    /// Counts WebSockets, which outlive the connections they came over.
    sockets: TaskTracker,
}

impl Deref for App {
    type Target = Surface;

    fn deref(&self) -> &Surface {
        &self.0
    }
}

impl FromRef<App> for Engine {
    fn from_ref(app: &App) -> Engine {
        app.engine.clone()
    }
}
