//! The last release with nothing but `v1alpha1`: its schemas take all that the builders make, and nothing of it is lost.

use std::time::Duration;

use agent_sandbox::{
    AgentSandbox, ClaimBuilder, ClaimShutdownPolicy, ClaimState, Conditions, EnvVarsInjectionPolicy, Error,
    OperatingMode, PoolBuilder, SandboxBuilder, SandboxTemplate, ShutdownPolicy, TemplateBuilder, UpdateStrategyType,
    Version, VolumeClaimTemplate, VolumeClaimTemplatesPolicy, labels,
};
use k8s_openapi::api::core::v1::{Pod, PodSpec, ServiceAccount};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::bare::place::{LONG, Place, SHORT, pod};

const SERVES: &str = "v0.4.6";

/// A pod with as many kinds of fields as a test needs.
fn rich() -> PodSpec {
    serde_json::from_value(json!({
        "initContainers": [{"name": "install", "image": "i", "restartPolicy": "Always"}],
        "containers": [{"name": "sandbox", "image": "i", "env": [{"name": "A", "value": "1"}],
            "ports": [{"name": "http", "containerPort": 8888, "protocol": "TCP"}],
            "resources": {"limits": {"cpu": "500m", "memory": "64Mi"}, "requests": {"cpu": "0"}},
            "readinessProbe": {"httpGet": {"path": "/", "port": "http"}, "periodSeconds": 1},
            "volumeMounts": [{"name": "data", "mountPath": "/data", "subPath": "a"}]}],
        "volumes": [{"name": "data", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}],
        "dnsPolicy": "None", "dnsConfig": {"nameservers": ["127.0.0.1"]}, "runtimeClassName": "gvisor",
        "tolerations": [{"operator": "Exists"}], "nodeSelector": {"a": "b"}, "restartPolicy": "Never",
    }))
    .expect("a pod")
}

fn volume() -> VolumeClaimTemplate {
    serde_json::from_value(json!({"metadata": {"name": "data", "labels": {"a": "b"}},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}))
    .expect("a volume")
}

async fn open(test: &str) -> Option<(Place, AgentSandbox)> {
    let place = Place::on(SERVES, test).await?;
    let client = place.client().await.expect("it is served");
    assert_eq!(client.version(), Version::V1Alpha1);
    Some((place, client))
}

/// A template `t` and a pool `p` of it.
async fn furnish(client: &AgentSandbox) {
    let template = TemplateBuilder::new("t", pod()).build().expect("a template");
    client.templates().create(template).await.expect("a template");
    let pool = PoolBuilder::new("p", "t").replicas(0).build().expect("a pool");
    client.pools().create(pool).await.expect("a pool");
}

#[tokio::test]
async fn the_newer_version_is_not_there() {
    let Some((place, _)) = open("the_newer_version_is_not_there").await else { return };
    let error = place.asking_for(Version::V1Beta1).claims().list(None).await.expect_err("only the old one");
    assert!(matches!(&error, Error::CrdsMissing { version: Version::V1Beta1, .. }), "{error:?}");
    assert!(error.to_string().contains("sandboxclaims.extensions.agents.x-k8s.io in v1beta1"), "{error}");
}

