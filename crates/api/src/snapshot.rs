//! Snapshots: a sandbox's files as they were at one moment, and the sandboxes made from them.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::{HumanDuration, Sandbox, SandboxId, SnapshotId};

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateSnapshot {
    /// Unique among snapshots; made up when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Snapshot {
    pub id: SnapshotId,
    pub name: String,
    /// The sandbox it was taken of; it may be gone by now.
    pub sandbox: SandboxId,
    pub template: String,
    pub provider: String,
    pub created_at: DateTime<Utc>,
    /// Bytes that this snapshot added to what earlier ones hold.
    pub size: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct SnapshotList {
    pub snapshots: Vec<Snapshot>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Fork {
    /// How many, 1 to 100; 1 when absent.
    #[serde(default = "one")]
    #[schema(minimum = 1, maximum = 100)]
    pub count: u32,
    /// The first part of their names, followed by `-1`, `-2`, …; made up when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Deleted this long after the fork; when absent, together with its origin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl: Option<HumanDuration>,
}

fn one() -> u32 {
    1
}

impl Default for Fork {
    fn default() -> Self {
        Self { count: 1, name: None, labels: BTreeMap::new(), ttl: None }
    }
}

pub const MAX_FORKS: u32 = 100;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Forked {
    pub sandboxes: Vec<Sandbox>,
}
