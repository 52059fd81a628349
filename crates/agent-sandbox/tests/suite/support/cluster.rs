//! A namespace of a test's own on a real cluster, removed with all that is in it.

use std::{
    path::PathBuf,
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use agent_sandbox::AgentSandbox;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::{
    Api,
    api::{DeleteParams, PostParams},
    runtime::wait::{await_condition, conditions::is_pod_running},
};
use serde_json::json;

pub(crate) type Outcome<T = ()> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

const PATIENCE: Duration = Duration::from_secs(90);
const IMAGE: &str = "sandbar.test/busybox:latest";

/// Asks again until it is so.
pub(crate) async fn until(what: &str, is_so: impl AsyncFn() -> Outcome<bool>) -> Outcome {
    let deadline = Instant::now() + PATIENCE;
    while !is_so().await? {
        if Instant::now() > deadline {
            return Err(format!("not within {PATIENCE:?}: {what}").into());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}

/// A namespace.
pub(crate) struct Place {
    pub(crate) sandboxes: AgentSandbox,
    namespaces: Api<Namespace>,
}

impl Place {
    /// None where there is no cluster, which is said.
    pub(crate) async fn empty(test: &str) -> Outcome<Option<Self>> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let Some(kubeconfig) = std::env::var_os("SANDBAR_CLUSTER").map(PathBuf::from) else {
            sandbar_test_harness::not_run(
                test,
                "SANDBAR_CLUSTER names no kubeconfig: `make test-kubernetes` makes a cluster",
            );
            return Ok(None);
        };
        let name = format!("streams-{}-{}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
        let sandboxes = AgentSandbox::from_kubeconfig(Some(&kubeconfig), None, Some(&name)).await?;
        let namespaces: Api<Namespace> = Api::all(sandboxes.client().clone());
        let namespace = serde_json::from_value(json!({ "metadata": { "name": name } }))?;
        namespaces.create(&PostParams::default(), &namespace).await?;
        Ok(Some(Self { sandboxes, namespaces }))
    }

    /// With a pod named `box` that does nothing.
    pub(crate) async fn with_pod(test: &str) -> Outcome<Option<Self>> {
        let Some(place) = Self::empty(test).await? else { return Ok(None) };
        place.pod("box", &["sleep", "1000000"], "Never").await?;
        Ok(Some(place))
    }

    /// Returns when it runs.
    pub(crate) async fn pod(&self, name: &str, command: &[&str], restart: &str) -> Outcome {
        let pods: Api<Pod> = Api::namespaced(self.sandboxes.client().clone(), self.sandboxes.namespace());
        let container = json!({ "name": "main", "image": IMAGE, "imagePullPolicy": "Never", "command": command });
        let spec = json!({ "containers": [container], "restartPolicy": restart, "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": false });
        let pod = serde_json::from_value(json!({ "metadata": { "name": name }, "spec": spec }))?;
        // The namespace's service account is made a moment after it.
        let deadline = Instant::now() + PATIENCE;
        while let Err(error) = pods.create(&PostParams::default(), &pod).await {
            if Instant::now() > deadline || !error.to_string().contains("serviceaccount") {
                return Err(error.into());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        tokio::time::timeout(PATIENCE, await_condition(pods, name, is_pod_running())).await??;
        Ok(())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let (namespaces, name) = (self.namespaces.clone(), self.sandboxes.namespace().to_owned());
        let client = self.sandboxes.client().clone();
        let _told = std::thread::spawn(move || {
            // A connection belongs to the runtime that made it, which may be ending.
            drop(client);
            let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return };
            runtime.block_on(async {
                let Some(kubeconfig) = std::env::var_os("SANDBAR_CLUSTER").map(PathBuf::from) else { return };
                let fresh = AgentSandbox::from_kubeconfig(Some(&kubeconfig), None, None).await;
                let namespaces = fresh.map_or(namespaces, |fresh| Api::all(fresh.client().clone()));
                let _gone = namespaces.delete(&name, &DeleteParams::background()).await;
            });
        })
        .join();
    }
}
