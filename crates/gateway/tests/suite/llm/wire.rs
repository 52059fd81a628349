//! What passes: the very bytes, the right headers, the upstream's own key; and what is changed because it must be.

use http_body_util::Full;
use hyper::Request;
use sandbar_gateway::llm::Usage;
use sandbar_policy::{Limits, Placement};
use serde_json::{Value, json};

use crate::{
    llm::client::{CHAT, EMBEDDINGS, MESSAGES, RESPONSES, post, request, send},
    llm::world::{KEY, World},
};

fn budget(tokens: u64) -> Option<Limits> {
    Some(Limits { tokens: Some(tokens), ..Limits::default() })
}

fn chat(prompt: &str) -> Value {
    json!({"model": "gpt", "messages": [{"role": "user", "content": prompt}]})
}

#[tokio::test]
async fn a_request_and_its_answer_pass_byte_for_byte() {
    let world = World::new(None).await;
    let body = "{ \"model\" : \"gpt\",\n \"messages\":[{\"role\":\"user\",\"content\":\"caf\\u00e9 cached:2\"}], \"temperature\":1.0 }";
    let answer = send(world.gate, request(CHAT, body)).await.whole().await.expect("an answer");
    assert_eq!(answer.status, 200);
    assert_eq!(answer.json()["choices"][0]["message"]["role"], "assistant");
    let seen = &world.upstream.seen()[0];
    assert_eq!(seen.body, body);
    assert_eq!(seen.path, "/v1/chat/completions");
    let (_, end) = world.last().await;
    assert_eq!(end.usage, Some(Usage { input: 2, cached_input: 2, cache_write: 0, output: 12 }));
    assert_eq!((end.status, end.free, end.note), (Some(200), false, None));
}

#[tokio::test]
async fn the_upstreams_key_goes_in_and_the_clients_headers_stay_out() {
    let world = World::new(None).await;
    let mut asked = request(CHAT, chat("hi").to_string());
    for (name, value) in [
        ("cookie", "session=1"),
        ("openai-organization", "org-x"),
        ("openai-project", "proj-x"),
        ("x-forwarded-for", "10.0.0.1"),
        ("accept-encoding", "gzip, br"),
        ("proxy-authorization", "Basic eDp5"),
        ("idempotency-key", "i-1"),
        ("x-stainless-lang", "python"),
        ("user-agent", "agent/1"),
    ] {
        asked.headers_mut().insert(name, value.parse().expect("a value"));
    }
    let answer = send(world.gate, asked).await.whole().await.expect("an answer");
    let seen = &world.upstream.seen()[0];
    assert_eq!(seen.headers["authorization"], format!("Bearer {KEY}").as_str());
    assert_eq!(seen.headers["accept-encoding"], "identity");
    for name in ["idempotency-key", "x-stainless-lang", "user-agent", "content-type"] {
        assert!(seen.headers.contains_key(name), "{name}");
    }
    for name in
        ["cookie", "x-api-key", "openai-organization", "openai-project", "x-forwarded-for", "proxy-authorization"]
    {
        assert!(!seen.headers.contains_key(name), "{name}");
    }
    assert_eq!(answer.headers["x-request-id"], "req_1");
    assert!(!answer.headers.contains_key("openai-organization"));
    assert!(!answer.headers.contains_key("sandbar-refusal"), "a vendor does not speak in the gateway's name");
    assert!(!answer.text().contains(KEY));
}

#[tokio::test]
async fn anthropic_gets_its_key_and_version_its_way() {
    let world = World::new(None).await;
    let body =
        json!({"model": "claude", "max_tokens": 50, "messages": [{"role": "user", "content": "cached:2 hello there"}]});
    let mut asked = request(&format!("{MESSAGES}?beta=true"), body.to_string());
    asked.headers_mut().insert("anthropic-version", "2023-06-01".parse().expect("a value"));
    let answer = send(world.gate, asked).await.whole().await.expect("an answer");
    assert_eq!(answer.json()["content"][0]["type"], "text");
    let seen = &world.upstream.seen()[0];
    assert_eq!(seen.path, "/v1/messages?beta=true");
    assert_eq!(seen.headers["x-api-key"], KEY);
    assert_eq!(seen.headers["anthropic-version"], "2023-06-01");
    assert!(!seen.headers.contains_key("authorization"));
    let (_, end) = world.last().await;
    assert_eq!(end.usage, Some(Usage { input: 3, cached_input: 2, cache_write: 0, output: 12 }));
}

