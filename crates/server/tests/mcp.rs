//! The tools of a session over MCP, in both eras of the protocol: a real server and a real guest, without isolation, so
//! that the sandbox's files are the host's. The guest is this file started again.
#![expect(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

mod support;

use std::{fs, time::Duration};

use axum::{
    body::{Body, to_bytes},
    http::{Request, StatusCode},
};
use futures_util::StreamExt as _;
use hyper_util::rt::TokioIo;
use sandbar_api::{CreateToken, ProcessState, Role};
use sandbar_server::{Options, Server};
use serde_json::{Value, json};
use support::{Answer, Bench, request};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

const TOOLS: &str = "/v1/sessions/box/mcp";
const OLD: &str = "2025-06-18";
const NEW: &str = "2026-07-28";
const SESSION: &str = "mcp-session-id";
const BOTH: (&str, &str) = ("accept", "application/json, text/event-stream");
const JSON: (&str, &str) = ("content-type", "application/json");

fn main() {
    support::be_the_guest_if_told();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let bench = Bench::new().await;
        for (name, test) in [
            (
                "the_handshake_opens_and_closes",
                Box::pin(handshake(&bench)) as std::pin::Pin<Box<dyn Future<Output = ()>>>,
            ),
            ("without_a_handshake", Box::pin(stateless(&bench))),
            ("tools_are_listed_with_their_inputs", Box::pin(listed(&bench))),
            ("commands_run", Box::pin(commands(&bench))),
            ("long_output_is_cut_in_the_middle", Box::pin(long_output(&bench))),
            ("files_are_written_read_and_listed", Box::pin(files(&bench))),
            ("what_tools_write_is_there_for_all", Box::pin(shared(&bench))),
            ("files_are_edited", Box::pin(edits(&bench))),
            ("what_is_not_understood_is_told", Box::pin(misunderstood(&bench))),
            ("cancelling_kills_the_tree", Box::pin(cancelled(&bench))),
            ("mcp_sessions_are_limited", Box::pin(crowded(&bench))),
            ("a_session_without_a_sandbox_says_so", Box::pin(nowhere(&bench))),
            ("tokens_reach_their_own_session", Box::pin(tokens(&bench))),
        ] {
            test.await;
            eprintln!("test {name} ... ok");
        }
        shutdown(bench).await;
        eprintln!("test open_streams_end_with_the_server ... ok");
    });
}

/// The JSON-RPC message of an answer, whichever way it came.
fn message(answer: &Answer) -> Value {
    let text = answer.text();
    let data = text.lines().filter_map(|line| line.strip_prefix("data:")).map(str::trim).rfind(|data| !data.is_empty());
    serde_json::from_str(data.unwrap_or(&text)).unwrap_or_else(|_| panic!("{}: {text}", answer.status))
}

/// The request, with all that the newer revision wants to have said with each.
fn modern(method: &str, mut params: Value) -> (Vec<(&'static str, String)>, String) {
    params["_meta"] = json!({
        "io.modelcontextprotocol/protocolVersion": NEW,
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "0"},
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let mut headers = vec![("mcp-protocol-version", NEW.to_owned()), ("mcp-method", method.to_owned())];
    headers.extend(params["name"].as_str().map(|name| ("mcp-name", name.to_owned())));
    let body = json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": params});
    (headers.into_iter().chain([BOTH, JSON].map(|(name, value)| (name, value.to_owned()))).collect(), body.to_string())
}

fn lent<'a>(headers: &'a [(&'static str, String)]) -> Vec<(&'a str, &'a str)> {
    headers.iter().map(|(name, value)| (*name, value.as_str())).collect()
}

async fn ask(bench: &Bench, path: &str, method: &str, params: Value) -> Value {
    let (headers, body) = modern(method, params);
    message(&bench.send("POST", path, &lent(&headers), body).await)
}

/// The result of a tool: whether it failed, its text, and what it is besides.
async fn call(bench: &Bench, tool: &str, arguments: Value) -> (bool, String, Value) {
    let answer = ask(bench, TOOLS, "tools/call", json!({"name": tool, "arguments": arguments})).await;
    let result = &answer["result"];
    let text = result["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{answer}"));
    (result["isError"] == true, text.to_owned(), result["structuredContent"].clone())
}

fn initialize() -> String {
    let params = json!({"protocolVersion": OLD, "capabilities": {}, "clientInfo": {"name": "test", "version": "0"}});
    json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}).to_string()
}

