//! Claims that succeed: cold, warm, adopted, renewed, given back.

use std::time::Duration;

use agent_sandbox::{AgentSandbox, ClaimBuilder, ClaimShutdownPolicy, ClaimState, Error, labels};
use kube::ResourceExt;

use crate::cluster::place::{LONG, Place, sleeper};

fn claim(name: &str, pool: &str) -> ClaimBuilder {
    ClaimBuilder::new(name, pool)
        .shutdown_after(Duration::from_secs(600))
        .shutdown_policy(ClaimShutdownPolicy::Delete)
        .label("example.com/test", name)
}

async fn launch(client: &AgentSandbox, sandbox: &str) -> String {
    let sandbox = client.sandboxes().get(sandbox).await.expect("the sandbox");
    sandbox.labels().get(labels::LAUNCH_TYPE).cloned().unwrap_or_default()
}

#[tokio::test]
async fn a_cold_claim_becomes_ready_and_leaves_nothing() {
    let Some(place) = Place::new("cold").await else { return };
    place.pool("cold", sleeper(), 0).await;
    let claimed = place.client.claim(claim("mine", "cold")).await.expect("a claim");
    let ready = place.client.wait_ready(&claimed, LONG).await.expect("ready");
    assert_eq!(ready.sandbox_name, "mine");
    assert!(!ready.pod_ips.is_empty());
    assert_eq!(launch(&place.client, "mine").await, labels::COLD);
    place.client.claims().delete_and_wait("mine", Some(&claimed.uid), LONG).await.expect("gone");
    place.until_empty().await;
    place.client.claims().delete("mine", Some(&claimed.uid)).await.expect("again is no error");
    place.close().await;
}

#[tokio::test]
async fn a_warm_claim_gets_a_member_and_the_pool_is_filled_again() {
    let Some(place) = Place::new("warm").await else { return };
    place.pool("warm", sleeper(), 1).await;
    place.client.pools().wait_ready_replicas("warm", 1, LONG).await.expect("filled");
    let claimed = place.client.claim(claim("mine", "warm")).await.expect("a claim");
    let ready = place.client.wait_ready(&claimed, LONG).await.expect("ready");
    assert!(ready.sandbox_name.starts_with("warm-"), "{}", ready.sandbox_name);
    assert_eq!(launch(&place.client, &ready.sandbox_name).await, labels::WARM);
    place.client.pools().wait_ready_replicas("warm", 1, LONG).await.expect("filled again");
    place.close().await;
}

#[tokio::test]
async fn a_claim_that_exists_is_adopted_when_it_is_the_same() {
    let Some(place) = Place::new("adopt").await else { return };
    place.pool("one", sleeper(), 0).await;
    let first = place.client.claim(claim("mine", "one")).await.expect("a claim");
    let again = place.client.claim(claim("mine", "one")).await.expect("the same");
    assert!(!first.adopted && again.adopted && first.uid == again.uid);
    place.client.wait_ready(&again, LONG).await.expect("ready");
    let error = place.client.claim(claim("mine", "two")).await.expect_err("another pool");
    assert!(matches!(error, Error::NotAdoptable { .. }), "{error}");
    place.close().await;
}

#[tokio::test]
async fn a_claim_is_renewed_by_its_owner_only() {
    let Some(place) = Place::new("renew").await else { return };
    place.pool("one", sleeper(), 0).await;
    let claimed = place.client.claim(claim("mine", "one")).await.expect("a claim");
    let until = jiff::Timestamp::now() + Duration::from_secs(7200);
    let renewed = place.client.claims().renew("mine", Some(&claimed.uid), until).await.expect("renewed");
    let time = renewed.spec.lifecycle.and_then(|lifecycle| lifecycle.shutdown_time).expect("a time");
    assert_eq!(time.0.as_second(), until.as_second());
    let error = place.client.claims().renew("mine", Some("somebody-else"), until).await.expect_err("not ours");
    assert!(matches!(error, Error::Conflict { .. }), "{error:?}");
    let error = place.client.claims().delete("mine", Some("somebody-else")).await.expect_err("not ours");
    assert!(matches!(error, Error::Conflict { .. }), "{error:?}");
    place.close().await;
}

#[tokio::test]
async fn one_cache_serves_many_claims() {
    let Some(place) = Place::new("cache").await else { return };
    place.pool("one", sleeper(), 0).await;
    let cache = place.client.claims().cache(Some("example.com/test"));
    cache.current().await;
    let names = ["a", "b", "c"];
    for name in names {
        let claimed = place.client.claim(claim(name, "one")).await.expect("a claim");
        cache.remember(claimed.claim);
    }
    for name in names {
        let ready = cache.wait(name, |claim| match claim.map(|claim| claim.state()) {
            None => Some(Err("deleted".to_owned())),
            Some(ClaimState::Ready(sandbox)) => Some(Ok(sandbox.pod_ips.len())),
            Some(ClaimState::Failed(error)) => Some(Err(error.to_string())),
            Some(_) => None,
        });
        let addresses = tokio::time::timeout(LONG, ready).await.expect("in time").expect("ready");
        assert_eq!(addresses, 1);
    }
    place.client.claims().delete("b", None).await.expect("deleted");
    let gone = cache.wait("b", |claim| claim.is_none().then_some(()));
    tokio::time::timeout(LONG, gone).await.expect("in time");
    assert_eq!(cache.list().len(), 2);
    place.close().await;
}
