//! Commands over MCP: run, cut, cancelled.

use axum::http::StatusCode;
use serde_json::{Value, json};

use crate::{
    mcp::wire::{BOTH, JSON, SESSION, TOOLS, call, child, dead, endless, lent, modern, opened},
    support::{Bench, request},
};

pub(crate) async fn commands(bench: &Bench) {
    let place = bench.directory.path().join("files").display().to_string();
    let run = async |command: &str| call(bench, "exec", json!({"command": command, "working_dir": place})).await;
    let (failed, text, value) = run("pwd; echo oops >&2; exit 42").await;
    assert!(!failed);
    assert_eq!(text, format!(r#"{{"stdout":"{place}\n","stderr":"oops\n","exit_code":42}}"#));
    assert_eq!(value, serde_json::from_str::<Value>(&text).unwrap());
    for empty in ["", " \n"] {
        assert_eq!(run(empty).await.1, "command must not be empty");
    }
    // On a busy machine the shell may begin after the first.
    let mut cut = Value::Null;
    for timeout_ms in [300, 3000, 30_000] {
        let slow = json!({"command": "echo begun; sleep 600", "timeout_ms": timeout_ms, "working_dir": "/"});
        let (failed, _, value) = call(bench, "exec", slow).await;
        assert_eq!((failed, &value["exit_code"], &value["reason"]), (false, &json!(-1), &json!("timeout")));
        cut = value;
        if cut["stdout"] != "" {
            break;
        }
    }
    assert_eq!(cut, json!({"stdout": "begun\n", "stderr": "", "exit_code": -1, "reason": "timeout"}));
    let (failed, text, _) = call(bench, "exec", json!({"command": "true", "timeout_ms": 1_800_001})).await;
    assert!(failed && text.starts_with("timeout_ms must not be more than 1800000"), "{text}");
    let (failed, text, _) = call(bench, "exec", json!({"command": "true", "working_dir": "/no/such"})).await;
    assert!(failed && text.starts_with("failed to run command: ") && text.contains("/no/such"), "{text}");
    let (_, _, value) = run(r"printf '\377x'").await;
    assert_eq!(value["stdout"], "\u{fffd}x");
}

pub(crate) async fn long_output(bench: &Bench) {
    let command = "echo first; seq 100000; echo last; echo small >&2";
    let (_, _, value) = call(bench, "exec", json!({"command": command, "working_dir": "/"})).await;
    let stdout = value["stdout"].as_str().unwrap();
    assert!(stdout.starts_with("first\n1\n2\n") && stdout.ends_with("\n99999\n100000\nlast\n"), "{}", stdout.len());
    assert!(stdout.len() < 66_000, "{}", stdout.len());
    let process = value["truncated"].as_str().unwrap();
    assert!(
        stdout.contains(&format!("The tool output has all of it for process_id {process}."))
            && value["stderr"] == "small\n"
    );
    let whole = bench.get(&format!("/v1/sandboxes/box/processes/{process}/output")).await;
    assert!(whole.body.len() > 588_000, "{}", whole.body.len());
    let (_, _, end) = call(bench, "output", json!({"process_id": process, "tail": 2})).await;
    let last = end["output"].as_str().unwrap();
    assert!(end["state"] == "exited" && last.contains("last\n") && last.lines().count() == 2, "{end}");
}

pub(crate) async fn cancelled(bench: &Bench) {
    let id = opened(bench).await;
    let session = [BOTH, JSON, (SESSION, id.as_str())];
    let (command, file) = endless(bench, "told");
    let run = json!({"jsonrpc": "2.0", "id": 9, "method": "tools/call",
        "params": {"name": "exec", "arguments": {"command": command, "working_dir": "/"}}});
    let (_, body) = bench.begin(request("POST", TOOLS, &session, run.to_string())).await;
    let process = child(&file).await;
    let cancel = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 9}});
    assert_eq!(bench.send("POST", TOOLS, &session, cancel.to_string()).await.status, StatusCode::ACCEPTED);
    dead(&process).await;
    drop(body);
    let (command, file) = endless(bench, "closed");
    let run = json!({"jsonrpc": "2.0", "id": 10, "method": "tools/call",
        "params": {"name": "exec", "arguments": {"command": command, "working_dir": "/"}}});
    let (_, _body) = bench.begin(request("POST", TOOLS, &session, run.to_string())).await;
    let process = child(&file).await;
    assert_eq!(bench.send("DELETE", TOOLS, &session, "").await.status, StatusCode::NO_CONTENT);
    dead(&process).await;
    // The newer revision has no such message: whoever goes away has cancelled.
    let (command, file) = endless(bench, "left");
    let arguments = json!({"command": command, "working_dir": "/"});
    let (headers, body) = modern("tools/call", json!({"name": "exec", "arguments": arguments}));
    let waiting = bench.begin(request("POST", TOOLS, &lent(&headers), body));
    let process = tokio::select! {
        (head, _) = waiting => panic!("answered: {}", head.status),
        process = child(&file) => process,
    };
    dead(&process).await;
}
