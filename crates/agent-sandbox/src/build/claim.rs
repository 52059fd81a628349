//! Claims, and names for those that nobody names.

use std::collections::HashSet;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::metadata::{USERS, check_annotations, check_labels, check_pod_annotations, check_pod_labels};
use super::{BuildError, check_volumes};
use crate::name::{Name, is_env, is_label};
use crate::resources::{ClaimShutdownPolicy, EnvVar, Lifecycle, SandboxClaim, VolumeClaimTemplate, labels};

/// Builds a [`SandboxClaim`].
///
/// ```
/// use std::time::Duration;
/// use agent_sandbox::{ClaimBuilder, ClaimShutdownPolicy};
///
/// let claim = ClaimBuilder::new("build-42", "python")
///     .shutdown_after(Duration::from_secs(3600))
///     .shutdown_policy(ClaimShutdownPolicy::Delete)
///     .label("team", "search")
///     .pod_label("sandbox.users.io/team", "search")
///     .build()?;
/// assert_eq!(claim.spec.warm_pool_ref.name, "python");
/// # Ok::<(), agent_sandbox::BuildError>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct ClaimBuilder {
    claim: SandboxClaim,
    generated: bool,
    allowed: Vec<String>,
    error: Option<BuildError>,
}

impl ClaimBuilder {
    /// A claim of this name to this pool.
    pub fn new<N, P>(name: N, pool: P) -> Self
    where
        N: TryInto<Name>,
        P: TryInto<Name>,
        BuildError: From<N::Error> + From<P::Error>,
    {
        let mut builder = Self::generated(pool);
        builder.generated = false;
        match name.try_into() {
            Ok(name) => builder.claim.metadata.name = Some(name.into()),
            Err(error) => builder.error = Some(error.into()),
        }
        builder
    }

    /// A claim to this pool, under a name that nobody else has.
    pub fn generated<P>(pool: P) -> Self
    where
        P: TryInto<Name>,
        BuildError: From<P::Error>,
    {
        let mut claim = SandboxClaim::new(&random_name(), Default::default());
        let error = match pool.try_into() {
            Ok(pool) => {
                claim.spec.warm_pool_ref.name = pool.into();
                None
            }
            Err(error) => Some(error.into()),
        };
        Self { claim, generated: true, allowed: vec![USERS.to_owned()], error }
    }

    /// Ends it this long after now.
    pub fn shutdown_after(mut self, after: Duration) -> Self {
        let time = SignedDuration::try_from(after).ok().and_then(|after| Timestamp::now().checked_add(after).ok());
        match time {
            Some(time) => self.shutdown_time(time),
            None => {
                self.fail(BuildError::Range { field: "shutdownTime", value: format!("in {}s", after.as_secs()) });
                self
            }
        }
    }

    /// Ends it at this time.
    pub fn shutdown_time(mut self, time: Timestamp) -> Self {
        self.lifecycle().shutdown_time = Some(Time(whole_seconds(time)));
        self
    }

    /// What is left of it then.
    pub fn shutdown_policy(mut self, policy: ClaimShutdownPolicy) -> Self {
        self.lifecycle().shutdown_policy = Some(policy);
        self
    }

    /// Ends it this long after its pod has ended, in whole seconds.
    pub fn ttl_after_finished(mut self, ttl: Duration) -> Self {
        match i32::try_from(ttl.as_secs()) {
            Ok(seconds) => self.lifecycle().ttl_seconds_after_finished = Some(seconds),
            Err(_) => {
                self.fail(BuildError::Range { field: "ttlSecondsAfterFinished", value: ttl.as_secs().to_string() })
            }
        }
        self
    }

    /// A label of the claim.
    pub fn label(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.claim.metadata.labels.get_or_insert_default().insert(key.into(), value.into());
        self
    }

    /// An annotation of the claim.
    pub fn annotation(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.claim.metadata.annotations.get_or_insert_default().insert(key.into(), value.into());
        self
    }

    /// A label of the pod, with a prefix that the controller allows.
    pub fn pod_label(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.claim.spec.additional_pod_metadata.labels.insert(key.into(), value.into());
        self
    }

    /// An annotation of the pod, with a prefix that is not the system's.
    pub fn pod_annotation(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.claim.spec.additional_pod_metadata.annotations.insert(key.into(), value.into());
        self
    }

    /// The prefixes that the controller of this cluster allows for labels of pods.
    pub fn allowed_label_domains(mut self, domains: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.allowed = domains.into_iter().map(Into::into).collect();
        self
    }

    /// A variable for the first container. Forces a cold start.
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.claim.spec.env.push(EnvVar { name: name.into(), value: value.into(), container_name: None });
        self
    }

    /// A variable for this container. Forces a cold start.
    pub fn env_of(mut self, container: &str, name: impl Into<String>, value: impl Into<String>) -> Self {
        let container_name = Some(container.to_owned());
        self.claim.spec.env.push(EnvVar { name: name.into(), value: value.into(), container_name });
        self
    }

    /// A volume. Forces a cold start.
    pub fn volume(mut self, volume: VolumeClaimTemplate) -> Self {
        self.claim.spec.volume_claim_templates.push(volume);
        self
    }

    /// The claim, with the time of its request on it.
    pub fn build(mut self) -> Result<SandboxClaim, BuildError> {
        if let Some(error) = self.error {
            return Err(error);
        }
        let spec = &self.claim.spec;
        check_labels(self.claim.metadata.labels.as_ref())?;
        check_annotations(self.claim.metadata.annotations.as_ref())?;
        check_pod_labels(&spec.additional_pod_metadata.labels, &self.allowed)?;
        check_pod_annotations(&spec.additional_pod_metadata.annotations)?;
        check_volumes(&spec.volume_claim_templates)?;
        let mut names = HashSet::new();
        for one in &spec.env {
            if !is_env(&one.name) || !names.insert((&one.name, &one.container_name)) {
                return Err(BuildError::Env { name: one.name.clone() });
            }
            if let Some(container) = one.container_name.as_ref().filter(|name| !is_label(name)) {
                return Err(BuildError::Container { name: container.clone() });
            }
        }
        let requested = whole_micros(Timestamp::now()).to_string();
        let annotations = self.claim.metadata.annotations.get_or_insert_default();
        annotations.entry(labels::CLIENT_FIRST_REQUESTED_AT.to_owned()).or_insert(requested);
        Ok(self.claim)
    }

    pub(crate) fn is_generated(&self) -> bool {
        self.generated
    }

    /// The same claim under another random name.
    pub(crate) fn regenerated(&self) -> Self {
        let mut builder = self.clone();
        builder.claim.metadata.name = Some(random_name());
        builder
    }

    fn lifecycle(&mut self) -> &mut Lifecycle {
        self.claim.spec.lifecycle.get_or_insert_default()
    }

    fn fail(&mut self, error: BuildError) {
        self.error.get_or_insert(error);
    }
}

fn random_name() -> String {
    // Keyed at random for each process and different for each call.
    let random = RandomState::new().build_hasher().finish();
    format!("sandbox-claim-{:010x}", random & 0xff_ffff_ffff)
}

/// Kubernetes keeps times in whole seconds; a fraction would come back changed.
pub(crate) fn whole_seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

fn whole_micros(time: Timestamp) -> Timestamp {
    Timestamp::from_microsecond(time.as_microsecond()).unwrap_or(time)
}
