//! What a condition means for somebody who waits: ready, still coming, or never.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{Resource, ResourceExt};

use crate::error::Error;
use crate::resources::{AssignedSandbox, Conditions, Sandbox, SandboxClaim};

/// What is to be expected of a claim.
#[derive(Debug)]
pub enum ClaimState<'a> {
    /// It has a sandbox that can be used.
    Ready(&'a AssignedSandbox),
    /// It may yet become ready; this is the controller's last word.
    Pending(Option<&'a Condition>),
    /// It will not become ready as it is.
    Failed(Error),
}

impl SandboxClaim {
    /// What its status says. [`Error::TemplateNotFound`] and [`Error::WarmPoolNotFound`] may be news from before the
    /// object was created: [`AgentSandbox::wait_ready`](crate::AgentSandbox::wait_ready) looks before it believes them.
    pub fn state(&self) -> ClaimState<'_> {
        let ready = self.ready();
        match ready {
            Some(ready) if ready.status == "True" => match self.sandbox() {
                Some(sandbox) => ClaimState::Ready(sandbox),
                None => ClaimState::Pending(Some(ready)),
            },
            Some(ready) if is_stale(self, ready) => ClaimState::Pending(Some(ready)),
            Some(ready) => match failure(&self.name_any(), ready) {
                Some(error) => ClaimState::Failed(error),
                None => ClaimState::Pending(Some(ready)),
            },
            None => ClaimState::Pending(None),
        }
    }
}

/// Why a sandbox without a claim will not become ready, if so.
pub(crate) fn sandbox_failure(sandbox: &Sandbox) -> Option<Error> {
    let ready = sandbox.ready().filter(|ready| ready.status != "True" && !is_stale(sandbox, ready))?;
    failure(&sandbox.name_any(), ready)
}

/// Whether a condition speaks of an earlier spec than the one that is there now.
pub(crate) fn is_stale(object: &impl Resource, condition: &Condition) -> bool {
    match (condition.observed_generation, object.meta().generation) {
        (Some(observed), Some(generation)) => observed < generation,
        _ => false,
    }
}

/// The reasons that stay until somebody changes something. All others pass: the controller is at work, or meets a
/// conflict (`AdoptionConflict`) or an error (`ReconcilerError`) that it retries.
fn failure(subject: &str, ready: &Condition) -> Option<Error> {
    let claim = subject.to_owned();
    let message = ready.message.clone();
    Some(match ready.reason.as_str() {
        "TemplateNotFound" => Error::TemplateNotFound { claim, message },
        "WarmPoolNotFound" => Error::WarmPoolNotFound { claim, message },
        "InvalidMetadata" => Error::InvalidMetadata { claim, message },
        "EnvVarsInjectionRejected" => Error::EnvVarsInjectionRejected { claim, message },
        "VolumeClaimTemplatesError" => Error::VolumeClaimTemplatesError { claim, message },
        "ClaimExpired" => Error::ClaimExpired { claim, message },
        "SandboxExpired" => Error::SandboxExpired { claim, message },
        "InvalidConfiguration" => Error::InvalidConfiguration { claim, message },
        "PodFailed" => Error::PodFailed { claim, message },
        "PodSucceeded" => Error::PodSucceeded { claim, message },
        "MultiplePods" => Error::MultiplePods { claim, message },
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn claim(status: &str, reason: &str, observed: i64, sandbox: Value) -> SandboxClaim {
        serde_json::from_value(json!({
            "apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxClaim",
            "metadata": {"name": "c", "generation": 2}, "spec": {"warmPoolRef": {"name": "p"}},
            "status": {"sandbox": sandbox, "conditions": [{"type": "Ready", "status": status, "reason": reason,
                "message": "m", "observedGeneration": observed, "lastTransitionTime": "2026-01-01T00:00:00Z"}]}
        }))
        .expect("a claim")
    }

    #[test]
    fn every_terminal_reason_is_its_own_error() {
        let mut kinds = std::collections::HashSet::new();
        let reasons = [
            "TemplateNotFound",
            "WarmPoolNotFound",
            "InvalidMetadata",
            "EnvVarsInjectionRejected",
            "VolumeClaimTemplatesError",
            "ClaimExpired",
            "SandboxExpired",
            "InvalidConfiguration",
            "PodFailed",
            "PodSucceeded",
            "MultiplePods",
        ];
        for reason in reasons {
            match claim("False", reason, 2, json!({})).state() {
                ClaimState::Failed(error) => {
                    assert!(format!("{error:?}").starts_with(reason), "{error:?}");
                    assert!(kinds.insert(std::mem::discriminant(&error)), "{reason}");
                }
                other => panic!("{reason}: {other:?}"),
            }
        }
    }

    #[test]
    fn what_the_controller_retries_is_pending() {
        for reason in [
            "ReconcilerError",
            "AdoptionConflict",
            "SandboxCreatePending",
            "SandboxMissing",
            "SandboxNotReady",
            "DependenciesNotReady",
            "SandboxSuspended",
            "SomethingNew",
        ] {
            assert!(matches!(claim("False", reason, 2, json!({})).state(), ClaimState::Pending(Some(_))), "{reason}");
        }
    }

    #[test]
    fn readiness_needs_a_name_in_the_same_object() {
        assert!(matches!(claim("True", "DependenciesReady", 2, json!({})).state(), ClaimState::Pending(_)));
        let ready = claim("True", "DependenciesReady", 2, json!({"name": "s", "podIPs": ["10.0.0.1"]}));
        assert!(matches!(ready.state(), ClaimState::Ready(sandbox) if sandbox.name == "s"));
    }

    #[test]
    fn a_failure_of_an_earlier_spec_is_not_believed() {
        assert!(matches!(claim("False", "ClaimExpired", 1, json!({})).state(), ClaimState::Pending(_)));
    }
}
