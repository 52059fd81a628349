//! What the cluster says went wrong, as providers say it: what failed, why, and what to do.

use agent_sandbox::Error as Said;
use sandbar_api::{Layer, SandboxId};
use sandbar_provider::Error;

const MANIFESTS: &str = "Apply what `sandbar kubernetes manifests` prints, which grants what is needed; `sandbar kubernetes check` tells what is not.";
const CHECK: &str = "`sandbar kubernetes check` tells what is missing.";
pub(crate) const PROXY: &str =
    "Name a proxy of http:// or socks5:// in the kubeconfig's `proxy-url` or in HTTPS_PROXY, or none.";
const CONTROLLER: &str =
    "Look at the agent-sandbox controller and at the cluster's events; `sandbar kubernetes check` helps.";

/// About the sandbox or about everything, as `said` has it.
pub(crate) fn told(said: Said) -> Error {
    let cause = said.to_string();
    match said {
        Said::ImagePull { message, reason, .. } => Error::BadTemplate {
            what: "the image".into(),
            cause: format!("{reason}: {message}"),
            fix: "Check the image's name in the template (`root`) and the guest image in the settings, and that the nodes may pull them.".into(),
        },
        Said::ContainerConfig { message, .. } => Error::BadTemplate {
            what: "the image".into(),
            cause: message,
            fix: "Its user must be able to run as uid 1000 with a read-only root; build the image accordingly.".into(),
        },
        Said::CrashLoop { .. } | Said::PodFailed { .. } | Said::PodSucceeded { .. } => Error::Cluster {
            cause,
            fix: "Look at the pod's log (`kubectl logs`): the guest must start in the template's image.".into(),
        },
        Said::Invalid { .. } | Said::InvalidConfiguration { .. } | Said::Build(_) | Said::NotInVersion { .. } => Error::BadTemplate {
            what: "the template".into(),
            cause,
            fix: "Correct what it names in the template or in the cluster's settings.".into(),
        },
        Said::QuotaExceeded { .. } => {
            Error::NoRoom { cause, fix: "Delete sandboxes, or raise the namespace's ResourceQuota.".into() }
        }
        Said::Unschedulable { .. } => {
            let fix = "Delete sandboxes, add nodes, or ask for less in the template's limits and node selector.";
            Error::NoRoom { cause, fix: fix.into() }
        }
        Said::Forbidden { ref message, .. } if is_runtime_class(message) => runtime_class(message.clone()),
        Said::Forbidden { .. } => Error::Cluster { cause, fix: MANIFESTS.into() },
        Said::Unauthorized { .. } => {
            Error::Cluster { cause, fix: "Renew the credentials in the kubeconfig, or the server's service account.".into() }
        }
        Said::Unreachable { .. } => {
            Error::Cluster { cause, fix: "Check that the cluster is up and that its address in the kubeconfig is right; then try again.".into() }
        }
        Said::BadProxy { .. } => Error::Cluster { cause, fix: PROXY.into() },
        Said::Timeout { .. } => Error::Cluster { cause, fix: CONTROLLER.into() },
        _ => Error::Cluster { cause, fix: CHECK.into() },
    }
}

/// Before there is a pod the controller reports what the API server says about it, in these words.
pub(crate) fn reconciling(message: &str) -> Option<Error> {
    if message.contains("exceeded quota") {
        let fix = "Delete sandboxes, or raise the namespace's ResourceQuota.";
        return Some(Error::NoRoom { cause: message.into(), fix: fix.into() });
    }
    if is_runtime_class(message) {
        return Some(runtime_class(message.into()));
    }
    if message.contains("violates PodSecurity") {
        return Some(Error::Cluster {
            cause: message.into(),
            fix: "The cluster wants more than the restricted standard; look at the namespace's labels and admission webhooks.".into(),
        });
    }
    None
}

fn is_runtime_class(message: &str) -> bool {
    message.contains("RuntimeClass") && message.contains("not found")
}

fn runtime_class(cause: String) -> Error {
    Error::BadTemplate {
        what: "`kubernetes.runtime_class`".into(),
        cause,
        fix: "Name one that `kubectl get runtimeclass` shows, or install it.".into(),
    }
}

/// Fail closed.
pub(crate) fn not_in_force(layer: Layer, evidence: String, fix: Option<String>) -> Error {
    Error::NotEnforceable { layer: layer.title(), cause: evidence, fix: fix.unwrap_or_else(|| CHECK.into()) }
}

/// The view is not current, so that nothing can be said of the sandbox.
pub(crate) fn blind(why: &str) -> Error {
    Error::Cluster {
        cause: format!("its state cannot be observed: {why}"),
        fix: "Check that the cluster's API server is up; then try again.".into(),
    }
}

pub(crate) fn not_running(id: &SandboxId, cause: impl Into<String>) -> Error {
    Error::Unreachable { id: id.clone(), cause: cause.into() }
}

#[cfg(test)]
mod tests {
    use agent_sandbox::Version;

    use super::*;

    #[test]
    fn each_cause_is_told_apart() {
        let pod = || "sbx-1".to_owned();
        let image = Said::ImagePull { pod: pod(), reason: "ErrImagePull".into(), message: "no such".into() };
        assert!(matches!(told(image), Error::BadTemplate { what, .. } if what == "the image"));
        let full = Said::Unschedulable { pod: pod(), message: "Insufficient memory".into() };
        assert!(matches!(told(full), Error::NoRoom { cause, .. } if cause.contains("Insufficient memory")));
        let quota = Said::QuotaExceeded { message: "exceeded quota: q".into() };
        assert!(matches!(told(quota), Error::NoRoom { .. }));
        let denied =
            Said::Forbidden { verb: "create".into(), resource: "sandboxtemplates".into(), message: "no".into() };
        assert!(matches!(told(denied), Error::Cluster { fix, .. } if fix.contains("sandbar kubernetes manifests")));
        let expired = Said::Unauthorized { message: "Unauthorized".into() };
        assert!(matches!(told(expired), Error::Cluster { fix, .. } if fix.contains("credentials")));
        let absent = Said::CrdsMissing { missing: vec!["sandboxes"], version: Version::V1Beta1 };
        assert!(matches!(told(absent), Error::Cluster { fix, .. } if fix.contains("sandbar kubernetes check")));
    }

    #[test]
    fn what_the_controller_only_repeats_is_understood() {
        let quota =
            "Error seen: pods \"x\" is forbidden: exceeded quota: q, requested: pods=1, used: pods=1, limited: pods=1";
        assert!(matches!(reconciling(quota), Some(Error::NoRoom { .. })));
        let class = "Error seen: pods \"x\" is forbidden: pod rejected: RuntimeClass \"kata\" not found";
        assert!(matches!(reconciling(class), Some(Error::BadTemplate { what, .. }) if what.contains("runtime_class")));
        assert!(reconciling("Error seen: the object has been modified").is_none());
    }
}
