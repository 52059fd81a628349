//! OpenAI's wire formats: Chat Completions, Responses, Embeddings and errors, as its servers write them.

use serde_json::{Value, json};

use super::script::Script;

const ARGUMENTS: &str = "{\"path\":\"/tmp/x\"}";

pub(crate) fn error(status: u16) -> Value {
    let (kind, code, message) = match status {
        401 => ("invalid_request_error", json!("invalid_api_key"), "Incorrect API key provided."),
        429 => ("tokens", json!("rate_limit_exceeded"), "Rate limit reached."),
        _ => ("server_error", Value::Null, "The server had an error while processing your request."),
    };
    json!({"error": {"message": message, "type": kind, "param": null, "code": code}})
}

pub(crate) fn usage(script: &Script) -> Value {
    json!({
        "prompt_tokens": script.input,
        "completion_tokens": script.output(),
        "total_tokens": script.input + script.output(),
        "prompt_tokens_details": {"cached_tokens": script.cached, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0, "audio_tokens": 0},
    })
}

fn finish(script: &Script) -> &'static str {
    match (&script.tool, script.capped) {
        (Some(_), _) => "tool_calls",
        (None, true) => "length",
        (None, false) => "stop",
    }
}

pub(crate) fn chat(script: &Script) -> Value {
    let message = match &script.tool {
        Some(name) => json!({"role": "assistant", "content": null, "refusal": null, "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": name, "arguments": ARGUMENTS}}]}),
        None => json!({"role": "assistant", "content": script.text(), "refusal": null, "annotations": []}),
    };
    let choices: Vec<_> = (0..script.choices)
        .map(|index| json!({"index": index, "message": message, "logprobs": null, "finish_reason": finish(script)}))
        .collect();
    let mut answer = json!({
        "id": "chatcmpl-1", "object": "chat.completion", "created": 1_700_000_000, "model": script.model,
        "choices": choices, "service_tier": "default", "system_fingerprint": "fp_1",
    });
    if !script.silent {
        answer["usage"] = usage(script);
    }
    answer
}

/// Events, and how many tokens are written with each.
pub(crate) fn chat_events(script: &Script) -> Vec<(String, u64)> {
    let chunk = |choices: Value, told: Option<Value>| {
        let mut chunk = json!({
            "id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1_700_000_000, "model": script.model,
            "service_tier": "default", "system_fingerprint": "fp_1", "choices": choices,
        });
        if script.include_usage && !script.silent {
            chunk["usage"] = told.unwrap_or(Value::Null);
        }
        format!("data: {chunk}\n\n")
    };
    let mut events = Vec::new();
    for index in 0..script.choices {
        let delta = |delta: Value, finish: Value| {
            chunk(json!([{"index": index, "delta": delta, "logprobs": null, "finish_reason": finish}]), None)
        };
        events.push((delta(json!({"role": "assistant", "content": "", "refusal": null}), Value::Null), 0));
        match &script.tool {
            Some(name) => {
                let call = json!({"index": 0, "id": "call_1", "type": "function", "function": {"name": name, "arguments": ""}});
                events.push((delta(json!({"tool_calls": [call]}), Value::Null), 0));
                let call = json!({"index": 0, "function": {"arguments": ARGUMENTS}});
                events.push((delta(json!({"tool_calls": [call]}), Value::Null), script.words));
            }
            None => {
                events.extend((0..script.words).map(|n| (delta(json!({"content": script.word(n)}), Value::Null), 1)))
            }
        }
        events.push((delta(json!({}), finish(script).into()), 0));
    }
    if script.include_usage && !script.silent {
        events.push((chunk(json!([]), Some(usage(script))), 0));
    }
    events.push(("data: [DONE]\n\n".into(), 0));
    events
}

pub(crate) fn embeddings(script: &Script) -> Value {
    let data: Vec<_> = (0..64 + script.pad).map(|n| n as f64 / 64.0).collect();
    let mut answer = json!({
        "object": "list", "data": [{"object": "embedding", "index": 0, "embedding": data}], "model": script.model,
    });
    if !script.silent {
        answer["usage"] = json!({"prompt_tokens": script.input, "total_tokens": script.input});
    }
    answer
}

