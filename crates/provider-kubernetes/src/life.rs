//! What a claim tells of its sandbox. Pure: everything the provider concludes from the one watch is concluded here.

use agent_sandbox::{Conditions as _, SandboxClaim};
use sandbar_api::Storage;

use crate::objects::STORAGE;

/// Where a sandbox's guest is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    /// The Sandbox, which on the warm path is not called like the claim; its pod has the same name.
    pub(crate) sandbox: String,
    pub(crate) address: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Life {
    Ready(Place),
    /// There is, or will be, a pod; why it is not ready yet.
    Coming {
        reason: String,
        message: String,
    },
    /// Its pod was taken away on purpose. `over` when it is gone.
    Suspended {
        over: bool,
    },
    /// It will not get better by waiting.
    Failed {
        reason: String,
        message: String,
    },
    /// Being deleted.
    Going,
}

/// Reasons of `Ready=False` that stay until somebody does something.
const LASTING: [&str; 9] = [
    "PodFailed",
    "PodSucceeded",
    "SandboxExpired",
    "ClaimExpired",
    "SandboxMissing",
    "InvalidMetadata",
    "InvalidConfiguration",
    "EnvVarsInjectionRejected",
    "VolumeClaimTemplatesError",
];
/// The controller says so once no pod is left.
const OVER: &str = "Sandbox is suspended";
/// A pod that ran is never pending again: it is not there, or another one is coming in its place.
const ANOTHER_POD: [&str; 2] = ["Pod does not exist", "Pod exists with phase: Pending"];

pub(crate) fn of(claim: &SandboxClaim) -> Life {
    if claim.metadata.deletion_timestamp.is_some() {
        return Life::Going;
    }
    let Some(ready) = claim.ready() else {
        return Life::Coming {
            reason: "NotObserved".into(),
            message: "the controller has not looked at it yet".into(),
        };
    };
    let (reason, message) = (ready.reason.clone(), ready.message.clone());
    match ready.status.as_str() {
        "True" => match place(claim) {
            Some(place) => Life::Ready(place),
            None => Life::Coming { reason, message: "it has no address yet".into() },
        },
        _ if reason == "SandboxSuspended" => Life::Suspended { over: message.starts_with(OVER) },
        _ if LASTING.contains(&reason.as_str()) => Life::Failed { reason, message },
        _ => Life::Coming { reason, message },
    }
}

/// Its address, IPv4 before IPv6.
pub(crate) fn place(claim: &SandboxClaim) -> Option<Place> {
    let sandbox = claim.sandbox()?;
    let four = sandbox.pod_ips.iter().find(|address| address.parse::<std::net::Ipv4Addr>().is_ok());
    let address = four.or_else(|| sandbox.pod_ips.first())?.clone();
    Some(Place { sandbox: sandbox.name.clone(), address })
}

/// Where its guest may be: also while its node or the controller says nothing of it.
pub(crate) fn whereabouts(claim: &SandboxClaim) -> Option<Place> {
    place(claim).filter(|place| !is_over(Some(claim), place))
}

/// Whether the guest that was at `place` is certainly gone.
pub(crate) fn is_over(claim: Option<&SandboxClaim>, place: &Place) -> bool {
    match claim.map(of) {
        None | Some(Life::Going | Life::Suspended { .. } | Life::Failed { .. }) => true,
        Some(Life::Ready(now)) => now != *place,
        Some(Life::Coming { message, .. }) => {
            let moved = claim.and_then(self::place).is_some_and(|now| now != *place);
            moved || ANOTHER_POD.iter().any(|words| message.starts_with(words))
        }
    }
}

