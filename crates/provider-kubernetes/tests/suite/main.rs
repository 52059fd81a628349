//! The provider contract on the cluster that `SANDBAR_CLUSTER` (a kubeconfig) names, and what is special to one: real
//! pods, made by the real controller. Without a cluster each test says so.

mod check;
mod pods;
mod trouble;

use std::{path::PathBuf, process::ExitCode, sync::Arc};

use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::{
    Api, Client, Config, ResourceExt as _,
    api::{DeleteParams, ListParams, PostParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use sandbar_api::SandboxId;
use sandbar_provider::{
    Error, Provider, Spec,
    identity::Identity,
    suite::{self, Case, Differences, Opening, Subject},
};
use sandbar_provider_kubernetes::{Kubernetes, Settings, settings::Reach};
use sandbar_test_harness as harness;

struct Cluster {
    client: Client,
    settings: Settings,
    identity: Identity,
    /// Host and port of the API server.
    server: (String, u16),
}

impl Subject for Cluster {
    fn open(&self) -> Opening<'_> {
        Box::pin(async {
            let opened = Kubernetes::open(self.settings.clone(), self.identity.clone()).await;
            Ok(Arc::new(opened.map_err(said)?) as Arc<dyn Provider>)
        })
    }

    fn differs(&self) -> Differences {
        Differences {
            named_by_its_maker: true,
            more_interfaces: true,
            root_of_an_image: true,
            no_host_directories: true,
        }
    }
}

impl Cluster {
    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.settings.namespace)
    }

    /// Whether this program is in the cluster's network.
    fn is_near(&self) -> bool {
        self.settings.reach == Reach::PodIp
    }

    async fn pod_names(&self) -> Result<Vec<String>, String> {
        let pods = self.pods().list(&ListParams::default()).await.map_err(|error| error.to_string())?;
        Ok(pods.iter().map(|pod| pod.name_any()).collect())
    }
}

fn main() -> ExitCode {
    let mut cases = suite::contract::<Cluster>();
    cases.extend(pods::cases());
    cases.extend(trouble::cases());
    let mut tests: Vec<_> =
        cases.into_iter().map(|case| harness::Test::new(case.name, move || blocking(run(case)))).collect();
    tests.push(harness::Test::new(check::NAME, || blocking(check::run())));
    harness::main(tests)
}

fn blocking(test: impl Future<Output = harness::Outcome>) -> harness::Outcome {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(test)
}

async fn run(case: Case<Cluster>) -> harness::Outcome {
    let not_run = |why: &str| {
        harness::not_run(case.name, why);
        Ok(())
    };
    if let Some(why) = (case.not_here)() {
        return not_run(&why);
    }
    let Some(kubeconfig) = std::env::var_os("SANDBAR_CLUSTER").map(PathBuf::from) else {
        return not_run("SANDBAR_CLUSTER names no kubeconfig: `make test-kubernetes` makes a cluster");
    };
    let image = |name: &str| std::env::var(name).ok();
    let (Some(sandbox), Some(guest)) = (image("SANDBAR_CLUSTER_IMAGE"), image("SANDBAR_CLUSTER_GUEST_IMAGE")) else {
        return not_run("SANDBAR_CLUSTER_IMAGE and SANDBAR_CLUSTER_GUEST_IMAGE name no images");
    };
    let cluster = prepare(kubeconfig, sandbox, guest).await?;
    let outcome = (case.run)(&cluster).await;
    remove(&cluster).await?;
    Ok(outcome?)
}

/// A namespace of its own, as strict as the manifests make it.
async fn prepare(kubeconfig: PathBuf, image: String, guest_image: String) -> Result<Cluster, String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let read = Kubeconfig::read_from(&kubeconfig).map_err(|error| text(&error))?;
    let config =
        Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await.map_err(|error| text(&error))?;
    let host = config.cluster_url.host().unwrap_or_default().to_owned();
    let server = (host, config.cluster_url.port_u16().unwrap_or(443));
    let client = Client::try_from(config).map_err(|error| text(&error))?;
    let namespace = format!("sandbar-suite-{}", std::process::id());
    let object = serde_json::json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": { "name": namespace, "labels": { "pod-security.kubernetes.io/enforce": "restricted" } },
    });
    let object: Namespace = serde_json::from_value(object).map_err(|error| text(&error))?;
    let namespaces: Api<Namespace> = Api::all(client.clone());
    namespaces.create(&PostParams::default(), &object).await.map_err(|error| text(&error))?;
    let identity = identity()?;
    let reach = match std::env::var("SANDBAR_CLUSTER_REACH").as_deref() {
        Ok("port_forward") => Reach::PortForward,
        _ => Reach::PodIp,
    };
    let settings = Settings {
        namespace,
        default_image: image,
        guest_image,
        image_pull_policy: Some("IfNotPresent".into()),
        kubeconfig: Some(kubeconfig),
        reach,
        ..Settings::of(&identity)
    };
    Ok(Cluster { client, settings, identity, server })
}

async fn remove(cluster: &Cluster) -> Result<(), String> {
    let namespaces: Api<Namespace> = Api::all(cluster.client.clone());
    let deleted = namespaces.delete(&cluster.settings.namespace, &DeleteParams::default()).await;
    deleted.map(drop).map_err(|error| error.to_string())
}

fn identity() -> Result<Identity, String> {
    Identity::from_seed(random()?).map_err(|error| error.to_string())
}

fn random<const N: usize>() -> Result<[u8; N], String> {
    let mut bytes = [0; N];
    std::fs::File::open("/dev/urandom")
        .and_then(|mut file| std::io::Read::read_exact(&mut file, &mut bytes))
        .map_err(|error| error.to_string())?;
    Ok(bytes)
}

fn spec() -> Result<Spec, String> {
    Ok(Spec::standard(SandboxId::from_parts(1, random()?), "suite"))
}

fn said(error: Error) -> String {
    format!("{error} ({error:?})")
}
