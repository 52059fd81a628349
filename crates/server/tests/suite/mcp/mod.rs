//! The tools of a session over MCP, in both eras of the protocol: a real server and a real guest, without isolation, so
//! that the sandbox's files are the host's. The guest is this file started again.

mod access;
mod commands;
mod files;
mod processes;
mod progress;
mod search;
mod wire;

use std::time::Duration;

use axum::{body::to_bytes, http::StatusCode};
use futures_util::StreamExt as _;
use sandbar_api::ProcessState;
use sandbar_test_harness::Test;
use serde_json::json;
use wire::{BOTH, JSON, NEW, OLD, SESSION, TOOLS, ask, call, child, endless, lent, message, modern, opened};

use crate::support::{Bench, on, request, test};

pub(crate) fn tests() -> Vec<Test> {
    let mut tests = on! { Bench, "mcp";
        the_handshake_opens_and_closes => handshake,
        without_a_handshake => stateless,
        refusals_are_as_prescribed => prescribed,
        tools_are_listed_with_their_inputs => listed,
        commands_run => commands::commands,
        long_output_is_cut_in_the_middle => commands::long_output,
        files_are_written_read_and_listed => files::files,
        binary_files_are_shown_or_named => files::binary,
        odd_files_do_no_harm => files::odd,
        large_directories_are_told_in_part => files::crowds,
        what_tools_write_is_there_for_all => files::shared,
        files_are_edited => files::edits,
        names_and_lines_are_found => search::search,
        processes_run_on => processes::run_on,
        processes_are_stopped_with_all_they_started => processes::stopped,
        output_is_read_in_pieces => processes::pieces,
        processes_of_others_are_unknown => processes::unknown,
        progress_is_told => progress::progress,
        what_is_not_understood_is_told => misunderstood,
        cancelling_kills_the_tree => commands::cancelled,
        mcp_sessions_are_limited => access::crowded,
        a_session_without_a_sandbox_says_so => access::nowhere,
        tokens_reach_their_own_session => access::tokens,
    };
    tests.push(test("mcp::open_streams_end_with_the_server", async { shutdown(Bench::new().await).await }));
    tests
}

async fn handshake(bench: &Bench) {
    let id = opened(bench).await;
    let session = [BOTH, JSON, (SESSION, id.as_str()), ("mcp-protocol-version", OLD)];
    let list = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/list"}).to_string();
    let listed = bench.send("POST", TOOLS, &session, list.clone()).await;
    assert_eq!(message(&listed)["result"]["tools"].as_array().unwrap().len(), 13, "{}", listed.text());
    let run = json!({"jsonrpc": "2.0", "id": "three", "method": "tools/call",
        "params": {"name": "exec", "arguments": {"command": "exit 42", "working_dir": "/"}}});
    let ran = message(&bench.send("POST", TOOLS, &session, run.to_string()).await);
    assert_eq!((&ran["id"], &ran["result"]["structuredContent"]["exit_code"]), (&json!("three"), &json!(42)));
    // The other one's: the same engine, another session.
    let foreign = bench.send("POST", "/v1/sessions/small/mcp", &session, list.clone()).await;
    assert_eq!((foreign.status, foreign.code().as_str()), (StatusCode::NOT_FOUND, "unknown_session"));
    assert_eq!(bench.send("DELETE", TOOLS, &session, "").await.status, StatusCode::NO_CONTENT);
    assert_eq!(bench.send("POST", TOOLS, &session, list).await.status, StatusCode::NOT_FOUND);
}