/// An MCP session of the older kind.
async fn opened(bench: &Bench) -> String {
    let answer = bench.send("POST", TOOLS, &[BOTH, JSON], initialize()).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text());
    let result = &message(&answer)["result"];
    assert_eq!((&result["protocolVersion"], &result["serverInfo"]["name"]), (&json!(OLD), &json!("sandbar")));
    let id = answer.headers[SESSION].to_str().unwrap().to_owned();
    let told = json!({"jsonrpc": "2.0", "method": "notifications/initialized"}).to_string();
    let taken = bench.send("POST", TOOLS, &[BOTH, JSON, (SESSION, &id)], told).await;
    assert_eq!(taken.status, StatusCode::ACCEPTED, "{}", taken.text());
    id
}

async fn handshake(bench: &Bench) {
    let id = opened(bench).await;
    let session = [BOTH, JSON, (SESSION, id.as_str()), ("mcp-protocol-version", OLD)];
    let list = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/list"}).to_string();
    let listed = bench.send("POST", TOOLS, &session, list.clone()).await;
    assert_eq!(message(&listed)["result"]["tools"].as_array().unwrap().len(), 6, "{}", listed.text());
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
            ("get_skill", "Load the full content of a skill by name.", 1),
        ]
    );
}

async fn commands(bench: &Bench) {
    let place = bench.directory.path().join("files").display().to_string();
    let run = async |command: &str| call(bench, "exec", json!({"command": command, "working_dir": place})).await;
    let (failed, text, value) = run("pwd; echo oops >&2; exit 42").await;
    assert!(!failed);
    assert_eq!(text, format!(r#"{{"stdout":"{place}\n","stderr":"oops\n","exit_code":42}}"#));
    assert_eq!(value, serde_json::from_str::<Value>(&text).unwrap());
    for empty in ["", " \n"] {
        assert_eq!(run(empty).await.1, "command must not be empty");
    }
    let slow = json!({"command": "echo begun; sleep 600", "timeout_ms": 300, "working_dir": "/"});
    let (failed, _, value) = call(bench, "exec", slow).await;
    assert_eq!(
        (failed, value),
        (false, json!({"stdout": "begun\n", "stderr": "", "exit_code": -1, "reason": "timeout"}))
    );
    let (failed, text, _) = call(bench, "exec", json!({"command": "true", "timeout_ms": 1_800_001})).await;
    assert!(failed && text.starts_with("timeout_ms must not be more than 1800000"), "{text}");
    let (failed, text, _) = call(bench, "exec", json!({"command": "true", "working_dir": "/no/such"})).await;
    assert!(failed && text.starts_with("failed to run command: ") && text.contains("/no/such"), "{text}");
    let (_, _, value) = run(r"printf '\377x'").await;
    assert_eq!(value["stdout"], "\u{fffd}x");
}

async fn long_output(bench: &Bench) {
    let command = "echo first; seq 100000; echo last; echo small >&2";
    let (_, _, value) = call(bench, "exec", json!({"command": command, "working_dir": "/"})).await;
    let stdout = value["stdout"].as_str().unwrap();
    assert!(stdout.starts_with("first\n1\n2\n") && stdout.ends_with("\n99999\n100000\nlast\n"), "{}", stdout.len());
    assert!(stdout.len() < 66_000, "{}", stdout.len());
    let process = value["truncated"].as_str().unwrap();
    assert!(stdout.contains(&format!("Process {process} has all of it.")) && value["stderr"] == "small\n");
    let whole = bench.get(&format!("/v1/sandboxes/box/processes/{process}/output")).await;
    assert!(whole.body.len() > 588_000, "{}", whole.body.len());
}

async fn files(bench: &Bench) {
    let place = bench.directory.path().join("files/mcp");
    let at = |name: &str| place.join(name).display().to_string();
    let (failed, text, value) =
        call(bench, "write_file", json!({"path": at("deep/er/a.txt"), "content": "one\ntwo\nthree\n"})).await;
    assert_eq!((failed, text.as_str(), value), (false, r#"{"ok":true}"#, json!({"ok": true})));
    let read = async |arguments: Value| call(bench, "read_file", arguments).await;
    assert_eq!(read(json!({"path": at("deep/er/a.txt")})).await.1, "one\ntwo\nthree\n");
    assert_eq!(read(json!({"path": at("deep/er/a.txt"), "offset": 2, "limit": 1})).await.1, "two\n");
    fs::write(place.join("b"), "b").unwrap();
    std::os::unix::fs::symlink("b", place.join("c")).unwrap();
    let (_, text, value) = call(bench, "list_dir", json!({"path": at("")})).await;
    let entries = value["entries"].as_array().unwrap();
    let kinds: Vec<_> =
        entries.iter().map(|entry| (entry["name"].as_str().unwrap(), entry["type"].as_str().unwrap())).collect();
    assert_eq!(kinds, [("b", "file"), ("c", "file"), ("deep", "dir")]);
    assert!(text.starts_with(r#"{"entries":[{"name":"b","type":"file","size":1},"#), "{text}");
    fs::write(place.join("binary"), [0x7f, b'E', 0xff, 0]).unwrap();
    fs::write(place.join("large"), "line\n".repeat(300_000)).unwrap();
    let said = async |tool: &str, arguments: Value, begins: String, contains: &str| {
        let (failed, text, _) = call(bench, tool, arguments).await;
        assert!(failed && text.starts_with(&begins) && text.contains(contains), "{text}");
    };
    let missing = at("missing");
    said("read_file", json!({"path": missing}), format!("failed to read file {missing}: "), "").await;
    said("list_dir", json!({"path": missing}), format!("failed to list directory {missing}: "), "").await;
    said("read_file", json!({"path": ""}), "path must not be empty".to_owned(), "").await;
    said("write_file", json!({"path": "", "content": ""}), "path must not be empty".to_owned(), "").await;
    said("write_file", json!({"path": at("b/x"), "content": ""}), format!("failed to write file {}: ", at("b/x")), "")
        .await;
    said(
        "read_file",
        json!({"path": at("binary")}),
        format!("failed to read file {}: ", at("binary")),
        "it is binary: 4 bytes",
    )
    .await;
    said("read_file", json!({"path": at("large")}), format!("failed to read file {}: ", at("large")), "1500000 bytes")
        .await;
    said("read_file", json!({"path": at("large"), "offset": 300_001}), String::new(), "only 300000 lines").await;
    said(
        "read_file",
        json!({"path": "/../../etc/passwd"}),
        "failed to read file /../../etc/passwd: ".to_owned(),
        "outside",
    )
    .await;
    assert_eq!(read(json!({"path": at("large"), "offset": 299_999, "limit": 9})).await.1, "line\nline\n");
}

/// Whoever else works in the sandbox sees what the tools do.
async fn shared(bench: &Bench) {
    let sign = bench.directory.path().join("files/sign").display().to_string();
    let script = format!("until [ -e {sign} ]; do sleep 0.01; done; exit 5");
    let process = bench.start(json!({"argv": ["sh", "-c", script], "cwd": "/"})).await;
    assert!(!call(bench, "write_file", json!({"path": sign, "content": "go"})).await.0);
    assert_eq!(bench.ended(process.id.as_str()).await.exit.map(|exit| exit.code), Some(5));
    assert_eq!(bench.get(&bench.at("sign")).await.text(), "go");
}

async fn edits(bench: &Bench) {
    let file = bench.directory.path().join("files/edit.sh");
    fs::write(&file, "a b a\n").unwrap();
    fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o750)).unwrap();
    let edit = async |old: &str, new: &str, all: bool| {
        call(bench, "edit_file", json!({"path": file, "old_string": old, "new_string": new, "replace_all": all})).await
    };
    assert_eq!(edit("b", "c", false).await.2, json!({"ok": true, "replaced": 1}));
    assert!(edit("a", "d", false).await.1.contains("in it 2 times"));
    assert_eq!(fs::read_to_string(&file).unwrap(), "a c a\n");
    assert_eq!(edit("a", "d", true).await.2, json!({"ok": true, "replaced": 2}));
    assert_eq!(fs::read_to_string(&file).unwrap(), "d c d\n");
    let mode = std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&file).unwrap().permissions());
    assert_eq!(mode & 0o7777, 0o750);
}

async fn misunderstood(bench: &Bench) {
    for (tool, arguments, says) in [
        ("exec", json!({"command": "true", "surprise": 1}), "unknown field `surprise`"),
        ("exec", json!({}), "missing field `command`"),
        ("exec", json!({"command": 7}), "invalid type"),
        ("list_dir", json!({"dir": "/"}), "unknown field `dir`"),
        ("get_skill", json!({"name": "../../etc"}), "invalid skill name: ../../etc"),
        ("get_skill", json!({"name": "none"}), "failed to read skill none: "),
    ] {
        let (failed, text, _) = call(bench, tool, arguments).await;
        assert!(failed && text.contains(says), "{tool}: {text}");
    }
    let unknown = ask(bench, TOOLS, "tools/call", json!({"name": "format_disk", "arguments": {}})).await;
    assert_eq!(unknown["error"]["code"], -32602, "{unknown}");
}

/// A command that leaves the pid of a child, and the file it leaves it in.
fn endless(bench: &Bench, name: &str) -> (String, std::path::PathBuf) {
    let file = bench.directory.path().join("files").join(name);
    let place = file.display();
    (format!("setsid sleep 1000 & echo $! > {place}.part; mv {place}.part {place}; wait"), file)
}

async fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    for _ in 0..3000 {
        if let Some(found) = look() {
            return found;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("waited in vain: {what}");
}

async fn child(file: &std::path::Path) -> std::path::PathBuf {
    let pid = eventually("the command's child", || fs::read_to_string(file).ok()).await;
    let process = std::path::PathBuf::from(format!("/proc/{}", pid.trim()));
    assert!(process.exists());
    process
}

/// A zombie is dead too; who reaps it is not the point here.
async fn dead(process: &std::path::Path) {
    let alive = || fs::read_to_string(process.join("stat")).is_ok_and(|stat| !stat.contains(") Z "));
    eventually("its death", || (!alive()).then_some(())).await;
}

async fn cancelled(bench: &Bench) {
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

async fn crowded(bench: &Bench) {
    let path = "/v1/sessions/small/mcp";
    let mut last = String::new();
    for _ in 0..100 {
        let answer = bench.send("POST", path, &[BOTH, JSON], initialize()).await;
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.text());
        last = answer.headers[SESSION].to_str().unwrap().to_owned();
    }
    assert_eq!(bench.send("POST", path, &[BOTH, JSON], initialize()).await.code(), "too_many");
    assert_eq!(bench.send("DELETE", path, &[(SESSION, &last)], "").await.status, StatusCode::NO_CONTENT);
    assert_eq!(bench.send("POST", path, &[BOTH, JSON], initialize()).await.status, StatusCode::OK);
}

async fn nowhere(bench: &Bench) {
    let made = bench.post("/v1/sessions", &json!({"name": "brief"})).await;
    let session: Value = serde_json::from_slice(&made.body).unwrap();
    let id = session["id"].as_str().unwrap().to_owned();
    assert_eq!(bench.send("DELETE", "/v1/sandboxes/brief", &[], "").await.status, StatusCode::NO_CONTENT);
    let path = format!("/v1/sessions/{id}/mcp");
    assert_eq!(ask(bench, &path, "tools/list", json!({})).await["result"]["tools"].as_array().unwrap().len(), 6);
    let answer = ask(bench, &path, "tools/call", json!({"name": "list_dir", "arguments": {}})).await;
    assert_eq!(answer["result"]["isError"], true);
    let text = answer["result"]["content"][0]["text"].as_str().unwrap();
    assert!(text.contains("has no sandbox") && text.contains("sandbar session new"), "{text}");
}

async fn tokens(bench: &Bench) {
    let socket = bench.directory.path().join("second.sock");
    let options = Options { tcp: Some("127.0.0.1:0".parse().unwrap()), tls: None, socket, version: "test" };
    let server = Server::bind(bench.engine.clone(), options).await.unwrap();
    let (address, closing) = (server.tcp_address().unwrap(), CancellationToken::new());
    let serving = tokio::spawn(server.serve(closing.clone()));
    let of = async |name: &str| {
        let session: Value = serde_json::from_slice(&bench.get(&format!("/v1/sessions/{name}")).await.body).unwrap();
        session["id"].as_str().unwrap().to_owned()
    };
    let token = async |role: Role, session: Option<&str>| {
        let session = session.map(|id| id.parse().unwrap());
        let request = CreateToken { name: "t".to_owned(), role, session, ttl: None };
        format!("Bearer {}", bench.engine.create_token(request).await.unwrap().secret)
    };
    let host = address.to_string();
    let send = async |method: &str, path: &str, host: &str, more: &[(&str, &str)], body: String| -> Answer {
        let stream = TcpStream::connect(address).await.unwrap();
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        let mut request = Request::builder().method(method).uri(path).header("host", host);
        for (name, value) in [BOTH, JSON].iter().chain(more) {
            request = request.header(*name, *value);
        }
        let (head, body) = sender.send_request(request.body(Body::from(body)).unwrap()).await.unwrap().into_parts();
        let body = to_bytes(Body::new(body), usize::MAX).await.unwrap().to_vec();
        Answer { status: head.status, headers: head.headers, body }
    };
    let (own, other) = (of("box").await, of("small").await);
    let agent = token(Role::Agent, Some(&own)).await;
    let path = format!("/v1/sessions/{own}/mcp");
    let credentials = [("authorization", agent.as_str())];
    let answer = send("POST", &path, &host, &credentials, initialize()).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text());
    let id = answer.headers[SESSION].to_str().unwrap().to_owned();
    for (foreign, code) in [(other.as_str(), "unknown_session"), ("ses-00000000000000000000000000", "unknown_session")]
    {
        let path = format!("/v1/sessions/{foreign}/mcp");
        let refused = send("POST", &path, &host, &credentials, initialize()).await;
        assert_eq!((refused.status, refused.code().as_str()), (StatusCode::NOT_FOUND, code), "{foreign}");
    }
    // Nobody else's token gets into the agent's MCP session, not even an operator's or another one of the same session.
    for mine in [token(Role::Operator, None).await, token(Role::Agent, Some(&own)).await] {
        assert_eq!(send("POST", &path, &host, &[("authorization", &mine)], initialize()).await.status, StatusCode::OK);
        let headers = [("authorization", mine.as_str()), (SESSION, id.as_str())];
        assert_eq!(send("DELETE", &path, &host, &headers, String::new()).await.code(), "unknown_session");
    }
    let viewer = token(Role::Viewer, None).await;
    for method in ["GET", "POST", "DELETE"] {
        let refused = send(method, &path, &host, &[("authorization", &viewer)], initialize()).await;
        assert_eq!(refused.code(), "forbidden", "{method}");
        assert_eq!(send(method, &path, &host, &[], initialize()).await.code(), "unauthenticated", "{method}");
    }
    assert_eq!(send("POST", &path, "evil.example", &credentials, initialize()).await.code(), "foreign_host");
    let page = [("authorization", agent.as_str()), ("origin", "http://evil.example")];
    assert_eq!(send("POST", &path, &host, &page, initialize()).await.code(), "foreign_origin");
    assert_eq!(send("POST", "/v1/sandboxes/box/exec", &host, &credentials, "{}".to_owned()).await.code(), "forbidden");
    closing.cancel();
    serving.await.unwrap().unwrap();
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
    bench.closing.cancel();
    let ended = tokio::time::timeout(Duration::from_secs(30), async {
        while unasked.next().await.is_some() {}
        let _rest = to_bytes(answer, usize::MAX).await;
        bench.serving.await.unwrap().unwrap();
    });
    ended.await.unwrap();
    assert!(process.exists(), "what runs in sandboxes outlives the server");
    let running = bench.engine.processes("box").await.unwrap();
    assert!(running.iter().any(|process| process.state == ProcessState::Running));
    for name in ["box", "small"] {
        bench.engine.delete(name).await.unwrap();
    }
    bench.engine.shutdown().await;
    assert!(bench.provider.guests.lock().unwrap().is_empty());
}
