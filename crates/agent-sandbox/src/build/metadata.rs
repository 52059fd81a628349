//! Labels and annotations: what Kubernetes accepts of anybody, and what the controller accepts of claims.

use std::collections::BTreeMap;

use super::BuildError;
use crate::name::{is_qualified, is_word};

/// Whose prefixes claims may not use for annotations of a pod.
const SYSTEM: [&str; 3] = ["kubernetes.io", "k8s.io", "agents.x-k8s.io"];
const SAFE_TO_EVICT: &str = "cluster-autoscaler.kubernetes.io/safe-to-evict";
/// Whose prefixes claims may use for labels of a pod, unless the controller is configured otherwise.
pub(super) const USERS: &str = "sandbox.users.io";

pub(super) fn check_labels(labels: Option<&BTreeMap<String, String>>) -> Result<(), BuildError> {
    for (key, value) in labels.into_iter().flatten() {
        if !is_qualified(key) {
            return Err(BuildError::Key { key: key.clone() });
        }
        if !is_word(value) {
            return Err(BuildError::LabelValue { key: key.clone(), value: value.clone() });
        }
    }
    Ok(())
}

pub(super) fn check_annotations(annotations: Option<&BTreeMap<String, String>>) -> Result<(), BuildError> {
    // Annotation keys are compared in lower case by the apiserver.
    match annotations.into_iter().flatten().find(|(key, _)| !is_qualified(&key.to_lowercase())) {
        Some((key, _)) => Err(BuildError::Key { key: key.clone() }),
        None => Ok(()),
    }
}

/// `additionalPodMetadata.labels`: only under prefixes that the controller allows.
pub(super) fn check_pod_labels(labels: &BTreeMap<String, String>, allowed: &[String]) -> Result<(), BuildError> {
    check_labels(Some(labels))?;
    let permitted = |key: &str| {
        let Some((prefix, _)) = key.split_once('/') else { return false };
        allowed.iter().any(|domain| within(prefix, domain))
    };
    match labels.keys().find(|key| !permitted(key)) {
        Some(key) => Err(BuildError::PodLabel { key: key.clone() }),
        None => Ok(()),
    }
}

/// `additionalPodMetadata.annotations`: none of the system's.
pub(super) fn check_pod_annotations(annotations: &BTreeMap<String, String>) -> Result<(), BuildError> {
    if let Some(key) = annotations.keys().find(|key| !is_qualified(key)) {
        return Err(BuildError::Key { key: key.clone() });
    }
    let reserved = |key: &str| {
        let Some((prefix, _)) = key.split_once('/') else { return false };
        key != SAFE_TO_EVICT && SYSTEM.iter().any(|domain| within(prefix, domain))
    };
    match annotations.keys().find(|key| reserved(key)) {
        Some(key) => Err(BuildError::PodAnnotation { key: key.clone() }),
        None => Ok(()),
    }
}

fn within(prefix: &str, domain: &str) -> bool {
    prefix == domain || prefix.strip_suffix(domain).is_some_and(|rest| rest.ends_with('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(key: &str, value: &str) -> BTreeMap<String, String> {
        BTreeMap::from([(key.to_owned(), value.to_owned())])
    }

    #[test]
    fn pod_labels_need_a_prefix_that_is_allowed() {
        let allowed = [USERS.to_owned()];
        for good in ["sandbox.users.io/a", "team.sandbox.users.io/a"] {
            assert_eq!(check_pod_labels(&one(good, "v"), &allowed), Ok(()), "{good}");
        }
        for bad in ["a", "app", "users.io/a", "evilsandbox.users.io/a", "kubernetes.io/a"] {
            assert!(matches!(check_pod_labels(&one(bad, "v"), &allowed), Err(BuildError::PodLabel { .. })), "{bad}");
        }
        assert!(check_pod_labels(&one("sandbox.users.io/a", "not a value"), &allowed).is_err());
        assert_eq!(check_pod_labels(&one("corp.example/a", ""), &["corp.example".to_owned()]), Ok(()));
    }

    #[test]
    fn pod_annotations_keep_off_the_system() {
        for good in ["a", "example.com/a", SAFE_TO_EVICT, "notk8s.io/a"] {
            assert_eq!(check_pod_annotations(&one(good, "any text")), Ok(()), "{good}");
        }
        for bad in ["kubernetes.io/a", "x.k8s.io/a", "agents.x-k8s.io/a", "extensions.agents.x-k8s.io/a"] {
            assert!(matches!(check_pod_annotations(&one(bad, "")), Err(BuildError::PodAnnotation { .. })), "{bad}");
        }
        assert!(matches!(check_pod_annotations(&one("a b", "")), Err(BuildError::Key { .. })));
    }
}
