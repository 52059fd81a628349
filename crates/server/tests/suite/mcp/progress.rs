//! Progress while a call lasts, in both eras, and answers as JSON where nothing is sent before them.

use std::{fs, path::PathBuf, time::Duration};

use axum::{body::Body, http::Request};
use futures_util::StreamExt as _;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::{
    mcp::wire::{BOTH, JSON, SESSION, TOOLS, call, lent, modern, opened},
    support::{Answer, Bench, request},
};

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

/// What was told, in its order.
fn checked(answer: &Answer, token: &Value) -> Vec<String> {
    let mut messages = messages(answer);
    let last = messages.pop().unwrap();
    assert!(last.get("result").is_some(), "{last}");
    assert!(!messages.is_empty(), "no progress");
    let mut before = 0.0;
    let told = messages.iter().map(|message| {
        assert_eq!(
            (&message["method"], &message["params"]["progressToken"]),
            (&json!("notifications/progress"), token)
        );
        let progress = message["params"]["progress"].as_f64().unwrap();
        assert!(progress > before, "{progress} after {before}");
        before = progress;
        message["params"]["message"].as_str().unwrap_or_else(|| panic!("{message}")).to_owned()
    });
    told.collect()
}

/// A call without a handshake; with a token if there is one.
fn asking(tool: &str, arguments: Value, token: Option<&Value>) -> Request<Body> {
    let (headers, body) = modern("tools/call", json!({"name": tool, "arguments": arguments}));
    let mut body: Value = serde_json::from_str(&body).unwrap();
    if let Some(token) = token {
        body["params"]["_meta"]["progressToken"] = token.clone();
    }
    request("POST", TOOLS, &lent(&headers), body.to_string())
}

async fn answered(bench: &Bench, asking: Request<Body>) -> Answer {
    until(bench, asking, "", || ()).await
}

/// The answer to a call; `then` when it holds this text.
async fn until(bench: &Bench, asking: Request<Body>, text: &str, then: impl Fn()) -> Answer {
    let reading = async {
        let (head, body) = bench.begin(asking).await;
        let (mut pieces, mut body) = (body.into_data_stream(), Vec::new());
        while let Some(piece) = pieces.next().await {
            body.extend_from_slice(&piece.unwrap());
            if String::from_utf8_lossy(&body).contains(text) {
                then();
            }
        }
        Answer { status: head.status, headers: head.headers, body }
    };
    timeout(Duration::from_secs(300), reading).await.unwrap_or_else(|_| panic!("waited in vain: {text}"))
}

/// What a command waits for, and how.
fn gate(bench: &Bench, name: &str) -> (PathBuf, String) {
    let file = bench.directory.path().join("files").join(name);
    let waiting = format!("until [ -e {} ]; do sleep 0.05; done", file.display());
    (file, waiting)
}

pub(crate) async fn progress(bench: &Bench) {
    let token = json!("token");
    let (file, waiting) = gate(bench, "progress-told");
    let steps = json!({"command": format!("echo step 1; {waiting}"), "working_dir": "/"});
    let open = || fs::write(&file, "").unwrap();
    let answer = until(bench, asking("exec", steps.clone(), Some(&token)), "\"step 1\"", open).await;
    let told = checked(&answer, &token);
    assert!(told.iter().any(|message| message == "step 1"), "{told:?}");
    let quick = json!({"command": "echo quick", "working_dir": "/"});
    for asked_for in [None, Some(&token)] {
        let answer = answered(bench, asking("exec", quick.clone(), asked_for)).await;
        // One that happens to take long is told of.
        if asked_for.is_none() || kind(&answer) != "text/event-stream" {
            assert!(kind(&answer).starts_with("application/json"), "{}", answer.text());
        } else {
            checked(&answer, &token);
        }
    }
    let long = json!({"command": "echo step 1; sleep 1.5", "working_dir": "/"});
    let silent = answered(bench, asking("exec", long, None)).await;
    assert!(kind(&silent).starts_with("application/json"), "nobody asked for progress");
    let (ends, waiting) = gate(bench, "progress-silent");
    let (_, _, started) = call(bench, "start", json!({"command": waiting, "working_dir": "/"})).await;
    let id = started["process_id"].as_str().unwrap();
    let look = asking("output", json!({"process_id": id, "wait_ms": 120_000}), Some(&json!(7)));
    let answer = until(bench, look, "\"no output yet\"", || fs::write(&ends, "").unwrap()).await;
    assert_eq!(checked(&answer, &json!(7))[0], "no output yet");
    // With a handshake, on the stream of the call.
    fs::remove_file(&file).unwrap();
    let session = opened(bench).await;
    let run = json!({"jsonrpc": "2.0", "id": 5, "method": "tools/call",
        "params": {"name": "exec", "arguments": steps, "_meta": {"progressToken": 9}}});
    let run = request("POST", TOOLS, &[BOTH, JSON, (SESSION, &session)], run.to_string());
    let told = checked(&until(bench, run, "\"step 1\"", open).await, &json!(9));
    assert!(told.iter().any(|message| message == "step 1"), "{told:?}");
}