async fn stateless(bench: &Bench) {
    let found = ask(bench, TOOLS, "server/discover", json!({})).await;
    let versions = found["result"]["supportedVersions"].as_array().unwrap_or_else(|| panic!("{found}"));
    assert!(versions.contains(&json!(NEW)) && versions.contains(&json!(OLD)), "{found}");
    let (headers, body) = modern("tools/list", json!({}));
    let answer = bench.send("POST", TOOLS, &lent(&headers), body.clone()).await;
    assert!(!answer.headers.contains_key(SESSION) && answer.status == StatusCode::OK, "{}", answer.text());
    assert_eq!(message(&answer)["result"]["ttlMs"], 0, "skills may change at any time");
    let unknown = bench.send("POST", TOOLS, &lent(&headers), body.replace(NEW, "1999-01-01")).await;
    assert!(unknown.status.is_client_error() && unknown.text().contains("1999-01-01"), "{}", unknown.text());
    let nothing = ask(bench, TOOLS, "no/such/method", json!({})).await;
    assert_eq!(nothing["error"]["code"], -32601, "{nothing}");
    let huge =
        modern("tools/call", json!({"name": "write_file", "arguments": {"path": "x", "content": "x".repeat(4 << 20)}}));
    let refused = bench.send("POST", TOOLS, &lent(&huge.0), huge.1).await;
    assert_eq!(refused.status, StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(bench.send("POST", TOOLS, &[JSON], body).await.status, StatusCode::NOT_ACCEPTABLE);
}

const START: &str = "Start a shell command that runs on between calls, for example a server or a long build. `output` gets what it writes, `input` types into it, `stop` ends it.";
const OUTPUT: &str = "Get what a process has written to stdout and stderr, and whether it still runs. Works for processes of `start`, and for commands of `exec` whose output was cut.";
const STOP: &str =
    "End a process: with a signal first, and after some time with KILL. Everything it started ends with it.";
const PROCESSES: &str =
    "List the processes of the sandbox: those that run, and the last 20 that have ended; the newest first.";

/// Case by case as the revisions say.
async fn prescribed(bench: &Bench) {
    let list = modern("tools/list", json!({}));
    let send = async |headers: &[(&str, &str)], body: String| {
        let answer = bench.send("POST", TOOLS, headers, body).await;
        let code =
            serde_json::from_slice::<serde_json::Value>(&answer.body).unwrap_or_default()["error"]["code"].as_i64();
        (answer.status.as_u16(), code, answer)
    };
    let other = |name: &str, value: &'static str| {
        list.0
            .iter()
            .map(|(key, old)| (*key, if *key == name { value.to_owned() } else { old.clone() }))
            .collect::<Vec<_>>()
    };
    let (status, code, _) = send(&lent(&other("mcp-method", "tools/call")), list.1.clone()).await;
    assert_eq!((status, code), (400, Some(-32020)), "the header says something else");
    let (status, code, answer) =
        send(&lent(&other("mcp-protocol-version", "2099-01-01")), list.1.replace(NEW, "2099-01-01")).await;
    assert_eq!((status, code), (400, Some(-32022)), "{}", answer.text());
    let supported =
        serde_json::from_slice::<serde_json::Value>(&answer.body).unwrap()["error"]["data"]["supported"].clone();
    assert!(supported.as_array().unwrap().contains(&json!(NEW)), "{supported}");
    for missing in ["protocolVersion", "clientCapabilities"] {
        let body = list.1.replace(&format!("io.modelcontextprotocol/{missing}"), "x");
        let (status, code, answer) = send(&lent(&list.0), body).await;
        assert_eq!((status, code), (400, Some(-32602)), "without {missing}: {}", answer.text());
        assert!(answer.text().contains(missing), "{}", answer.text());
    }
    // There are no MCP sessions any more, so what a header says of one is nothing.
    let with_session: Vec<_> = lent(&list.0).into_iter().chain([(SESSION, "left-over")]).collect();
    let (status, _, answer) = send(&with_session, list.1.clone()).await;
    assert!(status == 200 && message(&answer)["result"]["tools"].is_array(), "{}", answer.text());
    let nothing = modern("no/such/method", json!({}));
    let (status, code, _) = send(&lent(&nothing.0), nothing.1).await;
    assert_eq!((status, code), (404, Some(-32601)));
    let told = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 99,
        "_meta": {"io.modelcontextprotocol/protocolVersion": NEW, "io.modelcontextprotocol/clientCapabilities": {}}}});
    let mut headers = list.0.clone();
    headers[1].1 = "notifications/cancelled".to_owned();
    assert_eq!(send(&lent(&headers), told.to_string()).await.0, 202);
    for method in ["GET", "DELETE"] {
        for more in [&[][..], &[(SESSION, "left-over")]] {
            let headers = [&[BOTH, ("mcp-protocol-version", NEW)], more].concat();
            let refused = bench.send(method, TOOLS, &headers, "").await;
            assert_eq!(refused.status, StatusCode::METHOD_NOT_ALLOWED, "{method}: {}", refused.text());
        }
    }
    // The older ones: a session is needed, a revision must be known, nonsense is no message.
    let plain = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/list"}).to_string();
    assert_eq!(send(&[BOTH, JSON], plain.clone()).await.0, 400);
    let id = opened(bench).await;
    let session = [BOTH, JSON, (SESSION, id.as_str())];
    let unknown = [BOTH, JSON, (SESSION, id.as_str()), ("mcp-protocol-version", "1999-01-01")];
    assert_eq!(send(&unknown, plain.clone()).await.0, 400);
    for nonsense in ["{", "[]", "7", r#"{"jsonrpc":"1.0"}"#] {
        let (status, ..) = send(&session, nonsense.to_owned()).await;
        assert!((400..500).contains(&status), "{nonsense}: {status}");
    }
    // The same request twice is two requests.
    for _ in 0..2 {
        let answer = bench.send("POST", TOOLS, &session, plain.clone()).await;
        assert_eq!(message(&answer)["id"], 2, "{}", answer.text());
    }
    // What was not declared is not there, in either era: an empty list would say that there may be some.
    for method in ["prompts/list", "resources/list", "resources/templates/list", "completion/complete"] {
        let params = json!({"ref": {"type": "ref/prompt", "name": "x"}, "argument": {"name": "x", "value": ""}});
        let absent = modern(method, params.clone());
        let (_, code, answer) = send(&lent(&absent.0), absent.1).await;
        assert_eq!(code, Some(-32601), "{method}: {}", answer.text());
        let absent = json!({"jsonrpc": "2.0", "id": 3, "method": method, "params": params}).to_string();
        let answer = bench.send("POST", TOOLS, &session, absent).await;
        assert_eq!(message(&answer)["error"]["code"], -32601, "{method}: {}", answer.text());
    }
    let nothing = plain.replace("tools/list", "no/such/method");
    assert_eq!(message(&bench.send("POST", TOOLS, &session, nothing).await)["error"]["code"], -32601);
    // What is refused below the protocol is a problem like any other.
    for (headers, body, status, code) in [
        (&[BOTH, JSON][..], plain.as_str(), 400, "bad_request"),
        (&[BOTH, JSON, (SESSION, "gone")], &plain, 404, "unknown_session"),
        (&[JSON], &plain, 406, "not_acceptable"),
        (&[BOTH, ("content-type", "text/plain")], &plain, 415, "unsupported_media"),
        (&session, "{", 415, "unsupported_media"),
    ] {
        let refused = bench.send("POST", TOOLS, headers, body.to_owned()).await;
        assert_eq!((refused.status.as_u16(), refused.code().as_str()), (status, code), "{}", refused.text());
        assert_eq!(refused.headers["content-type"], "application/problem+json", "{status}");
    }
    let refused = bench.send("GET", TOOLS, &[(SESSION, id.as_str())], "").await;
    assert_eq!((refused.status, refused.code().as_str()), (StatusCode::NOT_ACCEPTABLE, "not_acceptable"));
}

