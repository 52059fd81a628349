//! Why a pod does not start, read from the pod itself: the claim's conditions say only that it is not ready.

use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::ResourceExt;

use crate::error::Error;

/// After this many restarts a crash is no accident.
const RESTARTS: i32 = 2;

/// Why a pod does not start.
#[derive(Debug)]
pub(crate) struct Cause {
    pub(crate) error: Error,
    /// Whether it may go away without anybody changing the pod: a node joins, a registry comes back.
    pub(crate) heals: bool,
    /// Somebody is at work on it, so that it takes as long as it takes: a volume is being made.
    pub(crate) in_hand: bool,
}

/// What the scheduler says of a pod whose volumes are not there yet.
const VOLUMES: &str = "unbound immediate PersistentVolumeClaims";

/// What keeps this pod from becoming ready, when it says so.
pub(crate) fn of_pod(pod: &Pod) -> Option<Cause> {
    let status = pod.status.as_ref()?;
    let all = [&status.init_container_statuses, &status.container_statuses];
    if let Some(cause) = all.into_iter().flatten().flatten().find_map(|container| of_container(pod, container)) {
        return Some(cause);
    }
    let scheduled = status.conditions.iter().flatten().find(|condition| condition.type_ == "PodScheduled")?;
    if scheduled.status == "False" && scheduled.reason.as_deref() == Some("Unschedulable") {
        let message = scheduled.message.clone().unwrap_or_default();
        let in_hand = message.contains(VOLUMES);
        return Some(Cause { error: Error::Unschedulable { pod: pod.name_any(), message }, heals: true, in_hand });
    }
    None
}

fn of_container(pod: &Pod, status: &ContainerStatus) -> Option<Cause> {
    let waiting = status.state.as_ref()?.waiting.as_ref()?;
    let reason = waiting.reason.clone()?;
    let message = waiting.message.clone().unwrap_or_default();
    let (pod, container) = (pod.name_any(), status.name.clone());
    let (error, heals) = match reason.as_str() {
        "ImagePullBackOff" | "ErrImagePull" | "ImageInspectError" | "RegistryUnavailable" => {
            (Error::ImagePull { pod, reason, message }, true)
        }
        "ErrImageNeverPull" | "InvalidImageName" => (Error::ImagePull { pod, reason, message }, false),
        "CrashLoopBackOff" => (Error::CrashLoop { pod, container, message }, status.restart_count < RESTARTS),
        "CreateContainerConfigError" | "CreateContainerError" | "RunContainerError" => {
            (Error::ContainerConfig { pod, container, message: format!("{reason}: {message}") }, true)
        }
        _ => return None,
    };
    Some(Cause { error, heals, in_hand: false })
}

/// What the controller could not do for the pod, when it is a quota.
pub(crate) fn of_quota(message: &str) -> Option<Cause> {
    let error = Error::QuotaExceeded { message: message.to_owned() };
    message.contains("exceeded quota").then_some(Cause { error, heals: true, in_hand: false })
}

/// How a pod ended: evicted, out of memory, an exit code.
pub(crate) fn of_end(pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref()?;
    if let Some(reason) = &status.reason {
        return Some(format!("{reason}: {}", status.message.as_deref().unwrap_or("no more is known")));
    }
    let all = [&status.init_container_statuses, &status.container_statuses];
    let ended = all.into_iter().flatten().flatten().find_map(|container| {
        let ended = container.state.as_ref()?.terminated.as_ref().filter(|ended| ended.exit_code != 0)?;
        Some((container.name.clone(), ended))
    });
    let (container, ended) = ended?;
    let why = ended.message.as_deref().or(ended.reason.as_deref()).unwrap_or("no more is known");
    Some(format!("container {container} ended with {}: {}", ended.exit_code, why.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(status: Value) -> Pod {
        serde_json::from_value(json!({"metadata": {"name": "p"}, "status": status})).expect("a pod")
    }

    fn waiting(reason: &str, restarts: i32) -> Pod {
        pod(json!({"containerStatuses": [{"name": "c", "image": "i", "imageID": "", "ready": false,
            "restartCount": restarts, "state": {"waiting": {"reason": reason, "message": "m"}}}]}))
    }

    #[test]
    fn images_configuration_and_crashes() {
        for (reason, heals) in [
            ("ImagePullBackOff", true),
            ("ErrImagePull", true),
            ("ErrImageNeverPull", false),
            ("InvalidImageName", false),
        ] {
            let cause = of_pod(&waiting(reason, 0)).expect("a cause");
            assert!(matches!(&cause.error, Error::ImagePull { reason: r, .. } if r == reason));
            assert_eq!(cause.heals, heals, "{reason}");
        }
        let cause = of_pod(&waiting("CreateContainerConfigError", 0)).expect("a cause");
        assert!(matches!(cause.error, Error::ContainerConfig { .. }));
        for (restarts, heals) in [(1, true), (2, false)] {
            let cause = of_pod(&waiting("CrashLoopBackOff", restarts)).expect("a cause");
            assert!(matches!(cause.error, Error::CrashLoop { .. }) && cause.heals == heals);
        }
        assert!(of_pod(&waiting("ContainerCreating", 0)).is_none());
    }

    #[test]
    fn no_node() {
        let condition = |status: &str, reason: &str| {
            pod(
                json!({"conditions": [{"type": "PodScheduled", "status": status, "reason": reason, "message": "0/1 nodes"}]}),
            )
        };
        let cause = of_pod(&condition("False", "Unschedulable")).expect("a cause");
        assert!(matches!(&cause.error, Error::Unschedulable { message, .. } if message == "0/1 nodes"));
        assert!(!cause.in_hand, "a full node is nobody's work");
        let volumes = pod(json!({"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
            "message": "0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims."}]}));
        assert!(of_pod(&volumes).is_some_and(|cause| cause.in_hand));
        assert!(of_pod(&condition("True", "")).is_none());
        assert!(of_pod(&condition("False", "SchedulingGated")).is_none());
    }

    #[test]
    fn how_it_ended() {
        let evicted = pod(json!({"phase": "Failed", "reason": "Evicted", "message": "low on memory"}));
        assert_eq!(of_end(&evicted).as_deref(), Some("Evicted: low on memory"));
        let exited = pod(json!({"phase": "Failed", "containerStatuses": [{"name": "c", "image": "i", "imageID": "",
            "ready": false, "restartCount": 0, "state": {"terminated": {"exitCode": 3, "reason": "Error"}}}]}));
        assert_eq!(of_end(&exited).as_deref(), Some("container c ended with 3: Error"));
    }

    #[test]
    fn a_quota_is_recognised() {
        let message = "Error seen: pods \"x\" is forbidden: exceeded quota: q, requested: pods=1, used: pods=1";
        assert!(matches!(of_quota(message), Some(Cause { error: Error::QuotaExceeded { .. }, .. })));
        assert!(of_quota("Error seen: something else").is_none());
    }
}
