//! An installation on the cluster that `SANDBAR_CLUSTER` (a kubeconfig) names: its documents are applied, and the cluster is
//! checked with the account they make, so that the rights they grant are known to be enough. `SANDBAR_CLUSTER_GUEST_IMAGE` is
//! an image on the node with the program as `/sandbar`.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use agent_sandbox::{SandboxClaim, SandboxTemplate, SandboxWarmPool};
use futures_util::FutureExt as _;
use k8s_openapi::api::{
    authentication::v1::{TokenRequest, TokenRequestSpec},
    core::v1::{Namespace, Pod, ServiceAccount},
    rbac::v1::{ClusterRole, ClusterRoleBinding, Role},
};
use kube::{
    Api, Client, Config, Resource, ResourceExt as _,
    api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams},
    config::{KubeConfigOptions, Kubeconfig},
    discovery::pinned_kind,
};
use sandbar_api::{ClusterCheck, ClusterFinding, ClusterReport, Verdict};
use sandbar_provider_kubernetes::{
    Settings, check,
    manifests::{Given, Values, key_shown, render},
    settings::Reach,
};
use sandbar_test_harness::Outcome;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

struct Installation {
    client: Client,
    kubeconfig: PathBuf,
    guest_image: String,
    server: String,
    sandboxes: String,
    place: tempfile::TempDir,
}

impl Installation {
    /// Nothing, where there is no cluster.
    async fn begin(name: &str) -> Result<Option<Self>, Box<dyn std::error::Error>> {
        let not_run = |why: &str| {
            sandbar_test_harness::not_run(NAME, why);
            Ok(None)
        };
        let Some(kubeconfig) = std::env::var_os("SANDBAR_CLUSTER").map(PathBuf::from) else {
            return not_run("SANDBAR_CLUSTER names no kubeconfig");
        };
        let Ok(guest_image) = std::env::var("SANDBAR_CLUSTER_GUEST_IMAGE") else {
            return not_run("SANDBAR_CLUSTER_GUEST_IMAGE names no image");
        };
        let read = Kubeconfig::read_from(&kubeconfig)?;
        let config = Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await?;
        let id = std::process::id();
        Ok(Some(Self {
            client: Client::try_from(config)?,
            kubeconfig,
            guest_image,
            server: format!("server-{name}-{id}"),
            sandboxes: format!("sandboxes-{name}-{id}"),
            place: tempfile::tempdir()?,
        }))
    }

    fn documents(&self) -> Result<Vec<Value>, Box<dyn std::error::Error>> {
        let identity = sandbar_provider::identity::Identity::from_seed([5; 32])?;
        let text = format!(
            "server_keys = [\"{}\"]\nimage_pull_policy = \"Never\"\n[server]\nnamespace = \"{}\"\nimage = \"{image}\"\n\
             [sandboxes]\nnamespace = \"{}\"\nimage = \"{image}\"\nguest_image = \"{image}\"\n",
            key_shown(&identity.public_key()),
            self.server,
            self.sandboxes,
            image = self.guest_image,
        );
        let recipe = "provider = \"kubernetes\"\n[limits]\nmemory = \"64MiB\"\n";
        let template = sandbar_api::template::parse("small", recipe)?;
        let rendered = render(&Values::read(&text)?, &[Given { template, text: recipe.into() }], &[])?;
        rendered.split("---\n").skip(1).map(|document| Ok(serde_saphyr::from_str(document)?)).collect()
    }

    async fn apply(&self, document: &Value, params: &PatchParams) -> Outcome {
        let object: DynamicObject = serde_json::from_value(document.clone())?;
        let types = object.types.clone().ok_or("it has no type")?;
        let (group, version) = types.api_version.split_once('/').unwrap_or(("", &types.api_version));
        let kind = kube::core::GroupVersionKind::gvk(group, version, &types.kind);
        let (resource, _) = pinned_kind(&self.client, &kind).await?;
        let api: Api<DynamicObject> = match object.namespace() {
            Some(namespace) => Api::namespaced_with(self.client.clone(), &namespace, &resource),
            None => Api::all_with(self.client.clone(), &resource),
        };
        api.patch(&object.name_any(), params, &Patch::Apply(document)).await?;
        Ok(())
    }

