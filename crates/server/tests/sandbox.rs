//! The routes that reach into a sandbox, over a real server and a real guest, without isolation: the guest is this file
//! started again. Files, output, input, exec, and what a caller who goes away leaves behind.
#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use std::{
    collections::HashMap,
    fs,
    os::{fd::AsFd as _, unix::net::UnixListener},
    path::PathBuf,
    process::{Child, Command},
    sync::{Arc, Mutex},
};

use async_trait::async_trait;
use axum::{
    body::{Body, to_bytes},
    http::{HeaderMap, Request, StatusCode, header, response::Parts},
};
use futures_util::{StreamExt as _, stream};
use hyper_util::rt::TokioIo;
use sandbar_api::{ExecResult, ExitReason, Listing, Process, ProcessState, SandboxId};
use sandbar_engine::{Config, Engine};
use sandbar_provider::{Error, Found, Guest, HostReport, Provider, Spec};
use sandbar_server::{Options, Server};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::UnixStream;
use tokio_util::sync::CancellationToken;

/// How this file is told to be the guest; its listener is then standard input.
const GUEST: &str = "SANDBAR_TEST_GUEST";

fn main() {
    if let Some(sandbox_id) = std::env::var_os(GUEST) {
        // A test that fails must leave nothing running.
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).unwrap();
        let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
        sandbar_guest::run(sandbar_guest::Setup {
            sandbox_id: sandbox_id.into_string().unwrap(),
            version: "test".to_owned(),
            listener: std::io::stdin().as_fd().try_clone_to_owned().unwrap(),
            uid,
            gid,
            home: "/".to_owned(),
            user: "test".to_owned(),
            confine: Box::new(|| Ok(())),
            group: None,
            gate: None,
            trust: None,
        });
    }
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let bench = Bench::new().await;
        for (name, test) in [
            (
                "files_are_written_read_and_removed",
                Box::pin(files(&bench)) as std::pin::Pin<Box<dyn Future<Output = ()>>>,
            ),
            ("ranges_are_honoured", Box::pin(ranges(&bench))),
            ("paths_stay_inside", Box::pin(paths(&bench))),
            ("trees_travel_as_tar", Box::pin(trees(&bench))),
            ("an_upload_that_is_too_large_is_told_so", Box::pin(too_large(&bench))),
            ("output_is_read_from_any_offset", Box::pin(output(&bench))),
            ("terminals_are_looked_at", Box::pin(terminals(&bench))),
            ("input_is_typed_once", Box::pin(input(&bench))),
            ("exec_collects", Box::pin(exec(&bench))),
            ("exec_streams", Box::pin(exec_live(&bench))),
            ("a_caller_that_goes_away_takes_its_command_along", Box::pin(disconnect(&bench))),
            ("creating_is_idempotent", Box::pin(idempotent(&bench))),
            ("what_a_provider_cannot_do_is_declined", Box::pin(declined(&bench))),
        ] {
            test.await;
            eprintln!("test {name} ... ok");
        }
        shutdown(bench).await;
        eprintln!("test commands_outlive_the_server ... ok");
    });
}

struct Bare {
    root: PathBuf,
    guests: Mutex<HashMap<SandboxId, Child>>,
}

impl Bare {
    fn end(&self, id: &SandboxId) {
        if let Some(mut child) = self.guests.lock().unwrap().remove(id) {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}

#[async_trait]
impl Provider for Bare {
    fn name(&self) -> &'static str {
        "local"
    }

    async fn probe(&self) -> HostReport {
        HostReport { provider: "local".to_owned(), findings: Vec::new() }
    }

    async fn create(&self, spec: &Spec) -> Result<(), Error> {
        self.start(spec).await
    }

    async fn inspect(&self, _: &Spec) -> Result<Vec<sandbar_api::LayerReport>, Error> {
        Ok(vec![])
    }

    async fn start(&self, spec: &Spec) -> Result<(), Error> {
        let id = &spec.id;
        let listener = UnixListener::bind(self.root.join(id.as_str())).unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        let child = command.env(GUEST, id.as_str()).stdin(std::os::fd::OwnedFd::from(listener)).spawn().unwrap();
        self.guests.lock().unwrap().insert(id.clone(), child);
        Ok(())
    }

    async fn stop(&self, id: &SandboxId) -> Result<(), Error> {
        self.end(id);
        Ok(())
    }

    async fn destroy(&self, id: &SandboxId) -> Result<(), Error> {
        self.end(id);
        Ok(())
    }

    async fn list(&self) -> Result<Vec<Found>, Error> {
        Ok(self.guests.lock().unwrap().keys().map(|id| Found { id: id.clone(), running: true }).collect())
    }

    async fn connect(&self, id: &SandboxId) -> Result<Guest, Error> {
        let address = format!("unix://{}", self.root.join(id.as_str()).display());
        let endpoint = tonic::transport::Endpoint::from_shared(address).unwrap();
        Ok(Guest::new(endpoint.connect().await.unwrap()))
    }

    async fn gone(&self, _: &SandboxId) -> Result<(), Error> {
        std::future::pending().await
    }
}

struct Bench {
    directory: TempDir,
    provider: Arc<Bare>,
    engine: Engine,
    socket: PathBuf,
    closing: CancellationToken,
    serving: tokio::task::JoinHandle<std::io::Result<()>>,
}

impl Bench {
    /// With a sandbox called `box`, whose files are the host's.
    async fn new() -> Self {
        let directory = TempDir::new().unwrap();
        let home = directory.path().join("home");
        let provider = Arc::new(Bare { root: directory.path().to_owned(), guests: Mutex::default() });
        let engine =
            Engine::open(Config { home: home.clone(), providers: vec![provider.clone()], asks: true }).await.unwrap();
        fs::write(home.join("templates/small.toml"), "max_file = 100000\n").unwrap();
        fs::create_dir(directory.path().join("files")).unwrap();
        let socket = home.join("sandbar.sock");
        let options = Options { tcp: None, tls: None, socket: socket.clone(), version: "test" };
        let server = Server::bind(engine.clone(), options).await.unwrap();
        let closing = CancellationToken::new();
        let serving = tokio::spawn(server.serve(closing.clone()));
        let bench = Self { directory, provider, engine, socket, closing, serving };
        for (name, template) in [("box", "default"), ("small", "small")] {
            let made = bench.post("/v1/sandboxes", &json!({"name": name, "template": template})).await;
            assert_eq!(made.status, StatusCode::CREATED, "{}", made.text());
            assert!(made.headers[header::LOCATION].to_str().unwrap().starts_with("/v1/sandboxes/sbx-"));
        }
        bench
    }

