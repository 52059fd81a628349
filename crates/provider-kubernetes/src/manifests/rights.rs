//! What the server may do in a cluster, one line a right with its reason. The manifests grant these, the check asks for them,
//! and there is no other list.

use agent_sandbox::{EXTENSIONS_GROUP, GROUP};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Right {
    pub group: &'static str,
    pub resource: &'static str,
    pub verbs: &'static [&'static str],
    pub why: &'static str,
    pub scope: Scope,
    /// Whether sandboxes cannot be made without it.
    pub required: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// In the namespace of the sandboxes.
    Namespace,
    /// There as well, and only for a server outside of the cluster's network.
    Outside,
    /// What has no namespace.
    Cluster,
}

const fn held(group: &'static str, resource: &'static str, verbs: &'static [&'static str], why: &'static str) -> Right {
    Right { group, resource, verbs, why, scope: Scope::Namespace, required: true }
}

pub const RIGHTS: [Right; 11] = [
    held(
        EXTENSIONS_GROUP,
        "sandboxclaims",
        &["create", "get", "list", "watch", "patch", "delete"],
        "One claim for each sandbox; patched to renew its lease.",
    ),
    held(
        EXTENSIONS_GROUP,
        "sandboxtemplates",
        &["get", "create", "patch", "delete"],
        "One for each template of Sandbar: made when it is first used, applied again when it differs, removed when nobody uses it.",
    ),
    held(
        EXTENSIONS_GROUP,
        "sandboxwarmpools",
        &["get", "list", "create", "patch", "delete"],
        "One beside each of those, from which its sandboxes are claimed.",
    ),
    held(EXTENSIONS_GROUP, "sandboxwarmpools/scale", &["patch"], "How many it keeps, and nothing else of it."),
    held(
        GROUP,
        "sandboxes",
        &["patch"],
        "To stop a sandbox and to start it again; made and deleted by the controller alone.",
    ),
    held("", "pods", &["get", "list", "watch"], "Why a sandbox is not ready."),
    held("", "pods/log", &["get"], "What the pods of `sandbar kubernetes check` have seen."),
    Right {
        required: false,
        ..held("", "events", &["list"], "Why a pool does not fill up, which nothing else tells.")
    },
    Right {
        scope: Scope::Outside,
        // A WebSocket begins as a GET, and is a creation to Kubernetes 1.35 and later.
        ..held(
            "",
            "pods/portforward",
            &["get", "create"],
            "The way to guests for a server that no pod's address leads to.",
        )
    },
    Right {
        scope: Scope::Cluster,
        required: false,
        ..held("node.k8s.io", "runtimeclasses", &["get"], "Whether the RuntimeClass that a template names is there.")
    },
    Right {
        scope: Scope::Cluster,
        required: false,
        ..held("storage.k8s.io", "storageclasses", &["list"], "Whether volumes have a StorageClass to come from.")
    },
];

/// Of the namespace's own object a Role in it may speak.
pub const OWN_NAMESPACE: Right = Right {
    required: false,
    ..held("", "namespaces", &["get"], "Which Pod Security level holds for the sandboxes; this one namespace only.")
};
