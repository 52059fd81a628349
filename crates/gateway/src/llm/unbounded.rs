//! Which fields of a request are known to leave its bound as it is. Under a budget all others are refused: vendors add
//! fields that let them read, run or charge more than the request shows, and nobody here would know.

use super::{content::Unbounded, route::Endpoint, tree::Node};

const STORED: &str = "it stands for input that the vendor has stored, of any size, so under a budget it is refused";
const HOSTED: &str =
    "the vendor runs it and feeds what it finds to the model, of any size, so under a budget it is refused";
const LATER: &str = "a call that goes on after its answer cannot be settled, so under a budget it is refused";
const DEARER: &str = "it is charged at another price than the one configured, so under a budget it is refused";
const SUMMED_UP: &str = "what the vendor writes to sum up a conversation is beyond the output cap, so under a budget only \
     edits that clear something pass";
const STRANGER: &str = "it is not known to be bounded, so under a budget it is refused; leave it out";

/// Known not to be bounded. Present and not `null`, that is enough.
const REFUSED: &[(&str, &str)] = &[
    ("previous_response_id", STORED),
    ("conversation", STORED),
    ("prompt", STORED),
    ("container", HOSTED),
    ("mcp_servers", HOSTED),
    ("web_search_options", HOSTED),
    ("prediction", "what is predicted wrongly is charged beyond the output cap, so under a budget it is refused"),
    ("audio", "audio is charged apart, so under a budget it is refused"),
    ("best_of", "it multiplies the output, so under a budget it is refused; use `n`"),
    ("fallbacks", "another model may answer, at another price, so under a budget it is refused"),
];

/// Known to be bounded: what they hold is counted by its bytes, by the cap or by `n`, or is looked at below; or they change
/// which tokens are written, not how many.
const CHAT: &[&str] = &[
    "model",
    "messages",
    "stream",
    "stream_options",
    "max_tokens",
    "max_completion_tokens",
    "n",
    "temperature",
    "top_p",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "logprobs",
    "top_logprobs",
    "seed",
    "stop",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "functions",
    "function_call",
    "response_format",
    "reasoning_effort",
    "verbosity",
    "modalities",
    "service_tier",
    "metadata",
    "store",
    "user",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    // sampling of servers that speak the format
    "top_k",
    "min_p",
    "repetition_penalty",
];
const RESPONSES: &[&str] = &[
    "model",
    "input",
    "instructions",
    "stream",
    "stream_options",
    "max_output_tokens",
    // of tools that the vendor runs, of which there are none
    "max_tool_calls",
    "temperature",
    "top_p",
    "top_logprobs",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "text",
    "reasoning",
    // what the answer shows
    "include",
    // only ever drops input
    "truncation",
    "background",
    "modalities",
    "service_tier",
    "metadata",
    // what Codex says of itself
    "client_metadata",
    "store",
    "user",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
];
const EMBEDDINGS: &[&str] = &["model", "input", "dimensions", "encoding_format", "user"];
const MESSAGES: &[&str] = &[
    "model",
    "messages",
    "system",
    "stream",
    "max_tokens",
    "temperature",
    "top_p",
    "top_k",
    "stop_sequences",
    "tools",
    "tool_choice",
    "thinking",
    "output_config",
    "output_format",
    "cache_control",
    "context_management",
    // why a cache was missed
    "diagnostics",
    "service_tier",
    "speed",
    "inference_geo",
    "metadata",
];

/// What OpenAI's models call and the client runs.
const OPENAI_TOOLS: &[&str] = &["function", "custom", "local_shell", "apply_patch", "computer_use_preview", "computer"];
/// What Anthropic's do; their versions follow as a date.
const ANTHROPIC_TOOLS: &[&str] = &["bash_", "text_editor_", "computer_", "memory_"];
/// Tiers that cost what is configured, or less.
const TIERS: &[&str] = &["auto", "default", "flex", "standard_only"];
/// Edits of a conversation that only take something out of it; their versions follow as a date.
const CLEARING: &[&str] = &["clear_tool_uses_", "clear_thinking_"];

