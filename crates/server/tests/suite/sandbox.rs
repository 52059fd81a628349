//! The routes that reach into a sandbox, over a real server and a real guest, without isolation: the guest is this file
//! started again. Files, output, input, exec, and what a caller who goes away leaves behind.

use std::fs;

use axum::{
    body::{Body, to_bytes},
    http::{StatusCode, header},
};
use futures_util::{StreamExt as _, stream};
use sandbar_api::{ExecResult, ExitReason, Listing, Process, ProcessState};
use sandbar_test_harness::Test;
use serde_json::{Value, json};

use crate::support::{Answer, Bench, on, request, test};

pub(crate) fn tests() -> Vec<Test> {
    let mut tests = on! { Bench, "sandbox";
        files_are_written_read_and_removed => files,
        ranges_are_honoured => ranges,
        paths_stay_inside => paths,
        trees_travel_as_tar => trees,
        an_upload_that_is_too_large_is_told_so => too_large,
        output_is_read_from_any_offset => output,
        terminals_are_looked_at => terminals,
        input_is_typed_once => input,
        exec_collects => exec,
        exec_streams => exec_live,
        a_caller_that_goes_away_takes_its_command_along => disconnect,
        creating_is_idempotent => idempotent,
        sessions_are_begun_once_and_restarted => sessions,
        what_a_provider_cannot_do_is_declined => declined,
    };
    tests.push(test("sandbox::commands_outlive_the_server", async { shutdown(Bench::new().await).await }));
    tests
}

async fn files(bench: &Bench) {
    let file = bench.at("a.txt");
    let written = bench.send("PUT", &format!("{file}?mode=0640"), &[], "hello").await;
    assert_eq!(written.status, StatusCode::NO_CONTENT, "{}", written.text());
    for (method, body) in [("GET", "hello"), ("HEAD", "")] {
        let read = bench.send(method, &file, &[], "").await;
        assert_eq!((read.status, read.text().as_str()), (StatusCode::OK, body));
        assert_eq!(read.headers[header::CONTENT_LENGTH], "5");
        assert_eq!(read.headers["sandbar-file-mode"], "0640");
        assert_eq!(read.headers[header::CONTENT_TYPE], "application/octet-stream");
        assert_eq!(read.headers[header::CONTENT_DISPOSITION], "attachment");
        assert_eq!(read.headers[header::X_CONTENT_TYPE_OPTIONS], "nosniff");
        assert!(read.headers[header::LAST_MODIFIED].to_str().unwrap().ends_with(" GMT"));
    }
    let listed = bench.get(&bench.at("")).await;
    let listing: Listing = serde_json::from_slice(&listed.body).unwrap();
    assert_eq!(listing.entries.iter().map(|entry| entry.name.as_str()).collect::<Vec<_>>(), ["a.txt"]);
    assert_eq!(bench.send("HEAD", &bench.at(""), &[], "").await.status, StatusCode::OK);
    // Its size is said to be 0.
    assert!(bench.get("/v1/sandboxes/box/files/proc/self/status").await.text().contains("Name:"));
    let device = bench.get("/v1/sandboxes/box/files/dev/zero").await;
    assert_eq!(device.code(), "wrong_file_kind");
    assert!(device.text().contains("is a device"), "{}", device.text());
    assert_eq!(bench.send("DELETE", &file, &[], "").await.status, StatusCode::NO_CONTENT);
    for method in ["GET", "DELETE"] {
        assert_eq!(bench.send(method, &file, &[], "").await.code(), "unknown_file", "{method}");
    }
    let large = vec![7_u8; 3_000_000];
    assert_eq!(bench.send("PUT", &file, &[], large.clone()).await.status, StatusCode::NO_CONTENT);
    assert!(bench.get(&file).await.body == large);
}

