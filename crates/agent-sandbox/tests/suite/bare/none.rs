//! A cluster without agent-sandbox: whatever is asked, the answer is what is missing and how to get it.

use agent_sandbox::{
    AgentSandbox, ClaimBuilder, Claimed, Error, OperatingMode, PoolBuilder, SandboxBuilder, SandboxClaim,
    TemplateBuilder, Version, View,
};
use serde_json::json;

use crate::bare::place::{LONG, Place, pod};

fn names<T: std::fmt::Debug>(asked: &str, answer: Result<T, Error>, resources: &[&str], version: Version) {
    let error = match answer {
        Err(error) => error,
        Ok(answer) => panic!("{asked}: {answer:?}"),
    };
    let Error::CrdsMissing { missing, version: told } = &error else { panic!("{asked}: {error:?}") };
    let full: Vec<_> = missing.iter().map(|name| name.split('.').next().unwrap_or_default()).collect();
    assert_eq!((full.as_slice(), *told), (resources, version), "{asked}: {error}");
    let text = error.to_string();
    for word in [version.as_str(), ".agents.x-k8s.io", "install agent-sandbox 1.0", "extensions.yaml"] {
        assert!(text.contains(word), "{asked}: no {word:?} in {text:?}");
    }
    assert!(!error.is_transient() && !error.is_not_found(), "{asked}");
}

#[tokio::test]
async fn discovery_names_all_four() {
    let Some(place) = Place::on("none", "discovery_names_all_four").await else { return };
    let all = ["sandboxes", "sandboxclaims", "sandboxtemplates", "sandboxwarmpools"];
    names("with_client", place.client().await, &all, Version::V1Beta1);
    let path = std::env::var("SANDBAR_CLUSTER").expect("the kubeconfig");
    let opened = AgentSandbox::from_kubeconfig(Some(path.as_ref()), None, None).await;
    names("from_kubeconfig", opened, &all, Version::V1Beta1);
}

#[tokio::test]
async fn every_entrance_names_what_it_asked_for() {
    let Some(place) = Place::on("none", "every_entrance_names_what_it_asked_for").await else { return };
    for version in [Version::V1Beta1, Version::V1Alpha1] {
        let client = place.asking_for(version);
        let (claims, pools, sandboxes, templates) =
            (client.claims(), client.pools(), client.sandboxes(), client.templates());
        let is = |asked: &str, answer: Result<(), Error>, resource: &str| names(asked, answer, &[resource], version);

        // A claim in the old version asks its pool for the template.
        let first = if version == Version::V1Alpha1 { "sandboxwarmpools" } else { "sandboxclaims" };
        is("claim", client.claim(ClaimBuilder::new("c", "p")).await.map(drop), first);
        let claim = ClaimBuilder::new("c", "shadow-pool-t").build().expect("a claim");
        is("create", claims.create(claim.clone()).await.map(drop), "sandboxclaims");
        is("apply", claims.apply(claim.clone(), "test").await.map(drop), "sandboxclaims");
        is("get", claims.get("c").await.map(drop), "sandboxclaims");
        is("get_opt", claims.get_opt("c").await.map(drop), "sandboxclaims");
        is("list", claims.list(None).await.map(drop), "sandboxclaims");
        is("patch", claims.patch("c", &json!({})).await.map(drop), "sandboxclaims");
        is("renew", claims.renew("c", None, jiff::Timestamp::now()).await.map(drop), "sandboxclaims");
        is("delete", claims.delete("c", None).await, "sandboxclaims");
        is("delete_and_wait", claims.delete_and_wait("c", None, LONG).await, "sandboxclaims");
        for from in [None, Some("1".to_owned())] {
            let mut claim: SandboxClaim = claim.clone();
            claim.metadata.resource_version = from;
            let claimed = Claimed { name: "c".into(), uid: "u".into(), adopted: false, claim };
            is("wait_ready", client.wait_ready(&claimed, LONG).await.map(drop), "sandboxclaims");
        }

        let pool = PoolBuilder::new("p", "t").build().expect("a pool");
        is("create a pool", pools.create(pool).await.map(drop), "sandboxwarmpools");
        is("scale", pools.scale("p", 1).await, "sandboxwarmpools");
        is("wait_ready_replicas", pools.wait_ready_replicas("p", 1, LONG).await.map(drop), "sandboxwarmpools");
        let template = TemplateBuilder::new("t", pod()).build().expect("a template");
        is("apply a template", templates.apply(template, "test").await.map(drop), "sandboxtemplates");
        let sandbox = SandboxBuilder::new("s", pod()).build().expect("a sandbox");
        is("create a sandbox", sandboxes.create(sandbox).await.map(drop), "sandboxes");
        is("wait for a sandbox", sandboxes.wait_ready("s", LONG).await.map(drop), "sandboxes");
        is("suspend", sandboxes.suspend("s", LONG).await.map(drop), "sandboxes");
        is("resume", sandboxes.resume("s", LONG).await.map(drop), "sandboxes");
        is("set_mode", sandboxes.set_mode("s", OperatingMode::Running).await.map(drop), "sandboxes");

        let cache = claims.cache(None);
        let mut views = cache.views();
        let lost = views.wait_for(|view| matches!(view, View::Disconnected(_)));
        let view = tokio::time::timeout(LONG, lost).await.expect("in time").expect("a view").clone();
        assert!(matches!(&view, View::Disconnected(error) if matches!(**error, Error::CrdsMissing { .. })), "{view:?}");
    }
}
