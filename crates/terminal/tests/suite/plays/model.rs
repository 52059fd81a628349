//! A scripted model that speaks Anthropic's Messages: it calls the tool that the wish names, once, and then says thanks.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::Arc,
    thread,
};

use serde_json::{Value, json};

pub(crate) const WISH_FOR_A_FILE: &str = "Please make the file.";
pub(crate) const WISH_TO_BE_ASKED: &str = "Please ask me.";
pub(crate) const THANKS: &str = "Made as you wished.";

/// Where it listens; it does so until the test program ends.
pub(crate) fn start() -> std::io::Result<SocketAddr> {
    serve(block)
}

/// One that says to each request what the script says.
pub(crate) fn serve(script: impl Fn(&Value) -> Value + Send + Sync + 'static) -> std::io::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let script = Arc::new(script);
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let script = Arc::clone(&script);
            thread::spawn(move || answer(stream, &*script));
        }
    });
    Ok(address)
}

/// One request a connection.
fn answer(mut stream: TcpStream, script: &dyn Fn(&Value) -> Value) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut first = String::new();
    reader.read_line(&mut first)?;
    let mut length = 0;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 || line.trim().is_empty() {
            break;
        }
        let header = line.to_ascii_lowercase();
        length = header.strip_prefix("content-length:").map_or(length, |value| value.trim().parse().unwrap_or(0));
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let request: Value = serde_json::from_slice(&body).unwrap_or_default();
    let path = first.split_whitespace().nth(1).unwrap_or_default();
    let (status, kind, text) = match path.split('?').next() {
        Some("/v1/messages/count_tokens") => ("200 OK", "application/json", json!({"input_tokens": 9}).to_string()),
        Some("/v1/messages") if request["stream"] == true => {
            ("200 OK", "text/event-stream", events(&request, script(&request)))
        }
        Some("/v1/messages") => ("200 OK", "application/json", message(&request, &script(&request)).to_string()),
        _ => ("404 Not Found", "application/json", "{}".to_owned()),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        text.len()
    );
    stream.write_all((head + &text).as_bytes())
}

/// What it has to say: a call of the shell, or words.
fn block(request: &Value) -> Value {
    let said = request["messages"].to_string();
    let offered =
        |name: &str| request["tools"].as_array().is_some_and(|tools| tools.iter().any(|tool| tool["name"] == name));
    let checks = json!([{"label": "Format", "description": "rustfmt"}, {"label": "Lint", "description": "clippy"}]);
    let asked =
        json!([{"question": "Which checks should run?", "header": "Checks", "multiSelect": true, "options": checks}]);
    let tools = [
        (WISH_FOR_A_FILE, "Bash", json!({"command": "touch made-by-claude", "description": "Make the file"})),
        (WISH_TO_BE_ASKED, "AskUserQuestion", json!({"questions": asked})),
    ];
    let wished = |wish: &str, name: &str| said.contains(wish) && offered(name) && !said.contains("tool_result");
    if let Some((_, name, input)) = tools.into_iter().find(|(wish, name, _)| wished(wish, name)) {
        return json!({"type": "tool_use", "id": "toolu_1", "name": name, "input": input});
    }
    json!({"type": "text", "text": THANKS})
}

fn message(request: &Value, block: &Value) -> Value {
    let reason = if block["type"] == "tool_use" { "tool_use" } else { "end_turn" };
    json!({
        "id": "msg_1", "type": "message", "role": "assistant", "model": request["model"], "content": [block],
        "stop_reason": reason, "stop_sequence": null, "usage": {"input_tokens": 9, "output_tokens": 5},
    })
}

/// The same, told piece by piece.
fn events(request: &Value, mut block: Value) -> String {
    let mut message = message(request, &block);
    let delta = if block["type"] == "tool_use" {
        json!({"type": "input_json_delta", "partial_json": block["input"].take().to_string()})
    } else {
        json!({"type": "text_delta", "text": block["text"].take()})
    };
    // A block begins empty.
    let empty = if block["type"] == "tool_use" { ("input", json!({})) } else { ("text", json!("")) };
    block[empty.0] = empty.1;
    let reason = json!({"stop_reason": message["stop_reason"].take(), "stop_sequence": null});
    message["content"] = json!([]);
    [
        json!({"type": "message_start", "message": message}),
        json!({"type": "content_block_start", "index": 0, "content_block": block}),
        json!({"type": "content_block_delta", "index": 0, "delta": delta}),
        json!({"type": "content_block_stop", "index": 0}),
        json!({"type": "message_delta", "delta": reason, "usage": {"output_tokens": 5}}),
        json!({"type": "message_stop"}),
    ]
    .iter()
    .map(|event| format!("event: {}\ndata: {event}\n\n", event["type"].as_str().unwrap_or_default()))
    .collect()
}
