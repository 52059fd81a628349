//! What the store keeps of the gate: rules, secrets, approvals, budgets and calls. Parts of the one `Store` trait.

use std::path::PathBuf;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use sandbar_api::{
    Approval, ApprovalAnswer, ApprovalId, ApprovalState, Delivery, NetworkRule, ProcessId, SandboxId, SecretInfo,
    SessionId, SetBudget, UsageBy, UsageRow,
};
use sandbar_policy::Amount;
use serde_json::Value;

use super::Result;

/// What a sandbox has of its own, beyond its template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GateRow {
    pub rules: Vec<NetworkRule>,
    pub secrets: Vec<String>,
    /// Its certificate authority, PEM.
    pub certificate: String,
    /// The authority's key, sealed.
    pub key: Vec<u8>,
}

/// Something that happened at a gate, told after the fact.
#[derive(Debug, Clone, PartialEq)]
pub struct FactRow {
    pub kind: &'static str,
    pub sandbox: SandboxId,
    pub data: Value,
}

#[async_trait]
pub trait GateStore: Send + Sync {
    /// Absent for sandboxes of a time when there was no gate, and for those that are gone.
    async fn gate(&self, sandbox: &SandboxId) -> Result<Option<GateRow>>;
    /// Of a sandbox that was made before there were gates. Where there is one, only its authority is replaced: its key could
    /// not be read any more.
    async fn add_gate(&self, sandbox: &SandboxId, gate: &GateRow) -> Result<()>;
    /// Event `net.changed` with what changed. `Missing` if there is no gate.
    async fn set_network(
        &self,
        sandbox: &SandboxId,
        rules: &[NetworkRule],
        secrets: &[String],
        change: Value,
    ) -> Result<()>;
    /// Appends events, in order, in one transaction.
    async fn append_facts(&self, facts: Vec<FactRow>) -> Result<()>;
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretRow {
    pub info: SecretInfo,
    pub sealed: Vec<u8>,
}

#[async_trait]
pub trait SecretStore: Send + Sync {
    /// Event `secret.set` (name, hosts, place; never the value). Replaces one of that name.
    async fn set_secret(&self, row: &SecretRow) -> Result<()>;
    async fn secrets(&self) -> Result<Vec<SecretRow>>;
    /// Event `secret.removed`. `Missing` if there is none.
    async fn remove_secret(&self, name: &str) -> Result<()>;
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ApprovalFilter {
    /// Empty: all.
    pub states: Vec<ApprovalState>,
    pub sandbox: Option<SandboxId>,
    pub session: Option<SessionId>,
    /// Newest last; at most so many, the newest.
    pub limit: u32,
}

#[derive(Debug, Clone, PartialEq)]
pub struct RulesAfter {
    pub sandbox: SandboxId,
    pub rules: Vec<NetworkRule>,
    pub secrets: Vec<String>,
    pub change: Value,
}

/// What an answer does besides being one, in the same transaction.
#[derive(Debug, Clone, PartialEq)]
pub enum Consequence {
    Rules(RulesAfter),
    /// It is to be typed: its delivery is pending, under this id in the guest.
    Typing(String),
}

#[derive(Debug, Clone, PartialEq)]
pub enum Closed {
    Now(Approval),
    /// It was not open (or its deadline had passed, and it is expired now): as it is.
    Before(Approval),
}

#[async_trait]
pub trait ApprovalStore: Send + Sync {
    /// Event `approval.opened`. Fails if the terminal it is about (its context's `process`) asks something already.
    async fn open_approval(&self, approval: &Approval) -> Result<()>;
    /// Also spent or closed ones, until they are pruned.
    async fn approval(&self, id: &ApprovalId) -> Result<Option<Approval>>;
    async fn approvals(&self, filter: &ApprovalFilter) -> Result<Vec<Approval>>;
    /// The one place where an answer counts: only an open one before its deadline takes it, exactly once. Event
    /// `approval.answered` (without the text), and `net.changed` with rules. `Missing` if there is none.
    async fn answer_approval(
        &self,
        id: &ApprovalId,
        answer: ApprovalAnswer,
        also: Option<Consequence>,
    ) -> Result<Closed>;
    /// As it is behind all that was being written when this was called, also what was committed without anybody hearing of
    /// it; with the id its keys are staged under.
    async fn approval_after_writes(&self, id: &ApprovalId) -> Result<Option<(Approval, Option<String>)>>;
    /// Expires what is due. Event `approval.expired` each.
    async fn expire_approvals(&self, now: DateTime<Utc>) -> Result<Vec<Approval>>;
    async fn next_deadline(&self) -> Result<Option<DateTime<Utc>>>;
    /// What asked is gone. Event `approval.withdrawn` each, reason `sandbox_gone`.
    async fn withdraw_approvals(&self, sandbox: &SandboxId) -> Result<Vec<Approval>>;
    /// This one asks no longer. Event `approval.withdrawn`; None if it was not open.
    async fn withdraw_approval(&self, id: &ApprovalId, reason: &str) -> Result<Option<Approval>>;
    /// The same question, seen again in another place. No event; false if it is not open any more.
    async fn renew_approval(&self, id: &ApprovalId, context: &Value) -> Result<bool>;
    /// The last thing that a terminal asked, open or not.
    async fn terminal_approval(&self, process: &ProcessId) -> Result<Option<Approval>>;
    /// How the typing of an answer ended. Event `approval.typed` or `approval.refused`, once: the first that is told
    /// stands, and is given back. `Missing` if there is none.
    async fn settle_delivery(&self, id: &ApprovalId, delivery: Delivery) -> Result<Approval>;
    /// Answered, and not known to be typed or refused; each with the id its keys are staged under.
    async fn pending_deliveries(&self) -> Result<Vec<(Approval, String)>>;
    /// Takes the one thing that an answer let through: true exactly once.
    async fn spend_approval(&self, id: &ApprovalId) -> Result<bool>;
    /// Answered, not spent, and before their deadline.
    async fn unspent_approvals(&self) -> Result<Vec<Approval>>;
}

/// A call's beginning: held until it is ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallRow {
    pub id: String,
    pub session: SessionId,
    pub sandbox: SandboxId,
    pub model: String,
    pub upstream: String,
    pub began_at: DateTime<Utc>,
    pub held_tokens: u64,
    pub held_micros: u64,
}

/// A call's end. Event `llm.call`, and `llm.usage_clamped` where the vendor reported too much.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CallEnd {
    pub id: String,
    pub ended_at: DateTime<Utc>,
    pub estimated: bool,
    pub input: u64,
    pub cached_input: u64,
    pub cache_write: u64,
    pub output: u64,
    pub tokens: u64,
    pub micros: u64,
    pub status: Option<u16>,
    pub elapsed_ms: u64,
    pub note: Option<String>,
    /// What the vendor reported, where that is more than what counts.
    pub reported: Option<Amount>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum LedgerEntry {
    Begin(CallRow),
    /// Changes nothing if it was ended before.
    End(CallEnd),
    /// It was never made after all; changes nothing if it was ended, or never begun.
    Strike(String),
}

#[derive(Debug, Clone, PartialEq)]
pub struct UsageQuery {
    pub by: UsageBy,
    /// Of this session alone, or of all.
    pub session: Option<SessionId>,
    pub model: Option<String>,
    pub from: DateTime<Utc>,
    pub to: DateTime<Utc>,
}

/// Where a reservation is durable before its call goes out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reservations {
    /// In a journal beside the database: only a server in this home can come after.
    Journal(PathBuf),
    /// In the database: another server may come after, on another host.
    Committed,
}

