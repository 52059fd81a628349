//! `SandboxWarmPool`: sandboxes of one template, started before anybody asks.

use kube::CustomResource;
use serde::{Deserialize, Serialize};

/// How many sandboxes of which template wait in a [`SandboxWarmPool`].
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "extensions.agents.x-k8s.io",
    version = "v1beta1",
    kind = "SandboxWarmPool",
    plural = "sandboxwarmpools",
    shortname = "swp",
    namespaced,
    schema = "disabled",
    status = "SandboxWarmPoolStatus",
    scale(
        spec_replicas_path = ".spec.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.selector"
    ),
    derive = "Default",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase")]
pub struct SandboxWarmPoolSpec {
    /// How many wait; one when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// What they are made from.
    pub sandbox_template_ref: SandboxTemplateRef,
    /// What becomes of members when the template changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub update_strategy: Option<UpdateStrategy>,
}

/// Which template, in the pool's own namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxTemplateRef {
    /// Its name.
    pub name: String,
}

/// What becomes of members when the template changes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpdateStrategy {
    /// The strategy; `OnReplenish` when unset.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<UpdateStrategyType>,
}

/// Values of [`UpdateStrategy`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum UpdateStrategyType {
    /// Old members stay and can be claimed.
    #[default]
    OnReplenish,
    /// Old members that nobody claimed are deleted at once.
    Recreate,
    /// A strategy newer than this crate.
    #[serde(untagged)]
    Other(String),
}

/// What the controller says of a [`SandboxWarmPool`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SandboxWarmPoolStatus {
    /// Members.
    #[serde(default)]
    pub replicas: i32,
    /// Members that are ready.
    #[serde(default)]
    pub ready_replicas: i32,
    /// Label selector of the members.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// The generation this speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}