    /// A kubeconfig of the account that the server would use.
    async fn account(&self) -> Result<PathBuf, Box<dyn std::error::Error>> {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client.clone(), &self.server);
        let asked = TokenRequest { spec: TokenRequestSpec::default(), ..TokenRequest::default() };
        let token = accounts.create_token_request("sandbar", &PostParams::default(), &asked).await?;
        let token = token.status.ok_or("there is no token")?.token;
        let mut config: Value = serde_saphyr::from_str(&std::fs::read_to_string(&self.kubeconfig)?)?;
        let user = config["contexts"][0]["context"]["user"].clone();
        config["users"] = json!([{ "name": user, "user": { "token": token } }]);
        let path = self.place.path().join("config");
        std::fs::write(&path, config.to_string())?;
        Ok(path)
    }

    fn settings(&self, kubeconfig: PathBuf, image: &str) -> Settings {
        Settings {
            kubeconfig: Some(kubeconfig),
            namespace: self.sandboxes.clone(),
            guest_image: image.into(),
            default_image: self.guest_image.clone(),
            image_pull_policy: Some("Never".into()),
            // As from within: the account is that of a server in the cluster.
            reach: Reach::PodIp,
            ..Settings::new("instance", vec!["key".into()])
        }
    }

    async fn checked(&self, kubeconfig: PathBuf, image: &str, asked: ClusterCheck) -> ClusterReport {
        check::run(&self.settings(kubeconfig, image), &asked, &CancellationToken::new()).await
    }

    async fn left<K>(&self) -> Result<usize, kube::Error>
    where
        K: Resource<Scope = kube::core::NamespaceResourceScope> + Clone + std::fmt::Debug + DeserializeOwned,
        K::DynamicType: Default,
    {
        let params = match K::kind(&K::DynamicType::default()).as_ref() {
            // Nothing else runs here.
            "Pod" => ListParams::default(),
            _ => ListParams::default().labels("sandbar.dev/probe"),
        };
        Ok(Api::<K>::namespaced(self.client.clone(), &self.sandboxes).list(&params).await?.items.len())
    }

    async fn nothing_is_left(&self) -> Outcome {
        let begun = Instant::now();
        loop {
            let left = [
                self.left::<SandboxClaim>().await?,
                self.left::<SandboxTemplate>().await?,
                self.left::<SandboxWarmPool>().await?,
                self.left::<Pod>().await?,
            ];
            if left == [0; 4] {
                return Ok(());
            }
            if begun.elapsed() > Duration::from_secs(60) {
                return Err(format!("claims, templates, pools and pods that are left: {left:?}").into());
            }
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
    }

    async fn end(&self) -> Outcome {
        let params = DeleteParams::background();
        let cluster = format!("sandbar-{}", self.server);
        let roles = Api::<ClusterRole>::all(self.client.clone()).delete(&cluster, &params).await;
        let bindings = Api::<ClusterRoleBinding>::all(self.client.clone()).delete(&cluster, &params).await;
        let namespaces = Api::<Namespace>::all(self.client.clone());
        for namespace in [&self.server, &self.sandboxes] {
            namespaces.delete(namespace, &params).await?;
        }
        roles?;
        bindings?;
        Ok(())
    }
}

fn of<'a>(report: &'a ClusterReport, check: &str) -> &'a ClusterFinding {
    let found = report.findings.iter().find(|finding| finding.check == check);
    found.unwrap_or_else(|| panic!("nothing is said of {check}: {report:#?}"))
}

