//! Which cluster is meant, and a client for it.

use std::time::Duration;

use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig, KubeconfigError},
};

use super::finding::told;
use crate::{Settings, failure::PROXY};

/// Nobody waits longer for a cluster that does not answer.
const CONNECT: Duration = Duration::from_secs(10);
const READ: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(super) struct Unusable {
    pub(super) cause: String,
    pub(super) fix: &'static str,
}

/// As the provider decides it: in a pod, unless another cluster is named.
pub(super) fn is_inside(settings: &Settings) -> bool {
    settings.kubeconfig.is_none() && settings.context.is_none() && Config::incluster().is_ok()
}

/// The pod's own account, or the named kubeconfig and context, or what `kubectl` would take.
pub(super) async fn client(settings: &Settings) -> Result<Client, Unusable> {
    let options = KubeConfigOptions { context: settings.context.clone(), ..KubeConfigOptions::default() };
    let kubeconfig = match &settings.kubeconfig {
        Some(path) => Some(Kubeconfig::read_from(path)),
        None if is_inside(settings) => None,
        None => Some(Kubeconfig::read()),
    };
    let kubeconfig = kubeconfig.transpose().map_err(|error| unusable(&error))?;
    let mut config = match kubeconfig.clone() {
        Some(read) => Config::from_custom_kubeconfig(read, &options).await.map_err(|error| unusable(&error))?,
        None => Config::incluster()
            .map_err(|error| Unusable { cause: told(&error), fix: "Give the pod a ServiceAccount and its token." })?,
    };
    config.connect_timeout = Some(CONNECT);
    config.read_timeout = Some(READ);
    let from = kubeconfig.as_ref().map(|read| (read, settings.context.as_deref()));
    agent_sandbox::connect(&config, from).map_err(|error| match error {
        agent_sandbox::Error::BadProxy { .. } => Unusable { cause: error.to_string(), fix: PROXY },
        error => Unusable {
            cause: format!("no client can be made of the kubeconfig: {}", told(&error)),
            fix: "Correct the kubeconfig; `kubectl version` shows the same.",
        },
    })
}

fn unusable(error: &KubeconfigError) -> Unusable {
    let fix = match error {
        KubeconfigError::LoadContext(_) => "`kubectl config get-contexts` lists the contexts there are.",
        KubeconfigError::CurrentContextNotSet => "Choose one with `kubectl config use-context`, or with --context.",
        KubeconfigError::ReadConfig(..) | KubeconfigError::FindPath => {
            "Set KUBECONFIG, or name a file with --kubeconfig; in a pod, give it a ServiceAccount."
        }
        KubeconfigError::ParseProxyUrl(_) => PROXY,
        _ => "Correct the kubeconfig; `kubectl config view` shows how it is read.",
    };
    Unusable { cause: told(error), fix }
}
