//! `SandboxClaim`: a request for one sandbox of a pool.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::CustomResource;
use serde::{Deserialize, Serialize};

use super::condition::{Condition, Conditions};
use super::is_default;
use super::sandbox::{PodMetadata, VolumeClaimTemplate};

/// What a [`SandboxClaim`] asks for.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "extensions.agents.x-k8s.io",
    version = "v1beta1",
    kind = "SandboxClaim",
    plural = "sandboxclaims",
    namespaced,
    schema = "disabled",
    status = "SandboxClaimStatus",
    derive = "Default",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase")]
pub struct SandboxClaimSpec {
    /// The pool; one of zero replicas asks for a cold start.
    pub warm_pool_ref: WarmPoolRef,
    /// When it ends, and how.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lifecycle: Option<Lifecycle>,
    /// Labels and annotations for the pod.
    #[serde(default, skip_serializing_if = "is_default")]
    pub additional_pod_metadata: PodMetadata,
    /// Environment; forces a cold start.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<EnvVar>,
    /// Volumes; force a cold start.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volume_claim_templates: Vec<VolumeClaimTemplate>,
}

/// Which pool, in the claim's own namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WarmPoolRef {
    /// Its name.
    pub name: String,
}

/// When a claim ends. The earlier of both times counts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Lifecycle {
    /// At this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shutdown_time: Option<Time>,
    /// So long after its pod finished.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_seconds_after_finished: Option<i32>,
    /// What is left then; `Retain` when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shutdown_policy: Option<ClaimShutdownPolicy>,
}

/// What is left of a claim that expired.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum ClaimShutdownPolicy {
    /// The claim, without its Sandbox.
    #[default]
    Retain,
    /// Nothing.
    Delete,
    /// Nothing, and the claim goes after everything it owned.
    DeleteForeground,
    /// A policy newer than this crate.
    #[serde(untagged)]
    Other(String),
}

/// One variable for one container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EnvVar {
    /// Its name.
    pub name: String,
    /// Its value, as it is.
    #[serde(default)]
    pub value: String,
    /// The container; the first one when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container_name: Option<String>,
}

/// What the controller says of a [`SandboxClaim`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SandboxClaimStatus {
    /// Ready and Finished.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// The sandbox it has.
    #[serde(default, skip_serializing_if = "is_default")]
    pub sandbox: AssignedSandbox,
}

/// The sandbox of a claim. On the warm path its name is not that of the claim.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AssignedSandbox {
    /// Name of the Sandbox (old controllers write `Name`).
    #[serde(default, alias = "Name", skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Addresses of its pod.
    #[serde(default, rename = "podIPs", skip_serializing_if = "Vec::is_empty")]
    pub pod_ips: Vec<String>,
    /// Name of its Service in the cluster's DNS, when it has one.
    #[serde(default, rename = "serviceFQDN", skip_serializing_if = "Option::is_none")]
    pub service_fqdn: Option<String>,
}

impl SandboxClaim {
    /// The sandbox assigned to this claim, once there is one.
    pub fn sandbox(&self) -> Option<&AssignedSandbox> {
        self.status.as_ref().map(|status| &status.sandbox).filter(|sandbox| !sandbox.name.is_empty())
    }
}

impl Conditions for SandboxClaim {
    fn conditions(&self) -> &[Condition] {
        self.status.as_ref().map_or(&[], |status| &status.conditions)
    }
}
