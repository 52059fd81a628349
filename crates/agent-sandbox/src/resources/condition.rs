//! Conditions, and the words of their types and reasons.

pub use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

/// Whether the sandbox can be used.
pub const READY: &str = "Ready";
/// Whether the sandbox has been suspended.
pub const SUSPENDED: &str = "Suspended";
/// Why a sandbox that was suspended is not ready.
pub const SANDBOX_SUSPENDED: &str = "SandboxSuspended";
/// Whether the pod ended.
pub const FINISHED: &str = "Finished";

/// Objects whose status has conditions.
pub trait Conditions {
    /// All conditions, in the order the controller wrote them.
    fn conditions(&self) -> &[Condition];

    /// The condition of this type.
    fn condition(&self, kind: &str) -> Option<&Condition> {
        self.conditions().iter().find(|condition| condition.type_ == kind)
    }

    /// The condition `Ready`.
    fn ready(&self) -> Option<&Condition> {
        self.condition(READY)
    }

    /// Whether the condition of this type is `True`.
    fn is_true(&self, kind: &str) -> bool {
        self.condition(kind).is_some_and(|condition| condition.status == "True")
    }
}
