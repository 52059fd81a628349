//! From what is asked of a sandbox to the objects that a cluster knows. Pure: the same spec and settings give the same
//! objects and the same names, on every server and in `sandbar kubernetes manifests`.

mod name;
mod pod;
mod refuse;

use std::{collections::BTreeMap, time::Duration};

use agent_sandbox::{
    ClaimShutdownPolicy, Lifecycle, NetworkPolicy, NetworkPolicyManagement, PodTemplate, SandboxClaim,
    SandboxClaimSpec, SandboxTemplate, SandboxTemplateRef, SandboxTemplateSpec, SandboxWarmPool, SandboxWarmPoolSpec,
    VolumeClaimMetadata, VolumeClaimTemplate, WarmPoolRef, labels::CLIENT_FIRST_REQUESTED_AT,
};
use k8s_openapi::{
    api::networking::v1::{NetworkPolicyIngressRule, NetworkPolicyPeer, NetworkPolicyPort},
    apimachinery::pkg::{
        apis::meta::v1::{LabelSelector, ObjectMeta, Time},
        util::intstr::IntOrString,
    },
    jiff::Timestamp,
};
use sandbar_api::{SandboxId, Storage};
use sandbar_provider::{Error, Origin, Spec};

use crate::{Settings, settings::ServerPods};

pub use name::{EPOCH, INSTANCE, MANAGED_BY, MANAGER, QUARANTINED, STORAGE, STORE, TEMPLATE, selector};
pub use pod::{CONTAINER, DATA, GUEST_PORT};

/// What all sandboxes of one template have in common on the cluster.
#[derive(Debug, Clone, PartialEq)]
pub struct Blueprint {
    /// Of the SandboxTemplate and of the SandboxWarmPool.
    pub name: String,
    pub template: SandboxTemplate,
    storage: Storage,
}

impl Blueprint {
    /// Refuses what a pod cannot be.
    pub fn of(spec: &Spec, settings: &Settings) -> Result<Self, Error> {
        let image = refuse::image(spec, settings)?;
        let content = SandboxTemplateSpec {
            pod_template: PodTemplate { spec: pod::spec(spec, settings, image), ..PodTemplate::default() },
            volume_claim_templates: pod::claimed(spec, settings).map(|spec| {
                let metadata = VolumeClaimMetadata { name: DATA.into(), ..VolumeClaimMetadata::default() };
                vec![VolumeClaimTemplate { metadata, spec }]
            }),
            network_policy_management: Some(NetworkPolicyManagement::Managed),
            network_policy: Some(network(settings.server.as_ref())),
            ..SandboxTemplateSpec::default()
        };
        let bytes = serde_json::to_vec(&content)
            .map_err(|error| Error::io("describe the pod")(std::io::Error::other(error)))?;
        let name = name::blueprint(&spec.template, &bytes);
        let template = SandboxTemplate { metadata: metadata(&name, &spec.template, settings), spec: content };
        Ok(Self { name, template, storage: spec.kubernetes.storage })
    }

    pub fn pool(&self, replicas: u32) -> SandboxWarmPool {
        let ObjectMeta { name, namespace, labels, .. } = &self.template.metadata;
        SandboxWarmPool {
            metadata: ObjectMeta {
                name: name.clone(),
                namespace: namespace.clone(),
                labels: labels.clone(),
                ..ObjectMeta::default()
            },
            spec: SandboxWarmPoolSpec {
                replicas: Some(i32::try_from(replicas).unwrap_or(i32::MAX)),
                sandbox_template_ref: SandboxTemplateRef { name: self.name.clone() },
                update_strategy: None,
            },
            status: None,
        }
    }

    /// Without environment or volumes of its own, either of which would keep it from a warm sandbox.
    pub fn claim(&self, id: &SandboxId, origin: Option<&Origin>, settings: &Settings, now: Timestamp) -> SandboxClaim {
        let mut annotations: BTreeMap<String, String> = [
            (CLIENT_FIRST_REQUESTED_AT.to_owned(), now.to_string()),
            (STORAGE.to_owned(), self.storage.as_str().to_owned()),
        ]
        .into();
        let mut labels = name::labels(settings);
        if let Some(Origin { instance, epoch }) = origin {
            labels.insert(STORE.to_owned(), instance.to_string());
            annotations.insert(EPOCH.to_owned(), epoch.to_string());
        }
        SandboxClaim {
            metadata: ObjectMeta {
                name: Some(id.to_string()),
                namespace: Some(settings.namespace.clone()),
                labels: Some(labels),
                annotations: Some(annotations),
                ..ObjectMeta::default()
            },
            spec: SandboxClaimSpec {
                warm_pool_ref: WarmPoolRef { name: self.name.clone() },
                lifecycle: Some(Lifecycle {
                    shutdown_time: Some(expiry(now, settings.lease)),
                    shutdown_policy: Some(ClaimShutdownPolicy::Delete),
                    ..Lifecycle::default()
                }),
                ..SandboxClaimSpec::default()
            },
            status: None,
        }
    }
}

/// When the cluster may remove what no server has renewed. In whole seconds, as the API server keeps it.
pub(crate) fn expiry(now: Timestamp, lease: Duration) -> Time {
    let second = now.as_second().saturating_add(i64::try_from(lease.as_secs()).unwrap_or(i64::MAX));
    Time(Timestamp::from_second(second).unwrap_or(Timestamp::MAX))
}

fn metadata(name: &str, template: &str, settings: &Settings) -> ObjectMeta {
    let mut labels: BTreeMap<_, _> = name::labels(settings);
    labels.extend(name::label_value(template).map(|template| (TEMPLATE.to_owned(), template)));
    ObjectMeta {
        name: Some(name.into()),
        namespace: Some(settings.namespace.clone()),
        labels: Some(labels),
        ..ObjectMeta::default()
    }
}

/// Only the server comes in, and nothing goes out: the way out rides on the server's own connection.
fn network(server: Option<&ServerPods>) -> NetworkPolicy {
    let selector =
        |labels: BTreeMap<String, String>| LabelSelector { match_labels: Some(labels), match_expressions: None };
    let ingress = server.map(|server| {
        let namespace = [("kubernetes.io/metadata.name".to_owned(), server.namespace.clone())].into();
        NetworkPolicyIngressRule {
            from: Some(vec![NetworkPolicyPeer {
                namespace_selector: Some(selector(namespace)),
                pod_selector: Some(selector(server.labels.clone())),
                ip_block: None,
            }]),
            ports: Some(vec![NetworkPolicyPort {
                port: Some(IntOrString::Int(i32::from(GUEST_PORT))),
                protocol: Some("TCP".into()),
                end_port: None,
            }]),
        }
    });
    NetworkPolicy { ingress: Some(ingress.into_iter().collect()), egress: Some(Vec::new()) }
}

#[cfg(test)]
mod tests;
