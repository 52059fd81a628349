//! Files of a sandbox.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

/// Records of a global pax header in an archive of `format=tar`: the path of something that was left out, and why.
/// Other readers of tar pass over them.
pub const SKIPPED: &str = "SANDBAR.skipped";
pub const SKIPPED_WHY: &str = "SANDBAR.skipped.why";

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EntryKind {
    File,
    Directory,
    Symlink,
    Other,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Entry {
    /// Names that are not UTF-8 are shown with U+FFFD.
    pub name: String,
    #[serde(rename = "type")]
    pub kind: EntryKind,
    pub size: u64,
    /// Octal, for example `0644`.
    pub mode: String,
    pub modified_at: DateTime<Utc>,
    /// Where a symlink points.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Listing {
    pub path: String,
    /// Sorted by name.
    pub entries: Vec<Entry>,
}
