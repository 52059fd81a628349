//! Processes that run on between calls.

use std::fs;

use serde_json::{Value, json};

use crate::{
    mcp::wire::{call, child, dead},
    support::Bench,
};

async fn start(bench: &Bench, arguments: Value) -> String {
    let mut arguments = arguments;
    arguments["working_dir"] = json!("/");
    let (failed, text, value) = call(bench, "start", arguments).await;
    assert!(!failed, "{text}");
    value["process_id"].as_str().unwrap().to_owned()
}

async fn done(bench: &Bench, tool: &str, arguments: Value) -> Value {
    let (failed, text, value) = call(bench, tool, arguments).await;
    assert!(!failed, "{tool}: {text}");
    assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), value);
    value
}

pub(crate) async fn run_on(bench: &Bench) {
    let id = start(bench, json!({"command": "echo $GREETING; cat", "env": {"GREETING": "hello"}})).await;
    let first = done(bench, "output", json!({"process_id": id, "wait_ms": 60_000})).await;
    assert_eq!(first, json!({"process_id": id, "state": "running", "output": "hello\n", "next_offset": 6}));
    let running = done(bench, "processes", json!({})).await;
    let newest = &running["processes"][0];
    assert_eq!((&newest["process_id"], &newest["command"]), (&json!(id), &json!("echo $GREETING; cat")));
    assert_eq!((&newest["state"], &newest["output_bytes"]), (&json!("running"), &json!(6)));
    let nothing = done(bench, "output", json!({"process_id": id, "offset": 6, "wait_ms": 50})).await;
    assert_eq!((&nothing["output"], &nothing["next_offset"]), (&json!(""), &json!(6)));
    done(bench, "input", json!({"process_id": id, "text": "grüß\n"})).await;
    let echoed = done(bench, "output", json!({"process_id": id, "offset": 6, "wait_ms": 60_000})).await;
    assert_eq!((&echoed["output"], &echoed["next_offset"]), (&json!("grüß\n"), &json!(13)));
    done(bench, "input", json!({"process_id": id, "eof": true})).await;
    let ended = json!({"process_id": id, "offset": 13, "wait_ms": 60_000, "until": "exit"});
    let ended = done(bench, "output", ended).await;
    let want = json!({"process_id": id, "state": "exited", "exit_code": 0, "output": "", "next_offset": 13});
    assert_eq!(ended, want);
    let (failed, text, _) = call(bench, "input", json!({"process_id": id, "text": "more"})).await;
    assert!(failed && text.contains("has ended") && text.contains("start starts another"), "{text}");
    let again = done(bench, "stop", json!({"process_id": id})).await;
    assert_eq!(again, json!({"process_id": id, "state": "exited", "exit_code": 0}), "it is stopped already");
    let terminal = start(bench, json!({"command": "test -t 0 && stty size; cat", "terminal": true})).await;
    let shown = done(bench, "output", json!({"process_id": terminal, "wait_ms": 60_000})).await;
    assert_eq!(shown["output"], "40 120\r\n");
    done(bench, "input", json!({"process_id": terminal, "text": "\u{3}"})).await;
    let ended = done(bench, "output", json!({"process_id": terminal, "wait_ms": 60_000, "until": "exit"})).await;
    assert_eq!((&ended["state"], &ended["exit_code"]), (&json!("exited"), &json!(130)));
}

