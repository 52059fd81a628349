//! `claim` and `wait_ready` against broken streams.

use std::time::Duration;

use agent_sandbox::{ClaimBuilder, Error, Ready, Wait};
use serde_json::json;

use crate::protocol::stand_in::{Answer, Asked, StandIn, claim, event, list, refusal};

const LONG: Duration = Duration::from_secs(300);

async fn claimed(stand_in: &StandIn, wait: impl Into<Wait>) -> Result<Ready, Error> {
    let claimed = stand_in.client.claim(ClaimBuilder::new("c", "p")).await?;
    stand_in.client.wait_ready(&claimed, wait).await
}

/// Created as version 10; watches are answered by the test, lists with a ready claim of version 50.
async fn watching(answer: impl Fn(&Asked, usize) -> Answer + Send + Sync + 'static) -> StandIn {
    StandIn::start(move |asked, before| match asked.method.as_str() {
        "POST" => Answer::Json(201, claim("u", "10", "")),
        _ if asked.is_watch() => answer(asked, before),
        _ => list("50", &[claim("u", "50", "DependenciesReady")]),
    })
    .await
}

fn ready() -> String {
    event("MODIFIED", &claim("u", "12", "DependenciesReady"))
}

#[tokio::test]
async fn the_fast_path_is_one_post_and_one_watch() {
    let stand_in =
        watching(|_, _| Answer::Hold(vec![event("MODIFIED", &claim("u", "11", "DependenciesNotReady")), ready()]))
            .await;
    let got = claimed(&stand_in, LONG).await.expect("ready");
    assert_eq!((got.sandbox_name.as_str(), got.pod_ips), ("p-x7k2p", vec!["10.0.0.1".to_owned()]));
    let asked = stand_in.asked();
    assert_eq!(asked.len(), 2, "{asked:?}");
    assert_eq!(asked[1].from(), "10");
    assert_eq!(asked[1].query["fieldSelector"], "metadata.name%3Dc");
}

#[tokio::test]
async fn history_dropped_in_the_middle_of_a_stream_is_read_anew() {
    let stand_in = watching(|_, _| Answer::Hold(vec![event("ERROR", &refusal(410, "Expired", "too old"))])).await;
    claimed(&stand_in, LONG).await.expect("ready");
    assert_eq!(stand_in.asked().len(), 3, "POST, watch, list: {:?}", stand_in.asked());
}

#[tokio::test]
async fn history_dropped_before_the_stream_is_read_anew() {
    let stand_in = watching(|_, _| Answer::Json(410, refusal(410, "Expired", "too old"))).await;
    claimed(&stand_in, LONG).await.expect("ready");
    assert_eq!(stand_in.asked().len(), 3, "{:?}", stand_in.asked());
}

#[tokio::test]
async fn a_stream_cut_in_the_middle_of_a_line_goes_on_where_it_was() {
    let stand_in = watching(|_, before| match before {
        0 => {
            let line = ready();
            let (half, _) = line.split_at(line.len() / 2);
            Answer::Cut(vec![event("MODIFIED", &claim("u", "11", "DependenciesNotReady")), half.to_owned()])
        }
        _ => Answer::Hold(vec![ready()]),
    })
    .await;
    claimed(&stand_in, LONG).await.expect("ready");
    let from: Vec<_> = stand_in.watches().iter().map(|asked| asked.from().to_owned()).collect();
    assert_eq!(from, ["10", "11"]);
}

#[tokio::test]
async fn a_bookmark_moves_the_place_to_go_on_from() {
    let bookmark = event("BOOKMARK", &json!({"apiVersion": "v1", "kind": "X", "metadata": {"resourceVersion": "33"}}));
    let stand_in = watching(move |_, before| match before {
        0 => Answer::Cut(vec![bookmark.clone()]),
        _ => Answer::Hold(vec![ready()]),
    })
    .await;
    claimed(&stand_in, LONG).await.expect("ready");
    assert_eq!(stand_in.watches()[1].from(), "33");
}

#[tokio::test]
async fn a_claim_deleted_under_us_is_an_error() {
    let stand_in = watching(|_, _| Answer::Hold(vec![event("DELETED", &claim("u", "11", ""))])).await;
    let error = claimed(&stand_in, LONG).await.expect_err("deleted");
    assert!(matches!(error, Error::Deleted { .. }), "{error}");
}

#[tokio::test]
async fn another_claim_under_the_same_name_is_not_ours() {
    let stand_in =
        watching(|_, _| Answer::Hold(vec![event("ADDED", &claim("other", "12", "DependenciesReady"))])).await;
    let error = claimed(&stand_in, LONG).await.expect_err("replaced");
    assert!(matches!(error, Error::Deleted { .. }), "{error}");
}

#[tokio::test]
async fn credentials_that_expire_while_waiting_end_the_wait() {
    let stand_in = watching(|_, _| Answer::Json(401, refusal(401, "Unauthorized", "Unauthorized"))).await;
    let error = claimed(&stand_in, LONG).await.expect_err("expired");
    assert!(matches!(error, Error::Unauthorized { .. }), "{error}");
}

