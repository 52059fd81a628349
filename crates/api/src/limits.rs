//! What bounds a sandbox. A limit is required exactly when it is stated: one that the host cannot enforce refuses the
//! sandbox.

use serde::{Deserialize, Serialize};

use crate::{HumanDuration, HumanSize};

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Memory of all workload processes together, page cache and tmpfs included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<HumanSize>,
    /// Processors' worth of time, for example 1.5.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<f64>,
    /// Processes and threads at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processes: Option<u32>,
    /// Open files of each process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open_files: Option<u32>,
    /// Size of `/tmp`, which is memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tmpfs: Option<HumanSize>,
    /// What the sandbox may keep on the disk: its root and its workspace together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<HumanSize>,
    /// What one process may write to its output before it is killed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<HumanSize>,
    /// How long one process may run before it is killed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wall_time: Option<HumanDuration>,
}

/// What happens to a sandbox that nobody uses: no request, no input or output, no processor time. What idleness paused
/// or stopped, the next request brings back.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Idle {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause_after: Option<HumanDuration>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_after: Option<HumanDuration>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delete_after: Option<HumanDuration>,
}
