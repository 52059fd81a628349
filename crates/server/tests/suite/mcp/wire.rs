//! MCP on the wire, in both eras, and what the tests wait for.

use std::{fs, time::Duration};

use axum::http::StatusCode;
use serde_json::{Value, json};

use crate::support::{Answer, Bench};

pub(crate) const TOOLS: &str = "/v1/sessions/box/mcp";
pub(crate) const OLD: &str = "2025-06-18";
pub(crate) const NEW: &str = "2026-07-28";
pub(crate) const SESSION: &str = "mcp-session-id";
pub(crate) const BOTH: (&str, &str) = ("accept", "application/json, text/event-stream");
pub(crate) const JSON: (&str, &str) = ("content-type", "application/json");

/// The JSON-RPC message of an answer, whichever way it came.
pub(crate) fn message(answer: &Answer) -> Value {
    let text = answer.text();
    let data = text.lines().filter_map(|line| line.strip_prefix("data:")).map(str::trim).rfind(|data| !data.is_empty());
    serde_json::from_str(data.unwrap_or(&text)).unwrap_or_else(|_| panic!("{}: {text}", answer.status))
}

/// The request, with all that the newer revision wants to have said with each.
pub(crate) fn modern(method: &str, mut params: Value) -> (Vec<(&'static str, String)>, String) {
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

pub(crate) fn lent<'a>(headers: &'a [(&'static str, String)]) -> Vec<(&'a str, &'a str)> {
    headers.iter().map(|(name, value)| (*name, value.as_str())).collect()
}

pub(crate) async fn ask(bench: &Bench, path: &str, method: &str, params: Value) -> Value {
    let (headers, body) = modern(method, params);
    message(&bench.send("POST", path, &lent(&headers), body).await)
}

static SCHEMAS: tokio::sync::OnceCell<Value> = tokio::sync::OnceCell::const_new();

/// What each tool says that it gives; null for those that give text.
async fn schemas(bench: &Bench) -> Value {
    let listed = ask(bench, TOOLS, "tools/list", json!({})).await;
    let tools = listed["result"]["tools"].as_array().unwrap().iter();
    tools.map(|tool| (tool["name"].as_str().unwrap().to_owned(), tool["outputSchema"].clone())).collect()
}

/// As much of JSON Schema as the tools use.
fn conforms(schema: &Value, value: &Value) {
    let fits = match schema["type"].as_str() {
        None => value.is_null(),
        Some("string") => {
            value.as_str().is_some_and(|_| schema["enum"].as_array().is_none_or(|known| known.contains(value)))
        }
        Some("boolean") => value.is_boolean(),
        Some("integer") => {
            value.as_i64().is_some_and(|number| schema["minimum"].as_i64().is_none_or(|least| number >= least))
        }
        Some("array") => {
            value
                .as_array()
                .unwrap_or_else(|| panic!("{value}"))
                .iter()
                .for_each(|item| conforms(&schema["items"], item));
            true
        }
        Some("object") => {
            let value = value.as_object().unwrap_or_else(|| panic!("{value} is no {schema}"));
            for (name, value) in value {
                conforms(schema["properties"].get(name).unwrap_or_else(|| panic!("{name} is not listed")), value);
            }
            schema["required"].as_array().unwrap().iter().all(|name| value.contains_key(name.as_str().unwrap()))
        }
        Some(other) => panic!("{other}"),
    };
    assert!(fits, "{value} does not conform to {schema}");
}

/// The result of a tool: whether it failed, its text, and what it is besides.
pub(crate) async fn call(bench: &Bench, tool: &str, arguments: Value) -> (bool, String, Value) {
    let answer = ask(bench, TOOLS, "tools/call", json!({"name": tool, "arguments": arguments})).await;
    let result = &answer["result"];
    if result["isError"] != true {
        conforms(&SCHEMAS.get_or_init(|| schemas(bench)).await[tool], &result["structuredContent"]);
    }
    let text = result["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{answer}"));
    (result["isError"] == true, text.to_owned(), result["structuredContent"].clone())
}

pub(crate) fn initialize() -> String {
    let params = json!({"protocolVersion": OLD, "capabilities": {}, "clientInfo": {"name": "test", "version": "0"}});
    json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}).to_string()
}

/// An MCP session of the older kind.
pub(crate) async fn opened(bench: &Bench) -> String {
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

/// A command that leaves the pid of a child, and the file it leaves it in.
pub(crate) fn endless(bench: &Bench, name: &str) -> (String, std::path::PathBuf) {
    let file = bench.directory.path().join("files").join(name);
    let place = file.display();
    (format!("setsid sleep 1000 & echo $! > {place}.part; mv {place}.part {place}; wait"), file)
}

pub(crate) async fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    for _ in 0..3000 {
        if let Some(found) = look() {
            return found;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("waited in vain: {what}");
}

pub(crate) async fn child(file: &std::path::Path) -> std::path::PathBuf {
    let pid = eventually("the command's child", || fs::read_to_string(file).ok()).await;
    let process = std::path::PathBuf::from(format!("/proc/{}", pid.trim()));
    assert!(process.exists());
    process
}

/// A zombie is dead too; who reaps it is not the point here.
pub(crate) async fn dead(process: &std::path::Path) {
    let alive = || fs::read_to_string(process.join("stat")).is_ok_and(|stat| !stat.contains(") Z "));
    eventually("its death", || (!alive()).then_some(())).await;
}
