//! The store: current state, the event log and process output behind one trait.
//!
//! Every method that changes state appends its event in the same transaction and announces it only after the commit,
//! so nobody is told of anything that a crash could take back. Nothing above this trait knows which database it is.
//!
//! On a full disk, changes that begin something are refused with `DiskFull`; those that end something (a process, a
//! sandbox, a token) still go through for a while, because they are how room is made.

mod ballast;
mod columns;
pub(crate) mod fault;
pub mod gate;
mod migrations;
mod output;
pub mod postgres;
pub mod restart;
pub mod sessions;
pub mod sqlite;
#[cfg(test)]
pub(crate) mod suite;
pub mod terminal;
pub mod webhook;

use std::collections::BTreeMap;

use async_trait::async_trait;
use bytes::Bytes;
use chrono::{DateTime, Utc};
use sandbar_api::{
    Event, Exit, HumanDuration, InstanceId, OutputRange, Process, ProcessId, ProcessState, Sandbox, SandboxId,
    SandboxState, SessionId, SetBudget, Snapshot, SnapshotId, StateReason, Stream, Template, Token, TokenId,
};
use sandbar_provider::Quarantine;
use tokio::sync::watch;

pub use gate::{ApprovalStore, GateStore, LedgerStore, SecretStore};
pub use restart::RestartStore;
pub use sessions::SessionStore;
pub use terminal::{SizeChange, TerminalStore};
pub use webhook::WebhookStore;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the name `{0}` is taken")]
    NameTaken(String),
    #[error("the name `{0}` is taken by a session")]
    SessionNameTaken(String),
    #[error("the session {0} has ended")]
    SessionEnded(SessionId),
    #[error("there is no {0}")]
    Missing(String),
    #[error("a sandbox that is {from:?} cannot become {to:?}")]
    Illegal { from: SandboxState, to: SandboxState },
    #[error("the Idempotency-Key was used for another request")]
    KeyReused,
    #[error("offset {from} was dropped; the first one kept is {first_kept}")]
    Dropped { from: u64, first_kept: u64 },
    #[error("offset {from} is past the end, {end}")]
    Beyond { from: u64, end: u64 },
    #[error("the disk is full")]
    DiskFull,
    #[error("failed to read or write the database")]
    Database(#[source] Source),
    #[error("failed to bring the database up to date")]
    Migrate(#[source] Source),
    #[error("failed to read or write process output")]
    Output(#[source] std::io::Error),
    #[error("the database holds what this version cannot read: {0}")]
    Unreadable(String),
    /// Before anything was opened.
    #[error("{what}")]
    Unusable { what: String, fix: String },
}

impl Error {
    /// Whether it may have been written all the same.
    pub fn leaves_open(&self) -> bool {
        matches!(self, Self::Database(source) if postgres::is_unknown(&**source))
    }
}

pub type Result<T> = std::result::Result<T, Error>;

/// What a database said, whichever it is.
pub type Source = Box<dyn std::error::Error + Send + Sync>;

/// Which store it is, as far as it says so, before it is opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Absent of one that nobody has used since stores have names.
    pub instance: Option<InstanceId>,
    /// The number of its newest event; 0 of one that is empty.
    pub epoch: u64,
}

/// A sandbox with the template it was made from, as it was then.
#[derive(Debug, Clone, PartialEq)]
pub struct SandboxRow {
    pub sandbox: Sandbox,
    pub template: Template,
    /// Of a workspace: how long each use puts its expiry off.
    pub lease: Option<HumanDuration>,
}

/// A request made under an Idempotency-Key: who asked, the key, and a digest of the body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdempotencyKey {
    pub owner: String,
    pub key: String,
    pub digest: [u8; 32],
}

