//! A namespace for each test, and the objects in it as the apiserver has them.

use std::time::Duration;

use agent_sandbox::{AgentSandbox, Version};
use k8s_openapi::api::core::v1::{Container, Namespace, PodSpec};
use kube::Api;
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

pub(crate) const LONG: Duration = Duration::from_secs(30);
/// Enough for an answer, not for something that does not come.
pub(crate) const SHORT: Duration = Duration::from_secs(15);

pub(crate) struct Place {
    pub(crate) kube: kube::Client,
    pub(crate) namespace: String,
}

impl Place {
    /// A namespace on the apiserver that serves this, or word that the test does not run.
    pub(crate) async fn on(serves: &str, test: &str) -> Option<Self> {
        let kubeconfig = std::env::var_os("SANDBAR_CLUSTER")
            .filter(|_| std::env::var("SANDBAR_CLUSTER_BARE").is_ok_and(|served| served == serves));
        let Some(kubeconfig) = kubeconfig else {
            let why = format!("no API server with {serves} of agent-sandbox: `make test-kubernetes` makes one");
            sandbar_test_harness::not_run(test, &why);
            return None;
        };
        let file = kube::config::Kubeconfig::read_from(&kubeconfig).expect("the kubeconfig");
        let config = kube::Config::from_custom_kubeconfig(file, &Default::default()).await.expect("its context");
        let kube = kube::Client::try_from(config).expect("a client");
        let namespace = format!("{}-{}", test.replace('_', "-"), std::process::id());
        let mut object = Namespace::default();
        object.metadata.name = Some(namespace.clone());
        let namespaces: Api<Namespace> = Api::all(kube.clone());
        namespaces.create(&PostParams::default(), &object).await.expect("a namespace");
        Some(Self { kube, namespace })
    }

    /// A client that asked what is served.
    pub(crate) async fn client(&self) -> agent_sandbox::Result<AgentSandbox> {
        AgentSandbox::with_client(self.kube.clone(), self.namespace.as_str()).await
    }

    pub(crate) fn asking_for(&self, version: Version) -> AgentSandbox {
        AgentSandbox::with_version(self.kube.clone(), self.namespace.as_str(), version)
    }

    fn old(&self, kind: &str) -> Api<DynamicObject> {
        let (group, plural) = match kind {
            "Sandbox" => ("agents.x-k8s.io", "sandboxes".to_owned()),
            _ => ("extensions.agents.x-k8s.io", format!("{}s", kind.to_lowercase())),
        };
        let resource = ApiResource {
            group: group.into(),
            version: "v1alpha1".into(),
            api_version: format!("{group}/v1alpha1"),
            kind: kind.into(),
            plural,
        };
        Api::namespaced_with(self.kube.clone(), &self.namespace, &resource)
    }

    /// `spec` of an object in the words of `v1alpha1`.
    pub(crate) async fn spec(&self, kind: &str, name: &str) -> Value {
        self.old(kind).get(name).await.expect("an object").data["spec"].clone()
    }

    /// Writes a status as a controller would.
    pub(crate) async fn status(&self, kind: &str, name: &str, status: Value) {
        let patch = json!({ "status": status });
        self.old(kind).patch_status(name, &PatchParams::default(), &Patch::Merge(&patch)).await.expect("a status");
    }

    /// What this object's `Ready` would be now, as old controllers write it.
    pub(crate) async fn ready(&self, kind: &str, name: &str, reason: &str) -> Value {
        let generation = self.old(kind).get(name).await.expect("an object").metadata.generation;
        let status = if reason == "DependenciesReady" { "True" } else { "False" };
        json!([{"type": "Ready", "status": status, "reason": reason, "message": "m",
            "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": generation}])
    }
}

pub(crate) fn pod() -> PodSpec {
    let container =
        Container { name: "sandbox".into(), image: Some("registry.example/python:3".into()), ..Container::default() };
    PodSpec { containers: vec![container], ..PodSpec::default() }
}
