//! Templates, hardened when asked.

use k8s_openapi::api::core::v1::{Capabilities, Container, PodSpec, SeccompProfile};
use k8s_openapi::api::networking::v1::{NetworkPolicyEgressRule, NetworkPolicyIngressRule};

use super::metadata::{check_annotations, check_labels};
use super::{BuildError, check_pod, check_volumes};
use crate::name::Name;
use crate::resources::{
    EnvVarsInjectionPolicy, NetworkPolicy, NetworkPolicyManagement, SandboxTemplate, VolumeClaimTemplate,
    VolumeClaimTemplatesPolicy,
};

/// The user that hardened pods run as unless they say otherwise.
const USER: i64 = 1000;

/// Builds a [`SandboxTemplate`].
///
/// ```
/// use agent_sandbox::TemplateBuilder;
///
/// let template = TemplateBuilder::image("python", "registry.example/python:3").restricted().build()?;
/// assert_eq!(template.spec.pod_template.spec.automount_service_account_token, Some(false));
/// # Ok::<(), agent_sandbox::BuildError>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct TemplateBuilder {
    template: SandboxTemplate,
    error: Option<BuildError>,
}

impl TemplateBuilder {
    /// A template of this name for this pod.
    pub fn new<N>(name: N, pod: PodSpec) -> Self
    where
        N: TryInto<Name>,
        BuildError: From<N::Error>,
    {
        let (name, error) = match name.try_into() {
            Ok(name) => (String::from(name), None),
            Err(error) => (String::new(), Some(error.into())),
        };
        let mut template = SandboxTemplate::new(&name, Default::default());
        template.spec.pod_template.spec = pod;
        Self { template, error }
    }

    /// A template of this name whose pod has one container, called `sandbox`, of this image.
    pub fn image<N>(name: N, image: impl Into<String>) -> Self
    where
        N: TryInto<Name>,
        BuildError: From<N::Error>,
    {
        let container = Container { name: "sandbox".into(), image: Some(image.into()), ..Container::default() };
        Self::new(name, PodSpec { containers: vec![container], ..PodSpec::default() })
    }

    /// Makes the pod pass the restricted Pod Security standard, and more: not root, read-only root, no capability, no
    /// privilege to gain, the runtime's seccomp filter, no service account token. User and groups are left when set.
    pub fn restricted(mut self) -> Self {
        let pod = &mut self.template.spec.pod_template.spec;
        pod.automount_service_account_token = Some(false);
        pod.enable_service_links = Some(false);
        pod.host_network = None;
        pod.host_pid = None;
        pod.host_ipc = None;
        let security = pod.security_context.get_or_insert_default();
        security.run_as_non_root = Some(true);
        security.run_as_user.get_or_insert(USER);
        security.run_as_group.get_or_insert(USER);
        security.fs_group.get_or_insert(USER);
        security.seccomp_profile = Some(SeccompProfile { type_: "RuntimeDefault".into(), ..SeccompProfile::default() });
        for container in pod.containers.iter_mut().chain(pod.init_containers.iter_mut().flatten()) {
            let security = container.security_context.get_or_insert_default();
            security.privileged = None;
            security.allow_privilege_escalation = Some(false);
            security.read_only_root_filesystem = Some(true);
            security.run_as_non_root = Some(true);
            security.seccomp_profile = None;
            security.capabilities = Some(Capabilities { add: None, drop: Some(vec!["ALL".into()]) });
        }
        self
    }

    /// Isolation by another runtime, such as gVisor or Kata.
    pub fn runtime_class(mut self, name: impl Into<String>) -> Self {
        self.template.spec.pod_template.spec.runtime_class_name = Some(name.into());
        self
    }

    /// A label of the template.
    pub fn label(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.template.metadata.labels.get_or_insert_default().insert(key.into(), value.into());
        self
    }

    /// An annotation of the template.
    pub fn annotation(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.template.metadata.annotations.get_or_insert_default().insert(key.into(), value.into());
        self
    }

    /// A label of the pods.
    pub fn pod_label(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.template.spec.pod_template.metadata.labels.insert(key.into(), value.into());
        self
    }

    /// An annotation of the pods.
    pub fn pod_annotation(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.template.spec.pod_template.metadata.annotations.insert(key.into(), value.into());
        self
    }

    /// A PVC for each sandbox.
    pub fn volume(mut self, volume: VolumeClaimTemplate) -> Self {
        self.template.spec.volume_claim_templates.get_or_insert_default().push(volume);
        self
    }

    /// Whether each sandbox gets a headless Service.
    pub fn service(mut self, service: bool) -> Self {
        self.template.spec.service = Some(service);
        self
    }

    /// The network rules of these pods; a direction without rules is denied.
    pub fn network(mut self, ingress: Vec<NetworkPolicyIngressRule>, egress: Vec<NetworkPolicyEgressRule>) -> Self {
        self.template.spec.network_policy_management = Some(NetworkPolicyManagement::Managed);
        self.template.spec.network_policy = Some(NetworkPolicy { ingress: Some(ingress), egress: Some(egress) });
        self
    }

    /// Leaves the network rules to somebody else.
    pub fn unmanaged_network(mut self) -> Self {
        self.template.spec.network_policy_management = Some(NetworkPolicyManagement::Unmanaged);
        self.template.spec.network_policy = None;
        self
    }

    /// What claims may do to the environment.
    pub fn env_policy(mut self, policy: EnvVarsInjectionPolicy) -> Self {
        self.template.spec.env_vars_injection_policy = Some(policy);
        self
    }

    /// What claims may do to the volumes.
    pub fn volume_policy(mut self, policy: VolumeClaimTemplatesPolicy) -> Self {
        self.template.spec.volume_claim_templates_policy = Some(policy);
        self
    }

    /// The template.
    pub fn build(self) -> Result<SandboxTemplate, BuildError> {
        if let Some(error) = self.error {
            return Err(error);
        }
        let (metadata, spec) = (&self.template.metadata, &self.template.spec);
        check_labels(metadata.labels.as_ref())?;
        check_annotations(metadata.annotations.as_ref())?;
        check_labels(Some(&spec.pod_template.metadata.labels))?;
        check_annotations(Some(&spec.pod_template.metadata.annotations))?;
        check_pod(&spec.pod_template.spec)?;
        check_volumes(spec.volume_claim_templates.as_deref().unwrap_or_default())?;
        Ok(self.template)
    }
}