pub(crate) async fn stopped(bench: &Bench) {
    let polite = "trap 'echo bye; exit 3' TERM; echo up; while :; do sleep 0.02; done";
    let id = start(bench, json!({"command": polite})).await;
    done(bench, "output", json!({"process_id": id, "wait_ms": 60_000})).await;
    let over = done(bench, "stop", json!({"process_id": id, "grace_ms": 60_000})).await;
    assert_eq!(over["exit_code"], 3);
    let said = done(bench, "output", json!({"process_id": id})).await;
    // The shell may tell in between that its `sleep` got the signal too.
    let said = said["output"].as_str().unwrap();
    assert!(said.starts_with("up\n") && said.contains("\nbye\n"), "{said}");
    let file = bench.directory.path().join("files/stubborn");
    let place = file.display();
    let stubborn =
        format!("trap '' TERM; setsid sleep 1000 & echo $! > {place}.part; mv {place}.part {place}; wait; wait");
    let id = start(bench, json!({"command": stubborn})).await;
    let process = child(&file).await;
    let over = done(bench, "stop", json!({"process_id": id, "grace_ms": 100})).await;
    assert_eq!((&over["exit_code"], &over["reason"]), (&json!(137), &json!("killed")));
    dead(&process).await;
    // One that ends by itself at the signal leaves nothing behind either.
    fs::remove_file(&file).unwrap();
    let id = start(
        bench,
        json!({"command": format!("setsid sleep 1000 & echo $! > {place}.part; mv {place}.part {place}; wait")}),
    )
    .await;
    let process = child(&file).await;
    let over = done(bench, "stop", json!({"process_id": id, "signal": "INT", "grace_ms": 60_000})).await;
    assert_eq!(over["exit_code"], 130);
    dead(&process).await;
    let id = start(bench, json!({"command": "sleep 1000"})).await;
    let (failed, text, _) = call(bench, "stop", json!({"process_id": id, "signal": "NONSENSE"})).await;
    assert!(failed && text.starts_with(&format!("failed to stop {id}: ")) && text.contains("NONSENSE"), "{text}");
    assert_eq!(done(bench, "stop", json!({"process_id": id, "grace_ms": 0})).await["reason"], "killed");
}

pub(crate) async fn pieces(bench: &Bench) {
    // Short: of two pipes, one may be read in the middle of a character of the other.
    let id = start(bench, json!({"command": "echo out; echo x >&2"})).await;
    let both = done(bench, "output", json!({"process_id": id, "wait_ms": 60_000, "until": "exit"})).await;
    assert!(["out\nx\n", "x\nout\n"].contains(&both["output"].as_str().unwrap()), "{both}");
    let id = start(bench, json!({"command": "yes é | head -c 200000"})).await;
    done(bench, "output", json!({"process_id": id, "wait_ms": 60_000, "until": "exit"})).await;
    let (mut whole, mut offset, mut looks) = (String::new(), 0, 0);
    loop {
        let piece = done(bench, "output", json!({"process_id": id, "offset": offset})).await;
        let text = piece["output"].as_str().unwrap();
        assert!(text.len() <= 65_536);
        whole.push_str(text);
        (offset, looks) = (piece["next_offset"].as_u64().unwrap(), looks + 1);
        if piece["more"] != true {
            break;
        }
    }
    assert_eq!((whole.len(), looks, offset), (200_000, 4, 200_000));
    let tail = done(bench, "output", json!({"process_id": id, "tail": 1})).await;
    assert_eq!((&tail["next_offset"], tail.get("more")), (&json!(200_000), None));
    for (arguments, says) in [
        (json!({"offset": 200_001}), "past the end"),
        (json!({"offset": 1, "tail": 1}), "not both"),
        (json!({"tail": 0}), "at least 1"),
        (json!({"wait_ms": 1_800_001}), "must not be more than 1800000"),
    ] {
        let mut arguments = arguments;
        arguments["process_id"] = json!(id);
        let (failed, text, _) = call(bench, "output", arguments).await;
        assert!(failed && text.contains(says), "{text}");
    }
}

pub(crate) async fn unknown(bench: &Bench) {
    let start = json!({"argv": ["sleep", "1000"], "cwd": "/"});
    let other = bench.post("/v1/sandboxes/small/processes", &start).await;
    let other: Value = serde_json::from_slice(&other.body).unwrap();
    for id in [other["id"].as_str().unwrap(), "prc-00000000000000000000000000", "nonsense", "", "../../etc"] {
        for (tool, arguments) in [
            ("output", json!({"process_id": id})),
            ("input", json!({"process_id": id, "text": "x"})),
            ("stop", json!({"process_id": id})),
        ] {
            let (failed, text, _) = call(bench, tool, arguments).await;
            assert!(
                failed && text.starts_with(&format!("There is no process `{id}` in this sandbox.")),
                "{tool}: {text}"
            );
        }
    }
    let shown = bench.get(&format!("/v1/sandboxes/small/processes/{}", other["id"].as_str().unwrap())).await;
    assert!(shown.text().contains(r#""state":"running""#), "{}", shown.text());
}
