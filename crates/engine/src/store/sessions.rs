//! What the store keeps of sessions: whose they are, what they are called, and what belongs to them.

use std::collections::BTreeMap;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use sandbar_api::{Approval, SandboxId, SandboxState, SessionId, SessionTerminal, SetBudget};

use super::Result;

#[derive(Debug, Clone, PartialEq)]
pub struct SessionRow {
    pub id: SessionId,
    pub owner: String,
    pub marks: SessionMarks,
    pub parent: Option<SessionId>,
    pub limits: SetBudget,
    pub model: Option<String>,
    pub created_at: DateTime<Utc>,
    pub deleted_at: Option<DateTime<Utc>>,
}

/// What people find a session by.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SessionMarks {
    pub name: Option<String>,
    pub labels: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SessionFilter {
    pub labels: BTreeMap<String, String>,
    /// Also those that have no sandbox any more, or were deleted.
    pub ended: bool,
    /// This one alone.
    pub only: Option<SessionId>,
    /// Only ids after this one (ids ascend with time).
    pub after: Option<SessionId>,
    pub limit: u32,
}

/// What belongs to a session now.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Belongings {
    /// Not the deleted ones; oldest first.
    pub sandboxes: Vec<(SandboxId, SandboxState)>,
    pub open_approvals: u64,
    /// Of processes that run; oldest first.
    pub terminals: Vec<SessionTerminal>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Deletion {
    /// With the approvals that were withdrawn.
    Now(Vec<Approval>),
    /// It was deleted already.
    Before,
    /// Nothing was changed: these sandboxes go first.
    Inhabited(Vec<SandboxId>),
}

#[async_trait]
pub trait SessionStore: Send + Sync {
    /// Also a deleted one, until it is pruned.
    async fn session(&self, id: &SessionId) -> Result<Option<SessionRow>>;
    /// The one of that name, or the last that had it.
    async fn session_named(&self, name: &str) -> Result<Option<SessionRow>>;
    /// Oldest first.
    async fn sessions(&self, filter: &SessionFilter) -> Result<Vec<SessionRow>>;
    async fn belongings(&self, session: &SessionId) -> Result<Belongings>;
    /// Deletes a session without sandboxes, which no sandbox and no session can join any more. Events `session.deleted`,
    /// and `approval.withdrawn` of each that was open. `Missing` if there is none.
    async fn delete_session(&self, session: &SessionId) -> Result<Deletion>;
}