async fn listed(bench: &Bench) {
    let answer = ask(bench, TOOLS, "tools/list", json!({})).await;
    let tools = answer["result"]["tools"].as_array().unwrap();
    let told: Vec<_> = tools
        .iter()
        .map(|tool| {
            assert_eq!(tool["inputSchema"]["additionalProperties"], false, "{tool}");
            let required = tool["inputSchema"]["required"].as_array().map_or(0, Vec::len);
            (tool["name"].as_str().unwrap(), tool["description"].as_str().unwrap(), required)
        })
        .collect();
    assert_eq!(
        told,
        [
            ("exec", "Execute a shell command in the sandbox", 1),
            ("read_file", "Read the content of a file", 1),
            ("write_file", "Write content to a file (creates parent directories if needed)", 2),
            ("edit_file", "Replace a string in a file", 3),
            ("list_dir", "List entries in a directory", 0),
            ("glob", "Find files whose path matches a pattern; the last modified first.", 1),
            ("grep", "Find lines that match a regular expression, told as path:line:text.", 1),
            ("start", START, 1),
            ("output", OUTPUT, 1),
            ("input", "Write text to the standard input of a process that `start` started.", 1),
            ("stop", STOP, 1),
            ("processes", PROCESSES, 0),
            ("get_skill", "Load the full content of a skill by name.", 1),
        ]
    );
}

