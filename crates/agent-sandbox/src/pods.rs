//! Where the streams of a pod begin: one WebSocket to a subresource of it.

use std::collections::HashSet;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Resource as _, ResourceExt as _, client::Connection, core::Request};

use crate::follow::{Change, Follow};
use crate::{AgentSandbox, Sandbox, labels};

/// Sent while nothing else is, so that proxies between do not take the stream for dead.
pub(crate) const PING_EVERY: Duration = Duration::from_secs(20);
/// Longer than several pings without any answer means that nobody is there any more.
pub(crate) const PATIENCE: Duration = Duration::from_secs(90);

/// The pod that an operation is about: by its name, or by the [`Sandbox`] it belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target(String);

impl Target {
    /// The name of the pod.
    pub fn pod(&self) -> &str {
        &self.0
    }
}

impl From<&str> for Target {
    fn from(pod: &str) -> Self {
        Self(pod.to_owned())
    }
}

impl From<String> for Target {
    fn from(pod: String) -> Self {
        Self(pod)
    }
}

impl From<&String> for Target {
    fn from(pod: &String) -> Self {
        Self(pod.clone())
    }
}

/// A sandbox's pod has its name, unless its annotation says another.
impl From<&Sandbox> for Target {
    fn from(sandbox: &Sandbox) -> Self {
        let named = sandbox.annotations().get(labels::POD_NAME).cloned();
        Self(named.filter(|name| !name.is_empty()).unwrap_or_else(|| sandbox.name_any()))
    }
}

#[derive(Clone)]
pub(crate) struct Pods {
    client: kube::Client,
    namespace: String,
}

impl Pods {
    pub(crate) fn api(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    pub(crate) async fn connect(
        &self,
        request: impl FnOnce(Request) -> Result<hyper::Request<Vec<u8>>, kube::core::request::Error>,
    ) -> Result<Connection, crate::Error> {
        let pods = Request::new(Pod::url_path(&(), Some(&self.namespace)));
        let request = request(pods).map_err(kube::Error::BuildRequest)?;
        Ok(self.client.connect(request).await?)
    }
}

impl AgentSandbox {
    pub(crate) fn pods(&self) -> Pods {
        Pods { client: self.client().clone(), namespace: self.namespace().to_owned() }
    }

    /// Watches until this sandbox has no pod, not even one that is ending.
    pub(crate) async fn without_pods(&self, sandbox: &str) -> Result<(), crate::Error> {
        let mut follow = Follow::labels(self.pods().api(), Some(labels::pod_selector(sandbox)));
        let mut left = HashSet::new();
        loop {
            match follow.next().await {
                Change::Listed(pods, _) => left = pods.iter().map(|pod| pod.name_any()).collect(),
                Change::Applied(pod) => _ = left.insert(pod.name_any()),
                Change::Deleted(pod) => _ = left.remove(&pod.name_any()),
                Change::Lost { error, hopeless: true } => return Err(error),
                Change::Lost { .. } | Change::Resumed => continue,
            }
            if left.is_empty() {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sandbox_names_its_pod() {
        let mut sandbox = Sandbox::new("warm-abcde", crate::SandboxSpec::default());
        assert_eq!(Target::from(&sandbox).pod(), "warm-abcde");
        sandbox.annotations_mut().insert(labels::POD_NAME.to_owned(), "another".to_owned());
        assert_eq!(Target::from(&sandbox).pod(), "another");
    }
}
