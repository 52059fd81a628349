//! What a server found among its files and does not know: kept as it is until a person decides.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::{InstanceId, Sandbox, Snapshot};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum QuarantineKind {
    Sandbox,
    Snapshot,
    /// What a process wrote.
    Output,
}

impl QuarantineKind {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Sandbox => "sandbox",
            Self::Snapshot => "snapshot",
            Self::Output => "output",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Quarantined {
    /// Of the sandbox, the snapshot, or the process whose output it is.
    #[schema(example = "sbx-01m7gamjbhmf5e2803gec1w8gr")]
    pub id: String,
    pub kind: QuarantineKind,
    /// What made it; absent of output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    pub since: DateTime<Utc>,
    /// Why it was set aside.
    pub reason: String,
    /// Whose it is, as its own files say; absent where they do not say it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<InstanceId>,
    /// The host name of the sandbox and its template, where they were written down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct QuarantineList {
    pub quarantined: Vec<Quarantined>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AdoptQuarantined {
    /// What to call it; by default its own name if that is free, else one that is made up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The template it belongs to; by default the one it was made from, where that was written down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
}

/// What it is from now on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Adopted {
    Sandbox(Sandbox),
    Snapshot(Snapshot),
}
