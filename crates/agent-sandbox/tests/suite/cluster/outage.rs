//! Parts of the cluster that stop while somebody waits.

use std::pin::pin;
use std::time::Duration;

use agent_sandbox::{ClaimBuilder, ClaimState, Error, SandboxWarmPool, View};
use futures_util::TryStreamExt as _;
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams, ListParams, WatchEvent, WatchParams};

use crate::cluster::place::{LONG, Place, Tool, never_ready, sleeper};
use crate::cluster::proxied::{Proxy, installed, with_proxy};

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

/// Whoever comes back from an outage with a place in history that the API server has forgotten is told so by 410.
#[tokio::test]
async fn what_an_apiserver_has_forgotten_is_listed_anew() {
    let name = "what_an_apiserver_has_forgotten_is_listed_anew";
    if !installed(name, "microsocks") {
        return;
    }
    let Some(place) = Place::alone("forgotten").await else { return };
    let Some(tool) = Tool::find() else { return };
    for pool in ["stays", "goes"] {
        place.pool(pool, sleeper(), 0).await;
    }
    let proxy = Proxy::socks();
    let (directory, port) = (tempfile::tempdir().expect("a directory"), proxy.port);
    let through = with_proxy(&place, directory.path(), &format!("socks5://me:it@127.0.0.1:{port}")).await;
    let cache = through.expect("the cluster").pools().cache(None);
    cache.current().await;
    drop(proxy);
    let mut views = cache.views();
    let away = tokio::time::timeout(LONG, views.wait_for(|view| matches!(view, View::Disconnected(_)))).await;
    drop(away.expect("in time").expect("a view"));

    let pools: Api<SandboxWarmPool> = Api::namespaced(place.client.client().clone(), place.client.namespace());
    let listed = pools.list(&ListParams::default()).await.expect("pools");
    let before = listed.metadata.resource_version.expect("a place in history");
    // At once: who collects what belongs to it may be slow to come back itself.
    pools.delete("goes", &DeleteParams::background()).await.expect("deleted");
    assert!(pools.get_opt("goes").await.expect("an answer").is_none(), "something holds it");
    place.pool("comes", sleeper(), 0).await;
    tokio::task::spawn_blocking(move || {
        tool.run("stop", "apiserver");
        tool.run("start", "apiserver");
    })
    .await
    .expect("started again");
    let told = tokio::time::timeout(LONG, forgotten(&pools, &before)).await.expect("in time");
    assert_eq!(told, 410);

    let _proxy = Proxy::socks_at(port);
    let seen = async {
        cache.wait("comes", |pool| pool.map(drop)).await;
        cache.wait("goes", |pool| pool.is_none().then_some(())).await;
        cache.current().await;
    };
    tokio::time::timeout(LONG, seen).await.expect("in time");
    let mut names: Vec<_> = cache.list().iter().map(|pool| pool.name_any()).collect();
    names.sort();
    assert_eq!(names, ["comes", "stays"]);
    place.close().await;
}

/// What it answers to a watch from there: the code of its refusal, or 0 for an event. One that has just started may refuse
/// everybody for a moment.
async fn forgotten(pools: &Api<SandboxWarmPool>, from: &str) -> u16 {
    loop {
        let heard = match pools.watch(&WatchParams::default(), from).await {
            Ok(events) => pin!(events).try_next().await,
            Err(error) => Err(error),
        };
        match heard {
            Ok(Some(WatchEvent::Error(status))) => return status.code,
            Ok(Some(_)) => return 0,
            Err(kube::Error::Api(status)) if status.code == 410 => return status.code,
            Ok(None) | Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}
