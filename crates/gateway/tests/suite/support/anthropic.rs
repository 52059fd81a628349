//! Anthropic's wire formats: Messages and errors, as its servers write them.

use serde_json::{Value, json};

use super::script::Script;

pub(crate) fn error(status: u16) -> Value {
    let (kind, message) = match status {
        401 => ("authentication_error", "invalid x-api-key"),
        429 => ("rate_limit_error", "This request would exceed your rate limit."),
        529 => ("overloaded_error", "Overloaded"),
        _ => ("api_error", "Internal server error"),
    };
    json!({"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_1"})
}

pub(crate) fn usage(script: &Script, output: u64) -> Value {
    json!({
        "input_tokens": script.input - script.cached, "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": script.cached,
        "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0},
        "output_tokens": output, "service_tier": "standard",
    })
}

fn stop_reason(script: &Script) -> &'static str {
    match (&script.tool, script.capped) {
        (Some(_), _) => "tool_use",
        (None, true) => "max_tokens",
        (None, false) => "end_turn",
    }
}

pub(crate) fn message(script: &Script) -> Value {
    let content = match &script.tool {
        Some(name) => json!([{"type": "tool_use", "id": "toolu_1", "name": name, "input": {"path": "/tmp/x"}}]),
        None => json!([{"type": "text", "text": script.text()}]),
    };
    let mut answer = json!({
        "id": "msg_1", "type": "message", "role": "assistant", "model": script.model, "content": content,
        "stop_reason": stop_reason(script), "stop_sequence": null,
    });
    if !script.silent {
        answer["usage"] = usage(script, script.words);
    }
    answer
}

/// Events, and how many tokens are written with each.
pub(crate) fn message_events(script: &Script) -> Vec<(String, u64)> {
    let mut events = Vec::new();
    let mut tell = |kind: &str, mut event: Value, tokens: u64| {
        event["type"] = kind.into();
        events.push((format!("event: {kind}\ndata: {event}\n\n"), tokens));
    };
    let mut start = json!({
        "id": "msg_1", "type": "message", "role": "assistant", "model": script.model, "content": [],
        "stop_reason": null, "stop_sequence": null,
    });
    if !script.silent {
        start["usage"] = usage(script, 1);
    }
    tell("message_start", json!({"message": start}), 0);
    match &script.tool {
        Some(name) => {
            let block = json!({"type": "tool_use", "id": "toolu_1", "name": name, "input": {}});
            tell("content_block_start", json!({"index": 0, "content_block": block}), 0);
            let delta = json!({"type": "input_json_delta", "partial_json": "{\"path\":\"/tmp/x\"}"});
            tell("content_block_delta", json!({"index": 0, "delta": delta}), script.words);
        }
        None => {
            tell("content_block_start", json!({"index": 0, "content_block": {"type": "text", "text": ""}}), 0);
            tell("ping", json!({}), 0);
            for n in 0..script.words {
                let delta = json!({"type": "text_delta", "text": script.word(n)});
                tell("content_block_delta", json!({"index": 0, "delta": delta}), 1);
            }
        }
    }
    tell("content_block_stop", json!({"index": 0}), 0);
    let mut delta = json!({"delta": {"stop_reason": stop_reason(script), "stop_sequence": null}});
    if !script.silent {
        delta["usage"] = json!({"output_tokens": script.words});
    }
    tell("message_delta", delta, 0);
    tell("message_stop", json!({}), 0);
    events
}
