//! The objects of a probe. One claim owns everything else, and it ends by itself, so that whatever becomes of us the cluster
//! removes all of it.

use std::{collections::BTreeMap, time::Duration};

use agent_sandbox::{
    ClaimShutdownPolicy, EnvVar, EnvVarsInjectionPolicy, Lifecycle, NetworkPolicy, SandboxClaim, SandboxClaimSpec,
    SandboxTemplate, SandboxTemplateRef, SandboxWarmPool, SandboxWarmPoolSpec, WarmPoolRef,
};
use k8s_openapi::{
    api::networking::v1::{NetworkPolicyEgressRule, NetworkPolicyIngressRule, NetworkPolicyPeer, NetworkPolicyPort},
    apimachinery::pkg::{
        apis::meta::v1::{LabelSelector, ObjectMeta, OwnerReference},
        util::intstr::IntOrString,
    },
    jiff::Timestamp,
};
use kube::Resource as _;
use sandbar_api::{Kubernetes, SandboxId, Storage};
use sandbar_provider::{Error, Spec};

use crate::{
    Settings,
    check::reach::TARGETS,
    objects::{Blueprint, GUEST_PORT, MANAGED_BY, MANAGER, expiry},
};

/// Which probe an object belongs to.
pub(super) const PROBE: &str = "sandbar.dev/probe";
/// Twice as long as a probe may take.
const LIFE: Duration = Duration::from_secs(10 * 60);
/// A pod that its claim's end does not reach ends itself.
const DEADLINE: i64 = 8 * 60;

/// Which policy holds for a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Pods of the namespace reach it and are reached by it.
    Open,
    /// As for every sandbox.
    Sealed,
    /// Sealed, and of the sandboxes' own image.
    Image,
}

impl Kind {
    fn as_str(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Sealed => "sealed",
            Self::Image => "image",
        }
    }
}

#[derive(Debug, Clone)]
pub(super) struct Names {
    run: String,
    namespace: String,
}

impl Names {
    pub(super) fn new(run: String, namespace: &str) -> Self {
        Self { run, namespace: namespace.into() }
    }

    /// Of template and pool.
    fn blueprint(&self, kind: Kind) -> String {
        format!("sandbar-probe-{}-{}", self.run, kind.as_str())
    }

    pub(super) fn claim(&self, role: &str) -> String {
        format!("sandbar-probe-{}-{role}", self.run)
    }

    fn metadata(&self, name: String, owner: Option<&SandboxClaim>) -> ObjectMeta {
        let labels = [(MANAGED_BY, MANAGER), (PROBE, self.run.as_str())];
        ObjectMeta {
            name: Some(name),
            namespace: Some(self.namespace.clone()),
            labels: Some(labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into()),
            owner_references: owner.and_then(owned).map(|owner| vec![owner]),
            ..ObjectMeta::default()
        }
    }

    pub(super) fn claimed(
        &self,
        role: &str,
        kind: Kind,
        targets: &[String],
        owner: Option<&SandboxClaim>,
    ) -> SandboxClaim {
        let targets = EnvVar { name: TARGETS.into(), value: targets.join(","), container_name: None };
        SandboxClaim {
            metadata: self.metadata(self.claim(role), owner),
            spec: SandboxClaimSpec {
                warm_pool_ref: WarmPoolRef { name: self.blueprint(kind) },
                lifecycle: Some(Lifecycle {
                    shutdown_time: Some(expiry(Timestamp::now(), LIFE)),
                    shutdown_policy: Some(ClaimShutdownPolicy::Delete),
                    ..Lifecycle::default()
                }),
                env: vec![targets],
                ..SandboxClaimSpec::default()
            },
            status: None,
        }
    }

    /// A sandbox's own template, with our program in the place of the guest.
    pub(super) fn template(
        &self,
        kind: Kind,
        settings: &Settings,
        runtime_class: Option<&str>,
        owner: &SandboxClaim,
    ) -> Result<SandboxTemplate, Error> {
        let spec = Spec {
            kubernetes: Kubernetes {
                storage: Storage::Ephemeral,
                runtime_class: runtime_class.map(Into::into),
                ..Kubernetes::default()
            },
            layers: BTreeMap::new(),
            template: "probe".into(),
            ..Spec::standard(SandboxId::from_parts(0, [0; 10]), "probe")
        };
        let mut template = Blueprint::of(&spec, settings)?.template;
        template.metadata = self.metadata(self.blueprint(kind), Some(owner));
        template.spec.env_vars_injection_policy = Some(EnvVarsInjectionPolicy::Allowed);
        let pod = &mut template.spec.pod_template.spec;
        pod.active_deadline_seconds = Some(DEADLINE);
        // Into an image that is not ours the program comes as the guest does.
        let program = if kind == Kind::Image { "/.sandbar/sandbar" } else { "/sandbar" };
        for container in &mut pod.containers {
            container.command = Some([program, "kubernetes", "probe"].map(Into::into).into());
        }
        if kind != Kind::Image {
            pod.init_containers = None;
            pod.containers.iter_mut().for_each(|container| container.image = Some(settings.guest_image.clone()));
        }
        if kind == Kind::Open {
            template.spec.network_policy = Some(open());
        }
        Ok(template)
    }

