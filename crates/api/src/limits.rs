//! What bounds a sandbox. A limit is required exactly when it is stated: one that the host cannot enforce refuses the
//! sandbox.

use serde::{Deserialize, Serialize};

use crate::{Code, HumanDuration, HumanSize, Problem};

/// Below this the guest's own children do not start.
const LEAST_MEMORY: u64 = 4 << 20;
const MOST_CPUS: f64 = 1024.0;
/// A shell with a pipeline; above is what the kernel has pids for.
const PROCESSES: (u32, u32) = (8, 4_194_304);
/// Programs open their libraries and terminals; above is what the kernel allows by default.
const OPEN_FILES: (u32, u32) = (16, 1_048_576);
const LEAST_TMPFS: u64 = 64 << 10;
/// What an empty filesystem of its own takes.
const LEAST_DISK: u64 = 16 << 20;

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Memory of all workload processes together, page cache and tmpfs included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<HumanSize>,
    /// Processors' worth of time, for example 1.5.
    // Sandboxes that were recorded before have the older name.
    #[serde(default, skip_serializing_if = "Option::is_none", alias = "cpu")]
    pub cpus: Option<f64>,
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

/// A limit that cannot be used, and why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`limits.{field}` {cause}")]
pub struct BadLimit {
    pub field: &'static str,
    /// What follows the name of the field, with the fix.
    pub cause: String,
}

impl From<BadLimit> for Problem {
    fn from(bad: BadLimit) -> Self {
        Self::new(Code::BadLimit, format!("{bad}."), "Correct the limit, or leave it out to have the template's.")
    }
}

impl Limits {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Each limit that is stated here takes the place of the template's.
    pub fn over(&self, template: &Self) -> Self {
        Self {
            memory: self.memory.or(template.memory),
            cpus: self.cpus.or(template.cpus),
            processes: self.processes.or(template.processes),
            open_files: self.open_files.or(template.open_files),
            tmpfs: self.tmpfs.or(template.tmpfs),
            disk: self.disk.or(template.disk),
            output: self.output.or(template.output),
            wall_time: self.wall_time.or(template.wall_time),
        }
    }

    /// Whether each stated limit leaves enough to work with and is one that a kernel can have.
    pub fn check(&self) -> Result<(), BadLimit> {
        let bad = |field, cause| Err(BadLimit { field, cause });
        let sizes = [
            ("memory", self.memory, LEAST_MEMORY),
            ("tmpfs", self.tmpfs, LEAST_TMPFS),
            ("disk", self.disk, LEAST_DISK),
        ];
        for (field, size, least) in sizes {
            if let Some(size) = size.filter(|size| size.0 < least) {
                return bad(field, format!("of {size} is too small to work in: state {} or more", HumanSize(least)));
            }
        }
        if let Some(cpus) = self.cpus.filter(|cpus| !(cpus.is_finite() && *cpus > 0.0 && *cpus <= MOST_CPUS)) {
            return bad(
                "cpus",
                format!("of {cpus} cannot be meant: state more than 0 and at most {MOST_CPUS} processors"),
            );
        }
        for (field, count, (least, most)) in
            [("processes", self.processes, PROCESSES), ("open_files", self.open_files, OPEN_FILES)]
        {
            if let Some(count) = count.filter(|count| !(least..=most).contains(count)) {
                return bad(field, format!("of {count} cannot be used: state {least} to {most}"));
            }
        }
        if self.output.is_some_and(|output| output.0 == 0) {
            return bad("output", "is zero: state 1 byte or more, or leave it out for none".into());
        }
        if self.wall_time.is_some_and(|time| time.0.is_zero()) {
            return bad("wall_time", "is zero: state a longer time, or leave it out for none".into());
        }
        Ok(())
    }
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