#[tokio::test]
async fn an_apiserver_that_refuses_while_it_starts_is_given_a_moment() {
    let stand_in = watching(|_, before| match before {
        0 => Answer::Cut(vec![event("MODIFIED", &claim("u", "11", "DependenciesNotReady"))]),
        1 => Answer::Json(403, refusal(403, "Forbidden", "not yet")),
        2 => Answer::Json(401, refusal(401, "Unauthorized", "Unauthorized")),
        _ => Answer::Hold(vec![ready()]),
    })
    .await;
    claimed(&stand_in, LONG).await.expect("ready");
    assert_eq!(stand_in.watches().len(), 4);
}

#[tokio::test]
async fn the_timeout_says_what_was_seen_last() {
    let stand_in = watching(|_, _| Answer::Hold(vec![event("MODIFIED", &claim("u", "11", "ReconcilerError"))])).await;
    // On a busy machine nothing may be seen in the first of these.
    for wait in [300, 3_000, 30_000].map(Duration::from_millis) {
        let error = claimed(&stand_in, wait).await.expect_err("late");
        match &error {
            Error::Timeout { last: Some(last), .. } => assert_eq!(last.reason, "ReconcilerError"),
            Error::Timeout { last: None, .. } => continue,
            other => panic!("{other}"),
        }
        assert!(error.to_string().contains("ReconcilerError"), "{error}");
        return;
    }
    panic!("nothing was seen");
}

#[tokio::test]
async fn a_pool_the_controller_has_not_seen_yet_is_waited_for() {
    let stand_in = StandIn::start(|asked, _| match (asked.method.as_str(), asked.is_watch()) {
        ("POST", _) => Answer::Json(201, claim("u", "10", "")),
        (_, true) => Answer::Hold(vec![event("MODIFIED", &claim("u", "11", "WarmPoolNotFound")), ready()]),
        _ if asked.path.ends_with("/sandboxwarmpools/p") => Answer::Json(
            200,
            json!({"apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxWarmPool",
                "metadata": {"name": "p"}, "spec": {"sandboxTemplateRef": {"name": "t"}}}),
        ),
        _ => Answer::Json(404, refusal(404, "NotFound", "no")),
    })
    .await;
    claimed(&stand_in, LONG).await.expect("ready");
}

#[tokio::test]
async fn the_pod_is_looked_at_only_when_it_takes_long() {
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "c", "resourceVersion": "5"},
        "status": {"containerStatuses": [{"name": "s", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
        "state": {"waiting": {"reason": "ErrImageNeverPull", "message": "not here"}}}]}});
    let stand_in = StandIn::start(move |asked, _| match (asked.method.as_str(), asked.is_watch()) {
        ("POST", _) => Answer::Json(201, claim("u", "10", "")),
        (_, true) => Answer::Hold(vec![event("MODIFIED", &claim("u", "11", "DependenciesNotReady"))]),
        _ => list("50", std::slice::from_ref(&pod)),
    })
    .await;
    let wait = Wait::new(LONG).look_after(Duration::from_millis(200));
    let error = claimed(&stand_in, wait).await.expect_err("no image");
    assert!(matches!(&error, Error::ImagePull { reason, .. } if reason == "ErrImageNeverPull"), "{error}");
    let pods: Vec<_> = stand_in.asked().into_iter().filter(|asked| asked.path.ends_with("/pods")).collect();
    assert_eq!(pods.len(), 1);
    // hash8("c")
    assert_eq!(pods[0].query["labelSelector"], "agents.x-k8s.io%2Fsandbox-name-hash%3De60c2c52");
}

#[tokio::test]
async fn somebody_elses_claim_is_not_adopted() {
    let stand_in = StandIn::start(|asked, _| match asked.method.as_str() {
        "POST" => Answer::Json(409, refusal(409, "AlreadyExists", "exists")),
        _ => Answer::Json(200, claim("u", "10", "")),
    })
    .await;
    let adopted = stand_in.client.claim(ClaimBuilder::new("c", "p")).await.expect("the same pool");
    assert!(adopted.adopted);
    let error = stand_in.client.claim(ClaimBuilder::new("c", "q")).await.expect_err("another pool");
    assert!(matches!(error, Error::NotAdoptable { .. }), "{error}");
    let error = stand_in.client.claim(ClaimBuilder::generated("p")).await.expect_err("a random name is taken");
    assert!(matches!(error, Error::AlreadyExists { .. }), "{error}");
    let names: std::collections::HashSet<_> = stand_in
        .asked()
        .iter()
        .filter(|asked| asked.method == "POST")
        .map(|asked| asked.body["metadata"]["name"].to_string())
        .collect();
    assert!(names.len() > 4, "each try has a name of its own: {names:?}");
}

#[tokio::test]
async fn a_quota_stays_known_when_there_is_no_pod_to_look_at() {
    let mut refused = claim("u", "11", "ReconcilerError");
    refused["status"]["conditions"][0]["message"] = "Error seen: pods \"c\" is forbidden: exceeded quota: q".into();
    let stand_in = StandIn::start(move |asked, _| match (asked.method.as_str(), asked.is_watch()) {
        ("POST", _) => Answer::Json(201, claim("u", "10", "")),
        (_, true) if asked.path.ends_with("/pods") => Answer::Hold(vec![]),
        (_, true) => Answer::Hold(vec![event("MODIFIED", &refused)]),
        _ => list("50", &[]),
    })
    .await;
    let wait = Wait::new(LONG).look_after(Duration::from_millis(100)).patience(Duration::from_millis(500));
    let error = claimed(&stand_in, wait).await.expect_err("no quota");
    assert!(matches!(error, Error::QuotaExceeded { .. }), "{error}");
}
