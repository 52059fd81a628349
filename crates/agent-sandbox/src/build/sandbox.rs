//! Sandboxes without a claim.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::PodSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::claim::whole_seconds;
use super::metadata::{check_annotations, check_labels};
use super::{BuildError, check_pod, check_service, check_volumes};
use crate::name::Name;
use crate::resources::{OperatingMode, Sandbox, ShutdownPolicy, VolumeClaimTemplate};

/// Builds a [`Sandbox`].
///
/// ```
/// use agent_sandbox::{BuildError, SandboxBuilder};
///
/// let pod = Default::default();
/// assert_eq!(SandboxBuilder::new("mine", pod).build(), Err(BuildError::NoContainer));
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct SandboxBuilder {
    sandbox: Sandbox,
    error: Option<BuildError>,
}

impl SandboxBuilder {
    /// A sandbox of this name with this pod.
    pub fn new<N>(name: N, pod: PodSpec) -> Self
    where
        N: TryInto<Name>,
        BuildError: From<N::Error>,
    {
        let (name, error) = match name.try_into() {
            Ok(name) => (String::from(name), None),
            Err(error) => (String::new(), Some(error.into())),
        };
        let mut sandbox = Sandbox::new(&name, Default::default());
        sandbox.spec.pod_template.spec = pod;
        Self { sandbox, error }
    }

    /// Without a pod until it is resumed.
    pub fn suspended(mut self) -> Self {
        self.sandbox.spec.operating_mode = Some(OperatingMode::Suspended);
        self
    }

    /// Ends it at this time.
    pub fn shutdown_time(mut self, time: Timestamp) -> Self {
        self.sandbox.spec.shutdown_time = Some(Time(whole_seconds(time)));
        self
    }

    /// What is left of it then.
    pub fn shutdown_policy(mut self, policy: ShutdownPolicy) -> Self {
        self.sandbox.spec.shutdown_policy = Some(policy);
        self
    }

    /// Whether it gets a headless Service; its name must then be a DNS label.
    pub fn service(mut self, service: bool) -> Self {
        self.sandbox.spec.service = Some(service);
        self
    }

    /// A PVC.
    pub fn volume(mut self, volume: VolumeClaimTemplate) -> Self {
        self.sandbox.spec.volume_claim_templates.get_or_insert_default().push(volume);
        self
    }

    /// A label of the sandbox.
    pub fn label(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.sandbox.metadata.labels.get_or_insert_default().insert(key.into(), value.into());
        self
    }

    /// An annotation of the sandbox.
    pub fn annotation(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.sandbox.metadata.annotations.get_or_insert_default().insert(key.into(), value.into());
        self
    }

    /// A label of the pod.
    pub fn pod_label(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.sandbox.spec.pod_template.metadata.labels.insert(key.into(), value.into());
        self
    }

    /// An annotation of the pod.
    pub fn pod_annotation(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.sandbox.spec.pod_template.metadata.annotations.insert(key.into(), value.into());
        self
    }

    /// The sandbox.
    pub fn build(self) -> Result<Sandbox, BuildError> {
        if let Some(error) = self.error {
            return Err(error);
        }
        let (metadata, spec) = (&self.sandbox.metadata, &self.sandbox.spec);
        check_labels(metadata.labels.as_ref())?;
        check_annotations(metadata.annotations.as_ref())?;
        check_labels(Some(&spec.pod_template.metadata.labels))?;
        check_annotations(Some(&spec.pod_template.metadata.annotations))?;
        check_pod(&spec.pod_template.spec)?;
        check_volumes(spec.volume_claim_templates.as_deref().unwrap_or_default())?;
        check_service(metadata.name.as_deref().unwrap_or_default(), spec.service)?;
        Ok(self.sandbox)
    }
}
