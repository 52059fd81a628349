//! What is refused or fails before anything is reserved is recorded, without anything of what was asked.

use sandbar_gateway::{Direction, Fact, Outcome, Settings};
use sandbar_policy::{Account, Amount, Effect, Limits};
use serde_json::{Value, json};

use crate::{
    llm::client::{CHAT, MESSAGES, RESPONSES, post, request, send},
    llm::world::{NAME, World},
};

const SAID: &str = "what-was-said-to-the-model";

fn chat() -> Value {
    json!({"model": "gpt", "max_tokens": 50, "messages": [{"role": "user", "content": SAID}]})
}

/// The one fact there is.
fn fact(world: &World) -> Fact {
    let facts = std::mem::take(&mut world.clerk.books().facts);
    assert!(!format!("{facts:?}").contains(SAID), "{facts:?}");
    let [fact] = &facts[..] else { panic!("{facts:?}") };
    assert_eq!((fact.direction, fact.method.as_deref()), (Direction::Request, Some("POST")));
    fact.clone()
}

fn denied(fact: &Fact) -> &str {
    match &fact.outcome {
        Outcome::Denied(reason) if fact.decision.effect == Effect::Deny => reason,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn every_refusal_is_recorded() {
    let world = World::new(Some(Limits { tokens: Some(1000), per_minute: Some(200), micros: Some(1_000_000) })).await;
    let port = world.upstream.address.port();
    for (path, body, reason) in [
        (RESPONSES, json!({"model": "gpt", "input": SAID, "previous_response_id": "r"}), "`previous_response_id`: "),
        (CHAT, json!({"model": "gpt", "messages": [], "n": 1000}), "`n`: "),
        (MESSAGES, json!({"model": "claude", "max_tokens": 5, "messages": [], "new": SAID}), "`new`: "),
    ] {
        assert_eq!(post(world.gate, path, &body).await.status, 400);
        let fact = fact(&world);
        assert!(denied(&fact).starts_with(reason), "{fact:?}");
        assert_eq!((fact.path.as_deref(), fact.host.as_str(), fact.port), (Some(path), NAME, port));
    }
    let mut unknown = chat();
    unknown["model"] = "nothing".into();
    assert_eq!(post(world.gate, CHAT, &unknown).await.status, 404);
    let unknown = fact(&world);
    assert!(denied(&unknown).contains("`nothing` is not configured"));
    assert_eq!((unknown.host.as_str(), unknown.port), ("llm", 0));

    let mut beta = request(MESSAGES, json!({"model": "claude", "max_tokens": 5, "messages": []}).to_string());
    beta.headers_mut().insert("anthropic-beta", "context-1m-2025-08-07".parse().expect("a value"));
    let answer = send(world.gate, beta).await.whole().await.expect("an answer");
    assert_eq!((answer.status, answer.json()["error"]["type"].clone()), (400, json!("invalid_request_error")));
    assert!(denied(&fact(&world)).contains("`context-1m-2025-08-07`"));
    assert!(world.upstream.seen().is_empty());

    let mut body = chat();
    body["messages"][0]["content"] = format!("{SAID} silent:1").into();
    assert_eq!(post(world.gate, CHAT, &body).await.status, 200);
    world.at_rest().await;
    assert_eq!(world.clerk.books().facts.len(), 0, "what was made is in the books");
    assert_eq!(post(world.gate, CHAT, &body).await.status, 429);
    assert!(denied(&fact(&world)).contains("tokens a minute"));
    world.clerk.books().account = Account::with_used(Amount { tokens: 2000, micros: 0 });
    assert_eq!(post(world.gate, CHAT, &chat()).await.status, 402);
    let exceeded = fact(&world);
    assert_eq!(denied(&exceeded), "Session budget exceeded: 2,000/1,000 tokens");
    assert_eq!((exceeded.host.as_str(), exceeded.path.as_deref()), (NAME, Some(CHAT)));
}

#[tokio::test]
async fn what_fails_before_anything_is_reserved_is_recorded() {
    let world = World::with(None, true, Settings::default()).await;
    world.clerk.books().closed = true;
    assert_eq!(post(world.gate, CHAT, &chat()).await.status, 503);
    let failed = fact(&world);
    assert!(matches!(&failed.outcome, Outcome::Failed(reason) if reason.contains("the disk is full")), "{failed:?}");
    assert_eq!(failed.decision.effect, Effect::Allow);
    world.clerk.books().closed = false;
    world.upstream.stop().await;
    // counting reserves nothing, so nothing else would tell
    let count = json!({"model": "claude", "messages": [{"role": "user", "content": SAID}]});
    assert_eq!(post(world.gate, "/llm/anthropic/v1/messages/count_tokens", &count).await.status, 502);
    let failed = fact(&world);
    assert!(matches!(&failed.outcome, Outcome::Failed(reason) if reason.contains("cannot be reached")), "{failed:?}");
    assert_eq!((failed.host.as_str(), failed.port), (NAME, world.upstream.address.port()));
    assert_eq!(post(world.gate, CHAT, &chat()).await.status, 502);
    world.at_rest().await;
    let books = world.clerk.books();
    assert_eq!((books.facts.len(), books.settled.len()), (0, 1), "the reservation tells of it");
}
