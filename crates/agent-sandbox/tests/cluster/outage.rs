//! Parts of the cluster that stop while somebody waits.

use std::time::Duration;

use agent_sandbox::{ClaimBuilder, ClaimState, Error, View};

use crate::place::{LONG, Place, Tool, never_ready, sleeper};

#[tokio::test]
async fn a_claim_deleted_under_us() {
    let Some(place) = Place::new("deleted").await else { return };
    let mut pod = sleeper();
    // Never ready, so that there is time to delete it.
    pod.containers[0].readiness_probe = Some(never_ready());
    place.pool("pool", pod, 0).await;
    let claimed = place.client.claim(ClaimBuilder::new("mine", "pool")).await.expect("a claim");
    let deleting = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        place.client.claims().delete("mine", None).await.expect("deleted");
    };
    let (result, ()) = tokio::join!(place.client.wait_ready(&claimed, LONG), deleting);
    let error = result.expect_err("deleted");
    assert!(matches!(error, Error::Deleted { .. }), "{error}");
    place.close().await;
}

#[tokio::test]
async fn no_controller() {
    let Some(place) = Place::alone("no_controller").await else { return };
    let Some(tool) = Tool::find() else { return };
    place.pool("pool", sleeper(), 0).await;
    tool.run("stop", "controller");
    let claimed = place.client.claim(ClaimBuilder::new("mine", "pool")).await.expect("a claim");
    let error = place.client.wait_ready(&claimed, Duration::from_secs(4)).await;
    tool.run("start", "controller");
    let error = error.expect_err("nobody is at work");
    assert!(matches!(&error, Error::Timeout { last: None, .. }), "{error}");
    assert!(error.to_string().contains("controller running?"), "{error}");
    place.client.wait_ready(&claimed, LONG).await.expect("ready once it is back");
    place.close().await;
}

#[tokio::test]
async fn an_apiserver_that_restarts_while_we_wait() {
    let Some(place) = Place::alone("apiserver").await else { return };
    let Some(tool) = Tool::find() else { return };
    place.pool("pool", sleeper(), 0).await;
    let cache = place.client.claims().cache(None);
    cache.current().await;
    tool.run("stop", "controller");
    let claimed = place.client.claim(ClaimBuilder::new("mine", "pool")).await.expect("a claim");
    cache.remember(claimed.claim.clone());
    let restart = async {
        let mut views = cache.views();
        tokio::task::spawn_blocking(move || tool.run("stop", "apiserver")).await.expect("stopped");
        let view = tokio::time::timeout(LONG, views.wait_for(|view| matches!(view, View::Disconnected(_)))).await;
        let view = view.expect("in time").expect("a view").clone();
        assert!(matches!(&view, View::Disconnected(error) if error.is_transient()), "{view:?}");
        let error = place.client.claims().get("mine").await.expect_err("nobody answers");
        assert!(matches!(error, Error::Unreachable { .. }), "{error}");
        tokio::task::spawn_blocking(|| {
            if let Some(tool) = Tool::find() {
                tool.run("start", "apiserver");
                tool.run("start", "controller");
            }
        })
        .await
        .expect("started");
    };
    let ready = |claim: Option<&agent_sandbox::SandboxClaim>| match claim.map(|claim| claim.state()) {
        Some(ClaimState::Ready(sandbox)) => Some(sandbox.name.clone()),
        _ => None,
    };
    let both = async { tokio::join!(place.client.wait_ready(&claimed, 2 * LONG), cache.wait("mine", ready), restart) };
    let (waited, cached, ()) = tokio::time::timeout(2 * LONG, both).await.expect("in time");
    assert_eq!(waited.expect("ready").sandbox_name, cached);
    assert!(cache.view().is_current());
    place.close().await;
}