async fn misunderstood(bench: &Bench) {
    for (tool, arguments, says) in [
        ("exec", json!({"command": "true", "surprise": 1}), "unknown field `surprise`"),
        ("exec", json!({}), "missing field `command`"),
        ("exec", json!({"command": 7}), "invalid type"),
        ("list_dir", json!({"dir": "/"}), "unknown field `dir`"),
        ("start", json!({"command": " "}), "command must not be empty"),
        ("start", json!({"command": "true", "env": {"A": 1}}), "invalid type"),
        ("output", json!({}), "missing field `process_id`"),
        ("glob", json!({"pattern": ""}), "pattern must not be empty"),
        ("grep", json!({"pattern": "x", "output_mode": "all"}), "unknown variant `all`"),
        ("grep", json!({"pattern": "x", "limit": 0}), "must be 1 to 10000"),
        ("read_file", json!({"path": "a", "file_path": "b"}), "duplicate field"),
        ("processes", json!({"all": true}), "unknown field `all`"),
        ("get_skill", json!({"name": "../../etc"}), "invalid skill name: ../../etc"),
        ("get_skill", json!({"name": "none"}), "failed to read skill none: "),
    ] {
        let (failed, text, _) = call(bench, tool, arguments).await;
        assert!(failed && text.contains(says), "{tool}: {text}");
    }
    let unknown = ask(bench, TOOLS, "tools/call", json!({"name": "format_disk", "arguments": {}})).await;
    assert_eq!(unknown["error"]["code"], -32602, "{unknown}");
}

async fn shutdown(bench: Bench) {
    let id = opened(&bench).await;
    let session = [BOTH, JSON, (SESSION, id.as_str())];
    let (head, body) = bench.begin(request("GET", TOOLS, &session, "")).await;
    assert_eq!(head.status, StatusCode::OK);
    let mut unasked = body.into_data_stream();
    assert!(unasked.next().await.is_some(), "the stream begins");
    let (command, file) = endless(&bench, "outlives");
    let run = json!({"jsonrpc": "2.0", "id": 9, "method": "tools/call",
        "params": {"name": "exec", "arguments": {"command": command, "working_dir": "/"}}});
    let (_, answer) = bench.begin(request("POST", TOOLS, &session, run.to_string())).await;
    let process = child(&file).await;
    let (command, file) = endless(&bench, "outlives-too");
    let run = modern("tools/call", json!({"name": "exec", "arguments": {"command": command, "working_dir": "/"}}));
    let headers = lent(&run.0);
    let closing = async {
        child(&file).await;
        bench.closing.cancel();
    };
    let (cut_off, ()) = tokio::join!(bench.send("POST", TOOLS, &headers, run.1), closing);
    assert_eq!(cut_off.code(), "shutting_down", "{}: {}", cut_off.status, cut_off.text());
    let ended = tokio::time::timeout(Duration::from_secs(300), async {
        while unasked.next().await.is_some() {}
        let _rest = to_bytes(answer, usize::MAX).await;
        bench.serving.await.unwrap().unwrap();
    });
    ended.await.unwrap();
    assert!(!crate::support::broke_off(), "it waited for what does not end");
    assert!(process.exists(), "what runs in sandboxes outlives the server");
    let running = bench.engine.processes("box").await.unwrap();
    assert!(running.iter().any(|process| process.state == ProcessState::Running));
    for name in ["box", "small"] {
        bench.engine.delete(name).await.unwrap();
    }
    bench.engine.shutdown().await;
    assert!(bench.provider.guests.lock().unwrap().is_empty());
}