async fn ranges(bench: &Bench) {
    let file = bench.at("range");
    bench.send("PUT", &file, &[], "0123456789").await;
    for (range, status, body, content_range) in [
        ("bytes=2-4", 206, "234", Some("bytes 2-4/10")),
        ("bytes=7-", 206, "789", Some("bytes 7-9/10")),
        ("bytes=-2", 206, "89", Some("bytes 8-9/10")),
        ("bytes=0-1,4-5", 200, "0123456789", None),
    ] {
        let answer = bench.send("GET", &file, &[("range", range)], "").await;
        assert_eq!((answer.status.as_u16(), answer.text().as_str()), (status, body), "{range}");
        let said = answer.headers.get(header::CONTENT_RANGE).map(|value| value.to_str().unwrap());
        assert_eq!(said, content_range, "{range}");
    }
    let beyond = bench.send("GET", &file, &[("range", "bytes=10-")], "").await;
    assert_eq!(beyond.code(), "offset_beyond");
    assert_eq!(beyond.headers[header::CONTENT_RANGE], "bytes */10");
}

async fn paths(bench: &Bench) {
    for path in ["%2e%2e", "..", "%2e%2e/etc/passwd", "etc/%2e%2e/%2e%2e", "..%2f..%2fetc"] {
        assert_eq!(bench.get(&format!("/v1/sandboxes/box/files/{path}")).await.code(), "path_outside", "{path}");
    }
    assert_eq!(bench.get("/v1/sandboxes/box/files/a%00b").await.code(), "bad_path");
    for path in ["", "/", "//", "/%2F", "/etc/%2e%2e"] {
        let answer = bench.get(&format!("/v1/sandboxes/box/files{path}")).await;
        let listing: Listing =
            serde_json::from_slice(&answer.body).unwrap_or_else(|_| panic!("{path}: {}", answer.text()));
        assert_eq!(listing.path, "/", "{path}");
    }
    for path in ["/etc/hostname", "/%2Fetc%2Fhostname", "//etc//hostname"] {
        assert_eq!(bench.send("HEAD", &format!("/v1/sandboxes/box/files{path}"), &[], "").await.status, 200, "{path}");
    }
}

async fn trees(bench: &Bench) {
    bench.send("PUT", &bench.at("range"), &[], "0123456789").await;
    let packed = bench.get(&format!("{}?format=tar", bench.at(""))).await;
    assert_eq!(packed.headers[header::CONTENT_TYPE], "application/x-tar");
    assert!(packed.body.len().is_multiple_of(512) && packed.text().contains("ustar"));
    fs::create_dir_all(bench.directory.path().join("files/copy")).unwrap();
    let copy = bench.at("copy");
    let unpacked = bench.send("PUT", &format!("{copy}?format=tar"), &[], packed.body).await;
    assert_eq!(unpacked.status, StatusCode::OK, "{}", unpacked.text());
    assert!(serde_json::from_slice::<Value>(&unpacked.body).unwrap()["entries"].as_u64() >= Some(1));
    assert_eq!(bench.send("PUT", &format!("{copy}?format=tar"), &[], "no archive").await.code(), "bad_archive");
    let declared = [("content-type", "application/x-tar")];
    assert_eq!(bench.send("PUT", &bench.at("t.tar"), &declared, "archive?").await.code(), "unsupported_media");
    assert_eq!(bench.send("DELETE", &copy, &[], "").await.code(), "directory_not_empty");
    let removed = bench.send("DELETE", &format!("{copy}?recursive=true"), &[], "").await;
    assert_eq!(removed.status, StatusCode::NO_CONTENT);
}

async fn too_large(bench: &Bench) {
    let path = bench.at("huge").replacen("/box/", "/small/", 1);
    // Much more than the limit and than any buffer between us.
    let refused = async || {
        let (head, body) = bench.tried(request("PUT", &path, &[], vec![0; 20_000_000])).await.ok()?;
        let body = to_bytes(body, usize::MAX).await.ok()?.to_vec();
        Some(Answer { status: head.status, headers: head.headers, body })
    };
    // Who stands still in the middle of it is cut off. On a busy machine that may happen, but not each time.
    let mut answer = refused().await;
    for _ in 0..2 {
        if answer.is_none() {
            answer = refused().await;
        }
    }
    assert_eq!(answer.unwrap().code(), "too_large");
    assert_eq!(bench.get(&path).await.code(), "unknown_file");
}

