//! Whose a sandbox or a snapshot is. What a provider makes carries a mark, so that a server that finds it can tell what its
//! store promised to keep from what it may remove, and leaves alone whatever is neither.

use chrono::{DateTime, Utc};
use sandbar_api::{InstanceId, SandboxId, SnapshotId};
use serde::{Deserialize, Serialize};

/// The store that something was made for, and how far its event log was at that time. A log that is shorter now is of an
/// older copy of that store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    pub instance: InstanceId,
    pub epoch: u64,
}

/// What the files of something say about it. Without a mark it was made before there were marks, or by somebody else.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mark {
    /// Being made or being removed: no store has promised to keep it.
    Begun(Origin),
    /// The store knows of it.
    Kept(Origin),
    /// Set aside until a person decides.
    Quarantined(Quarantine),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quarantine {
    pub since: DateTime<Utc>,
    pub reason: String,
    /// What its mark said before.
    #[serde(default)]
    pub origin: Option<Origin>,
}

impl Mark {
    pub fn origin(&self) -> Option<&Origin> {
        match self {
            Self::Begun(origin) | Self::Kept(origin) => Some(origin),
            Self::Quarantined(quarantine) => quarantine.origin.as_ref(),
        }
    }

    pub fn is_quarantined(&self) -> bool {
        matches!(self, Self::Quarantined(_))
    }
}

/// Something that a provider made and that outlives the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Made<'a> {
    Sandbox(&'a SandboxId),
    Snapshot(&'a SnapshotId),
}

impl std::fmt::Display for Made<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Sandbox(id) => id.fmt(f),
            Self::Snapshot(id) => id.fmt(f),
        }
    }
}