#[async_trait]
pub trait LedgerStore: Send + Sync {
    fn reservations(&self) -> Reservations;
    /// Event `budget.set`. `Missing` if there is no such session.
    async fn set_budget(&self, session: &SessionId, limits: &SetBudget) -> Result<()>;
    /// Event `model.switched`. `Missing` if there is no such session.
    async fn set_model(&self, session: &SessionId, model: Option<&str>) -> Result<()>;
    /// In order, in one transaction: durable when it returns. Refused on a full disk if something begins; beginning the
    /// same call twice changes nothing.
    async fn write_ledger(&self, entries: Vec<LedgerEntry>) -> Result<()>;
    /// The same, for what has begun already: it is let through on a full disk.
    async fn write_promised(&self, entries: Vec<LedgerEntry>) -> Result<()>;
    /// Begun and not ended, by servers that died.
    async fn held_calls(&self) -> Result<Vec<CallRow>>;
    /// Tokens and micros of ended calls of the session and all its descendants.
    async fn used(&self, session: &SessionId) -> Result<(u64, u64)>;
    /// When and how many tokens: calls of the same sessions that ended since then.
    async fn settled_since(&self, session: &SessionId, since: DateTime<Utc>) -> Result<Vec<(DateTime<Utc>, u64)>>;
    async fn usage(&self, query: &UsageQuery) -> Result<Vec<UsageRow>>;
}
