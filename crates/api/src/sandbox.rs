//! The sandbox resource, its states and their legal transitions.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::{HumanDuration, Limits, NetworkPolicy, SandboxId, SessionId, SetBudget, SnapshotId};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SandboxState {
    Creating,
    Ready,
    Paused,
    Stopping,
    Stopped,
    Failed,
    Deleted,
}

impl SandboxState {
    pub const ALL: [Self; 7] =
        [Self::Creating, Self::Ready, Self::Paused, Self::Stopping, Self::Stopped, Self::Failed, Self::Deleted];

    /// The one table of legal transitions.
    pub fn may_become(self, next: Self) -> bool {
        use SandboxState::*;
        match self {
            Creating => matches!(next, Ready | Failed | Deleted),
            Ready => matches!(next, Paused | Stopping | Failed | Deleted),
            Paused => matches!(next, Ready | Stopping | Failed | Deleted),
            Stopping => matches!(next, Stopped | Failed | Deleted),
            // Starting again goes through `creating`, so that a half-started sandbox is never called ready.
            Stopped => matches!(next, Creating | Failed | Deleted),
            Failed => matches!(next, Creating | Deleted),
            Deleted => false,
        }
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Creating => "creating",
            Self::Ready => "ready",
            Self::Paused => "paused",
            Self::Stopping => "stopping",
            Self::Stopped => "stopped",
            Self::Failed => "failed",
            Self::Deleted => "deleted",
        }
    }
}

impl std::str::FromStr for SandboxState {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|state| state.as_str() == text).ok_or_else(|| format!("`{text}` is not a state"))
    }
}

/// Why a sandbox is in its state, when that needs saying.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct StateReason {
    /// For programs: `start_failed`, `guest_died`, `host_restarted`, `expired`, `requested`, …
    #[schema(example = "guest_died")]
    pub code: String,
    /// For people.
    pub detail: String,
}

/// Where `/workspace` comes from.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum WorkspaceSource {
    /// An empty directory; fill it through the files API.
    #[default]
    Empty,
    /// A directory of the server's host, bound read-write: what the sandbox writes there is written there.
    /// Needs the owner's socket or an admin token.
    Bind {
        /// Absolute path on the server's host.
        path: String,
    },
}

impl WorkspaceSource {
    pub fn is_empty(&self) -> bool {
        *self == Self::Empty
    }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"name": "my-agent", "labels": {"team": "a"}, "ttl": "1h"}))]
pub struct CreateSandbox {
    /// Unique among sandboxes that are not deleted; made up when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "my-agent")]
    pub name: Option<String>,
    /// `default` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Added to the template's, for every process.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Deleted this long after creation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl: Option<HumanDuration>,
    #[serde(default)]
    pub workspace: WorkspaceSource,
    /// A snapshot, by id or name, to start from instead of an empty sandbox; its template is used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// An existing session to belong to; a new one is made when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionId>,
    /// The session whose budget a new session spends too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<SessionId>,
    /// Each limit that is stated takes the place of the template's.
    #[serde(default, skip_serializing_if = "Limits::is_empty")]
    pub limits: Limits,
    /// Of the new session: each limit that is stated takes the place of the template's, and that one of the server's.
    #[serde(default, skip_serializing_if = "SetBudget::is_empty")]
    pub budget: SetBudget,
    /// Rules beyond the template's.
    #[serde(default, skip_serializing_if = "NetworkPolicy::is_empty")]
    pub network: NetworkPolicy,
    /// Names of secrets it may use, beyond the template's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Sandbox {
    pub id: SandboxId,
    pub name: String,
    pub session: SessionId,
    pub state: SandboxState,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<StateReason>,
    pub template: String,
    pub provider: String,
    pub labels: BTreeMap<String, String>,
    pub env: BTreeMap<String, String>,
    pub workspace: WorkspaceSource,
    /// The snapshot it was made from; it may be gone by now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<SnapshotId>,
    pub created_at: DateTime<Utc>,
    /// When it last changed state.
    pub changed_at: DateTime<Utc>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<DateTime<Utc>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct SandboxPage {
    pub sandboxes: Vec<Sandbox>,
    /// Pass it as `cursor` for the next page; absent on the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deleted_is_final_and_reachable_from_everywhere_else() {
        for state in SandboxState::ALL {
            assert_eq!(state.may_become(SandboxState::Deleted), state != SandboxState::Deleted);
            assert!(!SandboxState::Deleted.may_become(state));
            assert!(!state.may_become(state), "{state:?} to itself is no transition");
            assert_eq!(state.as_str().parse::<SandboxState>(), Ok(state));
        }
    }
}
