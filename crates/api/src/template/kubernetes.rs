//! What a template says to a cluster, beyond what holds everywhere.

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Kubernetes {
    /// The RuntimeClass its pods run under, as `gvisor`; verified to be in force.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runtime_class: Option<String>,
    pub storage: Storage,
    /// Of its volumes; the cluster's default otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage_class: Option<String>,
    /// When its pod fails (evicted, node lost, guest dead) a new one is started over the same files.
    pub recover: bool,
}

/// Where `/workspace` and the home directory are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Storage {
    /// On a volume that outlives the pod, so that a stopped sandbox keeps its files.
    #[default]
    Persistent,
    /// In the pod: quicker and gone with it, so that such a sandbox cannot be stopped.
    Ephemeral,
}

impl Storage {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Persistent => "persistent",
            Self::Ephemeral => "ephemeral",
        }
    }
}

impl Kubernetes {
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}
