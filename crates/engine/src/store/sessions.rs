//! What the store keeps of sessions: whose they are, what they are called, and what belongs to them.

use std::collections::BTreeMap;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use sandbar_api::{Approval, SandboxId, SandboxState, SessionId, SessionTerminal, SetBudget, Token, TokenId};

use super::{Result, SandboxRow};

#[derive(Debug, Clone, PartialEq)]
pub struct SessionRow {
    pub id: SessionId,
    pub owner: String,
    pub marks: SessionMarks,
    pub parent: Option<SessionId>,
    pub limits: SetBudget,
    pub model: Option<String>,
    /// Of one that is there before it has a sandbox, and after it had one.
    pub conversation: Option<Conversation>,
    pub created_at: DateTime<Utc>,
    pub deleted_at: Option<DateTime<Utc>>,
}

/// What people find a session by.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SessionMarks {
    pub name: Option<String>,
    pub labels: BTreeMap<String, String>,
}

/// What makes a session a conversation, whose workspace is made when it is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conversation {
    /// Whose configuration its workspaces are made by.
    pub agent: String,
    /// The id that the user gave it, unique among that user's that are not deleted.
    pub external: Option<External>,
    /// When its workspace was last asked for.
    pub used_at: DateTime<Utc>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct External {
    pub user: String,
    pub id: String,
}

/// A session without a sandbox.
#[derive(Debug, Clone, PartialEq)]
pub struct NewSession {
    pub id: SessionId,
    pub owner: String,
    pub marks: SessionMarks,
    pub agent: String,
    pub limits: SetBudget,
    pub external: Option<External>,
    pub created_at: DateTime<Utc>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Begun {
    New(SessionRow),
    /// The user has one of that id already; it is as it was.
    Known(SessionRow),
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SessionFilter {
    pub labels: BTreeMap<String, String>,
    /// Also those that were deleted, or have no sandbox any more and are no conversations.
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
    /// A conversation. Event `session.created`. `SessionNameTaken` among those not deleted.
    async fn create_session(&self, new: NewSession) -> Result<Begun>;
    /// The user's of that id, or the last that had it.
    async fn conversation(&self, external: &External) -> Result<Option<SessionRow>>;
    /// Its workspace was asked for.
    async fn use_session(&self, session: &SessionId, at: DateTime<Utc>) -> Result<()>;
    /// Conversations whose workspace nobody asked for since then, and that have no sandbox, not even a deleted one.
    async fn forgotten(&self, before: DateTime<Utc>) -> Result<Vec<SessionId>>;
    /// Deletes it as `delete_session` does, unless it is no longer one of those.
    async fn forget_session(&self, session: &SessionId, before: DateTime<Utc>) -> Result<Option<Vec<Approval>>>;
    /// The sandbox that came to it last, also a deleted one.
    async fn last_sandbox(&self, session: &SessionId) -> Result<Option<SandboxRow>>;
    /// The token that its workspace is used with, unless it was revoked.
    async fn workspace_token(&self, session: &SessionId) -> Result<Option<TokenId>>;
    /// Makes this one the token of its session's workspace, unless there is one; returns the one there is. Event
    /// `token.created`. `SessionEnded` if the session was deleted, `Missing` if there is none.
    async fn add_workspace_token(&self, token: &Token, digest: [u8; 32]) -> Result<TokenId>;
    /// Also a deleted one, until it is pruned.
    async fn session(&self, id: &SessionId) -> Result<Option<SessionRow>>;
    /// The one of that name, or the last that had it.
    async fn session_named(&self, name: &str) -> Result<Option<SessionRow>>;
    /// By its own id or name, or by a sandbox's id or name, as callers write it: `root`, or with `below` also a session that
    /// spends its budget. Nothing beyond those is looked at.
    async fn session_within(&self, root: &SessionId, below: bool, of: &str) -> Result<Option<SessionRow>>;
    /// Oldest first.
    async fn sessions(&self, filter: &SessionFilter) -> Result<Vec<SessionRow>>;
    async fn belongings(&self, session: &SessionId) -> Result<Belongings>;
    /// Deletes a session without sandboxes, which no sandbox and no session can join any more. Events `session.deleted`,
    /// `approval.withdrawn` of each that was open and `token.revoked` of each that was bound to it.
    /// `Missing` if there is none.
    async fn delete_session(&self, session: &SessionId) -> Result<Deletion>;
}