#[tokio::test]
async fn templates_are_kept_as_they_were_built() {
    let Some((place, client)) = open("templates_are_kept_as_they_were_built").await else { return };
    let templates = client.templates();
    let rule = json!([{"ports": [{"protocol": "TCP", "port": 7229}]}]);
    let (ingress, egress) =
        (serde_json::from_value(rule.clone()).expect("rules"), serde_json::from_value(rule).expect("rules"));
    let full = TemplateBuilder::new("full", rich())
        .restricted()
        .label("l", "1")
        .annotation("example.com/a", "2")
        .pod_label("l", "3")
        .pod_annotation("a", "4")
        .volume(volume())
        .service(true)
        .network(ingress, egress)
        .env_policy(EnvVarsInjectionPolicy::Allowed);
    let base = || TemplateBuilder::new("base", pod());
    let mut all = [
        full.build().expect("a template"),
        base().network(vec![], vec![]).env_policy(EnvVarsInjectionPolicy::Overrides).build().expect("a template"),
        base().unmanaged_network().env_policy(EnvVarsInjectionPolicy::Disallowed).build().expect("a template"),
    ];
    for (number, template) in all.iter_mut().enumerate() {
        template.metadata.name = Some(format!("t{number}"));
        let created = templates.create(template.clone()).await.expect("taken");
        assert_eq!(created.spec, template.spec);
        let applied = templates.apply(template.clone(), "test").await.expect("taken again");
        assert_eq!((applied.spec, applied.metadata.generation), (created.spec, created.metadata.generation));
    }
    assert_eq!(templates.list(Some("l=1")).await.expect("a list").len(), 1);
    assert_eq!(place.spec("SandboxTemplate", "t1").await["networkPolicy"], json!({"ingress": [], "egress": []}));

    // What is not said in it is what it means anyway, or cannot be had.
    let policy = |policy| base().volume_policy(policy).build().expect("a template");
    templates.create(policy(VolumeClaimTemplatesPolicy::Disallowed)).await.expect("taken");
    let error =
        templates.apply(policy(VolumeClaimTemplatesPolicy::Allowed), "test").await.expect_err("not in v1alpha1");
    assert!(matches!(error, Error::NotInVersion { version: Version::V1Alpha1, .. }), "{error}");

    // The control: there is a schema, and it refuses.
    let mut odd: SandboxTemplate = base().build().expect("a template");
    odd.metadata.name = Some("odd".into());
    odd.spec.env_vars_injection_policy = Some(EnvVarsInjectionPolicy::Other("Sometimes".into()));
    let error = templates.create(odd).await.expect_err("no such policy");
    assert!(matches!(&error, Error::Invalid { message } if message.contains("Sometimes")), "{error}");
}

#[tokio::test]
async fn pools_are_made_scaled_and_waited_for() {
    let Some((place, client)) = open("pools_are_made_scaled_and_waited_for").await else { return };
    let pools = client.pools();
    for strategy in [UpdateStrategyType::OnReplenish, UpdateStrategyType::Recreate] {
        let pool = PoolBuilder::new("p", "t").replicas(0).update_strategy(strategy).label("l", "1");
        let pool = pool.build().expect("a pool");
        assert_eq!(pools.apply(pool.clone(), "test").await.expect("taken").spec, pool.spec);
    }
    // The old version has no default for it.
    let mut unsaid = PoolBuilder::new("unsaid", "t").build().expect("a pool");
    unsaid.spec.replicas = None;
    assert_eq!(pools.create(unsaid).await.expect("taken").spec.replicas, Some(1));

    pools.scale("p", 3).await.expect("scaled");
    assert_eq!(place.spec("SandboxWarmPool", "p").await["replicas"], 3);
    let error = pools.scale("absent", 1).await.expect_err("no such pool");
    assert!(error.is_not_found(), "{error}");
    let filling = async {
        place.status("SandboxWarmPool", "p", json!({"replicas": 3, "readyReplicas": 1, "selector": "a=b"})).await;
        place.status("SandboxWarmPool", "p", json!({"readyReplicas": 3})).await;
    };
    let (filled, ()) = tokio::join!(pools.wait_ready_replicas("p", 3, LONG), filling);
    assert_eq!(filled.expect("filled").status.map(|status| status.ready_replicas), Some(3));
}

