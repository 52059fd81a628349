//! What builders let through, and what they do not.

use std::time::Duration;

use serde_json::json;

use super::*;
use crate::resources::{
    ClaimShutdownPolicy, EnvVarsInjectionPolicy, UpdateStrategyType, VolumeClaimMetadata, VolumeClaimTemplate, labels,
};

fn volume(name: &str) -> VolumeClaimTemplate {
    let metadata = VolumeClaimMetadata { name: name.into(), ..VolumeClaimMetadata::default() };
    VolumeClaimTemplate { metadata, ..VolumeClaimTemplate::default() }
}

#[test]
fn a_claim_on_the_wire() {
    let claim = ClaimBuilder::new("c", "p")
        .shutdown_time("2030-01-02T03:04:05.678Z".parse().expect("a time"))
        .shutdown_policy(ClaimShutdownPolicy::DeleteForeground)
        .ttl_after_finished(Duration::from_millis(2500))
        .label("l", "1")
        .annotation("a", "2")
        .annotation(labels::CLIENT_FIRST_REQUESTED_AT, "then")
        .pod_label("sandbox.users.io/l", "3")
        .pod_annotation("example.com/a", "4")
        .env("A", "5")
        .env_of("side", "A", "6")
        .volume(volume("data"))
        .build()
        .expect("a claim");
    let expected = json!({
        "apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxClaim",
        "metadata": {"name": "c", "labels": {"l": "1"},
            "annotations": {"a": "2", "agents.x-k8s.io/client-first-requested-at": "then"}},
        "spec": {
            "warmPoolRef": {"name": "p"},
            "lifecycle": {"shutdownTime": "2030-01-02T03:04:05Z", "shutdownPolicy": "DeleteForeground",
                "ttlSecondsAfterFinished": 2},
            "additionalPodMetadata": {"labels": {"sandbox.users.io/l": "3"}, "annotations": {"example.com/a": "4"}},
            "env": [{"name": "A", "value": "5"}, {"name": "A", "value": "6", "containerName": "side"}],
            "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {}}],
        }
    });
    assert_eq!(serde_json::to_value(&claim).expect("JSON"), expected);
}

#[test]
fn a_claim_says_when_it_was_asked_for_and_generated_names_differ() {
    let build = || ClaimBuilder::generated("p").build().expect("a claim");
    let (one, other) = (build(), build());
    assert_ne!(one.metadata.name, other.metadata.name);
    assert!(one.metadata.name.as_deref().is_some_and(crate::name::is_label));
    let annotations = one.metadata.annotations.expect("annotations");
    annotations[labels::CLIENT_FIRST_REQUESTED_AT].parse::<jiff::Timestamp>().expect("a time");
}

#[test]
fn claims_that_cannot_be() {
    let claim = || ClaimBuilder::new("c", "p");
    let cases = [
        (ClaimBuilder::new("C", "p"), "Name"),
        (ClaimBuilder::new("c", "p_"), "Name"),
        (claim().shutdown_after(Duration::MAX), "Range"),
        (claim().ttl_after_finished(Duration::from_secs(1 << 31)), "Range"),
        (claim().label("a b", "v"), "Key"),
        (claim().label("a", "a b"), "LabelValue"),
        (claim().annotation("a b", "v"), "Key"),
        (claim().pod_label("a", "v"), "PodLabel"),
        (claim().pod_annotation("k8s.io/a", "v"), "PodAnnotation"),
        (claim().env("A=", "v"), "Env"),
        (claim().env("A", "1").env("A", "2"), "Env"),
        (claim().env_of("Bad Name", "A", "1"), "Container"),
        (claim().volume(volume("a.b")), "Volume"),
        (claim().volume(volume("a")).volume(volume("a")), "Volume"),
    ];
    for (builder, kind) in cases {
        let error = builder.build().expect_err(kind);
        assert!(format!("{error:?}").starts_with(kind), "{error:?} is not {kind}");
    }
}

/// Strings over a small alphabet, shortest first: every edge of the rules is among them.
fn strings() -> impl Iterator<Item = String> {
    let alphabet = ['a', 'Z', '0', '-', '.', '_', '/', '=', ' '];
    let mut all = vec![String::new()];
    let mut from = 0;
    for _ in 0..4 {
        let to = all.len();
        for index in from..to {
            for letter in alphabet {
                let longer = format!("{}{letter}", all[index]);
                all.push(longer);
            }
        }
        from = to;
    }
    all.into_iter()
}