#[tokio::test]
async fn all_endpoints_are_counted_but_the_one_that_is_free() {
    let world = World::new(budget(10_000)).await;
    let answer = post(world.gate, RESPONSES, &json!({"model": "gpt", "input": "one two three"})).await;
    assert_eq!(answer.json()["object"], "response");
    assert_eq!(world.last().await.1.usage.map(|usage| (usage.input, usage.output)), Some((3, 12)));
    let answer = post(world.gate, EMBEDDINGS, &json!({"model": "gpt", "input": ["one two", "pad:30000"]})).await;
    assert_eq!(answer.json()["object"], "list");
    let (reservation, end) = world.last().await;
    assert_eq!(end.usage.map(|usage| (usage.input, usage.output)), Some((3, 0)));
    assert_eq!(reservation.held.tokens, world.upstream.seen()[1].body.len() as u64);
    let used = world.used();
    let count = json!({"model": "claude", "messages": [{"role": "user", "content": "one two"}], "mcp_servers": []});
    let answer = post(world.gate, "/llm/anthropic/v1/messages/count_tokens", &count).await;
    assert_eq!(answer.json(), json!({"input_tokens": 2}));
    assert_eq!((world.used(), world.clerk.books().settled.len()), (used, 2));
    let other = json!({"model": "gpt", "messages": []});
    assert_eq!(post(world.gate, "/llm/anthropic/v1/messages/count_tokens", &other).await.status, 404);
}

#[tokio::test]
async fn aliases_names_of_the_vendor_and_switches_change_the_model_alone() {
    let world = World::new(None).await;
    let body = "{\"messages\":[ ],\"model\" :  \"fast\" }";
    send(world.gate, request(CHAT, body)).await.whole().await.expect("an answer");
    assert_eq!(world.upstream.seen()[0].body, "{\"messages\":[ ],\"model\" :  \"gpt-2026-11-01\" }");
    world.clerk.books().model = Some("gpt".into());
    send(world.gate, request(CHAT, body)).await.whole().await.expect("an answer");
    assert_eq!(world.upstream.seen()[1].body, "{\"messages\":[ ],\"model\" :  \"gpt\" }");
    // what embeds is not replaced by what writes
    post(world.gate, EMBEDDINGS, &json!({"model": "fast", "input": "x"})).await;
    assert!(world.upstream.seen()[2].body.starts_with(b"{\"input\":\"x\",\"model\":\"gpt-2026-11-01\""));
    world.clerk.books().model = Some("claude".into());
    let answer = post(world.gate, CHAT, &chat("hi")).await;
    assert_eq!(answer.status, 400);
    assert!(answer.message().contains("switched to `claude`, which speaks anthropic"), "{}", answer.message());
    assert_eq!(world.upstream.seen().len(), 3);
}

#[tokio::test]
async fn a_missing_cap_is_set_under_a_budget_and_only_then() {
    let world = World::new(budget(10_000)).await;
    let body = chat("write:500").to_string();
    let answer = send(world.gate, request(CHAT, body.clone())).await.whole().await.expect("an answer");
    // the model's most
    assert_eq!(answer.json()["usage"]["completion_tokens"], 100);
    assert_eq!(world.upstream.seen()[0].body, body.replacen('{', "{\"max_tokens\":100,", 1));
    let (reservation, _) = world.last().await;
    assert_eq!(reservation.held.tokens, body.len() as u64 + 100);
    // what is left
    let used = world.used();
    world.clerk.books().limits = budget(used + body.len() as u64 + 40);
    let answer = send(world.gate, request(CHAT, body.clone())).await.whole().await.expect("an answer");
    assert_eq!(answer.json()["usage"]["completion_tokens"], 40);
    world.clerk.books().limits = None;
    let answer = post(world.gate, RESPONSES, &json!({"model": "gpt", "input": "write:500"})).await;
    assert_eq!(answer.json()["usage"]["output_tokens"], 500);
}

