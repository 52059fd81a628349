//! `Sandbox`: one pod with a stable identity, and the blueprint that templates share with it.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{PersistentVolumeClaimSpec, PodSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::CustomResource;
use serde::{Deserialize, Serialize};

use super::condition::{Condition, Conditions};
use super::is_default;

/// What a [`Sandbox`] shall be.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "agents.x-k8s.io",
    version = "v1beta1",
    kind = "Sandbox",
    plural = "sandboxes",
    namespaced,
    schema = "disabled",
    status = "SandboxStatus",
    derive = "Default",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase")]
pub struct SandboxSpec {
    /// The pod; never applied again to one that exists, except for its metadata.
    pub pod_template: PodTemplate,
    /// PVCs named `<template>-<sandbox>`; immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_claim_templates: Option<Vec<VolumeClaimTemplate>>,
    /// `true` makes a headless Service, `false` removes it, unset leaves it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<bool>,
    /// Whether there is a pod at all; `Running` when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operating_mode: Option<OperatingMode>,
    /// When it expires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shutdown_time: Option<Time>,
    /// What is left of it then; `Retain` when unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shutdown_policy: Option<ShutdownPolicy>,
}

/// What the controller says of a [`Sandbox`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SandboxStatus {
    /// `<name>.<namespace>.svc.<cluster domain>`, when there is a Service.
    #[serde(default, rename = "serviceFQDN", skip_serializing_if = "Option::is_none")]
    pub service_fqdn: Option<String>,
    /// The name of the Service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// Ready, Suspended, PodScheduled, Finished.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// Label selector of the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// Addresses of the pod; empty without one.
    #[serde(default, rename = "podIPs", skip_serializing_if = "Vec::is_empty")]
    pub pod_ips: Vec<String>,
    /// Where the pod runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
}

/// Metadata and spec of a pod to be.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PodTemplate {
    /// Labels and annotations of the pod.
    #[serde(default, skip_serializing_if = "is_default")]
    pub metadata: PodMetadata,
    /// The pod.
    pub spec: PodSpec,
}

/// Labels and annotations for a pod. Keys of the two agent-sandbox groups are dropped by the controller.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PodMetadata {
    /// Labels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

/// A PVC to be. The pod's volume of the same name is replaced by it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct VolumeClaimTemplate {
    /// Its name, labels and annotations.
    #[serde(default)]
    pub metadata: VolumeClaimMetadata,
    /// The PVC.
    pub spec: PersistentVolumeClaimSpec,
}

/// What can be said of a PVC's metadata.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct VolumeClaimMetadata {
    /// Name of the volume in the pod, and prefix of the PVC's name.
    #[serde(default)]
    pub name: String,
    /// Labels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

/// Whether a [`Sandbox`] has a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum OperatingMode {
    /// It has one.
    #[default]
    Running,
    /// The pod is deleted; object, PVCs and Service stay.
    Suspended,
    /// A mode newer than this crate.
    #[serde(untagged)]
    Other(String),
}

/// What is left of a [`Sandbox`] that expired.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum ShutdownPolicy {
    /// The object with its conditions, and PVCs.
    #[default]
    Retain,
    /// PVCs only while nothing collects them.
    Delete,
    /// A policy newer than this crate.
    #[serde(untagged)]
    Other(String),
}

impl Conditions for Sandbox {
    fn conditions(&self) -> &[Condition] {
        self.status.as_ref().map_or(&[], |status| &status.conditions)
    }
}