    fn at(&self, name: &str) -> String {
        format!("/v1/sandboxes/box/files{}/files/{name}", self.directory.path().display())
    }

    async fn begin(&self, request: Request<Body>) -> (Parts, Body) {
        let stream = UnixStream::connect(&self.socket).await.unwrap();
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        let (head, body) = sender.send_request(request).await.unwrap().into_parts();
        (head, Body::new(body))
    }

    async fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: impl Into<Body>) -> Answer {
        let (head, body) = self.begin(request(method, path, headers, body)).await;
        let body = to_bytes(body, usize::MAX).await.unwrap().to_vec();
        Answer { status: head.status, headers: head.headers, body }
    }

    async fn get(&self, path: &str) -> Answer {
        self.send("GET", path, &[], "").await
    }

    async fn post(&self, path: &str, body: &Value) -> Answer {
        self.send("POST", path, &[("content-type", "application/json")], body.to_string()).await
    }

    async fn start(&self, body: Value) -> Process {
        let answer = self.post("/v1/sandboxes/box/processes", &body).await;
        assert_eq!(answer.status, StatusCode::CREATED, "{}", answer.text());
        serde_json::from_slice(&answer.body).unwrap()
    }

    /// As it is when it has ended.
    async fn ended(&self, process: &str) -> Process {
        let path = format!("/v1/sandboxes/box/processes/{process}");
        self.get(&format!("{path}/output?follow=true")).await;
        serde_json::from_slice(&self.get(&path).await.body).unwrap()
    }
}

fn request(method: &str, path: &str, headers: &[(&str, &str)], body: impl Into<Body>) -> Request<Body> {
    let mut builder = Request::builder().method(method).uri(path).header(header::HOST, "localhost");
    for (name, value) in headers {
        builder = builder.header(*name, *value);
    }
    builder.body(body.into()).unwrap()
}

struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: Vec<u8>,
}

impl Answer {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    fn code(&self) -> String {
        let value: Value = serde_json::from_slice(&self.body).unwrap_or_default();
        value["code"].as_str().map_or_else(|| self.status.to_string(), str::to_owned)
    }
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
    let refused = bench.send("PUT", &path, &[], vec![0; 20_000_000]).await;
    assert_eq!(refused.code(), "too_large");
    assert_eq!(bench.get(&path).await.code(), "unknown_file");
}

async fn terminals(bench: &Bench) {
    let script = r"printf '\033]2;hi\007\033[31mred\033[m\r\nfind me\r\n\033]52;c;ZXZpbA==\007'; read _; exit 3";
    let argv = json!({"argv": ["sh", "-c", script], "cwd": "/", "terminal": {"cols": 30, "rows": 4}});
    let process = bench.start(argv).await;
    let path = format!("/v1/sandboxes/box/processes/{}", process.id);
    let clipboard = "\u{1b}]52;c;ZXZpbA==\u{7}";
    let mut raw = bench.get(&format!("{path}/output")).await.text();
    for _ in 0..500 {
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
    let process = bench.engine.process("box", process.id.as_str()).await.unwrap();
    assert_eq!(process.state, ProcessState::Running);
    for name in ["box", "small"] {
        bench.engine.delete(name).await.unwrap();
    }
    bench.engine.shutdown().await;
    assert!(bench.provider.guests.lock().unwrap().is_empty());
}