async fn install(installation: &Installation) -> Outcome {
    let (real, dry) =
        (PatchParams::apply("sandbar-tests").force(), PatchParams::apply("sandbar-tests").force().dry_run());
    let documents = installation.documents()?;
    for document in &documents {
        // A server would start, and wait for Secrets that nobody made.
        let params = if document["kind"] == "Deployment" { &dry } else { &real };
        installation.apply(document, params).await.map_err(|error| format!("{document}: {error}"))?;
    }
    let mut tried = 0;
    for document in &documents {
        let (pod, namespace) = match document["kind"].as_str() {
            Some("Deployment") => (&document["spec"]["template"]["spec"], &installation.server),
            Some("SandboxTemplate") => (&document["spec"]["podTemplate"]["spec"], &installation.sandboxes),
            _ => continue,
        };
        let mut pod: Pod = serde_json::from_value(json!({ "metadata": { "name": "tried" }, "spec": pod }))
            .map_err(|error| error.to_string())?;
        // The controller adds the volume of the claim.
        if let Some(spec) = &mut pod.spec {
            let volumes = spec.volumes.get_or_insert_default();
            if !volumes.iter().any(|volume| volume.name == "data") {
                volumes.push(serde_json::from_value(json!({ "name": "data", "emptyDir": {} }))?);
            }
        }
        let params = PostParams { dry_run: true, ..PostParams::default() };
        let pods: Api<Pod> = Api::namespaced(installation.client.clone(), namespace);
        // The namespace's service account is made a moment after it.
        let deadline = Instant::now() + Duration::from_secs(300);
        while let Err(error) = pods.create(&params, &pod).await {
            if Instant::now() > deadline || !error.to_string().contains("serviceaccount") {
                return Err(format!("a restricted namespace refuses {pod:?}: {error}").into());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        // The control: Pod Security is there to refuse.
        if let Some(spec) = &mut pod.spec {
            spec.host_network = Some(true);
        }
        assert!(pods.create(&params, &pod).await.is_err(), "{namespace} takes a pod in the host's network");
        tried += 1;
    }
    assert_eq!(tried, 2);
    Ok(())
}

async fn judge(installation: &Installation) -> Outcome {
    let account = installation.account().await?;
    let image = installation.guest_image.clone();
    let fine = |finding: &ClusterFinding| finding.verdict == Verdict::Green || finding.check == "pools";
    let mut report = installation.checked(account.clone(), &image, ClusterCheck::default()).await;
    // On a busy machine the cluster may once take longer than the check waits.
    if !report.findings.iter().all(fine) {
        eprintln!("{}", serde_json::to_string_pretty(&report)?);
        installation.nothing_is_left().await?;
        report = installation.checked(account.clone(), &image, ClusterCheck::default()).await;
    }
    eprintln!("{}", serde_json::to_string_pretty(&report)?);
    assert!(report.usable(), "{report:#?}");
    for finding in &report.findings {
        assert!(fine(finding), "{finding:?}");
    }
    assert!(of(&report, "network policy").evidence.starts_with("observed"), "{report:#?}");
    assert!(of(&report, "credentials").evidence.contains(&installation.server), "{report:#?}");
    installation.nothing_is_left().await?;

    let missing = installation.checked(account.clone(), "sandbar.test/nothing:1", ClusterCheck::default()).await;
    assert_eq!(of(&missing, "guest image").verdict, Verdict::Red, "{missing:#?}");
    assert!(!missing.usable());
    installation.nothing_is_left().await?;

    // Templates may have images of their own: the rest is seen all the same.
    let settings =
        Settings { default_image: "sandbar.test/nothing:1".into(), ..installation.settings(account.clone(), &image) };
    let missing = check::run(&settings, &ClusterCheck::default(), &CancellationToken::new()).await;
    let machine = of(&missing, "sandbox image");
    assert!(machine.verdict == Verdict::Red && machine.evidence.contains("ErrImageNeverPull"), "{missing:#?}");
    assert_eq!(of(&missing, "network policy").verdict, Verdict::Green, "{missing:#?}");
    assert!(missing.usable(), "{missing:#?}");
    installation.nothing_is_left().await?;

    // Cut off in the middle: nothing stays behind either.
    let settings = installation.settings(account.clone(), &image);
    let (asked, cancelled) = (ClusterCheck::default(), CancellationToken::new());
    let (cut, made) = tokio::join!(check::run(&settings, &asked, &cancelled), async {
        let begun = Instant::now();
        while installation.left::<SandboxClaim>().await.unwrap_or(0) == 0 && begun.elapsed() < Duration::from_secs(30) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let made = installation.left::<SandboxClaim>().await;
        cancelled.cancel();
        made
    });
    assert!(made? > 0, "{cut:#?}");
    assert_eq!(of(&cut, "network policy").verdict, Verdict::Grey, "{cut:#?}");
    installation.nothing_is_left().await?;

    // One verb less is seen, and then nothing is made.
    let roles: Api<Role> = Api::namespaced(installation.client.clone(), &installation.sandboxes);
    let name = format!("sandbar-{}", installation.server);
    let mut role = roles.get(&name).await?;
    for rule in role.rules.iter_mut().flatten() {
        if rule.resources.as_ref().is_some_and(|resources| resources.iter().any(|resource| resource == "sandboxclaims"))
        {
            rule.verbs.retain(|verb| verb != "patch");
        }
    }
    roles.replace(&name, &PostParams::default(), &role).await?;
    let begun = Instant::now();
    loop {
        let asked = ClusterCheck { runtime_class: Some("no-such-class".into()), ..ClusterCheck::default() };
        let report = installation.checked(account.clone(), &image, asked).await;
        let denied = of(&report, "permissions: sandboxclaims");
        if denied.verdict == Verdict::Red || begun.elapsed() > Duration::from_secs(20) {
            assert!(denied.evidence.contains("may not patch"), "{report:#?}");
            assert_eq!(of(&report, "runtime class").verdict, Verdict::Red);
            assert_eq!(of(&report, "controller").verdict, Verdict::Grey);
            return Ok(());
        }
    }
}

pub(crate) const NAME: &str = "an_installation_is_taken_and_its_account_finds_everything_in_order";

pub(crate) async fn run() -> Outcome {
    let Some(installation) = Installation::begin("check").await? else { return Ok(()) };
    let trying = async {
        install(&installation).await?;
        judge(&installation).await
    };
    // What fails leaves nothing behind either.
    let outcome = std::panic::AssertUnwindSafe(trying).catch_unwind().await;
    installation.end().await?;
    outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
