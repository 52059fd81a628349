//! Sandboxes without a claim, and pools: suspended and resumed, scaled, applied.

use agent_sandbox::{Conditions, Error, PoolBuilder, SandboxBuilder, TemplateBuilder};

use crate::cluster::place::{LONG, Place, never_ready, sleeper};

#[tokio::test]
async fn a_sandbox_is_suspended_and_resumed() {
    let Some(place) = Place::new("suspend").await else { return };
    let sandboxes = place.client.sandboxes();
    sandboxes.create(SandboxBuilder::new("mine", sleeper()).build().expect("a sandbox")).await.expect("created");
    let ready = sandboxes.wait_ready("mine", LONG).await.expect("ready");
    let uid = ready.metadata.uid.clone();
    let suspended = sandboxes.suspend("mine", LONG).await.expect("suspended");
    assert!(suspended.is_true("Suspended"));
    assert!(place.pods().await.is_empty(), "no pod is left");
    sandboxes.suspend("mine", LONG).await.expect("again is no error");
    let resumed = sandboxes.resume("mine", LONG).await.expect("resumed");
    assert_eq!(resumed.metadata.uid, uid);
    assert!(resumed.is_true("Ready") && !resumed.is_true("Suspended"));
    sandboxes.resume("mine", LONG).await.expect("again is no error");
    sandboxes.delete_and_wait("mine", uid.as_deref(), LONG).await.expect("gone");
    place.until_empty().await;
    place.close().await;
}

#[tokio::test]
async fn a_pool_is_scaled_up_and_down() {
    let Some(place) = Place::new("scale").await else { return };
    place.pool("pool", sleeper(), 0).await;
    let pools = place.client.pools();
    pools.scale("pool", 2).await.expect("scaled");
    let filled = pools.wait_ready_replicas("pool", 2, LONG).await.expect("filled");
    assert_eq!(filled.spec.replicas, Some(2));
    let cache = pools.cache(None);
    pools.scale("pool", 0).await.expect("scaled");
    let emptied = cache.wait("pool", |pool| pool?.status.as_ref().filter(|status| status.replicas == 0).map(|_| ()));
    tokio::time::timeout(LONG, emptied).await.expect("in time");
    let error = pools.scale("absent", 1).await.expect_err("no such pool");
    assert!(error.is_not_found(), "{error}");
    let error = pools.wait_ready_replicas("absent", 1, LONG).await.expect_err("no such pool");
    assert!(matches!(error, Error::Deleted { .. }), "{error}");
    place.close().await;
}

#[tokio::test]
async fn applying_twice_changes_nothing_and_once_more_changes_what_differs() {
    let Some(place) = Place::new("apply").await else { return };
    let (templates, pools) = (place.client.templates(), place.client.pools());
    let template =
        TemplateBuilder::new("t", sleeper()).restricted().network(vec![], vec![]).build().expect("a template");
    let first = templates.apply(template.clone(), "test").await.expect("applied");
    let second = templates.apply(template, "test").await.expect("applied again");
    assert_eq!(first.metadata.uid, second.metadata.uid);
    assert_eq!(first.metadata.generation, second.metadata.generation);
    let pool = |replicas| PoolBuilder::new("p", "t").replicas(replicas).build().expect("a pool");
    pools.apply(pool(0), "test").await.expect("applied");
    let changed = pools.apply(pool(1), "test").await.expect("applied");
    assert_eq!(changed.spec.replicas, Some(1));
    assert_eq!(pools.get("p").await.expect("the pool").spec, changed.spec);
    let by_label = templates.list(Some("no=such")).await.expect("a list");
    assert!(by_label.is_empty() && templates.list(None).await.expect("a list").len() == 1);
    place.close().await;
}

#[tokio::test]
async fn a_pod_that_ends_is_said_to_have_ended() {
    let Some(place) = Place::new("ended").await else { return };
    let mut pod = sleeper();
    pod.restart_policy = Some("Never".into());
    for container in &mut pod.containers {
        container.command = Some(["sh", "-c", "exit 3"].map(String::from).to_vec());
        // Without a probe it counts as ready for a moment.
        container.readiness_probe = Some(never_ready());
    }
    let sandboxes = place.client.sandboxes();
    sandboxes.create(SandboxBuilder::new("mine", pod).build().expect("a sandbox")).await.expect("created");
    let error = sandboxes.wait_ready("mine", LONG).await.expect_err("it ends");
    assert!(matches!(error, Error::PodFailed { .. }), "{error}");
    place.close().await;
}