#[derive(Debug, Clone, PartialEq)]
pub struct NewSandbox {
    pub row: SandboxRow,
    /// Make the session row too (its own session), or join one that exists (`Missing` otherwise, `SessionEnded` if it was
    /// deleted).
    pub new_session: bool,
    /// Of a new session: whose budget it spends too (`Missing` if there is none, `SessionEnded` if it was deleted).
    pub parent: Option<SessionId>,
    /// Of a new session (`SessionNameTaken` among those not deleted).
    pub marks: sessions::SessionMarks,
    /// Of a new session: its own limits.
    pub budget: SetBudget,
    pub owner: String,
    pub gate: gate::GateRow,
    pub key: Option<IdempotencyKey>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Created {
    New(SandboxRow),
    /// The same key and digest were used before: this is what it made then, as it is now.
    Replayed(SandboxRow),
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SandboxFilter {
    pub labels: BTreeMap<String, String>,
    /// Empty: all but deleted.
    pub states: Vec<SandboxState>,
    /// Only ids after this one (ids ascend with time).
    pub after: Option<SandboxId>,
    pub limit: u32,
}

/// A snapshot with the template of its origin, as it was then.
#[derive(Debug, Clone, PartialEq)]
pub struct SnapshotRow {
    pub snapshot: Snapshot,
    pub template: Template,
    /// It serves a fork under way, and nobody is told of it.
    pub hidden: bool,
    pub deleted: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub struct NewSnapshot {
    pub row: SnapshotRow,
    pub owner: String,
}

/// How many sandboxes of a template are wanted warm.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolRow {
    pub template: String,
    pub size: u32,
}

/// A warm sandbox that nobody has claimed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolMember {
    /// The id of the sandbox that it will be.
    pub id: SandboxId,
    pub template: String,
    /// Of what it was made from.
    pub digest: [u8; 32],
    pub provider: String,
    pub created_at: DateTime<Utc>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunk {
    pub offset: u64,
    pub stream: Stream,
    pub at: DateTime<Utc>,
    pub data: Bytes,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pruned {
    pub events: u64,
    pub sandboxes: u64,
}

#[async_trait]
pub trait Store:
    GateStore
    + SecretStore
    + ApprovalStore
    + LedgerStore
    + SessionStore
    + TerminalStore
    + WebhookStore
    + RestartStore
    + Send
    + Sync
    + 'static
{
    /// Event `sandbox.created` (and `session.created`). `NameTaken` among those not deleted.
    async fn create_sandbox(&self, new: NewSandbox) -> Result<Created>;
    async fn sandbox(&self, id: &SandboxId) -> Result<Option<SandboxRow>>;
    /// Not among the deleted: their names are free again.
    async fn sandbox_named(&self, name: &str) -> Result<Option<SandboxRow>>;
    /// The last of the deleted that had this name.
    async fn sandbox_last_named(&self, name: &str) -> Result<Option<SandboxRow>>;
    /// By id or name, of this session alone; also a deleted one, if nothing else is meant. Nothing beyond the session is
    /// looked at.
    async fn sandbox_within(&self, session: &SessionId, of: &str) -> Result<Option<SandboxId>>;
    async fn sandboxes(&self, filter: &SandboxFilter) -> Result<Vec<SandboxRow>>;
    /// Event `sandbox.<state>`. Checks the transition inside the transaction.
    async fn transition(&self, id: &SandboxId, to: SandboxState, reason: Option<StateReason>) -> Result<SandboxRow>;
    /// Says anew why it is in its state. Event `sandbox.<state>`.
    async fn restate(&self, id: &SandboxId, reason: StateReason) -> Result<SandboxRow>;
    /// Puts its expiry off. Event `sandbox.renewed`. `Missing` if there is none that is not deleted.
    async fn renew(&self, id: &SandboxId, expires_at: DateTime<Utc>) -> Result<SandboxRow>;
    /// Not deleted, and past their time.
    async fn expired(&self, now: DateTime<Utc>) -> Result<Vec<SandboxId>>;
    /// The earliest expiry of any sandbox not deleted.
    async fn next_expiry(&self) -> Result<Option<DateTime<Utc>>>;
    /// How many sandboxes are in each state.
    async fn count(&self) -> Result<BTreeMap<String, u64>>;

    /// Event `process.started`.
    async fn create_process(&self, process: &Process) -> Result<()>;
    async fn process(&self, sandbox: &SandboxId, id: &ProcessId) -> Result<Option<Process>>;
    /// Newest last.
    async fn processes(&self, sandbox: &SandboxId) -> Result<Vec<Process>>;
    /// All that are still called running, of all sandboxes.
    async fn running_processes(&self) -> Result<Vec<Process>>;
    /// Event `process.exited` or `process.lost`, and `sandbox.limit` if a limit ended it; changes nothing and tells
    /// nothing if it had ended already.
    async fn end_process(
        &self,
        id: &ProcessId,
        state: ProcessState,
        exit: Option<Exit>,
        at: DateTime<Utc>,
    ) -> Result<()>;
    /// Takes back a process that never came to be (its command could not be executed). Event `process.refused`.
    async fn refuse_process(&self, id: &ProcessId, reason: &str) -> Result<()>;

    /// Event `snapshot.created`, unless it is hidden. `NameTaken` among those not deleted.
    async fn create_snapshot(&self, new: NewSnapshot) -> Result<SnapshotRow>;
    /// Also a deleted one, until it is pruned.
    async fn snapshot(&self, id: &SnapshotId) -> Result<Option<SnapshotRow>>;
    /// The one of that name, or the last that had it.
    async fn snapshot_named(&self, name: &str) -> Result<Option<SnapshotRow>>;
    /// Not the deleted ones; the hidden ones too. Newest last.
    async fn snapshots(&self) -> Result<Vec<SnapshotRow>>;
    /// Event `snapshot.deleted` with the reason, unless it is hidden. `Missing` if there is none any more.
    async fn delete_snapshot(&self, id: &SnapshotId, why: StateReason) -> Result<()>;

    /// Event `pool.set`, if that changes anything. 0 ends the pool; its members stay until they are removed.
    async fn set_pool(&self, template: &str, size: u32) -> Result<()>;
    async fn pools(&self) -> Result<Vec<PoolRow>>;
    async fn add_pool_member(&self, member: &PoolMember) -> Result<()>;
    /// Oldest first.
    async fn pool_members(&self) -> Result<Vec<PoolMember>>;
    /// Fine if there is none.
    async fn remove_pool_member(&self, id: &SandboxId) -> Result<()>;
    /// Like `create_sandbox`, for one that is the pool member of the same id and is it no longer. Event `sandbox.created`
    /// with `claimed`, and `sandbox.ready` if it is made so. Whatever refuses it leaves the member; `Missing` if there is
    /// none.
    async fn claim_pool_member(&self, new: NewSandbox) -> Result<Created>;

    /// Appends output that starts exactly at the end of what is kept; bytes below the end are skipped, a gap is an
    /// error. Durable against the death of this process when it returns. `keep` bounds what stays: oldest segments go.
    async fn append_output(&self, process: &ProcessId, chunk: &Chunk, keep: u64) -> Result<OutputRange>;
    async fn output_range(&self, process: &ProcessId) -> Result<OutputRange>;
    /// Up to `limit` bytes from `from`, never across a change of stream. Empty at the end.
    async fn read_output(&self, process: &ProcessId, from: u64, limit: usize) -> Result<Option<Chunk>>;
    /// With the sandbox's deletion: rows of processes stay until they are pruned, output goes now.
    async fn drop_output(&self, sandbox: &SandboxId) -> Result<()>;
    /// Output of processes that it does not know, and since when it is set aside.
    async fn quarantined_output(&self) -> Result<Vec<(ProcessId, Quarantine)>>;
    /// Fine if it is not there, or not quarantined.
    async fn remove_quarantined_output(&self, process: &ProcessId) -> Result<()>;

    /// From now on it is this instance; once only.
    async fn set_instance(&self, instance: &InstanceId) -> Result<()>;

    /// Events with `seq > after`, in order. `Dropped` when some of them were pruned.
    async fn events(&self, after: u64, limit: u32, sandbox: Option<&SandboxId>) -> Result<Vec<Event>>;
    /// The newest sequence number, as it grows.
    fn head(&self) -> watch::Receiver<u64>;

    /// Event `token.created`.
    async fn create_token(&self, token: &Token, digest: [u8; 32]) -> Result<()>;
    async fn tokens(&self) -> Result<Vec<Token>>;
    /// By its id, also one that has expired.
    async fn token_of(&self, id: &str) -> Result<Option<Token>>;
    /// By the digest of its secret, unless it has expired or its session was deleted.
    async fn token(&self, digest: [u8; 32], now: DateTime<Utc>) -> Result<Option<Token>>;
    /// Event `token.revoked`. `Missing` if there is none.
    async fn revoke_token(&self, id: &TokenId) -> Result<()>;

    /// Removes events, deleted sandboxes with their processes and sessions (a session with the last sandbox of its whole
    /// family, unless that has a conversation that is not deleted), tokens of sessions that are gone, deleted snapshots,
    /// closed approvals, and idempotency keys, older than `before`. What was spent stays.
    async fn prune(&self, before: DateTime<Utc>) -> Result<Pruned>;

    /// Writes a row and takes it back: whether the store takes writes (readiness).
    async fn check(&self) -> Result<()>;
    async fn close(&self);
}

/// Named here for the session row's owner; tokens come as `token:<id>`.
pub const OWNER_SOCKET: &str = "socket";