#[tokio::test]
async fn tools_and_images_pass_and_are_bounded() {
    let world = World::new(budget(100_000)).await;
    let picture = format!("data:image/png;base64,{}", "A".repeat(200_000));
    let body = json!({"model": "gpt", "max_tokens": 50, "n": 2, "tools": [{"type": "function", "function": {"name": "read"}}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "call:read"},
            {"type": "image_url", "image_url": {"url": picture}}]}]});
    let answer = post(world.gate, CHAT, &body).await;
    assert_eq!(answer.json()["choices"][1]["message"]["tool_calls"][0]["function"]["name"], "read");
    let (reservation, end) = world.last().await;
    let text = body.to_string().len() - picture.len();
    assert_eq!(reservation.held.tokens, text as u64 + 1000 + 1024 + 2 * 50);
    assert_eq!(end.usage.map(|usage| (usage.input, usage.output)), Some((86, 24)));
    let body = json!({"model": "claude", "max_tokens": 50, "tools": [{"name": "read", "input_schema": {}}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "call:read"},
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "A".repeat(200_000)}}]}]});
    let answer = post(world.gate, MESSAGES, &body).await;
    assert_eq!(answer.json()["content"][0]["type"], "tool_use");
}

#[tokio::test]
async fn models_are_listed_each_vendors_way() {
    let world = World::new(None).await;
    let list = |path: &'static str| {
        let asked = Request::get(path).header("host", "gate").body(Full::default()).expect("a request");
        async { send(world.gate, asked).await.whole().await.expect("an answer").json() }
    };
    let openai = list("/llm/openai/v1/models").await;
    let ids: Vec<_> = openai["data"].as_array().expect("a list").iter().map(|model| model["id"].clone()).collect();
    assert_eq!(ids, ["fast", "gpt", "gpt-dated", "gpt-unpriced"]);
    assert_eq!((&openai["object"], &openai["data"][0]["object"]), (&json!("list"), &json!("model")));
    let anthropic = list("/llm/anthropic/v1/models").await;
    assert_eq!((&anthropic["data"][0]["id"], &anthropic["has_more"]), (&json!("claude"), &json!(false)));
}

#[tokio::test]
async fn a_plain_upstream_without_a_key_works_and_gets_none() {
    let world = World::with(None, false, Default::default()).await;
    assert_eq!(post(world.gate, CHAT, &chat("hi")).await.status, 200);
    let seen = &world.upstream.seen()[0];
    assert!(!seen.headers.contains_key("authorization"));
    assert_eq!(seen.headers["host"], format!("vendor.test:{}", world.upstream.address.port()).as_str());
}

#[tokio::test]
async fn a_key_that_a_server_repeats_in_another_form_goes_no_further() {
    let world = World::new(None).await;
    for user in ["u", "us", "use"] {
        world.clerk.books().placement = Some(Placement::Basic { user: user.into() });
        let answer = post(world.gate, CHAT, &chat("fail:403 echo:1")).await;
        let message = answer.message();
        assert_eq!(message.trim_end_matches('='), "not allowed: Basic [key]");
        assert!(!answer.headers.contains_key("www-authenticate"));
    }
}

#[tokio::test]
async fn a_key_that_a_server_repeats_goes_no_further() {
    let world = World::new(None).await;
    let answer = post(world.gate, CHAT, &chat("fail:403 echo:1")).await;
    assert_eq!((answer.status, answer.message().as_str()), (403, "not allowed: Bearer [key]"));
    assert!(!answer.headers.contains_key("www-authenticate"));
    assert_eq!(answer.headers["x-request-id"], "req_1");
}
