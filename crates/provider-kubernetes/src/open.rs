//! Finding the cluster, and what in it must be out of a sandbox's reach.

use std::net::SocketAddr;

use agent_sandbox::AgentSandbox;
use kube::{
    Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use sandbar_guest::protocol::REACH_KUBERNETES;
use sandbar_provider::Error;

use crate::{
    Settings, failure,
    manifests::{INSTALL, NEEDED_VERSION},
    reach::Way,
    settings::Reach,
};

pub(crate) struct Opened {
    pub(crate) cluster: AgentSandbox,
    pub(crate) way: Way,
    pub(crate) targets: Vec<String>,
}

pub(crate) async fn open(settings: &Settings) -> Result<Opened, Error> {
    let inside = settings.kubeconfig.is_none() && settings.context.is_none() && Config::incluster().is_ok();
    let namespace = Some(settings.namespace.as_str());
    let cluster = match inside {
        true => AgentSandbox::in_cluster(namespace).await,
        false => {
            AgentSandbox::from_kubeconfig(settings.kubeconfig.as_deref(), settings.context.as_deref(), namespace).await
        }
    };
    let cluster = match cluster {
        Ok(cluster) => cluster,
        Err(error) => return Err(at(failure::told(error), settings, inside).await),
    };
    // What an old controller says means something else: it calls a sandbox without a pod ready.
    if cluster.version().as_str() != NEEDED_VERSION {
        let cause = format!("it serves agent-sandbox in {} alone, and {NEEDED_VERSION} is needed", cluster.version());
        return Err(at(Error::Cluster { cause, fix: INSTALL.into() }, settings, inside).await);
    }
    let way = match settings.reach {
        Reach::PodIp => Way::Address,
        Reach::Auto if inside => Way::Address,
        Reach::Auto | Reach::PortForward => Way::Forward,
    };
    let targets = targets(settings, inside).await;
    Ok(Opened { cluster, way, targets })
}

/// Which cluster it was that failed: the one in mind may be another.
async fn at(error: Error, settings: &Settings, inside: bool) -> Error {
    match (error, config(settings, inside).await) {
        (Error::Cluster { cause, fix }, Some(config)) => {
            Error::Cluster { cause: format!("{cause} (at {})", config.cluster_url), fix }
        }
        (error, _) => error,
    }
}

async fn config(settings: &Settings, inside: bool) -> Option<Config> {
    match inside {
        true => Config::incluster().ok(),
        false => from_kubeconfig(settings).await,
    }
}

/// The API server, as every pod knows it and by the addresses that we do. A loopback address would be the pod's own.
async fn targets(settings: &Settings, inside: bool) -> Vec<String> {
    let mut found: Vec<SocketAddr> = Vec::new();
    if let Some(url) = config(settings, inside).await.map(|config| config.cluster_url)
        && let Some(host) = url.host()
    {
        let host = host.trim_matches(['[', ']']);
        let port = url.port_u16().unwrap_or(443);
        found.extend(tokio::net::lookup_host((host, port)).await.into_iter().flatten());
    }
    found.retain(|address| !address.ip().is_loopback() && !address.ip().is_unspecified());
    found.sort_unstable();
    found.dedup();
    [REACH_KUBERNETES.to_owned()].into_iter().chain(found.iter().map(ToString::to_string)).collect()
}

async fn from_kubeconfig(settings: &Settings) -> Option<Config> {
    let read = match &settings.kubeconfig {
        Some(path) => Kubeconfig::read_from(path),
        None => Kubeconfig::read(),
    };
    let options = KubeConfigOptions { context: settings.context.clone(), ..KubeConfigOptions::default() };
    Config::from_custom_kubeconfig(read.ok()?, &options).await.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_sandbox_is_tried_at_the_api_server_wherever_that_is_for_us() -> std::io::Result<()> {
        let place = tempfile::tempdir()?;
        for (server, wanted) in [
            ("https://127.0.0.1:34567", &["kubernetes"][..]),
            ("https://[::1]:6443", &["kubernetes"]),
            ("https://10.0.0.1", &["kubernetes", "10.0.0.1:443"]),
            ("https://[fd00::1]:6443", &["kubernetes", "[fd00::1]:6443"]),
        ] {
            let config = serde_json::json!({
                "apiVersion": "v1", "kind": "Config", "current-context": "here",
                "clusters": [{ "name": "here", "cluster": { "server": server } }],
                "users": [{ "name": "somebody", "user": {} }],
                "contexts": [{ "name": "here", "context": { "cluster": "here", "user": "somebody" } }],
            });
            let path = place.path().join("config");
            std::fs::write(&path, config.to_string())?;
            let settings = Settings { kubeconfig: Some(path), ..Settings::new("instance", Vec::new()) };
            assert_eq!(targets(&settings, false).await, wanted, "{server}");
        }
        Ok(())
    }
}