/// Where the files are, as it was written down when the claim was made.
pub(crate) fn storage(claim: &SandboxClaim) -> Storage {
    let written = claim.metadata.annotations.as_ref().and_then(|all| all.get(STORAGE));
    if written.is_some_and(|text| text == Storage::Ephemeral.as_str()) {
        Storage::Ephemeral
    } else {
        Storage::Persistent
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn claim(status: &str, reason: &str, message: &str, addresses: &[&str]) -> SandboxClaim {
        let condition = json!({
            "type": "Ready", "status": status, "reason": reason, "message": message,
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        });
        let object = json!({
            "apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxClaim", "metadata": { "name": "sbx" },
            "spec": { "warmPoolRef": { "name": "p" } },
            "status": { "conditions": [condition], "sandbox": { "name": "p-abcde", "podIPs": addresses } },
        });
        serde_json::from_value(object).unwrap_or_else(|error| panic!("{error}"))
    }

    fn at(address: &str) -> Place {
        Place { sandbox: "p-abcde".into(), address: address.into() }
    }

    #[test]
    fn ready_needs_an_address() {
        let ready = |addresses: &[&str]| of(&claim("True", "DependenciesReady", "Pod is Ready", addresses));
        assert_eq!(ready(&["fd00::1", "10.0.0.1"]), Life::Ready(at("10.0.0.1")));
        assert_eq!(ready(&["fd00::1"]), Life::Ready(at("fd00::1")));
        assert!(matches!(ready(&[]), Life::Coming { .. }));
        assert!(matches!(of(&SandboxClaim::default()), Life::Coming { .. }));
    }

    #[test]
    fn what_lasts_is_told_from_what_passes() {
        let not = |reason, message| of(&claim("False", reason, message, &[]));
        assert_eq!(not("SandboxSuspended", "Sandbox is suspending"), Life::Suspended { over: false });
        assert_eq!(not("SandboxSuspended", "Sandbox is suspended"), Life::Suspended { over: true });
        assert!(matches!(not("PodFailed", "Pod failed"), Life::Failed { .. }));
        for reason in
            ["TemplateNotFound", "AdoptionConflict", "ReconcilerError", "DependenciesNotReady", "SandboxNotReady"]
        {
            assert!(matches!(not(reason, "x"), Life::Coming { .. }), "{reason}");
        }
        let mut going = claim("True", "DependenciesReady", "", &["10.0.0.1"]);
        going.metadata.deletion_timestamp = Some(crate::objects::expiry(Default::default(), Default::default()));
        assert_eq!(of(&going), Life::Going);
    }

    #[test]
    fn a_guest_is_over_when_its_pod_is_and_not_before() {
        let ready = claim("True", "DependenciesReady", "", &["10.0.0.1"]);
        assert!(!is_over(Some(&ready), &at("10.0.0.1")));
        assert!(is_over(Some(&ready), &at("10.0.0.2")));
        assert!(is_over(None, &at("10.0.0.1")));
        let not = |reason, message| is_over(Some(&claim("False", reason, message, &[])), &at("10.0.0.1"));
        assert!(not("PodFailed", "Pod failed"));
        assert!(not("SandboxSuspended", "Sandbox is suspending"));
        assert!(not("DependenciesNotReady", "Pod does not exist"));
        // The controller made another in the same breath, for which there is no room.
        assert!(not("DependenciesNotReady", "Pod exists with phase: Pending"));
        // A node that does not answer for a while, or a controller that errs, ends nobody.
        assert!(!not("DependenciesNotReady", "Pod is Running but not Ready"));
        assert!(!not("ReconcilerError", "Error seen: timeout"));
        let elsewhere = claim("False", "DependenciesNotReady", "Pod is Running but not Ready", &["10.0.0.2"]);
        assert!(is_over(Some(&elsewhere), &at("10.0.0.1")) && !is_over(Some(&elsewhere), &at("10.0.0.2")));
    }

    #[test]
    fn a_guest_may_be_where_it_was_while_nobody_says_otherwise() {
        let not = |reason, message| whereabouts(&claim("False", reason, message, &["10.0.0.1"]));
        assert_eq!(not("DependenciesNotReady", "Pod is Running but not Ready"), Some(at("10.0.0.1")));
        assert_eq!(whereabouts(&claim("True", "DependenciesReady", "", &["10.0.0.1"])), Some(at("10.0.0.1")));
        assert_eq!(not("DependenciesNotReady", "Pod exists with phase: Pending"), None);
        assert_eq!(not("PodFailed", "Pod failed"), None);
        assert_eq!(whereabouts(&claim("True", "DependenciesReady", "", &[])), None);
    }
}