    pub(super) fn pool(&self, kind: Kind, owner: &SandboxClaim) -> SandboxWarmPool {
        let name = self.blueprint(kind);
        SandboxWarmPool {
            metadata: self.metadata(name.clone(), Some(owner)),
            spec: SandboxWarmPoolSpec {
                replicas: Some(0),
                sandbox_template_ref: SandboxTemplateRef { name },
                update_strategy: None,
            },
            status: None,
        }
    }
}

/// Without a say in when the owner goes, which would need a right of its own.
fn owned(owner: &SandboxClaim) -> Option<OwnerReference> {
    Some(OwnerReference {
        api_version: SandboxClaim::api_version(&()).into_owned(),
        kind: SandboxClaim::kind(&()).into_owned(),
        name: owner.metadata.name.clone()?,
        uid: owner.metadata.uid.clone()?,
        controller: None,
        block_owner_deletion: None,
    })
}

/// Policies add up, so that this opens what the namespace's own denies.
fn open() -> NetworkPolicy {
    let anybody = || {
        Some(vec![NetworkPolicyPeer { pod_selector: Some(LabelSelector::default()), ..NetworkPolicyPeer::default() }])
    };
    let port = || {
        let port = Some(IntOrString::Int(i32::from(GUEST_PORT)));
        Some(vec![NetworkPolicyPort { port, protocol: Some("TCP".into()), end_port: None }])
    };
    NetworkPolicy {
        ingress: Some(vec![NetworkPolicyIngressRule { from: anybody(), ports: port() }]),
        egress: Some(vec![NetworkPolicyEgressRule { to: anybody(), ports: port() }]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_ends_by_itself_and_belongs_to_the_first_claim() {
        let names = Names::new("0123abcd".into(), "n");
        let mut first = names.claimed("listener", Kind::Open, &[], None);
        let lifecycle = first.spec.lifecycle.clone().unwrap_or_default();
        assert!(lifecycle.shutdown_time.is_some());
        assert_eq!(lifecycle.shutdown_policy, Some(ClaimShutdownPolicy::Delete));
        first.metadata.uid = Some("uid".into());
        let settings = Settings::new("instance", vec!["key".into()]);
        let template =
            names.template(Kind::Sealed, &settings, Some("gvisor"), &first).unwrap_or_else(|bad| panic!("{bad}"));
        let pool = names.pool(Kind::Sealed, &first);
        for metadata in [&template.metadata, &pool.metadata] {
            let owner = metadata.owner_references.as_deref().and_then(<[_]>::first).map(|owner| owner.uid.as_str());
            assert_eq!(owner, Some("uid"));
        }
        assert_eq!(template.metadata.name, pool.metadata.name);
        assert_eq!(template.spec.pod_template.spec.runtime_class_name.as_deref(), Some("gvisor"));
        assert_eq!(template.spec.network_policy.and_then(|policy| policy.egress), Some(vec![]));
        // Not for the provider's eyes: it would take it for a sandbox.
        assert!(!first.metadata.labels.unwrap_or_default().contains_key(crate::objects::INSTANCE));
    }

    #[test]
    fn both_images_of_a_sandbox_are_tried() {
        let names = Names::new("0123abcd".into(), "n");
        let owner = names.claimed("listener", Kind::Open, &[], None);
        let settings = Settings {
            guest_image: "sandbar:1".into(),
            default_image: "machine:1".into(),
            ..Settings::new("instance", vec!["key".into()])
        };
        for (kind, images, program) in [
            (Kind::Open, &["sandbar:1"][..], "/sandbar"),
            (Kind::Sealed, &["sandbar:1"], "/sandbar"),
            (Kind::Image, &["sandbar:1", "machine:1"], "/.sandbar/sandbar"),
        ] {
            let template = names.template(kind, &settings, None, &owner).unwrap_or_else(|bad| panic!("{bad}"));
            let pod = template.spec.pod_template.spec;
            let containers: Vec<_> = pod.init_containers.iter().flatten().chain(&pod.containers).collect();
            let found: Vec<_> = containers.iter().filter_map(|container| container.image.as_deref()).collect();
            assert_eq!(found, images, "{kind:?}");
            let command = containers.last().and_then(|container| container.command.as_ref()?.first());
            assert_eq!(command.map(String::as_str), Some(program), "{kind:?}");
            let closed = template.spec.network_policy.and_then(|policy| policy.egress) == Some(vec![]);
            assert_eq!(closed, kind != Kind::Open, "{kind:?}");
        }
    }
}