#[tokio::test]
async fn claims_are_made_adopted_renewed_and_waited_for() {
    let Some((place, client)) = open("claims_are_made_adopted_renewed").await else { return };
    furnish(&client).await;
    let claims = client.claims();
    let build = |policy| {
        ClaimBuilder::new("c", "p")
            .shutdown_after(Duration::from_secs(600))
            .shutdown_policy(policy)
            .ttl_after_finished(Duration::ZERO)
            .label("l", "1")
            .pod_label("sandbox.users.io/l", "2")
            .pod_annotation("example.com/a", "3")
            .env("A", "")
            .env_of("sandbox", "B", "5")
    };
    let policies = [ClaimShutdownPolicy::Retain, ClaimShutdownPolicy::Delete, ClaimShutdownPolicy::DeleteForeground];
    for (number, policy) in policies.into_iter().enumerate() {
        let mut claim = build(policy).build().expect("a claim");
        claim.metadata.name = Some(format!("c{number}"));
        assert_eq!(claims.create(claim.clone()).await.expect("taken").spec, claim.spec);
    }
    let claimed = client.claim(build(ClaimShutdownPolicy::Delete)).await.expect("a claim");
    let spec = place.spec("SandboxClaim", "c").await;
    assert_eq!((&spec["sandboxTemplateRef"], &spec["warmpool"]), (&json!({"name": "t"}), &json!("p")), "{spec}");
    let again = client.claim(build(ClaimShutdownPolicy::Delete)).await.expect("the same");
    assert!(again.adopted && again.uid == claimed.uid);
    let until = jiff::Timestamp::now() + Duration::from_secs(7200);
    let renewed = claims.renew("c", Some(&claimed.uid), until).await.expect("renewed");
    let time = renewed.spec.lifecycle.and_then(|lifecycle| lifecycle.shutdown_time).expect("a time");
    assert_eq!(time.0.as_second(), until.as_second());
    let error = claims.renew("c", Some("another"), until).await.expect_err("another claim");
    assert!(matches!(error, Error::Conflict { .. }), "{error}");

    let cache = claims.cache(Some("l=1"));
    let becoming = async {
        let label = json!({"metadata": {"labels": {labels::SANDBOX_NAME: "p-x7k2p"}}});
        claims.patch("c", &label).await.expect("patched");
        let conditions = place.ready("SandboxClaim", "c", "DependenciesNotReady").await;
        place.status("SandboxClaim", "c", json!({"conditions": conditions})).await;
        let conditions = place.ready("SandboxClaim", "c", "DependenciesReady").await;
        let sandbox = json!({"name": "p-x7k2p", "podIPs": ["10.0.0.1"]});
        place.status("SandboxClaim", "c", json!({"conditions": conditions, "sandbox": sandbox})).await;
    };
    let name = |state: ClaimState<'_>| match state {
        ClaimState::Ready(sandbox) => Some(sandbox.name.clone()),
        _ => None,
    };
    let cached = cache.wait("c", |claim| name(claim?.state()));
    let both = async { tokio::join!(client.wait_ready(&claimed, LONG), cached, becoming) };
    let (ready, cached, ()) = tokio::time::timeout(LONG, both).await.expect("in time");
    let ready = ready.expect("ready");
    assert_eq!((ready.sandbox_name.as_str(), cached.as_str()), ("p-x7k2p", "p-x7k2p"));
    assert_eq!((ready.pod_ips, ready.claim.spec.warm_pool_ref.name), (vec!["10.0.0.1".to_owned()], "p".to_owned()));

    let conditions = place.ready("SandboxClaim", "c0", "TemplateNotFound").await;
    place.status("SandboxClaim", "c0", json!({"conditions": conditions})).await;
    assert!(matches!(claims.get("c0").await.expect("a claim").state(), ClaimState::Failed(_)));
    claims.delete("c", Some(&claimed.uid)).await.expect("deleted");
    // Nobody collects what it owns here.
    assert!(claims.get("c").await.expect("it waits").metadata.deletion_timestamp.is_some());
}

#[tokio::test]
async fn claims_that_the_old_version_says_otherwise_or_not_at_all() {
    let Some((place, client)) = open("claims_that_the_old_version_says_otherwise").await else { return };
    furnish(&client).await;
    let any = client.claim(ClaimBuilder::new("any", "shadow-pool-t")).await.expect("a claim");
    assert_eq!(any.claim.spec.warm_pool_ref.name, "shadow-pool-t");
    // The schema's own default.
    assert_eq!(place.spec("SandboxClaim", "any").await["warmpool"], "default");
    let conditions = place.ready("SandboxClaim", "any", "DependenciesReady").await;
    place.status("SandboxClaim", "any", json!({"conditions": conditions, "sandbox": {"name": "p-x7k2p"}})).await;
    assert_eq!(client.claims().get("any").await.expect("the claim").spec.warm_pool_ref.name, "p");

    let error = client.claim(ClaimBuilder::new("c", "absent")).await.expect_err("no such pool");
    assert!(matches!(error, Error::WarmPoolNotFound { .. }), "{error}");
    let error = client.claim(ClaimBuilder::new("c", "p").volume(volume())).await.expect_err("not in v1alpha1");
    assert!(matches!(error, Error::NotInVersion { version: Version::V1Alpha1, .. }), "{error}");
    assert!(error.to_string().contains("upgrade agent-sandbox to 1.0"), "{error}");
    assert!(client.claims().get_opt("c").await.expect("an answer").is_none());
    // Words of the newer version are not taken for these.
    let error =
        client.claims().patch("any", &json!({"spec": {"warmPoolRef": {"name": "p"}}})).await.expect_err("other");
    assert!(matches!(&error, Error::Invalid { message } if message.contains("warmPoolRef")), "{error}");
}

