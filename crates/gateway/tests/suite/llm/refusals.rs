//! What is refused before anything is sent: over budget, unbounded, unknown, malformed; each in the vendor's shape.

use sandbar_policy::{Account, Amount, Limits};
use serde_json::{Value, json};

use crate::{
    llm::client::{CHAT, EMBEDDINGS, MESSAGES, RESPONSES, post, request, send},
    llm::world::World,
};

fn chat(prompt: &str) -> Value {
    json!({"model": "gpt", "max_tokens": 50, "messages": [{"role": "user", "content": prompt}]})
}

fn message(prompt: &str) -> Value {
    json!({"model": "claude", "max_tokens": 50, "messages": [{"role": "user", "content": prompt}]})
}

async fn world(limits: Limits, used: u64) -> World {
    let world = World::new(Some(limits)).await;
    world.clerk.books().account = Account::with_used(Amount { tokens: used, micros: used });
    world
}

#[tokio::test]
async fn over_budget_is_402_with_the_known_body() {
    let world = world(Limits { tokens: Some(1000), ..Limits::default() }, 1234).await;
    let answer = post(world.gate, CHAT, &chat("hi")).await;
    assert_eq!(answer.status, 402);
    let expected = json!({
        "message": "Session budget exceeded: 1,234/1,000 tokens", "type": "budget_exceeded", "code": "budget_exceeded",
        "tokens_used": 1234, "tokens_budget": 1000, "session_id": "ses-1", "reserved": 0,
    });
    assert_eq!(answer.json(), json!({"error": expected}));
    let answer = post(world.gate, MESSAGES, &message("hi")).await;
    assert_eq!((answer.status, answer.json()), (402, json!({"type": "error", "error": expected})));
    // without a cap there is nothing left to set one from
    let answer = post(world.gate, CHAT, &json!({"model": "gpt", "messages": []})).await;
    assert_eq!(answer.status, 402);
    assert!(world.upstream.seen().is_empty());
}

#[tokio::test]
async fn what_may_not_fit_is_refused_though_the_budget_is_not_used_up() {
    let world = world(Limits { tokens: Some(1000), ..Limits::default() }, 900).await;
    let answer = post(world.gate, CHAT, &chat("hi")).await;
    assert_eq!(answer.status, 402);
    assert!(answer.message().starts_with("Session budget exceeded: 900/1,000 tokens. "), "{}", answer.message());
    assert!(answer.message().contains("100 tokens are left"), "{}", answer.message());
    assert_eq!(answer.json()["error"]["tokens_used"], 900);
}

#[tokio::test]
async fn dollars_say_dollars() {
    let world = world(Limits { micros: Some(1_000_000), ..Limits::default() }, 1_230_000).await;
    let error = post(world.gate, CHAT, &chat("hi")).await.json()["error"].clone();
    assert_eq!(error["message"], "Session budget exceeded: $1.23/$1.00");
    assert_eq!((&error["usd_used"], &error["usd_budget"]), (&json!(1.23), &json!(1.0)));
    assert_eq!(error["session_id"], "ses-1");
}

#[tokio::test]
async fn a_price_that_is_missing_is_named() {
    let world = world(Limits { micros: Some(1_000_000), ..Limits::default() }, 0).await;
    let mut body = chat("hi");
    body["model"] = "gpt-unpriced".into();
    let answer = post(world.gate, CHAT, &body).await;
    assert_eq!((answer.status, answer.json()["error"]["param"].clone()), (400, json!("model")));
    assert!(answer.message().contains("`gpt-unpriced` (`input_usd`"), "{}", answer.message());
    let mut body = message("hi");
    body["model"] = "claude-that-nobody-configured".into();
    assert_eq!(post(world.gate, MESSAGES, &body).await.status, 400);
}

