//! The session resource: the durable unit of agent work, with its sandboxes, terminals, budget and approvals.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::{
    Exit, HumanDuration, Limits, NetworkPolicy, ProcessId, Restart, SandboxId, SandboxState, SessionId, SetBudget,
    TerminalSize, WorkspaceSource,
};

/// What its sandboxes make of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SessionState {
    /// One of its sandboxes is ready, or on its way there.
    Active,
    /// It has sandboxes, but none that can be worked in before it is resumed or started; or it is a conversation that has
    /// none at present.
    Idle,
    /// It has no sandbox any more and is no conversation, or it was deleted.
    Ended,
}

impl SessionState {
    pub fn of(sandboxes: impl IntoIterator<Item = SandboxState>) -> Self {
        let mut state = Self::Ended;
        for sandbox in sandboxes {
            match sandbox {
                SandboxState::Creating | SandboxState::Ready => return Self::Active,
                SandboxState::Paused | SandboxState::Stopping | SandboxState::Stopped | SandboxState::Failed => {
                    state = Self::Idle;
                }
                SandboxState::Deleted => {}
            }
        }
        state
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Idle => "idle",
            Self::Ended => "ended",
        }
    }
}

/// A running process that has a terminal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct SessionTerminal {
    pub process: ProcessId,
    pub sandbox: SandboxId,
    pub argv: Vec<String>,
    pub started_at: DateTime<Utc>,
}

/// A command that ended and is started again soon.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Restarting {
    /// The last one, whose output and screen are kept.
    pub process: ProcessId,
    pub sandbox: SandboxId,
    pub argv: Vec<String>,
    /// How that ended; absent if nobody saw it, or if it could not even be started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit: Option<Exit>,
    /// How many in a row ended within a minute.
    pub runs: u32,
    pub due: DateTime<Utc>,
}

/// A command that kept dying and is not started again until somebody asks for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct CrashLoop {
    /// The last one, whose output and screen are kept.
    pub process: ProcessId,
    /// The first of those that it follows.
    pub restart_of: ProcessId,
    pub sandbox: SandboxId,
    pub argv: Vec<String>,
    pub terminal: bool,
    /// How the last one ended; absent if nobody saw it, or if it could not even be started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit: Option<Exit>,
    /// How many in a row ended within a minute.
    pub runs: u32,
    /// When the first of them was started.
    pub since: DateTime<Utc>,
    /// When it was given up.
    pub at: DateTime<Utc>,
}

/// What it and the sessions below it have used, and its own limits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct SessionBudget {
    pub tokens_used: u64,
    pub usd_used: f64,
    pub limits: SetBudget,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Session {
    pub id: SessionId,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Who made it: `socket` or `token:<id>`.
    pub owner: String,
    pub state: SessionState,
    pub labels: BTreeMap<String, String>,
    /// The session whose budget it spends too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<SessionId>,
    /// Of a conversation: whose configuration its workspaces are made by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// Of a conversation: the user it belongs to, and that user's own id of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external_id: Option<String>,
    pub created_at: DateTime<Utc>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deleted_at: Option<DateTime<Utc>>,
    /// Those that are not deleted, oldest first.
    pub sandboxes: Vec<SandboxId>,
    /// Questions that wait for a person.
    pub open_approvals: u64,
    pub budget: SessionBudget,
    /// What runs in a terminal of its sandboxes, oldest first.
    pub terminals: Vec<SessionTerminal>,
    /// Commands that ended and are started again when they are due, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub restarting: Vec<Restarting>,
    /// Commands that kept dying and were given up, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub crash_loops: Vec<CrashLoop>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"name": "fix-42", "labels": {"task": "42"}, "command": ["bash"]}))]
pub struct CreateSession {
    /// Unique among sessions that are not deleted, and its sandbox's name too; a session may have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "fix-42")]
    pub name: Option<String>,
    /// What its sandbox is made from; `default` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// The session whose budget it spends too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<SessionId>,
    /// Each limit that is stated takes the place of the template's.
    #[serde(default, skip_serializing_if = "Limits::is_empty")]
    pub limits: Limits,
    /// Of the new session: each limit that is stated takes the place of the template's, and that one of the server's.
    #[serde(default, skip_serializing_if = "SetBudget::is_empty")]
    pub budget: SetBudget,
    /// Rules of its sandbox beyond the template's.
    #[serde(default, skip_serializing_if = "NetworkPolicy::is_empty")]
    pub network: NetworkPolicy,
    /// Names of secrets that its sandbox may use, beyond the template's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<String>,
    /// A program and its arguments, started in a terminal of its sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<Vec<String>>,
    /// The size of that terminal; 80 by 24 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terminal: Option<TerminalSize>,
    /// Where the command starts; `/workspace` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// Whether the command is started again when it has ended; `never` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart: Option<Restart>,
    /// Added to the template's, for every process of its sandbox.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Its sandbox is deleted this long after creation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl: Option<HumanDuration>,
    #[serde(default, skip_serializing_if = "WorkspaceSource::is_empty")]
    pub workspace: WorkspaceSource,
}

/// Starts a command of a session again that had a restart policy and does not run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RestartSession {
    /// Any process that ran it; needed only if there are several commands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<ProcessId>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct SessionPage {
    pub sessions: Vec<Session>,
    /// Pass it as `cursor` for the next page; absent on the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_as_lively_as_its_liveliest_sandbox() {
        use SandboxState::{Creating, Deleted, Failed, Paused, Ready, Stopped, Stopping};
        for (sandboxes, state) in [
            (&[][..], SessionState::Ended),
            (&[Deleted], SessionState::Ended),
            (&[Deleted, Paused], SessionState::Idle),
            (&[Stopped, Failed, Stopping], SessionState::Idle),
            (&[Failed, Ready], SessionState::Active),
            (&[Creating, Deleted], SessionState::Active),
        ] {
            assert_eq!(SessionState::of(sandboxes.iter().copied()), state, "{sandboxes:?}");
        }
    }
}
