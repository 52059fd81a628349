//! `SandboxTemplate`: the blueprint that pools and claims make sandboxes from.

use k8s_openapi::api::networking::v1::{NetworkPolicyEgressRule, NetworkPolicyIngressRule};
use kube::CustomResource;
use serde::{Deserialize, Serialize};

use super::sandbox::{PodTemplate, VolumeClaimTemplate};

/// What sandboxes of a [`SandboxTemplate`] are like.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "extensions.agents.x-k8s.io",
    version = "v1beta1",
    kind = "SandboxTemplate",
    plural = "sandboxtemplates",
    namespaced,
    schema = "disabled",
    derive = "Default",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase")]
pub struct SandboxTemplateSpec {
    /// The pod.
    pub pod_template: PodTemplate,
    /// PVCs of each sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_claim_templates: Option<Vec<VolumeClaimTemplate>>,
    /// Whether each sandbox gets a headless Service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<bool>,
    /// Who makes the NetworkPolicy of these pods; `Managed` when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_policy_management: Option<NetworkPolicyManagement>,
    /// The rules, verbatim; the controller's secure default when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_policy: Option<NetworkPolicy>,
    /// What claims may do to the environment; `Disallowed` when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env_vars_injection_policy: Option<EnvVarsInjectionPolicy>,
    /// What claims may do to the volumes; `Disallowed` when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_claim_templates_policy: Option<VolumeClaimTemplatesPolicy>,
}

/// Rules for both directions; a direction without rules is denied.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NetworkPolicy {
    /// Who may connect to the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ingress: Option<Vec<NetworkPolicyIngressRule>>,
    /// Where the pod may connect to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress: Option<Vec<NetworkPolicyEgressRule>>,
}

/// Who makes the NetworkPolicy of a template's pods.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum NetworkPolicyManagement {
    /// The controller.
    #[default]
    Managed,
    /// Somebody else.
    Unmanaged,
    /// A value newer than this crate.
    #[serde(untagged)]
    Other(String),
}

/// What claims may do to the environment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum EnvVarsInjectionPolicy {
    /// Nothing.
    #[default]
    Disallowed,
    /// Add variables; refused for containers with `envFrom`.
    Allowed,
    /// Add and replace.
    Overrides,
    /// A policy newer than this crate.
    #[serde(untagged)]
    Other(String),
}

/// What claims may do to the volumes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum VolumeClaimTemplatesPolicy {
    /// Nothing.
    #[default]
    Disallowed,
    /// Add volumes.
    Allowed,
    /// Add, and replace by name.
    Overrides,
    /// A policy newer than this crate.
    #[serde(untagged)]
    Other(String),
}
