//! How a cluster is reached, and which version of the API it speaks.

use std::path::Path;

use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::core::Status;
use kube::{Client, Config};

use crate::collection::Collection;
use crate::error::{Error, Result};
use crate::proxy;
use crate::resources::{
    EXTENSIONS_GROUP, GROUP, Kind, Sandbox, SandboxClaim, SandboxTemplate, SandboxWarmPool, Version,
};
use crate::transport;

/// One namespace of a cluster that runs agent-sandbox.
///
/// Clones share connections.
///
/// ```no_run
/// # async fn f() -> agent_sandbox::Result<()> {
/// use std::time::Duration;
/// use agent_sandbox::{AgentSandbox, ClaimBuilder};
///
/// let client = AgentSandbox::try_default().await?;
/// let claimed = client.claim(ClaimBuilder::generated("python").shutdown_after(Duration::from_secs(3600))).await?;
/// let ready = client.wait_ready(&claimed, Duration::from_secs(60)).await?;
/// println!("{} at {:?}", ready.sandbox_name, ready.pod_ips);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct AgentSandbox {
    client: Client,
    namespace: String,
    version: Version,
}

impl std::fmt::Debug for AgentSandbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { client: _, namespace, version } = self;
        f.debug_struct("AgentSandbox").field("namespace", namespace).field("version", version).finish_non_exhaustive()
    }
}

impl AgentSandbox {
    /// From the kubeconfig (`KUBECONFIG`, else `~/.kube/config`), or from the pod this runs in.
    pub async fn try_default() -> Result<Self> {
        match Self::from_kubeconfig(None, None, None).await {
            Err(no_kubeconfig @ Error::NoKubeconfig { .. }) => match Self::in_cluster(None).await {
                Err(Error::NotInCluster { .. }) => Err(no_kubeconfig),
                result => result,
            },
            result => result,
        }
    }

    /// From a kubeconfig: its path, context and namespace are the usual ones when not given. A proxy is that of its
    /// `proxy-url`, else of `HTTPS_PROXY`, which `NO_PROXY` and this machine's own addresses are exempt from.
    pub async fn from_kubeconfig(path: Option<&Path>, context: Option<&str>, namespace: Option<&str>) -> Result<Self> {
        let read = match path {
            Some(path) => Kubeconfig::read_from(path),
            None => Kubeconfig::read(),
        };
        let unreadable = |error| unreadable(error, path, context);
        let kubeconfig = read.map_err(unreadable)?;
        let options = KubeConfigOptions { context: context.map(str::to_owned), ..KubeConfigOptions::default() };
        let config = Config::from_custom_kubeconfig(kubeconfig.clone(), &options).await.map_err(unreadable)?;
        Self::from_config(&config, Some((&kubeconfig, context)), namespace).await
    }

    /// With the service account of the pod this runs in, in its namespace when none is given.
    pub async fn in_cluster(namespace: Option<&str>) -> Result<Self> {
        let config = Config::incluster().map_err(|error| Error::NotInCluster { source: Box::new(error) })?;
        Self::from_config(&config, None, namespace).await
    }

    async fn from_config(config: &Config, from: Option<Origin<'_>>, namespace: Option<&str>) -> Result<Self> {
        let namespace = namespace.unwrap_or(&config.default_namespace);
        Self::with_client(connect(config, from)?, namespace).await
    }

    /// With a client that exists, asking the cluster which version it serves.
    pub async fn with_client(client: Client, namespace: impl Into<String>) -> Result<Self> {
        let version = discover(&client).await?;
        Ok(Self::with_version(client, namespace, version))
    }

    /// With a client that exists, asking nothing: for a cluster that is known, or may not answer just now.
    pub fn with_version(client: Client, namespace: impl Into<String>, version: Version) -> Self {
        Self { client, namespace: namespace.into(), version }
    }

    /// The same cluster, another namespace.
    pub fn in_namespace(&self, namespace: impl Into<String>) -> Self {
        Self { namespace: namespace.into(), ..self.clone() }
    }

    /// What requests go through.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Where everything here happens.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// What the cluster serves.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Sandboxes, one by one.
    pub fn sandboxes(&self) -> Collection<Sandbox> {
        Collection::new(self.clone())
    }

    /// Claims: one sandbox each.
    pub fn claims(&self) -> Collection<SandboxClaim> {
        Collection::new(self.clone())
    }

    /// What sandboxes are made from.
    pub fn templates(&self) -> Collection<SandboxTemplate> {
        Collection::new(self.clone())
    }

    /// Sandboxes that wait to be claimed.
    pub fn pools(&self) -> Collection<SandboxWarmPool> {
        Collection::new(self.clone())
    }

    /// Every request the library can make, for clusters that serve `v1beta1`.
    pub fn api<K: Kind>(&self) -> kube::Api<K> {
        kube::Api::namespaced(self.client.clone(), &self.namespace)
    }
}

