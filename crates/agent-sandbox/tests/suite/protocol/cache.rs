//! The cache against broken streams.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use agent_sandbox::{Changed, ClaimState, SandboxClaim, View};

use crate::protocol::stand_in::{Answer, StandIn, claim, event, list, refusal};

const LONG: Duration = Duration::from_secs(300);

fn is_ready(claim: Option<&SandboxClaim>) -> Option<String> {
    match claim?.state() {
        ClaimState::Ready(sandbox) => Some(sandbox.name.clone()),
        _ => None,
    }
}

async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(LONG, future).await.expect("in time")
}

#[tokio::test]
async fn any_number_of_waiters_share_one_list_and_one_watch() {
    let stand_in = StandIn::start(|asked, _| match asked.is_watch() {
        true => Answer::Hold(vec![event("MODIFIED", &claim("u", "11", "DependenciesReady"))]),
        false => list("10", &[claim("u", "9", "")]),
    })
    .await;
    let cache = stand_in.client.claims().cache(Some("a=b"));
    let waiters: Vec<_> = (0..50)
        .map(|_| {
            let cache = cache.clone();
            tokio::spawn(async move { cache.wait("c", is_ready).await })
        })
        .collect();
    for waiter in waiters {
        assert_eq!(soon(waiter).await.expect("a waiter"), "p-x7k2p");
    }
    let asked = stand_in.asked();
    assert_eq!(asked.len(), 2, "{asked:?}");
    assert!(asked.iter().all(|one| one.query["labelSelector"] == "a%3Db"));
    assert_eq!(cache.list().len(), 1);
    assert!(cache.get("c").is_some() && cache.get("d").is_none());
}

#[tokio::test]
async fn dropped_history_is_read_anew_and_what_went_meanwhile_is_gone() {
    let stand_in = StandIn::start(|asked, before| match (asked.is_watch(), before) {
        (true, 0) => Answer::Hold(vec![event("ERROR", &refusal(410, "Expired", "too old"))]),
        (true, _) => Answer::Hold(vec![]),
        (false, 0) => list("10", &[claim("u", "9", "")]),
        (false, _) => list("20", &[]),
    })
    .await;
    let cache = stand_in.client.claims().cache(None);
    soon(cache.wait("c", |claim| claim.is_none().then_some(()))).await;
    let lists = stand_in.asked().iter().filter(|asked| !asked.is_watch()).count();
    assert_eq!(lists, 2, "{:?}", stand_in.asked());
    assert!(cache.list().is_empty());
}

#[tokio::test]
async fn it_says_when_its_view_is_old_and_comes_back() {
    let down = Arc::new(AtomicBool::new(false));
    let broken = down.clone();
    let stand_in = StandIn::start(move |asked, before| match (asked.is_watch(), before) {
        _ if broken.load(Ordering::SeqCst) => Answer::Json(500, refusal(500, "InternalError", "etcd is away")),
        (true, 0) => Answer::Cut(vec![event("MODIFIED", &claim("u", "11", ""))]),
        (true, _) => Answer::Hold(vec![event("MODIFIED", &claim("u", "12", "DependenciesReady"))]),
        (false, _) => {
            broken.store(true, Ordering::SeqCst);
            list("10", &[claim("u", "9", "")])
        }
    })
    .await;
    let cache = stand_in.client.claims().cache(None);
    let mut views = cache.views();
    let view = soon(views.wait_for(|view| matches!(view, View::Disconnected(_)))).await.expect("a view").clone();
    assert!(matches!(&view, View::Disconnected(error) if error.to_string().contains("etcd is away")), "{view:?}");
    assert!(cache.get("c").is_some(), "what was known stays");
    down.store(false, Ordering::SeqCst);
    soon(views.wait_for(View::is_current)).await.expect("a view");
    soon(cache.wait("c", is_ready)).await;
    let lists = stand_in.asked().iter().filter(|asked| !asked.is_watch()).count();
    assert_eq!(lists, 1, "nothing was missed, so nothing is listed again");
}

#[tokio::test]
async fn what_was_just_created_is_not_taken_for_deleted() {
    let stand_in = StandIn::start(|asked, _| match asked.is_watch() {
        true => Answer::Hold(vec![]),
        false => list("10", &[]),
    })
    .await;
    let cache = stand_in.client.claims().cache(None);
    soon(cache.current()).await;
    assert!(soon(cache.wait("c", |claim| Some(claim.is_none()))).await);
    let mut changes = cache.changes();
    cache.remember(serde_json::from_value(claim("u", "11", "")).expect("a claim"));
    assert_eq!(soon(changes.next()).await, Some(Changed::Object("c".into())));
    assert!(soon(cache.wait("c", |claim| Some(claim.is_some()))).await);
}

#[tokio::test]
async fn an_old_deletion_does_not_remove_a_new_claim_of_the_same_name() {
    let stand_in = StandIn::start(|asked, _| match asked.is_watch() {
        true => Answer::Hold(vec![event("DELETED", &claim("old", "12", "")), event("ADDED", &claim("new", "13", ""))]),
        false => list("10", &[claim("new", "13", "")]),
    })
    .await;
    let cache = stand_in.client.claims().cache(None);
    soon(cache.current()).await;
    let mut changes = cache.changes();
    soon(changes.next()).await;
    assert_eq!(cache.get("c").and_then(|claim| claim.metadata.uid.clone()).as_deref(), Some("new"));
}