fn known(endpoint: Endpoint) -> &'static [&'static str] {
    match endpoint {
        Endpoint::Chat => CHAT,
        Endpoint::Responses => RESPONSES,
        Endpoint::Embeddings => EMBEDDINGS,
        Endpoint::Messages | Endpoint::CountTokens => MESSAGES,
    }
}

/// `priced`: a limit in dollars is among the budget's.
pub(super) fn check(endpoint: Endpoint, root: &Node<'_>, priced: bool) -> Result<(), Unbounded> {
    for (field, cause) in REFUSED {
        if root.get(field).is_some() {
            return Err(Unbounded::new(*field, cause));
        }
    }
    if root.get("context_management").is_some_and(|edits| endpoint != Endpoint::Messages || !only_clears(edits)) {
        return Err(Unbounded::new("context_management", SUMMED_UP));
    }
    let mut present = root.members().iter().filter(|(_, value)| *value != Node::Null);
    if let Some((stranger, _)) = present.find(|(name, _)| !known(endpoint).contains(&&**name)) {
        return Err(Unbounded::new(shown(stranger), STRANGER));
    }
    if root.get("background").is_some_and(|background| *background != Node::Bool(false)) {
        return Err(Unbounded::new("background", LATER));
    }
    if root.get("service_tier").is_some_and(|tier| tier.text().is_none_or(|tier| !TIERS.contains(&tier))) {
        return Err(Unbounded::new("service_tier", DEARER));
    }
    if root.get("speed").is_some_and(|speed| speed.text() != Some("standard")) {
        return Err(Unbounded::new("speed", DEARER));
    }
    if root.get("modalities").is_some_and(|modalities| !only_text(modalities)) {
        return Err(Unbounded::new(
            "modalities",
            "only text is bounded by an output cap, so under a budget others are refused",
        ));
    }
    if priced && root.get("inference_geo").is_some() {
        return Err(Unbounded::new("inference_geo", DEARER));
    }
    if priced && endpoint == Endpoint::Messages && kept_long(root) {
        return Err(Unbounded::new("cache_control.ttl", DEARER));
    }
    tools(endpoint, root.get("tools"))
}

fn only_text(modalities: &Node<'_>) -> bool {
    let Node::List(modalities) = modalities else { return false };
    modalities.iter().all(|modality| modality.text() == Some("text"))
}

fn only_clears(management: &Node<'_>) -> bool {
    let clears = |edit: &Node<'_>| CLEARING.iter().any(|kind| edit.kind().starts_with(kind));
    let Node::Map(members) = management else { return false };
    members
        .iter()
        .all(|(name, edits)| name == "edits" && matches!(edits, Node::List(edits) if edits.iter().all(clears)))
}

/// A name that a client made up may be as long as a request.
pub(super) fn shown(name: &str) -> String {
    const LONGEST: usize = 64;
    let mut shown: String = name.chars().take(LONGEST).flat_map(char::escape_debug).collect();
    if name.chars().nth(LONGEST).is_some() {
        shown.push('…');
    }
    shown
}

fn tools(endpoint: Endpoint, tools: Option<&Node<'_>>) -> Result<(), Unbounded> {
    for (index, tool) in tools.map(Node::list).unwrap_or_default().iter().enumerate() {
        let kind = tool.kind();
        let client_run = match endpoint {
            Endpoint::Messages | Endpoint::CountTokens => {
                tool.get("type").is_none()
                    || kind == "custom"
                    || ANTHROPIC_TOOLS.iter().any(|tool| kind.starts_with(tool))
            }
            _ => OPENAI_TOOLS.contains(&kind) || kind == "shell" && runs_here(tool),
        };
        if !client_run {
            return Err(Unbounded::new(format!("tools[{index}].type"), HOSTED));
        }
    }
    Ok(())
}

fn runs_here(tool: &Node<'_>) -> bool {
    tool.get("environment").is_some_and(|environment| environment.kind() == "local")
}

