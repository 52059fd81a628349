//! The Python client of agent-sandbox, as it is released, with this cluster and our guest in the pod: without a server of
//! ours anywhere.

use std::process::Command;

use serde_json::{Value, json};

use crate::{
    kubernetes::place::{Turn, apply, until},
    support::{Outcome, cluster::Cluster, done, installed},
};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/e2e/kubernetes/sdk.py");

/// A template whose pods run the guest for these clients, and a pool of it.
fn objects(cluster: &Cluster) -> [Value; 2] {
    let held = json!({
        "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": true, "runAsNonRoot": true,
    });
    let guest = json!({"name": "guest", "mountPath": "/.sandbar"});
    let install = json!({
        "name": "install", "image": cluster.guest_image, "imagePullPolicy": "IfNotPresent",
        "command": ["/sandbar", "guest", "install", "/.sandbar"], "volumeMounts": [guest], "securityContext": held,
    });
    let container = json!({
        "name": "sandbox", "image": cluster.image, "imagePullPolicy": "IfNotPresent",
        "command": ["/.sandbar/sandbar", "guest", "pod", "--runtimes", "sandboxd,legacy"],
        "readinessProbe": {"tcpSocket": {"port": 8888}, "periodSeconds": 1},
        "volumeMounts": [guest, {"name": "work", "mountPath": "/workspace"}, {"name": "tmp", "mountPath": "/tmp"}],
        "securityContext": held,
    });
    let pod = json!({
        "automountServiceAccountToken": false, "enableServiceLinks": false, "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 2, "initContainers": [install], "containers": [container],
        "volumes": [
            {"name": "guest", "emptyDir": {}}, {"name": "work", "emptyDir": {}},
            {"name": "tmp", "emptyDir": {"medium": "Memory"}},
        ],
        "securityContext": {
            "runAsUser": 1000, "runAsGroup": 1000, "fsGroup": 1000, "runAsNonRoot": true,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    });
    let (version, named) = ("extensions.agents.x-k8s.io/v1beta1", json!({"name": "python"}));
    [
        json!({
            "apiVersion": version, "kind": "SandboxTemplate", "metadata": named,
            "spec": {"podTemplate": {"spec": pod}, "networkPolicyManagement": "Unmanaged"},
        }),
        json!({
            "apiVersion": version, "kind": "SandboxWarmPool", "metadata": named,
            "spec": {"replicas": 1, "sandboxTemplateRef": named},
        }),
    ]
}

#[test]
fn the_python_client_claims_and_drives_our_guest() -> Outcome {
    let name = "the_python_client_claims_and_drives_our_guest";
    let Some(cluster) = Cluster::or_not_run(name) else { return Ok(()) };
    let Some(packages) = installed(name, "agent-sandbox") else { return Ok(()) };
    let _turn = Turn::shared();
    let namespace = cluster.namespace(&format!("python-{}", std::process::id()))?;
    for object in objects(&cluster) {
        apply(&mut namespace.kubectl(&["apply", "-f", "-"]), &object)?;
    }
    for runtime in ["sandboxd", "legacy"] {
        let mut client = Command::new("timeout");
        client.args(["100", "/usr/bin/python3", SCRIPT, runtime, "python", &namespace.name]);
        client.env("PYTHONPATH", &packages).env("PYTHONDONTWRITEBYTECODE", "1").env("KUBECONFIG", &cluster.kubeconfig);
        let said = done(&mut client)?;
        assert!(said.ends_with("done\n"), "{runtime}: {said}");
    }
    until("its claims are gone", || Ok(namespace.names("sandboxclaims")?.is_empty()))
}
