//! Progress while a call lasts, in both eras, and answers as JSON where nothing is sent before them.

use serde_json::{Value, json};

use crate::{
    support::{Answer, Bench},
    wire::{BOTH, JSON, SESSION, TOOLS, call, lent, modern, opened},
};

const STEPS: &str = "for step in 1 2 3; do echo step $step; sleep 0.8; done";

fn kind(answer: &Answer) -> &str {
    answer.headers["content-type"].to_str().unwrap()
}

/// All messages of a stream, in their order.
fn messages(answer: &Answer) -> Vec<Value> {
    assert_eq!(kind(answer), "text/event-stream", "{}", answer.text());
    let text = answer.text();
    let data =
        text.lines().filter_map(|line| line.strip_prefix("data:")).map(str::trim).filter(|data| !data.is_empty());
    data.map(|data| serde_json::from_str(data).unwrap()).collect()
}

fn checked(answer: &Answer, token: &Value) -> Value {
    let mut messages = messages(answer);
    let last = messages.pop().unwrap();
    assert!(last.get("result").is_some(), "{last}");
    assert!(!messages.is_empty(), "no progress");
    let mut before = 0.0;
    for message in &messages {
        assert_eq!(
            (&message["method"], &message["params"]["progressToken"]),
            (&json!("notifications/progress"), token)
        );
        let progress = message["params"]["progress"].as_f64().unwrap();
        assert!(progress > before, "{progress} after {before}");
        before = progress;
    }
    assert!(messages[0]["params"]["message"].is_string(), "{messages:?}");
    messages[0]["params"]["message"].clone()
}

/// A call without a handshake; with a token if there is one.
async fn asked(bench: &Bench, tool: &str, arguments: Value, token: Option<&Value>) -> Answer {
    let (headers, body) = modern("tools/call", json!({"name": tool, "arguments": arguments}));
    let mut body: Value = serde_json::from_str(&body).unwrap();
    if let Some(token) = token {
        body["params"]["_meta"]["progressToken"] = token.clone();
    }
    bench.send("POST", TOOLS, &lent(&headers), body.to_string()).await
}

pub(crate) async fn progress(bench: &Bench) {
    let steps = json!({"command": STEPS, "working_dir": "/"});
    let token = json!("token");
    let message = checked(&asked(bench, "exec", steps.clone(), Some(&token)).await, &token);
    assert!(message.as_str().unwrap().starts_with("step "), "{message}");
    let quick = json!({"command": "echo quick", "working_dir": "/"});
    for asked_for in [None, Some(&token)] {
        let answer = asked(bench, "exec", quick.clone(), asked_for).await;
        assert!(kind(&answer).starts_with("application/json"), "{}", answer.text());
    }
    let silent = asked(bench, "exec", steps.clone(), None).await;
    assert!(kind(&silent).starts_with("application/json"), "nobody asked for progress");
    let (_, _, started) = call(bench, "start", json!({"command": "sleep 1000", "working_dir": "/"})).await;
    let id = started["process_id"].as_str().unwrap();
    let waiting = asked(bench, "output", json!({"process_id": id, "wait_ms": 1500}), Some(&json!(7))).await;
    assert_eq!(checked(&waiting, &json!(7)), "no output yet");
    call(bench, "stop", json!({"process_id": id, "grace_ms": 0})).await;
    // With a handshake, on the stream of the call.
    let session = opened(bench).await;
    let run = json!({"jsonrpc": "2.0", "id": 5, "method": "tools/call",
        "params": {"name": "exec", "arguments": steps, "_meta": {"progressToken": 9}}});
    let answer = bench.send("POST", TOOLS, &[BOTH, JSON, (SESSION, &session)], run.to_string()).await;
    assert!(checked(&answer, &json!(9)).as_str().unwrap().starts_with("step "));
}