/// The kubeconfig that a configuration is of, and the context in it when that is not the current one.
pub type Origin<'a> = (&'a Kubeconfig, Option<&'a str>);

/// A client for a configuration that was changed or made by hand, over connections and through proxies like those of
/// [`AgentSandbox::from_kubeconfig`]. That of a pod is of no kubeconfig, and uses no proxy.
pub fn connect(config: &Config, from: Option<Origin<'_>>) -> Result<Client> {
    let proxy = match from {
        Some((kubeconfig, context)) => {
            let named = proxy::named(kubeconfig, context);
            proxy::of(named, &config.cluster_url, |name| std::env::var(name).ok())?
        }
        None => None,
    };
    transport::client(config, proxy).map_err(|error| match error {
        error @ (kube::Error::Auth(_) | kube::Error::RustlsTls(_)) => Error::BadKubeconfig { source: Box::new(error) },
        error => error.into(),
    })
}

fn unreadable(error: KubeconfigError, path: Option<&Path>, context: Option<&str>) -> Error {
    match error {
        KubeconfigError::ReadConfig(..) | KubeconfigError::FindPath => {
            Error::NoKubeconfig { path: path.map(Path::to_owned), source: Box::new(error) }
        }
        KubeconfigError::LoadContext(name) => Error::ContextNotFound { context: context.unwrap_or(&name).to_owned() },
        // An empty kubeconfig is what a missing default one reads as.
        KubeconfigError::CurrentContextNotSet if path.is_none() && context.is_none() => {
            Error::NoKubeconfig { path: None, source: Box::new(error) }
        }
        KubeconfigError::ParseProxyUrl(_) => Error::BadProxy {
            from: "proxy-url of the kubeconfig, or by HTTPS_PROXY,".into(),
            why: proxy::NO_URL.into(),
        },
        error => Error::BadKubeconfig { source: Box::new(error) },
    }
}

/// The four resources by group, with the full names that `kubectl get crd` shows.
const RESOURCES: [(&str, &[(&str, &str)]); 2] = [
    (GROUP, &[("sandboxes", "sandboxes.agents.x-k8s.io")]),
    (
        EXTENSIONS_GROUP,
        &[
            ("sandboxclaims", "sandboxclaims.extensions.agents.x-k8s.io"),
            ("sandboxtemplates", "sandboxtemplates.extensions.agents.x-k8s.io"),
            ("sandboxwarmpools", "sandboxwarmpools.extensions.agents.x-k8s.io"),
        ],
    ),
];

/// The best version that has all four kinds.
async fn discover(client: &Client) -> Result<Version> {
    let beta = missing(client, Version::V1Beta1).await?;
    if beta.is_empty() {
        return Ok(Version::V1Beta1);
    }
    let alpha = missing(client, Version::V1Alpha1).await?;
    match alpha.len() {
        0 => Ok(Version::V1Alpha1),
        fewer if fewer < beta.len() => Err(Error::CrdsMissing { missing: alpha, version: Version::V1Alpha1 }),
        _ => Err(Error::CrdsMissing { missing: beta, version: Version::V1Beta1 }),
    }
}

/// What the answer to a request at `url` means. A 404 that names no object is about the resource, which is not served; the
/// apiserver does not say so.
pub(crate) fn answered(error: kube::Error, url: &str) -> Error {
    let nameless = |status: &Status| status.details.as_ref().is_none_or(|details| details.name.is_empty());
    match &error {
        kube::Error::Api(status) if status.code == 404 && nameless(status) => match resource(url) {
            Some((missing, version)) => Error::CrdsMissing { missing: vec![missing], version },
            None => error.into(),
        },
        _ => error.into(),
    }
}

/// The resource of ours that has this path, `/apis/<group>/<version>/namespaces/<namespace>/<plural>`.
fn resource(url: &str) -> Option<(&'static str, Version)> {
    let parts: Vec<&str> = url.split('/').collect();
    let ["", "apis", group, version, "namespaces", _, plural] = parts[..] else { return None };
    let (_, resources) = RESOURCES.iter().find(|(name, _)| *name == group)?;
    let (_, full) = resources.iter().find(|(name, _)| *name == plural)?;
    let version = [Version::V1Beta1, Version::V1Alpha1].into_iter().find(|one| one.as_str() == version)?;
    Some((full, version))
}

async fn missing(client: &Client, version: Version) -> Result<Vec<&'static str>> {
    let mut missing = Vec::new();
    for (group, resources) in RESOURCES {
        let served = match client.list_api_group_resources(&format!("{group}/{version}")).await {
            Ok(list) => list.resources,
            Err(kube::Error::Api(status)) if status.code == 404 => Vec::new(),
            Err(error) => return Err(error.into()),
        };
        let absent = resources.iter().filter(|(plural, _)| !served.iter().any(|one| one.name == *plural));
        missing.extend(absent.map(|(_, full)| *full));
    }
    Ok(missing)
}
