//! The four kinds of agent-sandbox as `v1beta1` has them, and the words they share.
//!
//! Reading tolerates fields and enum values that are newer than this crate; nothing here talks to a cluster.

pub(crate) mod alpha;
mod claim;
pub mod condition;
pub mod labels;
mod pool;
mod sandbox;
mod template;
mod version;

pub use claim::{
    AssignedSandbox, ClaimShutdownPolicy, EnvVar, Lifecycle, SandboxClaim, SandboxClaimSpec, SandboxClaimStatus,
    WarmPoolRef,
};
pub use condition::{Condition, Conditions};
pub use pool::{
    SandboxTemplateRef, SandboxWarmPool, SandboxWarmPoolSpec, SandboxWarmPoolStatus, UpdateStrategy, UpdateStrategyType,
};
pub use sandbox::{
    OperatingMode, PodMetadata, PodTemplate, Sandbox, SandboxSpec, SandboxStatus, ShutdownPolicy, VolumeClaimMetadata,
    VolumeClaimTemplate,
};
pub use template::{
    EnvVarsInjectionPolicy, NetworkPolicy, NetworkPolicyManagement, SandboxTemplate, SandboxTemplateSpec,
    VolumeClaimTemplatesPolicy,
};
pub(crate) use version::Served;
pub use version::{Kind, Version};

/// What a claim adds to the metadata of its pod.
pub type AdditionalPodMetadata = PodMetadata;

/// The group of [`Sandbox`].
pub const GROUP: &str = "agents.x-k8s.io";
/// The group of [`SandboxTemplate`], [`SandboxClaim`] and [`SandboxWarmPool`].
pub const EXTENSIONS_GROUP: &str = "extensions.agents.x-k8s.io";

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
