//! MCP sessions, which older clients open before they call: each is for the session and the token it was opened with, so
//! that an id that leaks is of no use to anybody else, and their number is limited.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use rmcp::transport::streamable_http_server::session::{SessionManager as _, local::LocalSessionManager};
use sandbar_api::{Code, Problem, SessionId};

/// Open at the same time for one session; those that nobody closed end when they were idle for long.
const MOST: usize = 100;

pub(super) struct Clients {
    open: Arc<LocalSessionManager>,
    bound: Mutex<HashMap<String, Bound>>,
}

#[derive(PartialEq, Eq)]
struct Bound {
    session: SessionId,
    owner: String,
}

impl Clients {
    pub(super) fn new(open: Arc<LocalSessionManager>) -> Self {
        Self { open, bound: Mutex::default() }
    }

    /// Refuses the id of somebody else's MCP session like one that never was.
    pub(super) fn check(&self, id: &str, session: &SessionId, owner: &str) -> Result<(), Problem> {
        let bound = self.bound.lock().unwrap_or_else(PoisonError::into_inner);
        match bound.get(id) {
            Some(bound) if bound.session == *session && bound.owner == owner => Ok(()),
            _ => Err(Problem::new(
                Code::UnknownSession,
                "There is no such MCP session here; it may have ended.",
                "Send `initialize` again, without the Mcp-Session-Id header.",
            )),
        }
    }

    /// Binds an MCP session that was just opened, or closes it if there are too many.
    pub(super) async fn bind(&self, id: &str, session: SessionId, owner: String) -> Result<(), Problem> {
        let bound = {
            let open = self.open.sessions.read().await;
            let mut bound = self.bound.lock().unwrap_or_else(PoisonError::into_inner);
            bound.retain(|id, _| open.contains_key(id.as_str()));
            let room = bound.values().filter(|bound| bound.session == session).count() < MOST;
            if room {
                bound.insert(id.to_owned(), Bound { session, owner });
            }
            room
        };
        if bound {
            return Ok(());
        }
        if let Err(error) = self.open.close_session(&id.into()).await {
            tracing::warn!(%error, "cannot close an MCP session that is one too many");
        }
        Err(Problem::new(
            Code::TooMany,
            format!("The session has {MOST} open MCP sessions."),
            "Close some with DELETE and their Mcp-Session-Id, or wait: those that nobody uses end by themselves.",
        ))
    }
}