async fn terminals(bench: &Bench) {
    let script = r"printf '\033]2;hi\007\033[31mred\033[m\r\nfind me\r\n\033]52;c;ZXZpbA==\007'; read _; exit 3";
    let argv = json!({"argv": ["sh", "-c", script], "cwd": "/", "terminal": {"cols": 30, "rows": 4}});
    let process = bench.start(argv).await;
    let path = format!("/v1/sandboxes/box/processes/{}", process.id);
    let clipboard = "\u{1b}]52;c;ZXZpbA==\u{7}";
    let mut raw = bench.get(&format!("{path}/output")).await.text();
    for _ in 0..3000 {
        if raw.contains(clipboard) {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        raw = bench.get(&format!("{path}/output")).await.text();
    }
    assert!(raw.contains(clipboard), "{raw:?}");
    let seen = bench.get(&format!("{path}/screen")).await;
    assert_eq!(seen.headers[header::CONTENT_TYPE], "application/json");
    let view: sandbar_api::ScreenView = serde_json::from_slice(&seen.body).unwrap();
    assert_eq!(view.lines, ["red", "find me", "", ""]);
    assert_eq!((view.title.as_str(), view.cursor.row, view.size.cols, view.ended), ("hi", 2, 30, false));
    let text = bench.send("GET", &format!("{path}/screen"), &[("accept", "text/plain")], "").await;
    assert_eq!(
        (text.text().as_str(), text.headers[header::CONTENT_TYPE].as_bytes()),
        ("red\nfind me\n", &b"text/plain; charset=utf-8"[..])
    );
    assert_eq!(bench.get(&format!("{path}/screen?format=text")).await.text(), "red\nfind me\n");
    let ansi = bench.get(&format!("{path}/screen?format=ansi")).await.text();
    assert!(ansi.contains("\u{1b}[31mred") && !ansi.contains("\u{1b}]"), "{ansi:?}");
    let found = bench.get(&format!("{path}/transcript?grep=FIND&ignore_case=true&limit=5")).await;
    let found: sandbar_api::Transcript = serde_json::from_slice(&found.body).unwrap();
    assert_eq!(found.lines.iter().map(|line| line.text.as_str()).collect::<Vec<_>>(), ["find me"]);
    assert!(!found.more && (found.lines[0].at - chrono::Utc::now()).num_seconds().abs() < 60);
    for (query, code) in [("from=99999", "offset_beyond"), ("limit=0", "bad_request"), ("grepp=x", "bad_request")] {
        assert_eq!(bench.get(&format!("{path}/transcript?{query}")).await.code(), code, "{query}");
    }
    assert_eq!(bench.get(&format!("{path}/screen?format=pdf")).await.code(), "bad_request");
    bench.post(&format!("{path}/resize"), &json!({"cols": 40, "rows": 5})).await;
    bench.send("POST", &format!("{path}/stdin"), &[], "\n").await;
    bench.ended(process.id.as_str()).await;
    let view: sandbar_api::ScreenView =
        serde_json::from_slice(&bench.get(&format!("{path}/screen")).await.body).unwrap();
    assert!(view.ended && view.size.cols == 40 && view.offset > 0, "{view:?}");
    let recording = bench.get(&format!("{path}/recording")).await;
    assert_eq!(recording.headers[header::CONTENT_TYPE], "application/x-asciicast");
    let lines: Vec<Value> = recording.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((&lines[0]["version"], &lines[0]["term"]["cols"]), (&json!(3), &json!(30)));
    assert_eq!(lines.last().map(|event| (event[1].clone(), event[2].clone())), Some((json!("x"), json!("3"))));
    assert!(lines.iter().any(|event| event[1] == "r" && event[2] == "40x5"));
    // The command itself is in the header.
    assert!(lines[1..].iter().all(|event| !event.to_string().contains("ZXZpbA")), "{lines:?}");
    let plain = bench.start(json!({"argv": ["true"], "cwd": "/"})).await;
    for part in ["screen", "transcript", "recording"] {
        let of = async |process: &str| bench.get(&format!("/v1/sandboxes/box/processes/{process}/{part}")).await;
        assert_eq!(
            (of(plain.id.as_str()).await.code(), of("nonsense").await.code()),
            ("no_terminal".to_owned(), "unknown_process".to_owned()),
            "{part}"
        );
    }
}

async fn output(bench: &Bench) {
    // Each part waits for a line, so that the order of the two streams is certain.
    let script = "printf abc; read _; printf DEF >&2; read _; printf ghi; read _";
    let process = bench.start(json!({"argv": ["sh", "-c", script], "cwd": "/", "stdin": true})).await;
    let path = format!("/v1/sandboxes/box/processes/{}/output", process.id);
    for (from, part) in [(0, "abc"), (3, "DEF"), (6, "ghi")] {
        assert_eq!(bench.get(&format!("{path}?follow=true&from={from}&limit=3")).await.text(), part);
        bench.send("POST", &path.replace("/output", "/stdin"), &[], "\n").await;
    }
    bench.ended(process.id.as_str()).await;
    for (query, body, start, end) in [
        ("", "abcDEFghi", "0", "9"),
        ("?from=2&limit=3", "cDE", "2", "5"),
        ("?stream=stderr", "DEF", "0", "9"),
        ("?stream=stdout&from=1", "bcghi", "1", "9"),
        ("?from=9", "", "9", "9"),
        ("?limit=0", "", "0", "0"),
    ] {
        let answer = bench.get(&format!("{path}{query}")).await;
        assert_eq!(answer.text(), body, "{query}");
        assert_eq!(answer.headers["sandbar-output-start"], start, "{query}");
        assert_eq!(answer.headers["sandbar-output-end"], end, "{query}");
    }
    assert_eq!(bench.get(&format!("{path}?from=10")).await.code(), "offset_beyond");
    let events = |id: &'static str| bench_events(bench, &path, id);
    let all = events("0").await;
    assert!(
        all.starts_with("id: 3\nevent: output\ndata: {\"offset\":0,\"stream\":\"stdout\",\"data\":\"YWJj\"}\n\n"),
        "{all}"
    );
    assert!(all.contains("\n\nevent: exit\ndata: {\"id\":\"prc-"), "{all}");
    let rest = events("6").await;
    assert!(rest.starts_with("id: 9\nevent: output\n") && rest.matches("event: ").count() == 2, "{rest}");
}

async fn bench_events(bench: &Bench, path: &str, id: &str) -> String {
    bench.send("GET", path, &[("accept", "text/event-stream"), ("last-event-id", id)], "").await.text()
}

async fn input(bench: &Bench) {
    let process = bench.start(json!({"argv": ["cat"], "cwd": "/", "stdin": true})).await;
    let path = format!("/v1/sandboxes/box/processes/{}/stdin", process.id);
    let write = async |query: &str, pieces: Vec<&'static str>| {
        let body = Body::from_stream(stream::iter(pieces.into_iter().map(Ok::<_, std::io::Error>)));
        bench.send("POST", &format!("{path}{query}"), &[], body).await.text()
    };
    assert_eq!(write("", vec![]).await, r#"{"offset":0}"#);
    assert_eq!(write("", vec!["ab", "cd"]).await, r#"{"offset":4}"#);
    // A repeat of which only the end is new.
    assert_eq!(write("?offset=0", vec!["ab", "cd", "ef"]).await, r#"{"offset":6}"#);
    assert!(write("?offset=7", vec!["x"]).await.contains("offset_beyond"));
    assert_eq!(write("?offset=6&eof=true", vec!["gh"]).await, r#"{"offset":8}"#);
    bench.ended(process.id.as_str()).await;
    assert_eq!(bench.get(&path.replace("stdin", "output")).await.text(), "abcdefgh");
}

async fn exec(bench: &Bench) {
    let request = json!({"argv": ["sh", "-c", "cat; exit 3"], "cwd": "/", "stdin": "typed"});
    let answer = bench.post("/v1/sandboxes/box/exec", &request).await;
    let result: ExecResult = serde_json::from_slice(&answer.body).unwrap_or_else(|_| panic!("{}", answer.text()));
    assert_eq!((result.stdout.as_str(), result.exit.code), ("typed", 3));
    let unknown = bench.post("/v1/sandboxes/box/exec", &json!({"argv": ["no-such-command"], "cwd": "/"})).await;
    assert_eq!(unknown.code(), "command_not_found");
    let wrong = bench.post("/v1/sandboxes/box/exec", &json!({"argv": ["true"], "timeout": "soon"})).await;
    assert_eq!(wrong.code(), "bad_duration");
}

const LIVE: [(&str, &str); 2] = [("content-type", "application/json"), ("accept", "text/event-stream")];

async fn exec_live(bench: &Bench) {
    let body = json!({"argv": ["sh", "-c", "cat >&2"], "cwd": "/", "stdin": "x".repeat(200_000)}).to_string();
    let answer = bench.send("POST", "/v1/sandboxes/box/exec", &LIVE, body).await;
    let text = answer.text();
    let events: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("event: ")).collect();
    assert_eq!((events.first(), events.last()), (Some(&"started"), Some(&"exit")), "{events:?}");
    assert!(events[1..events.len() - 1].iter().all(|event| *event == "output"), "{events:?}");
    assert!(text.contains("id: 200000\n"));
    // It ends without reading what it is given.
    let body = json!({"argv": ["true"], "cwd": "/", "stdin": "x".repeat(1_000_000)}).to_string();
    let deaf = bench.send("POST", "/v1/sandboxes/box/exec", &LIVE, body).await.text();
    assert!(deaf.contains("event: exit") && !deaf.contains("event: error"), "{deaf}");
    let unknown = bench.send(
        "POST",
        "/v1/sandboxes/box/exec",
        &LIVE,
        json!({"argv": ["no-such-command"], "cwd": "/"}).to_string(),
    );
    assert_eq!(unknown.await.code(), "command_not_found");
}

/// Starts an exec that does not end by itself and returns once it runs.
async fn running(bench: &Bench) -> (Process, Body) {
    let body = json!({"argv": ["sh", "-c", "echo up; sleep 1000"], "cwd": "/"}).to_string();
    let (_, body) = bench.begin(request("POST", "/v1/sandboxes/box/exec", &LIVE, body)).await;
    let mut frames = body.into_data_stream();
    let started = String::from_utf8(frames.next().await.unwrap().unwrap().to_vec()).unwrap();
    let data = started.lines().find_map(|line| line.strip_prefix("data: ")).unwrap();
    (serde_json::from_str(data).unwrap(), Body::from_stream(frames))
}

async fn disconnect(bench: &Bench) {
    let (process, body) = running(bench).await;
    drop(body);
    let ended = bench.ended(process.id.as_str()).await;
    assert_eq!(ended.exit.map(|exit| exit.reason), Some(ExitReason::Killed));
}

async fn idempotent(bench: &Bench) {
    let headers = [("content-type", "application/json"), ("idempotency-key", "k1")];
    let create = |body: &'static str| bench.send("POST", "/v1/sandboxes", &headers, body);
    let (first, again) = (create("{\"name\":\"one\"}").await, create("{\"name\":\"one\"}").await);
    assert_eq!((first.status, again.status), (StatusCode::CREATED, StatusCode::OK));
    assert!(!first.headers.contains_key("idempotency-replayed"));
    assert_eq!(again.headers["idempotency-replayed"], "true");
    assert_eq!(create("{\"name\":\"two\"}").await.code(), "idempotency_mismatch");
    for _ in 0..2 {
        assert_eq!(bench.send("DELETE", "/v1/sandboxes/one", &[], "").await.status, StatusCode::NO_CONTENT);
    }
}

async fn sessions(bench: &Bench) {
    let body = json!({"name": "work", "command": ["sh", "-c", "exit 3"], "cwd": "/tmp", "restart": "on_failure"});
    let headers = [("idempotency-key", "begin"), ("content-type", "application/json")];
    let mut ids = Vec::new();
    for status in [StatusCode::CREATED, StatusCode::OK] {
        let made = bench.send("POST", "/v1/sessions", &headers, body.to_string()).await;
        assert_eq!(made.status, status, "{}", made.text());
        assert_eq!(made.headers.contains_key("idempotency-replayed"), status == StatusCode::OK);
        ids.push(made.headers[header::LOCATION].to_str().unwrap().to_owned());
    }
    assert_eq!(ids[0], ids[1]);
    let other = bench.send("POST", "/v1/sessions", &headers, "{}").await;
    assert_eq!(other.code(), "idempotency_mismatch");
    // It fails at once, so that a person may start it again as soon as that is known.
    let again = loop {
        let again = bench.post("/v1/sessions/work/restart", &json!({})).await;
        if again.code() != "already_running" {
            break again;
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    };
    assert_eq!(again.status, StatusCode::CREATED, "{}", again.text());
    let process: Process = serde_json::from_slice(&again.body).unwrap();
    assert!(process.restart_of.is_some() && process.restarts > 0 && process.cwd == "/tmp", "{process:?}");
    let unknown = bench.post("/v1/sessions/box/restart", &json!({})).await;
    assert_eq!(unknown.code(), "unknown_process");
    assert_eq!(bench.send("DELETE", &ids[0], &[], "").await.status, StatusCode::NO_CONTENT);
}

/// This provider can neither freeze nor keep files.
async fn declined(bench: &Bench) {
    let empty = json!({});
    for verb in ["pause", "snapshots", "fork"] {
        assert_eq!(bench.post(&format!("/v1/sandboxes/box/{verb}"), &empty).await.code(), "declined", "{verb}");
        let sandbox: Value = serde_json::from_slice(&bench.get("/v1/sandboxes/box").await.body).unwrap();
        assert_eq!(sandbox["state"], "ready", "{verb}");
    }
    assert_eq!(bench.get("/v1/snapshots").await.text(), r#"{"snapshots":[]}"#);
    let report: Value = serde_json::from_slice(&bench.get("/v1/sandboxes/box/enforcement").await.body).unwrap();
    assert_eq!((&report["profile"], &report["layers"]), (&json!("standard"), &json!([])));
    // Nothing has to be resumed.
    assert_eq!(bench.post("/v1/sandboxes/box/resume", &empty).await.status, StatusCode::OK);
}

async fn shutdown(bench: Bench) {
    let (process, body) = running(&bench).await;
    bench.closing.cancel();
    let rest = String::from_utf8(to_bytes(body, usize::MAX).await.unwrap().to_vec()).unwrap();
    assert!(rest.contains("event: error") && rest.contains("shutting_down"), "{rest}");
    bench.serving.await.unwrap().unwrap();
    assert!(!crate::support::broke_off(), "the server waited for what does not end");
    let process = bench.engine.process("box", process.id.as_str()).await.unwrap();
    assert_eq!(process.state, ProcessState::Running);
    for name in ["box", "small"] {
        bench.engine.delete(name).await.unwrap();
    }
    bench.engine.shutdown().await;
    assert!(bench.provider.guests.lock().unwrap().is_empty());
}
