//! Approvals followed live: what is open, then what changes, and to each only what is theirs.

use chrono::{TimeDelta, Utc};
use sandbar_api::{Approval, ApprovalId, ApprovalKind, ApprovalState, Choice, SessionId};
use sandbar_engine::store::{ApprovalStore as _, sqlite::SqliteStore};
use serde_json::{Value, json};

use super::{gate::Barren, *};

fn asked(number: u64, session: &SessionId) -> Approval {
    Approval {
        id: ApprovalId::from_parts(number, [7; 10]),
        kind: ApprovalKind::Network,
        state: ApprovalState::Open,
        session: session.clone(),
        sandbox: None,
        question: "May it?".into(),
        choices: vec![Choice::new("once", "Allow"), Choice::new("deny", "Deny")],
        takes_text: false,
        context: json!({}),
        answerable_by: Role::Operator,
        created_at: Utc::now(),
        deadline: Utc::now() + TimeDelta::minutes(10),
        on_deadline: "deny".into(),
        answer: None,
        delivery: None,
        reason: None,
        closed_at: None,
    }
}

struct Frame {
    id: Option<String>,
    event: String,
    data: Value,
}

/// Reads frames until there are so many.
async fn frames(body: &mut axum::body::BodyDataStream, count: usize) -> Vec<Frame> {
    let mut text = String::new();
    while text.matches("\n\n").count() < count {
        text.push_str(std::str::from_utf8(&body.next().await.unwrap().unwrap()).unwrap());
    }
    let field = |frame: &str, name: &str| frame.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
    text.trim_end()
        .split("\n\n")
        .map(|frame| Frame {
            id: field(frame, "id: "),
            event: field(frame, "event: ").unwrap(),
            data: serde_json::from_str(&field(frame, "data: ").unwrap()).unwrap(),
        })
        .collect()
}

#[tokio::test]
async fn they_are_followed_live_and_each_sees_their_own() {
    let bench = Bench::with(vec![Arc::new(Barren)]).await;
    let (session, agent) = bench.agent().await;
    let other = bench.session().await;
    let store = SqliteStore::open(bench._home.path()).await.unwrap();
    let (own, foreign) = (asked(1, &session), asked(2, &other));
    store.open_approval(&own).await.unwrap();
    store.open_approval(&foreign).await.unwrap();
    let operator = bench.token(Role::Operator).await;
    let follow = async |token: &str, headers: &[(&str, &str)]| {
        let all = [&[("authorization", token), ("accept", "text/event-stream")], headers].concat();
        let (head, body) = bench.begin(Channel::Tcp, request("get", "/v1/approvals", &all, "")).await;
        assert_eq!(head.status, StatusCode::OK);
        body.into_data_stream()
    };
    let mut all = follow(&operator, &[]).await;
    let first = frames(&mut all, 2).await;
    let ids: Vec<_> = first.iter().map(|frame| frame.data["id"].as_str().unwrap()).collect();
    assert_eq!(ids, [own.id.as_str(), foreign.id.as_str()]);
    assert!(first.iter().all(|frame| frame.event == "open"));
    assert!(first[0].id.is_none() && first[1].id.is_some(), "who breaks off in between begins anew");

    let mut mine = follow(&agent, &[]).await;
    assert_eq!(frames(&mut mine, 1).await[0].data["id"], own.id.as_str());
    let json = [("authorization", operator.as_str()), ("content-type", "application/json")];
    for approval in [&foreign, &own] {
        let path = format!("/v1/approvals/{}/answer", approval.id);
        let answer = bench.send(Channel::Tcp, request("post", &path, &json, r#"{"choice":"once"}"#)).await;
        assert_eq!(answer.status, StatusCode::OK);
    }
    let mine = frames(&mut mine, 1).await.remove(0);
    assert_eq!((mine.event.as_str(), &mine.data["id"]), ("answered", &own.id.as_str().into()), "and not the other's");

    // Resumed: nothing of before, all of after.
    let seen = first[1].id.clone().unwrap();
    let mut resumed = follow(&operator, &[("last-event-id", &seen)]).await;
    let again = frames(&mut resumed, 2).await;
    let states: Vec<_> = again.iter().map(|frame| (frame.event.as_str(), &frame.data["answer"]["choice"])).collect();
    assert_eq!(states, [("answered", &"once".into()), ("answered", &"once".into())]);
    let bad = [("authorization", operator.as_str()), ("accept", "text/event-stream"), ("last-event-id", "x")];
    assert_eq!(bench.tcp("get", "/v1/approvals", &bad).await.status, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn ten_megabytes_are_no_answer_and_what_is_malformed_is_not_quoted() {
    let bench = Bench::new().await;
    let operator = bench.token(Role::Operator).await;
    let json = [("authorization", operator.as_str()), ("content-type", "application/json")];
    let path = "/v1/approvals/apr-00000000000000000000000000/answer";
    let long = format!(r#"{{"choice":"text","text":"{}"}}"#, "x".repeat(10 << 20));
    let answer = bench.send(Channel::Tcp, request("post", path, &json, &long)).await;
    assert_eq!((answer.status, answer.code().as_str()), (StatusCode::PAYLOAD_TOO_LARGE, "too_large"));
    let answer = bench.send(Channel::Tcp, request("post", path, &json, r#"{"choice":"text","txt":"hunter2"}"#)).await;
    assert_eq!(answer.code(), "bad_json");
    assert!(!String::from_utf8_lossy(&answer.body).contains("hunter2"));
}