fn item(script: &Script, status: &str) -> Value {
    match &script.tool {
        Some(name) => {
            let arguments = if status == "completed" { ARGUMENTS } else { "" };
            json!({"id": "fc_1", "type": "function_call", "status": status, "call_id": "call_1", "name": name, "arguments": arguments})
        }
        None if status == "completed" => {
            json!({"id": "msg_1", "type": "message", "status": status, "role": "assistant",
            "content": [{"type": "output_text", "annotations": [], "text": script.text()}]})
        }
        None => json!({"id": "msg_1", "type": "message", "status": status, "role": "assistant", "content": []}),
    }
}

pub(crate) fn response(script: &Script, done: bool) -> Value {
    let (status, details) = match (done, script.capped) {
        (false, _) => ("in_progress", Value::Null),
        (true, true) => ("incomplete", json!({"reason": "max_output_tokens"})),
        (true, false) => ("completed", Value::Null),
    };
    let usage = json!({
        "input_tokens": script.input, "input_tokens_details": {"cached_tokens": script.cached},
        "output_tokens": script.output(), "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": script.input + script.output(),
    });
    json!({
        "id": "resp_1", "object": "response", "created_at": 1_700_000_000, "status": status, "error": null,
        "incomplete_details": details, "instructions": null, "max_output_tokens": null, "model": script.model,
        "output": if done { json!([item(script, "completed")]) } else { json!([]) }, "parallel_tool_calls": true,
        "previous_response_id": null, "store": true, "temperature": 1.0, "text": {"format": {"type": "text"}},
        "tool_choice": "auto", "tools": [], "top_p": 1.0, "truncation": "disabled",
        "usage": if done && !script.silent { usage } else { Value::Null }, "user": null, "metadata": {},
    })
}

pub(crate) fn response_events(script: &Script) -> Vec<(String, u64)> {
    let mut events: Vec<(String, u64)> = Vec::new();
    let mut tell = |kind: &str, mut event: Value, tokens: u64| {
        event["type"] = kind.into();
        event["sequence_number"] = events.len().into();
        events.push((format!("event: {kind}\ndata: {event}\n\n"), tokens));
    };
    tell("response.created", json!({"response": response(script, false)}), 0);
    tell("response.in_progress", json!({"response": response(script, false)}), 0);
    tell("response.output_item.added", json!({"output_index": 0, "item": item(script, "in_progress")}), 0);
    if script.tool.is_some() {
        tell(
            "response.function_call_arguments.delta",
            json!({"item_id": "fc_1", "output_index": 0, "delta": ARGUMENTS}),
            script.words,
        );
        tell(
            "response.function_call_arguments.done",
            json!({"item_id": "fc_1", "output_index": 0, "arguments": ARGUMENTS}),
            0,
        );
    } else {
        let place = json!({"item_id": "msg_1", "output_index": 0, "content_index": 0});
        let with = |name: &str, value: Value| {
            let mut event = place.clone();
            event[name] = value;
            event
        };
        tell(
            "response.content_part.added",
            with("part", json!({"type": "output_text", "annotations": [], "text": ""})),
            0,
        );
        for n in 0..script.words {
            let mut event = with("delta", script.word(n).into());
            event["logprobs"] = json!([]);
            tell("response.output_text.delta", event, 1);
        }
        let mut event = with("text", script.text().into());
        event["logprobs"] = json!([]);
        tell("response.output_text.done", event, 0);
        tell(
            "response.content_part.done",
            with("part", json!({"type": "output_text", "annotations": [], "text": script.text()})),
            0,
        );
    }
    tell("response.output_item.done", json!({"output_index": 0, "item": item(script, "completed")}), 0);
    let kind = if script.capped { "response.incomplete" } else { "response.completed" };
    tell(kind, json!({"response": response(script, true)}), 0);
    events
}
