//! What an agent's token may name. The lookup itself ends at the agent's own session, so that neither an answer nor the time
//! it takes tells whether somebody else's sandbox or session is there.

use sandbar_api::{Problem, SandboxId};

use crate::{Caller, Inner, store::sessions::SessionRow};

/// How far an agent sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sight {
    /// Its own session.
    Own,
    /// Also those that spend its budget.
    Below,
}

impl Inner {
    /// By a session's id or name, or by a sandbox's id or name.
    pub(crate) async fn own_session(
        &self,
        agent: &Caller,
        sight: Sight,
        of: &str,
    ) -> Result<Option<SessionRow>, Problem> {
        let Some(own) = &agent.session else { return Ok(None) };
        Ok(self.store.session_within(own, sight == Sight::Below, of).await?)
    }

    /// By id or name.
    pub(crate) async fn own_sandbox(&self, agent: &Caller, of: &str) -> Result<Option<SandboxId>, Problem> {
        let Some(own) = &agent.session else { return Ok(None) };
        Ok(self.store.sandbox_within(own, of).await?)
    }
}
