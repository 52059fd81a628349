//! A namespace for each test, with what most of them need in it.

use sandbar_test_harness::not_run;
use std::process::Command;
use std::time::Duration;

use agent_sandbox::{AgentSandbox, PoolBuilder, TemplateBuilder};
use k8s_openapi::api::core::v1::{Container, Namespace, PodSpec, Probe};
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

pub(crate) const LONG: Duration = Duration::from_secs(90);

/// Outages hit every test, so they are alone.
static CLUSTER: RwLock<()> = RwLock::const_new(());

enum Hold {
    Shared(#[expect(dead_code, reason = "held")] RwLockReadGuard<'static, ()>),
    Alone(#[expect(dead_code, reason = "held")] RwLockWriteGuard<'static, ()>),
}

pub(crate) struct Place {
    pub(crate) client: AgentSandbox,
    pub(crate) config: kube::Config,
    hold: Hold,
}

impl Place {
    /// A namespace for the test `name`, or word that it does not run.
    pub(crate) async fn new(name: &str) -> Option<Self> {
        Self::open(name, false).await
    }

    /// The same for a test that stops parts of the cluster.
    pub(crate) async fn alone(name: &str) -> Option<Self> {
        if std::env::var_os("SANDBAR_CLUSTER").is_some() && Tool::find().is_none() {
            not_run(name, "SANDBAR_CLUSTER_TOOL and SANDBAR_CLUSTER_DIR are not set");
            return None;
        }
        Self::open(name, true).await
    }

    async fn open(name: &str, alone: bool) -> Option<Self> {
        let Some(kubeconfig) = std::env::var_os("SANDBAR_CLUSTER") else {
            not_run(name, "SANDBAR_CLUSTER is not set");
            return None;
        };
        let hold = match alone {
            true => Hold::Alone(CLUSTER.write().await),
            false => Hold::Shared(CLUSTER.read().await),
        };
        let file = kube::config::Kubeconfig::read_from(&kubeconfig).expect("the kubeconfig");
        let config = kube::Config::from_custom_kubeconfig(file, &Default::default()).await.expect("its context");
        let namespace = format!("as-{}-{}", name.replace('_', "-"), std::process::id());
        let path = std::path::Path::new(&kubeconfig);
        let client = AgentSandbox::from_kubeconfig(Some(path), None, Some(&namespace)).await.expect("the cluster");
        let mut object = Namespace::default();
        object.metadata.name = Some(namespace);
        namespaces(&client).create(&PostParams::default(), &object).await.expect("a namespace");
        Some(Self { client, config, hold })
    }

    /// A template and a pool, both called `name`, of this pod.
    pub(crate) async fn pool(&self, name: &str, pod: PodSpec, replicas: u32) {
        let template = TemplateBuilder::new(name, pod).restricted().build().expect("a template");
        self.client.templates().create(template).await.expect("a template");
        let pool = PoolBuilder::new(name, name).replicas(replicas).build().expect("a pool");
        self.client.pools().create(pool).await.expect("a pool");
    }

    /// Pods that are still in the namespace.
    pub(crate) async fn pods(&self) -> Vec<String> {
        let pods: Api<k8s_openapi::api::core::v1::Pod> =
            Api::namespaced(self.client.client().clone(), self.client.namespace());
        let list = pods.list(&ListParams::default()).await.expect("pods");
        list.items.into_iter().filter_map(|pod| pod.metadata.name).collect()
    }

    /// What belongs to something that is gone goes with it, or after it where the cluster had not seen it yet.
    pub(crate) async fn until_empty(&self) {
        let empty = async {
            while !self.pods().await.is_empty()
                || !self.client.sandboxes().list(None).await.expect("sandboxes").is_empty()
            {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        tokio::time::timeout(LONG, empty).await.expect("something is left");
    }

    /// Every test ends with this; what it leaves behind after a failure is in a namespace of its own.
    pub(crate) async fn close(self) {
        let Self { client, hold, .. } = self;
        namespaces(&client).delete(client.namespace(), &DeleteParams::default()).await.expect("deleted");
        drop(hold);
    }
}

fn namespaces(client: &AgentSandbox) -> Api<Namespace> {
    Api::all(client.client().clone())
}

/// A pod that sleeps until it is told to end.
pub(crate) fn sleeper() -> PodSpec {
    let image = std::env::var("BUSYBOX_IMAGE").unwrap_or_else(|_| "busybox:stable".into());
    let script = "trap 'exit 0' TERM; while :; do sleep 1 & wait; done";
    PodSpec {
        containers: vec![Container {
            name: "sandbox".into(),
            image: Some(image),
            image_pull_policy: Some("IfNotPresent".into()),
            command: Some(["sh", "-c", script].map(String::from).to_vec()),
            ..Container::default()
        }],
        termination_grace_period_seconds: Some(1),
        ..PodSpec::default()
    }
}

pub(crate) fn never_ready() -> Probe {
    serde_json::from_value(serde_json::json!({"exec": {"command": ["false"]}})).expect("a probe")
}

/// Stops and starts parts of the cluster.
pub(crate) struct Tool {
    tool: String,
    dir: String,
}

impl Tool {
    pub(crate) fn find() -> Option<Self> {
        Some(Self {
            tool: std::env::var("SANDBAR_CLUSTER_TOOL").ok()?,
            dir: std::env::var("SANDBAR_CLUSTER_DIR").ok()?,
        })
    }

    pub(crate) fn run(&self, verb: &str, part: &str) {
        let status = Command::new(&self.tool).args([verb, &self.dir, part]).status().expect("the cluster's tool");
        assert!(status.success(), "{verb} {part}: {status}");
    }
}