#[test]
fn what_is_built_has_names_that_dns_allows() {
    let edge = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    for name in strings() {
        let allowed = !name.is_empty()
            && name.chars().all(|c| edge(c) || c == '-' || c == '.')
            && name
                .split('.')
                .all(|part| part.chars().next().is_some_and(edge) && part.chars().last().is_some_and(edge));
        assert_eq!(ClaimBuilder::new(&name, "p").build().is_ok(), allowed, "{name:?}");
        assert_eq!(PoolBuilder::new("p", name.as_str()).build().is_ok(), allowed, "{name:?}");
        let label = ClaimBuilder::new("c", "p").label("k", &name).build().is_ok();
        let word = name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
            && !name.starts_with(['-', '_', '.'])
            && !name.ends_with(['-', '_', '.']);
        assert_eq!(label, word, "{name:?}");
        // Whatever is let through can be told to every shell and kernel.
        if ClaimBuilder::new("c", "p").env(&name, "v").build().is_ok() {
            assert!(!name.is_empty() && !name.contains(['=', '/', ' ']) && !name.starts_with('0'), "{name:?}");
        }
    }
}

#[test]
fn pools_and_their_sizes() {
    let pool =
        PoolBuilder::new("p", "t").replicas(0).update_strategy(UpdateStrategyType::Recreate).build().expect("a pool");
    let spec = serde_json::to_value(&pool.spec).expect("JSON");
    assert_eq!(
        spec,
        json!({"replicas": 0, "sandboxTemplateRef": {"name": "t"}, "updateStrategy": {"type": "Recreate"}})
    );
    let error = PoolBuilder::new("p", "t").replicas(1 << 31).build().expect_err("too many");
    assert!(matches!(error, BuildError::Range { field: "replicas", .. }));
}

#[test]
fn a_restricted_template_passes_the_restricted_standard() {
    let mut pod: PodSpec = serde_json::from_value(json!({
        "hostNetwork": true, "hostPID": true,
        "initContainers": [{"name": "init", "image": "i", "securityContext": {"privileged": true}}],
        "containers": [{"name": "main", "image": "i", "securityContext":
            {"capabilities": {"add": ["SYS_ADMIN"]}, "allowPrivilegeEscalation": true}}],
    }))
    .expect("a pod");
    pod.security_context.get_or_insert_default().run_as_user = Some(4711);
    let template = TemplateBuilder::new("t", pod)
        .restricted()
        .network(vec![], vec![])
        .env_policy(EnvVarsInjectionPolicy::Allowed)
        .build()
        .expect("a template");
    let container = json!({"allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "runAsNonRoot": true,
        "capabilities": {"drop": ["ALL"]}});
    let expected = json!({
        "podTemplate": {"spec": {
            "automountServiceAccountToken": false, "enableServiceLinks": false,
            "securityContext": {"runAsNonRoot": true, "runAsUser": 4711, "runAsGroup": 1000, "fsGroup": 1000,
                "seccompProfile": {"type": "RuntimeDefault"}},
            "initContainers": [{"name": "init", "image": "i", "securityContext": container}],
            "containers": [{"name": "main", "image": "i", "securityContext": container}],
        }},
        "networkPolicyManagement": "Managed", "networkPolicy": {"ingress": [], "egress": []},
        "envVarsInjectionPolicy": "Allowed",
    });
    assert_eq!(serde_json::to_value(&template.spec).expect("JSON"), expected);
}

#[test]
fn pods_without_containers_or_with_bad_ones() {
    let pod = |names: &[&str]| PodSpec {
        containers: names
            .iter()
            .map(|name| k8s_openapi::api::core::v1::Container { name: (*name).into(), ..Default::default() })
            .collect(),
        ..PodSpec::default()
    };
    assert_eq!(TemplateBuilder::new("t", pod(&[])).build().expect_err("none"), BuildError::NoContainer);
    for names in [&["A"][..], &["a", "a"], &[""]] {
        let error = SandboxBuilder::new("s", pod(names)).build().expect_err("a bad name");
        assert!(matches!(error, BuildError::Container { .. }), "{names:?}");
    }
    let long = "a".repeat(64);
    assert!(SandboxBuilder::new(&long, pod(&["a"])).build().is_ok());
    let error = SandboxBuilder::new(&long, pod(&["a"])).service(true).build().expect_err("too long for a Service");
    assert!(matches!(error, BuildError::ServiceName { .. }));
    assert!(SandboxBuilder::new("a".repeat(63), pod(&["a"])).service(true).build().is_ok());
}
