//! Builders: what comes out of `build` is an object that the apiserver and the controller accept, as far as that can be
//! known without asking them.

mod claim;
mod metadata;
mod pool;
mod sandbox;
mod template;

pub use claim::ClaimBuilder;
pub use pool::PoolBuilder;
pub use sandbox::SandboxBuilder;
pub use template::TemplateBuilder;

pub(crate) use claim::whole_seconds;

use std::collections::HashSet;

use k8s_openapi::api::core::v1::PodSpec;

use crate::name::is_label;
use crate::resources::VolumeClaimTemplate;

/// Why an object cannot be built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// Not a DNS-1123 subdomain.
    #[error(
        "{name:?} cannot be a name: at most 253 lower-case letters, digits, '-' and '.', beginning and ending with a letter or digit"
    )]
    Name {
        /// What was given.
        name: String,
    },
    /// Too long a name for the Service that is asked for.
    #[error("{name:?} cannot have a Service: its name must be a DNS label of at most 63 characters")]
    ServiceName {
        /// What was given.
        name: String,
    },
    /// Not a qualified name.
    #[error("{key:?} cannot be the key of a label or annotation")]
    Key {
        /// What was given.
        key: String,
    },
    /// Not what a label can say.
    #[error("{value:?} cannot be the value of label {key}")]
    LabelValue {
        /// The label.
        key: String,
        /// What was given.
        value: String,
    },
    /// The controller does not let claims set this label of a pod.
    #[error(
        "claims cannot set the pod label {key:?}: it needs a prefix that the controller allows (sandbox.users.io unless configured)"
    )]
    PodLabel {
        /// The label.
        key: String,
    },
    /// The controller does not let claims set this annotation of a pod.
    #[error("claims cannot set the pod annotation {key:?}: its prefix belongs to the system")]
    PodAnnotation {
        /// The annotation.
        key: String,
    },
    /// Not the name of a variable, or there twice.
    #[error("{name:?} cannot be a variable here: letters, digits, '_', '-' and '.', and only once for a container")]
    Env {
        /// What was given.
        name: String,
    },
    /// Not the name of a volume, or there twice.
    #[error("{name:?} cannot be a volume here: its name must be a DNS label, used only once")]
    Volume {
        /// What was given.
        name: String,
    },
    /// A container's name is wrong, missing or there twice.
    #[error("{name:?} cannot be a container here: its name must be a DNS label, used only once")]
    Container {
        /// What was given.
        name: String,
    },
    /// A pod without containers.
    #[error("the pod has no container")]
    NoContainer,
    /// Below zero, or more than the field can hold.
    #[error("{field} cannot be {value}")]
    Range {
        /// The field.
        field: &'static str,
        /// What was given.
        value: String,
    },
}

fn check_pod(pod: &PodSpec) -> Result<(), BuildError> {
    if pod.containers.is_empty() {
        return Err(BuildError::NoContainer);
    }
    let mut names = HashSet::new();
    let all = pod.containers.iter().chain(pod.init_containers.iter().flatten());
    match all.map(|container| &container.name).find(|name| !is_label(name) || !names.insert(name.as_str())) {
        Some(name) => Err(BuildError::Container { name: name.clone() }),
        None => Ok(()),
    }
}

fn check_volumes(volumes: &[VolumeClaimTemplate]) -> Result<(), BuildError> {
    let mut names = HashSet::new();
    match volumes.iter().map(|one| &one.metadata.name).find(|name| !is_label(name) || !names.insert(name.as_str())) {
        Some(name) => Err(BuildError::Volume { name: name.clone() }),
        None => Ok(()),
    }
}

/// A headless Service is called like its sandbox.
fn check_service(name: &str, service: Option<bool>) -> Result<(), BuildError> {
    match service {
        Some(true) if !is_label(name) => Err(BuildError::ServiceName { name: name.to_owned() }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
