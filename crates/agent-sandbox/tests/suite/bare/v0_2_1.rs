//! One of the first releases, whose `v1alpha1` has fewer fields than the last: what it cannot say is refused, not dropped.

use agent_sandbox::{ClaimBuilder, Error, PoolBuilder, TemplateBuilder, UpdateStrategyType, Version};
use serde_json::json;

use crate::bare::place::{LONG, Place, pod};

#[tokio::test]
async fn what_it_does_not_know_is_refused_and_the_rest_works() {
    let Some(place) = Place::on("v0.2.1", "what_it_does_not_know_is_refused").await else { return };
    let client = place.client().await.expect("it is served");
    assert_eq!(client.version(), Version::V1Alpha1);
    let template = TemplateBuilder::new("t", pod()).restricted().build().expect("a template");
    client.templates().apply(template, "test").await.expect("a template");
    let pool = PoolBuilder::new("p", "t").replicas(0);
    client.pools().apply(pool.clone().build().expect("a pool"), "test").await.expect("a pool");
    client.pools().scale("p", 2).await.expect("scaled");
    assert_eq!(client.pools().get("p").await.expect("the pool").spec.replicas, Some(2));

    let refused = |answer: Result<(), Error>, field: &str| match answer {
        Err(Error::Invalid { message }) => assert!(message.contains(field), "{field}: {message}"),
        other => panic!("{field}: {other:?}"),
    };
    refused(client.claim(ClaimBuilder::new("c", "p")).await.map(drop), "spec.warmpool");
    let cold = || ClaimBuilder::new("c", "shadow-pool-t");
    refused(client.claim(cold().env("A", "1")).await.map(drop), "spec.env");
    refused(client.claim(cold().ttl_after_finished(LONG)).await.map(drop), "spec.lifecycle.ttlSecondsAfterFinished");
    let recreate = pool.update_strategy(UpdateStrategyType::Recreate).build().expect("a pool");
    refused(client.pools().apply(recreate, "test").await.map(drop), "updateStrategy");
    assert!(client.claims().list(None).await.expect("claims").is_empty(), "what was refused is not there");

    let claimed = client.claim(cold().shutdown_after(LONG)).await.expect("a claim");
    assert_eq!(claimed.claim.spec.warm_pool_ref.name, "shadow-pool-t");
    assert!(client.claim(cold().shutdown_after(LONG)).await.expect("the same").adopted);
    refused(client.claims().patch("c", &json!({"spec": {"warmpool": "p"}})).await.map(drop), "spec.warmpool");
    let conditions = place.ready("SandboxClaim", "c", "DependenciesReady").await;
    // So it was spelled.
    place.status("SandboxClaim", "c", json!({"conditions": conditions, "sandbox": {"Name": "t-x7k2p"}})).await;
    let claim = client.claims().get("c").await.expect("the claim");
    assert_eq!(claim.sandbox().map(|sandbox| sandbox.name.as_str()), Some("t-x7k2p"));
}
