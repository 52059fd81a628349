//! Workspaces: the one sandbox in which the agents of a session work, found, brought back or made when it is asked for.
//!
//! It is the newest of the session's sandboxes. However many ask for it at once, one task of this server provides it; and
//! what it makes it makes under a key of the store, so that one that a killed server began is not begun again.

mod config;
mod conversations;
mod lease;
mod provide;
mod token;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use chrono::TimeDelta;
use futures_util::{
    FutureExt as _,
    future::{BoxFuture, Shared},
};
use sandbar_api::{Code, Problem, Role, Sandbox, SandboxState, SessionId};
use tokio::time;

use self::config::Plan;
pub use self::conversations::{ConversationId, NewConversation};
use crate::{
    Caller, Engine, Inner, clock, owner, problem,
    sessions::{self, Sight},
    store::sessions::SessionRow,
};

/// How long providing a workspace may take.
pub const LIMIT: Duration = Duration::from_secs(5 * 60);
/// Use of a session is written down when it was not since.
const TOUCH: TimeDelta = TimeDelta::days(1);

/// A session's place to work.
#[derive(Clone)]
pub struct Workspace {
    pub session: SessionId,
    pub sandbox: Option<Sandbox>,
    /// Of the token it is used with; absent if there is none yet, and for callers who may not have it.
    pub secret: Option<String>,
    pub ready: bool,
}

type Provided = Result<Sandbox, Problem>;

