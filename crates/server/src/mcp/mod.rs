//! The tools of a session's sandbox for agents of any make, over MCP's Streamable HTTP. The protocol is rmcp's; who may
//! call is decided before, by the layers that stand in front of every route; what a tool does is done by the engine.
//!
//! Nothing here belongs to an MCP session: each request says for itself whose sandbox it means, so clients come, go and
//! are restarted without losing anything.

mod clients;
mod edit;
mod exec;
mod files;
mod listing;
mod route;
mod skills;
mod tools;

use std::{sync::Arc, time::Duration};

use rmcp::transport::streamable_http_server::{
    StreamableHttpServerConfig, StreamableHttpService, session::local::LocalSessionManager,
};
use sandbar_api::{SandboxId, SessionId};
use sandbar_engine::Caller;
use tokio_util::sync::CancellationToken;

pub(crate) use route::routes;

use self::{clients::Clients, tools::Tools};
use crate::App;

/// Of a request, and so of a file that is written.
const MAX_BODY: usize = 4 * 1024 * 1024;
/// An MCP session counts as idle while a command runs in it, and must outlive the longest one.
const IDLE: Duration = exec::LONGEST.saturating_add(Duration::from_secs(5 * 60));

type Service = StreamableHttpService<Tools, LocalSessionManager>;

/// What the route hands its requests to.
pub(crate) struct Endpoint {
    service: Service,
    clients: Clients,
}

impl Endpoint {
    pub(crate) fn new(version: &'static str, closing: CancellationToken) -> Self {
        let mut sessions = LocalSessionManager::default();
        sessions.session_config.keep_alive = Some(IDLE);
        let sessions = Arc::new(sessions);
        // Host and Origin were judged before, by rules that know which names are ours.
        let config = StreamableHttpServerConfig::default()
            .disable_allowed_hosts()
            .disable_allowed_origins()
            .with_max_request_body_bytes(MAX_BODY)
            .with_cancellation_token(closing);
        let service = Service::new(move || Ok(Tools::new(version)), sessions.clone(), config);
        Self { service, clients: Clients::new(sessions) }
    }
}

/// Whom a request is for; it travels with the request to the tools.
#[derive(Clone)]
struct Place {
    app: App,
    caller: Caller,
    session: SessionId,
    /// The newest of the session's that is not deleted.
    sandbox: Option<SandboxId>,
}

impl Place {
    /// Or what to tell the model.
    fn sandbox(&self) -> Result<&str, String> {
        self.sandbox.as_ref().map(SandboxId::as_str).ok_or_else(|| {
            format!(
                "The session {} has no sandbox any more, and no tool works without one. Begin another session with `sandbar session new` or POST /v1/sessions, and connect to that.",
                self.session
            )
        })
    }
}