#[tokio::test]
async fn a_rate_says_when_to_come_again_and_when_never() {
    let world = world(Limits { per_minute: Some(200), ..Limits::default() }, 0).await;
    assert_eq!(post(world.gate, CHAT, &chat("write:50 silent:1")).await.status, 200);
    world.at_rest().await;
    for (path, body, kind) in [(CHAT, chat("hi"), "rate_limit_exceeded"), (MESSAGES, message("hi"), "rate_limit_error")]
    {
        let answer = post(world.gate, path, &body).await;
        assert_eq!((answer.status, answer.json()["error"]["type"].clone()), (429, json!(kind)));
        let seconds: u64 = answer.headers["retry-after"].to_str().expect("text").parse().expect("seconds");
        assert!((1..=60).contains(&seconds), "{seconds}");
    }
    let answer = post(world.gate, CHAT, &chat(&"x".repeat(300))).await;
    assert_eq!(answer.status, 400);
    assert!(answer.message().contains("200 tokens a minute"), "{}", answer.message());
}

#[tokio::test]
async fn books_that_cannot_be_written_spend_nothing() {
    let world = world(Limits::default(), 0).await;
    world.clerk.books().closed = true;
    let answer = post(world.gate, CHAT, &chat("hi")).await;
    assert_eq!(answer.status, 503);
    assert!(answer.message().contains("the disk is full"));
    assert!(world.upstream.seen().is_empty());
}

#[tokio::test]
async fn what_cannot_be_bounded_is_refused_under_a_budget_only() {
    let world = world(Limits { tokens: Some(100_000), ..Limits::default() }, 0).await;
    let cases = [
        (RESPONSES, json!({"model": "gpt", "input": "x", "previous_response_id": "resp_1"}), "previous_response_id"),
        (RESPONSES, json!({"model": "gpt", "input": "x", "tools": [{"type": "web_search"}]}), "tools[0].type"),
        (RESPONSES, json!({"model": "gpt", "input": "x", "background": true}), "background"),
        (
            RESPONSES,
            json!({"model": "gpt", "input": [{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}]}),
            "input[0].content[0].type",
        ),
        (CHAT, json!({"model": "gpt", "messages": [], "n": 1000}), "n"),
        (CHAT, json!({"model": "gpt", "messages": [], "max_tokens": 1.5}), "max_tokens"),
        (MESSAGES, json!({"model": "claude", "max_tokens": 5, "messages": [], "mcp_servers": []}), "mcp_servers"),
        (MESSAGES, json!({"model": "claude", "messages": []}), "max_tokens"),
    ];
    for (path, body, field) in &cases {
        let answer = post(world.gate, path, body).await;
        assert_eq!(answer.status, 400, "{body}");
        assert!(answer.message().starts_with(&format!("`{field}`: ")), "{}", answer.message());
    }
    assert!(world.upstream.seen().is_empty());
    world.clerk.books().limits = None;
    for (path, body, _) in &cases {
        assert_eq!(post(world.gate, path, body).await.status, 200, "{body}");
    }
}

#[tokio::test]
async fn a_field_that_nobody_knows_passes_only_without_a_budget() {
    let world = world(Limits { tokens: Some(100_000), ..Limits::default() }, 0).await;
    let cases = [
        (CHAT, json!({"model": "gpt", "max_tokens": 5, "messages": [], "memory": true})),
        (RESPONSES, json!({"model": "gpt", "input": "x", "memory": true})),
        (EMBEDDINGS, json!({"model": "gpt", "input": "x", "memory": true})),
        (MESSAGES, json!({"model": "claude", "max_tokens": 5, "messages": [], "memory": true})),
    ];
    for (path, body) in &cases {
        let answer = post(world.gate, path, body).await;
        assert_eq!(answer.status, 400, "{body}");
        assert!(answer.message().starts_with("`memory`: it is not known to be bounded"), "{}", answer.message());
    }
    assert!(world.upstream.seen().is_empty());
    world.clerk.books().limits = None;
    for (path, body) in &cases {
        assert_eq!(post(world.gate, path, body).await.status, 200, "{body}");
    }
}

#[tokio::test]
async fn what_the_vendor_has_stored_cannot_be_sent_by_its_name() {
    let world = world(Limits { tokens: Some(100_000), ..Limits::default() }, 0).await;
    for (item, field) in [
        (json!({"id": "msg_1"}), "input[0].id"),
        (json!({"type": null, "id": "msg_1"}), "input[0].id"),
        (json!({"type": "reasoning", "id": "rs_1", "summary": []}), "input[0].encrypted_content"),
    ] {
        let body = json!({"model": "gpt", "input": [item]});
        let answer = post(world.gate, RESPONSES, &body).await;
        assert_eq!((answer.status, answer.json()["error"]["param"].clone()), (400, json!(field)), "{body}");
    }
    assert!(world.upstream.seen().is_empty());
}