/// An hour in Anthropic's cache costs more to write than the usual five minutes.
fn kept_long(node: &Node<'_>) -> bool {
    let here =
        node.get("cache_control").and_then(|control| control.get("ttl")).is_some_and(|ttl| ttl.text() != Some("5m"));
    here || node.list().iter().any(kept_long) || node.members().iter().any(|(_, value)| kept_long(value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::llm::tree;

    fn refused(endpoint: Endpoint, text: &str, priced: bool) -> Option<String> {
        let root = tree::parse(text.as_bytes()).expect("JSON");
        check(endpoint, &root, priced).err().map(|unbounded| unbounded.field)
    }

    #[test]
    fn every_way_around_the_bound_is_refused_by_name() {
        for (text, field) in [
            (r#"{"previous_response_id":"r"}"#, "previous_response_id"),
            (r#"{"conversation":{"id":"c"}}"#, "conversation"),
            (r#"{"prompt":{"id":"p"}}"#, "prompt"),
            (r#"{"background":true}"#, "background"),
            (r#"{"background":"yes"}"#, "background"),
            (r#"{"web_search_options":{}}"#, "web_search_options"),
            (r#"{"prediction":{"type":"content","content":"x"}}"#, "prediction"),
            (r#"{"modalities":["text","audio"]}"#, "modalities"),
            (r#"{"modalities":"audio"}"#, "modalities"),
            (r#"{"audio":{"voice":"v"}}"#, "audio"),
            (r#"{"service_tier":"priority"}"#, "service_tier"),
            (r#"{"context_management":[]}"#, "context_management"),
            (r#"{"tools":[{"type":"function"},{"type":"web_search"}]}"#, "tools[1].type"),
            (r#"{"tools":[{"type":"mcp"}]}"#, "tools[0].type"),
            (r#"{"tools":[{"type":"shell","environment":{"type":"container_auto"}}]}"#, "tools[0].type"),
            (r#"{"tools":[{}]}"#, "tools[0].type"),
        ] {
            assert_eq!(refused(Endpoint::Responses, text, false).as_deref(), Some(field), "{text}");
        }
        for (text, field) in [
            (r#"{"mcp_servers":[]}"#, "mcp_servers"),
            (r#"{"container":"c"}"#, "container"),
            (r#"{"fallbacks":["dearer"]}"#, "fallbacks"),
            (r#"{"context_management":{"edits":[{"type":"compact_20260112"}]}}"#, "context_management"),
            (r#"{"context_management":{"edits":[{"type":"clear_thinking_20251015"}],"more":1}}"#, "context_management"),
            (r#"{"context_management":[]}"#, "context_management"),
            (r#"{"speed":"fast"}"#, "speed"),
            (r#"{"tools":[{"type":"web_search_20250305"}]}"#, "tools[0].type"),
            (r#"{"tools":[{"type":"code_execution_20250825"}]}"#, "tools[0].type"),
            (r#"{"tools":[{"type":7}]}"#, "tools[0].type"),
        ] {
            assert_eq!(refused(Endpoint::Messages, text, false).as_deref(), Some(field), "{text}");
        }
    }

    #[test]
    fn what_nobody_here_knows_is_refused_by_name() {
        for endpoint in [Endpoint::Chat, Endpoint::Responses, Endpoint::Embeddings, Endpoint::Messages] {
            let root = tree::parse(br#"{"model":"m","vendor_memory":true}"#).expect("JSON");
            let refused = check(endpoint, &root, false).expect_err("unknown");
            assert_eq!(refused.field, "vendor_memory");
            assert!(refused.cause.contains("not known to be bounded"));
            assert_eq!(check(endpoint, &tree::parse(br#"{"new":null}"#).expect("JSON"), true), Ok(()));
        }
        // what one endpoint knows another may not
        assert_eq!(refused(Endpoint::Chat, r#"{"max_output_tokens":5}"#, false).as_deref(), Some("max_output_tokens"));
        assert_eq!(refused(Endpoint::Embeddings, r#"{"tools":[]}"#, false).as_deref(), Some("tools"));
        assert_eq!(
            refused(Endpoint::Messages, r#"{"anthropic_beta":["x"]}"#, false).as_deref(),
            Some("anthropic_beta")
        );
        let long = refused(Endpoint::Chat, &format!("{{\"{}\":1}}", r"x\n".repeat(1000)), false).expect("unknown");
        assert_eq!(long, format!("{}…", r"x\n".repeat(32)));
    }

    #[test]
    fn what_agents_use_every_day_passes() {
        for text in [
            // Codex
            r#"{"model":"m","instructions":"i","input":[],"tools":[{"type":"function"},{"type":"custom"},{"type":"local_shell"}],
                "tool_choice":"auto","parallel_tool_calls":false,"reasoning":{"effort":"high","summary":"auto"},"store":false,
                "stream":true,"include":["reasoning.encrypted_content"],"service_tier":"flex","prompt_cache_key":"t",
                "text":{"verbosity":"low"},"client_metadata":{"x":"y"}}"#,
            r#"{"model":"m","input":"x","background":false,"previous_response_id":null,"modalities":["text"],"store":true,
                "truncation":"auto","max_output_tokens":5,"max_tool_calls":3,"metadata":{},"stream_options":{},"top_logprobs":1,
                "temperature":1,"top_p":1,"user":"u","safety_identifier":"s","prompt_cache_retention":"24h","conversation":null}"#,
        ] {
            assert_eq!(refused(Endpoint::Responses, text, true), None, "{text}");
        }
        let chat = r#"{"model":"m","messages":[],"stream":true,"stream_options":{},"max_completion_tokens":5,"max_tokens":5,"n":1,
            "temperature":0,"top_p":1,"presence_penalty":0,"frequency_penalty":0,"logit_bias":{},"logprobs":true,
            "top_logprobs":2,"seed":1,"stop":["x"],"tools":[{"type":"function"}],"tool_choice":"auto",
            "parallel_tool_calls":true,"response_format":{"type":"text"},"reasoning_effort":"low","verbosity":"low",
            "modalities":["text"],"service_tier":"auto","metadata":{},"store":false,"user":"u","functions":[],
            "function_call":"none","safety_identifier":"s","prompt_cache_key":"k","prompt_cache_retention":"in_memory"}"#;
        assert_eq!(refused(Endpoint::Chat, chat, true), None);
        let embeddings = r#"{"model":"m","input":[[1,2]],"dimensions":8,"encoding_format":"base64","user":"u"}"#;
        assert_eq!(refused(Endpoint::Embeddings, embeddings, true), None);
        // Claude Code
        let text = r#"{"model":"m","messages":[],"max_tokens":5,"stream":true,"metadata":{"user_id":"u"},"temperature":1,
            "thinking":{"type":"adaptive"},"output_config":{"effort":"high"},"diagnostics":{},"tool_choice":{"type":"auto"},
            "context_management":{"edits":[{"type":"clear_thinking_20251015","keep":"all"},{"type":"clear_tool_uses_20250919"}]},
            "tools":[{"name":"f"},{"type":"bash_20250124"},{"type":"text_editor_20250728"}],"service_tier":"auto",
            "stop_sequences":[],"top_k":1,"top_p":1,"speed":"standard","cache_control":{"type":"ephemeral"},
            "system":[{"type":"text","text":"x","cache_control":{"type":"ephemeral"}}],"output_format":null}"#;
        assert_eq!(refused(Endpoint::Messages, text, true), None);
    }

    #[test]
    fn what_only_changes_the_price_is_refused_only_for_dollars() {
        let text = r#"{"messages":[{"content":[{"type":"text","cache_control":{"type":"ephemeral","ttl":"1h"}}]}]}"#;
        assert_eq!(refused(Endpoint::Messages, text, true).as_deref(), Some("cache_control.ttl"));
        assert_eq!(refused(Endpoint::Messages, text, false), None);
    }
}
