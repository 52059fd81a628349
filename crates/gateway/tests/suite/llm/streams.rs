//! Streams: passed as they come, byte for byte, and what was only asked for to count is taken out again.

use std::time::{Duration, Instant};

use sandbar_gateway::llm::Usage;
use sandbar_policy::Limits;
use serde_json::{Value, json};

use crate::{
    llm::client::{CHAT, MESSAGES, RESPONSES, open, post, send},
    llm::world::World,
};

fn budget() -> Option<Limits> {
    Some(Limits { tokens: Some(100_000), ..Limits::default() })
}

fn chat(prompt: &str) -> Value {
    json!({"model": "gpt", "stream": true, "max_tokens": 50, "messages": [{"role": "user", "content": prompt}]})
}

/// As the vendor itself answers, without a gateway.
async fn direct(world: &World, path: &str, body: &Value) -> String {
    let request = crate::llm::client::request(path, body.to_string());
    send(world.upstream.address, request).await.whole().await.expect("an answer").text()
}

#[tokio::test]
async fn a_chat_stream_is_what_the_vendor_would_have_sent() {
    let world = World::with(budget(), false, Default::default()).await;
    for prompt in ["hello you", "call:read", "write:0"] {
        let through = post(world.gate, CHAT, &chat(prompt)).await;
        assert_eq!(through.headers["content-type"], "text/event-stream; charset=utf-8");
        let asked =
            serde_json::from_slice::<Value>(&world.upstream.seen().last().expect("a request").body).expect("JSON");
        assert_eq!(asked["stream_options"], json!({"include_usage": true}));
        assert_eq!(through.text(), direct(&world, "/v1/chat/completions", &chat(prompt)).await);
        let (_, end) = world.last().await;
        assert!(end.usage.is_some_and(|usage| usage.input > 0), "{end:?}");
    }
}

#[tokio::test]
async fn usage_that_was_asked_for_stays_in() {
    let world = World::with(budget(), false, Default::default()).await;
    let mut body = chat("hello you");
    body["stream_options"] = json!({"include_usage": true});
    let through = post(world.gate, CHAT, &body).await.text();
    assert!(through.contains("\"total_tokens\":14"));
    assert_eq!(through, direct(&world, "/v1/chat/completions", &body).await);
    assert_eq!(world.last().await.1.usage, Some(Usage { input: 2, output: 12, ..Usage::default() }));
    body["stream_options"] = json!({"include_usage": false, "other": [1]});
    let through = post(world.gate, CHAT, &body).await.text();
    assert_eq!(through, direct(&world, "/v1/chat/completions", &body).await);
    let asked = serde_json::from_slice::<Value>(&world.upstream.seen()[2].body).expect("JSON");
    assert_eq!(asked["stream_options"], json!({"include_usage": true, "other": [1]}));
}

#[tokio::test]
async fn the_other_streams_pass_untouched_and_are_counted() {
    let world = World::with(budget(), false, Default::default()).await;
    let message = |prompt: &str| json!({"model": "claude", "stream": true, "max_tokens": 50, "messages": [{"role": "user", "content": prompt}]});
    for (path, vendors, body) in [
        (
            RESPONSES,
            "/v1/responses",
            json!({"model": "gpt", "stream": true, "max_output_tokens": 16, "input": "one write:20"}),
        ),
        (
            RESPONSES,
            "/v1/responses",
            json!({"model": "gpt", "stream": true, "max_output_tokens": 16, "input": "call:read it"}),
        ),
        (MESSAGES, "/v1/messages", message("one two cached:1")),
        (MESSAGES, "/v1/messages", message("call:read")),
    ] {
        let through = post(world.gate, path, &body).await.text();
        let (_, end) = world.last().await;
        let seen = world.upstream.seen().last().cloned().expect("a request");
        assert_eq!(end.usage.map(|usage| (usage.input, usage.output)), Some((seen.input, seen.output)), "{body}");
        assert_eq!(seen.body, body.to_string());
        assert_eq!(through, direct(&world, vendors, &body).await);
    }
}

#[tokio::test]
async fn an_event_is_passed_before_the_next_one_comes() {
    let world = World::new(budget()).await;
    let (started, mut first) = (Instant::now(), None);
    let mut coming = open(world.gate, CHAT, &chat("write:5 pause:600")).await;
    while let Some(piece) = coming.next().await {
        piece.expect("a piece");
        first.get_or_insert(started.elapsed());
    }
    let whole = started.elapsed();
    assert!(first.is_some_and(|first| first + Duration::from_millis(1500) < whole), "{first:?} of {whole:?}");
}

#[tokio::test]
async fn a_slow_reader_slows_the_upstream_down() {
    // over TLS it speaks HTTP/2, where streams share a connection
    slow_reader(World::with(None, true, Default::default()).await).await;
    slow_reader(World::with(None, false, Default::default()).await).await;
}

async fn slow_reader(world: World) {
    let mut body = chat("write:2000 pad:20000");
    body.as_object_mut().expect("an object").remove("max_tokens");
    let mut coming = open(world.gate, CHAT, &body).await;
    coming.next().await.expect("a piece").expect("a piece");
    // the sockets' buffers fill up, and then nothing moves
    let mut written = 0;
    loop {
        tokio::time::sleep(Duration::from_millis(300)).await;
        let now = world.upstream.seen()[0].output;
        if now == written {
            break;
        }
        written = now;
    }
    assert!(written < 1500, "{written} words were taken from the upstream for a client that does not read");
    let other = tokio::time::timeout(Duration::from_secs(300), post(world.gate, CHAT, &chat("pad:20000"))).await;
    assert_eq!(other.map(|other| other.status), Ok(200), "one that does not read holds up another");
    drop(coming);
    // nobody waits any more: it is read on to its usage
    let (_, end) = world.last().await;
    assert_eq!(end.usage.map(|usage| usage.output), Some(2000));
}