#[tokio::test]
async fn betas_that_may_change_a_price_are_refused_for_dollars_only() {
    let world = world(Limits { micros: Some(1_000_000), ..Limits::default() }, 0).await;
    let asked = |betas: &'static str| {
        let mut asked = request(MESSAGES, message("hi").to_string());
        asked.headers_mut().insert("anthropic-beta", betas.parse().expect("a value"));
        async { send(world.gate, asked).await.whole().await.expect("an answer") }
    };
    let usual = "claude-code-20250219,interleaved-thinking-2025-05-14";
    assert_eq!(asked(usual).await.status, 200);
    assert_eq!(world.upstream.seen()[0].headers["anthropic-beta"], usual);
    let answer = asked("effort-2025-11-24, context-1m-2025-08-07").await;
    assert_eq!(answer.status, 400);
    assert!(answer.message().starts_with("`anthropic-beta`: `context-1m-2025-08-07` "), "{}", answer.message());
    world.clerk.books().limits = Some(Limits { tokens: Some(100_000), ..Limits::default() });
    assert_eq!(asked("context-1m-2025-08-07").await.status, 200);
}

#[tokio::test]
async fn a_budget_that_comes_while_a_call_is_planned_holds_for_it() {
    let world = World::new(None).await;
    let coming = || Some(Limits { tokens: Some(10_000), ..Limits::default() });
    world.clerk.books().coming = coming();
    let answer = post(world.gate, CHAT, &json!({"model": "gpt", "messages": [{"content": "write:500"}]})).await;
    assert_eq!(answer.json()["usage"]["completion_tokens"], 100, "capped");
    world.clerk.books().limits = None;
    world.clerk.books().coming = coming();
    let stored = json!({"model": "gpt", "input": "x", "previous_response_id": "r"});
    assert_eq!(post(world.gate, RESPONSES, &stored).await.status, 400);
    assert_eq!(world.upstream.seen().len(), 1);
}

#[tokio::test]
async fn what_two_parsers_could_read_differently_is_refused() {
    let world = World::new(None).await;
    for body in [
        r#"{"model":"gpt","model":"gpt-dated","messages":[]}"#,
        r#"{"model":"gpt","mod\u0065l":"gpt-dated","messages":[]}"#,
        r#"{"model":"gpt","messages":[],"Model":"gpt-dated"}"#,
        r#"{"model":"gpt","messages":[{"content":"a","content":"b"}]}"#,
        r#"{"model":"gpt"} {"model":"gpt-dated"}"#,
        r#"["model"]"#,
        r#"{"model":7}"#,
        r#"{"messages":[]}"#,
        "",
    ] {
        let answer = send(world.gate, request(CHAT, body)).await.whole().await.expect("an answer");
        assert_eq!(
            (answer.status, answer.json()["error"]["type"].clone()),
            (400, json!("invalid_request_error")),
            "{body}"
        );
    }
    assert!(world.upstream.seen().is_empty());
}

#[tokio::test]
async fn what_is_not_there_says_what_is() {
    let world = World::new(None).await;
    for (path, format) in [("/llm/openai/v1/files", "openai"), ("/llm/anthropic/v1/complete", "anthropic")] {
        let answer = post(world.gate, path, &json!({})).await;
        assert_eq!(answer.status, 404);
        assert!(answer.message().contains(&format!("/llm/{format}/v1/models")), "{}", answer.message());
        assert_eq!(answer.json().get("type").is_some(), format == "anthropic");
    }
    let answer = post(world.gate, EMBEDDINGS, &json!({"model": "nothing", "input": "x"})).await;
    assert_eq!((answer.status, answer.json()["error"]["code"].clone()), (404, json!("model_not_found")));
    assert!(answer.message().contains("`nothing`") && answer.message().contains("gpt-dated"), "{}", answer.message());
    // Anthropic's upstream takes any
    let mut body = message("hi");
    body["model"] = "claude-new".into();
    assert_eq!(post(world.gate, MESSAGES, &body).await.status, 200);
    assert_eq!(world.clerk.books().settled.len(), 1);
}