/// A pod of the sandbox `s` that ends only when it is let go.
async fn clinging(place: &Place) -> Api<Pod> {
    // Nobody makes it here, and no pod is taken without.
    let accounts: Api<ServiceAccount> = Api::namespaced(place.kube.clone(), &place.namespace);
    let mut account = ServiceAccount::default();
    account.metadata.name = Some("default".into());
    accounts.create(&PostParams::default(), &account).await.expect("an account");
    let pods: Api<Pod> = Api::namespaced(place.kube.clone(), &place.namespace);
    let hash = json!({ labels::SANDBOX_NAME_HASH: labels::hash8("s") });
    let metadata = json!({"name": "s", "labels": hash, "finalizers": ["example.com/clings"]});
    let made = serde_json::from_value(json!({"metadata": metadata, "spec": pod()})).expect("a pod");
    pods.create(&PostParams::default(), &made).await.expect("a pod");
    pods
}

#[tokio::test]
async fn sandboxes_are_made_suspended_and_resumed() {
    let Some((place, client)) = open("sandboxes_are_made_suspended_and_resumed").await else { return };
    let sandboxes = client.sandboxes();
    let build = |policy| {
        let builder = SandboxBuilder::new("s", rich()).shutdown_time("2030-01-02T03:04:05Z".parse().expect("a time"));
        builder.shutdown_policy(policy).service(true).volume(volume()).label("l", "1").pod_label("l", "2").suspended()
    };
    for policy in [ShutdownPolicy::Retain, ShutdownPolicy::Delete] {
        let sandbox = build(policy).build().expect("a sandbox");
        assert_eq!(sandboxes.apply(sandbox.clone(), "test").await.expect("taken").spec, sandbox.spec);
    }
    assert_eq!(place.spec("Sandbox", "s").await["replicas"], 0);
    let unsaid = SandboxBuilder::new("unsaid", pod()).build().expect("a sandbox");
    let unsaid = sandboxes.create(unsaid).await.expect("taken");
    assert_eq!(unsaid.spec.operating_mode, Some(OperatingMode::Running));

    let status = async |pods: u8, ips: Value| {
        let conditions = place.ready("Sandbox", "s", "DependenciesReady").await;
        place.status("Sandbox", "s", json!({"replicas": pods, "podIPs": ips, "conditions": conditions})).await;
    };
    let controller = async |replicas: u8, ips: Value| {
        while place.spec("Sandbox", "s").await["replicas"] != replicas {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        status(replicas, ips).await;
    };
    let (resumed, ()) = tokio::join!(sandboxes.resume("s", LONG), controller(1, json!(["10.0.0.1"])));
    assert_eq!(resumed.expect("resumed").status.expect("a status").pod_ips, ["10.0.0.1"]);
    sandboxes.resume("s", SHORT).await.expect("again is no error");
    let renewed = sandboxes.renew("s", "2031-01-02T03:04:05Z".parse().expect("a time")).await.expect("renewed");
    assert_eq!(renewed.spec.shutdown_time.map(|time| time.0.to_string()).as_deref(), Some("2031-01-02T03:04:05Z"));

    // The controller says at once that it is done, the pod takes its time.
    let pods = clinging(&place).await;
    let (suspended, ()) = tokio::join!(sandboxes.suspend("s", SHORT), controller(0, Value::Null));
    let error = suspended.expect_err("the pod is still there");
    assert!(matches!(&error, Error::Timeout { what, .. } if what.contains("pod of s")), "{error}");
    let going = async {
        pods.delete("s", &DeleteParams::default()).await.expect("deleted");
        let loose = json!({"metadata": {"finalizers": null}});
        pods.patch("s", &PatchParams::default(), &Patch::Merge(&loose)).await.expect("let go");
    };
    let (suspended, ()) = tokio::join!(sandboxes.suspend("s", LONG), going);
    let suspended = suspended.expect("suspended");
    assert_eq!(suspended.spec.operating_mode, Some(OperatingMode::Suspended));
    assert!(!suspended.is_true("Ready"), "nothing runs: {:?}", suspended.status);
    let error = sandboxes.wait_ready("s", SHORT).await.expect_err("nothing runs");
    assert!(matches!(error, Error::Timeout { last: Some(_), .. }), "{error}");
}
