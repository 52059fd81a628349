//! The tools of a session's sandbox for agents of any make, over MCP's Streamable HTTP. The protocol is rmcp's; who may
//! call is decided before, by the layers that stand in front of every route; what a tool does is done by the engine.
//!
//! Nothing here belongs to an MCP session: each request says for itself whose sandbox it means, so clients come, go and
//! are restarted without losing anything.

mod clients;
mod edit;
mod exec;
mod files;
mod kind;
mod listing;
mod output;
mod patience;
mod processes;
mod progress;
mod read;
mod refusal;
mod route;
mod search;
mod skills;
mod told;
mod tools;

use std::{sync::Arc, time::Duration};

use rmcp::transport::streamable_http_server::{
    StreamableHttpServerConfig, StreamableHttpService, session::local::LocalSessionManager,
};
use sandbar_api::{Code, Problem, SandboxId, SessionId};
use sandbar_engine::Caller;
use tokio::{sync::Notify, time::sleep};
use tokio_util::sync::CancellationToken;

pub(crate) use route::routes;

use self::{clients::Clients, tools::Tools};
use crate::App;

/// Of a request, and so of a file that is written.
const MAX_BODY: usize = 4 * 1024 * 1024;
/// An MCP session counts as idle while a command runs in it, and must outlive the longest one.
const IDLE: Duration = exec::LONGEST.saturating_add(Duration::from_secs(5 * 60));
/// When a call has lasted this long its token is looked at again; shorter ones are not held up.
const TRUSTED: Duration = Duration::from_secs(1);

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
            // Only without a handshake, and only for answers that nothing was sent before.
            .with_json_response(true)
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
    /// Told when the request was understood and a tool begins.
    begun: Arc<Notify>,
}

impl Place {
    /// Returns, with what to say, when the token of a call that lasts is revoked or expires.
    async fn turned_away(&self) -> Problem {
        sleep(TRUSTED).await;
        let revoked = || {
            let detail = "The token was revoked or has expired, and the call was ended: a command of exec was killed.";
            Problem::new(Code::Unauthenticated, detail, "Use another.")
        };
        self.app.engine.turned_away(&self.caller).await.err().unwrap_or_else(revoked)
    }

    /// Or what to tell the model.
    fn sandbox(&self) -> Result<&str, String> {
        self.sandbox.as_ref().map(SandboxId::as_str).ok_or_else(|| {
            format!(
                "The session {id} has no sandbox, and no tool works without one. Somebody with an operator's token can provide it, with POST /v1/sessions/{id}/sandbox; then call again.",
                id = self.session
            )
        })
    }
}
