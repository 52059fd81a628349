//! What an operator decides once for all sandboxes of a cluster. Everything else is the template's, or ours.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use k8s_openapi::api::core::v1::Toleration;
use sandbar_api::HumanSize;
use sandbar_provider::identity::Identity;

use crate::manifests;

/// Where sandboxes are, unless somebody says otherwise.
pub const NAMESPACE: &str = "sandbar-sandboxes";
/// What a template without an image of its own runs.
pub const DEFAULT_IMAGE: &str = "debian:stable-slim";
/// Holds the static binary as `/sandbar`.
pub const GUEST_IMAGE: &str = "sandbar:latest";

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

#[derive(Debug, Clone)]
pub struct Settings {
    /// Of all sandboxes, claims, templates and pools.
    pub namespace: String,
    /// Whose claims are whose, where several servers share a namespace: the first half of the digest of a server's key.
    pub instance: String,
    /// The public keys that guests obey, as base64 of their SubjectPublicKeyInfo. The first is this server's.
    pub server_keys: Vec<String>,
    /// The image of `root = { kind = "host" }`.
    pub default_image: String,
    /// The image that brings the guest into each pod.
    pub guest_image: String,
    pub image_pull_policy: Option<String>,
    pub image_pull_secrets: Vec<String>,
    /// The server's pods, which alone may connect to guests; none for a server outside of the cluster.
    pub server: Option<ServerPods>,
    pub reach: Reach,
    /// Which cluster; the usual places otherwise.
    pub kubeconfig: Option<PathBuf>,
    pub context: Option<String>,
    /// How long claims outlive a server that is gone for good.
    pub lease: Duration,
    /// How long a sandbox may take to be ready, images and volumes included.
    pub patience: Duration,
    /// Of volumes whose template states no limit.
    pub disk: HumanSize,
    pub node_selector: BTreeMap<String, String>,
    pub tolerations: Vec<Toleration>,
}

/// Pods by their labels, in a namespace by its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerPods {
    pub namespace: String,
    pub labels: BTreeMap<String, String>,
}

/// How guests are reached.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reach {
    /// At the address of their pod, as only the cluster's own network does.
    PodIp,
    /// Through the API server, from anywhere.
    PortForward,
    /// By address where the server runs in the cluster itself.
    #[default]
    Auto,
}

impl Settings {
    /// With what follows from the server's key.
    pub fn of(identity: &Identity) -> Self {
        Self::new(identity.instance(), vec![manifests::key_shown(&identity.public_key())])
    }

    pub fn new(instance: impl Into<String>, server_keys: Vec<String>) -> Self {
        Self {
            namespace: NAMESPACE.into(),
            instance: instance.into(),
            server_keys,
            default_image: DEFAULT_IMAGE.into(),
            guest_image: GUEST_IMAGE.into(),
            image_pull_policy: None,
            image_pull_secrets: Vec::new(),
            server: None,
            reach: Reach::Auto,
            kubeconfig: None,
            context: None,
            lease: 7 * DAY,
            patience: Duration::from_secs(5 * 60),
            disk: HumanSize(10 << 30),
            node_selector: BTreeMap::new(),
            tolerations: Vec::new(),
        }
    }
}