/// Sessions whose workspaces are being provided. In `Inner`.
#[derive(Default)]
pub(crate) struct Workspaces(Mutex<HashMap<SessionId, Shared<BoxFuture<'static, Provided>>>>);

impl Workspaces {
    fn under_way(&self) -> MutexGuard<'_, HashMap<SessionId, Shared<BoxFuture<'static, Provided>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Held while a workspace is being provided.
struct UnderWay {
    inner: Arc<Inner>,
    session: SessionId,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.inner.workspaces.under_way().remove(&self.session);
    }
}

impl Inner {
    /// By what configuration an agent's workspaces are made, if they can be.
    async fn usable(&self, agent: &str) -> Result<Plan, Problem> {
        let plan = config::plan(&self.home, agent)?;
        if !plan.enabled {
            return Err(Problem::new(
                Code::WorkspaceDisabled,
                format!("The agent `{}` has no workspaces.", agent.escape_debug()),
                "Set `enabled = true` for it in workspaces.toml of the server's home, or use another agent.",
            ));
        }
        self.provider(&self.template(&plan.template).await?.provider)?;
        Ok(plan)
    }
}

impl Engine {
    /// The workspace of a session, ready to be worked in. Whoever waits no longer than that gets it as it is then, and it
    /// is provided all the same.
    pub async fn workspace(&self, caller: &Caller, of: &str, wait: Option<Duration>) -> Result<Workspace, Problem> {
        let row = self.inner.standing(of).await?;
        let plan = self.inner.usable(row.agent()).await?;
        let id = row.id.clone();
        let provided = self.inner.provide(caller, row, plan)?;
        let secret = self.inner.workspace_secret(&id).await?;
        let sandbox = match time::timeout(wait.unwrap_or(LIMIT).min(LIMIT), provided).await {
            Ok(provided) => Some(provided?),
            Err(_) => None,
        };
        match sandbox {
            Some(sandbox) => Ok(Workspace { session: id, sandbox: Some(sandbox), secret: Some(secret), ready: true }),
            None => {
                let sandbox = self.inner.newest(&id).await?;
                Ok(Workspace { session: id, sandbox, secret: Some(secret), ready: false })
            }
        }
    }

    /// As it is now; nothing is made or brought back. An agent sees its own session's.
    pub async fn workspace_now(&self, caller: &Caller, of: &str) -> Result<Workspace, Problem> {
        let row = match caller.role {
            Role::Agent => {
                let own = self.inner.own_session(caller, Sight::Own, of).await?;
                own.filter(|row| row.deleted_at.is_none()).ok_or_else(sessions::not_yours)?
            }
            Role::Viewer | Role::Operator | Role::Admin => self.inner.standing(of).await?,
        };
        let sandbox = self.inner.newest(&row.id).await?;
        let ready = sandbox.as_ref().is_some_and(|sandbox| sandbox.state == SandboxState::Ready);
        let secret = match caller.role {
            Role::Agent | Role::Viewer => None,
            Role::Operator | Role::Admin => self.inner.known_workspace_secret(&row.id).await?,
        };
        Ok(Workspace { session: row.id, sandbox, secret, ready })
    }

    /// Its sandbox, and those before it that could not be started any more. The session stays; repeating it is fine.
    pub async fn delete_workspace(&self, of: &str) -> Result<(), Problem> {
        let row = self.inner.standing(of).await?;
        let inner = self.inner.clone();
        let delete = async move {
            let mut left = inner.store.belongings(&row.id).await?.sandboxes;
            let newest = left.pop().map(|(id, _)| id);
            let failed = left.into_iter().filter(|(_, state)| *state == SandboxState::Failed).map(|(id, _)| id);
            for sandbox in newest.into_iter().chain(failed) {
                inner.remove(&sandbox, owner::requested_delete()).await?;
            }
            Ok(())
        };
        self.inner.whole(delete).await
    }
}

impl Inner {
    /// A session that was not deleted.
    async fn standing(&self, of: &str) -> Result<SessionRow, Problem> {
        let row = self.session_of(of).await?;
        if row.deleted_at.is_some() { Err(problem::session_ended(of)) } else { Ok(row) }
    }

    /// The sandbox that came last of those that are not deleted.
    async fn newest(&self, session: &SessionId) -> Result<Option<Sandbox>, Problem> {
        let Some((id, _)) = self.store.belongings(session).await?.sandboxes.pop() else { return Ok(None) };
        match self.registry.by_id(&id) {
            Some(handle) => Ok(Some(handle.sandbox())),
            None => Ok(self.store.sandbox(&id).await?.map(|row| row.sandbox)),
        }
    }

    /// In a task of its own, which all share who ask for the same while it runs.
    fn provide(
        self: &Arc<Self>,
        caller: &Caller,
        row: SessionRow,
        plan: Plan,
    ) -> Result<Shared<BoxFuture<'static, Provided>>, Problem> {
        if self.closing.is_cancelled() {
            return Err(problem::shutting_down());
        }
        let session = row.id.clone();
        let mut all = self.workspaces.under_way();
        if let Some(under_way) = all.get(&session) {
            return Ok(under_way.clone());
        }
        let (inner, caller) = (self.clone(), caller.clone());
        // It ends no sooner than it is in the map, which is locked until then.
        let under_way = UnderWay { inner: self.clone(), session: session.clone() };
        let task = self.owners.spawn(async move {
            let _under_way = under_way;
            inner.touch(&row).await;
            match time::timeout(LIMIT, provide::provide(&inner, &caller, &row, &plan)).await {
                Ok(provided) => provided,
                Err(_) => Err(Problem::new(
                    Code::NotReady,
                    format!("The workspace was not ready within {} minutes.", LIMIT.as_secs() / 60),
                    "Ask again: what was begun goes on. Look at the sandbox's state if it stays so.",
                )),
            }
        });
        let provided = async move {
            task.await.unwrap_or_else(|error| {
                tracing::error!(%error, "providing a workspace panicked");
                Err(Problem::new(Code::Internal, "Providing the workspace failed.", "Look at the server's log."))
            })
        };
        let provided = provided.boxed().shared();
        all.insert(session, provided.clone());
        Ok(provided)
    }

    /// Only to the day, and only told to the log if it fails: forgetting takes a month.
    async fn touch(&self, row: &SessionRow) {
        let now = clock::now();
        let Some(conversation) = &row.conversation else { return };
        if now - conversation.used_at > TOUCH
            && let Err(error) = self.store.use_session(&row.id, now).await
        {
            tracing::warn!(session = %row.id, error = &error as &dyn std::error::Error, "use is not written down");
        }
    }
}

#[cfg(test)]
impl Engine {
    /// As another server on the same store would, which knows nothing of what is under way here.
    pub(crate) async fn provide_apart(&self, caller: &Caller, of: &str) -> Provided {
        let row = self.inner.standing(of).await?;
        let plan = config::plan(&self.inner.home, row.agent())?;
        provide::provide(&self.inner, caller, &row, &plan).await
    }
}

impl SessionRow {
    /// Whose configuration holds; one that names nobody is for those that have none.
    fn agent(&self) -> &str {
        self.conversation.as_ref().map_or("", |conversation| conversation.agent.as_str())
    }
}
