//! Fields of a request that let the vendor read, run or charge more than the request shows: refused under a budget.

use super::{content::Unbounded, route::Endpoint, tree::Node};

const STORED: &str = "it stands for input that the vendor has stored, of any size, so under a budget it is refused";
const HOSTED: &str =
    "the vendor runs it and feeds what it finds to the model, of any size, so under a budget it is refused";
const LATER: &str = "a call that goes on after its answer cannot be settled, so under a budget it is refused";
const DEARER: &str = "it is charged at another price than the one configured, so under a budget it is refused";

/// Present and not `null`, that is enough.
const REFUSED: &[(&str, &str)] = &[
    ("previous_response_id", STORED),
    ("conversation", STORED),
    ("prompt", STORED),
    ("container", HOSTED),
    ("mcp_servers", HOSTED),
    ("web_search_options", HOSTED),
    ("context_management", HOSTED),
    ("prediction", "what is predicted wrongly is charged beyond the output cap, so under a budget it is refused"),
    ("audio", "audio is charged apart, so under a budget it is refused"),
    ("best_of", "it multiplies the output, so under a budget it is refused; use `n`"),
];

/// What OpenAI's models call and the client runs.
const OPENAI_TOOLS: &[&str] = &["function", "custom", "local_shell", "apply_patch", "computer_use_preview", "computer"];
/// What Anthropic's do; their versions follow as a date.
const ANTHROPIC_TOOLS: &[&str] = &["bash_", "text_editor_", "computer_", "memory_"];
/// Tiers that cost what is configured, or less.
const TIERS: &[&str] = &["auto", "default", "flex", "standard_only"];

/// `priced`: a limit in dollars is among the budget's.
pub(super) fn check(endpoint: Endpoint, root: &Node<'_>, priced: bool) -> Result<(), Unbounded> {
    for (field, cause) in REFUSED {
        if root.get(field).is_some() {
            return Err(Unbounded::new(*field, cause));
        }
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
    let modalities = root.get("modalities").map(Node::list).unwrap_or_default();
    if modalities.iter().any(|modality| modality.text() != Some("text")) {
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
            (r#"{"speed":"fast"}"#, "speed"),
            (r#"{"tools":[{"type":"web_search_20250305"}]}"#, "tools[0].type"),
            (r#"{"tools":[{"type":"code_execution_20250825"}]}"#, "tools[0].type"),
            (r#"{"tools":[{"type":7}]}"#, "tools[0].type"),
        ] {
            assert_eq!(refused(Endpoint::Messages, text, false).as_deref(), Some(field), "{text}");
        }
    }

    #[test]
    fn what_agents_use_every_day_passes() {
        for text in [
            r#"{"model":"m","tools":[{"type":"function"},{"type":"custom"},{"type":"local_shell"}],"service_tier":"flex"}"#,
            r#"{"background":false,"previous_response_id":null,"modalities":["text"],"store":false}"#,
        ] {
            assert_eq!(refused(Endpoint::Responses, text, true), None, "{text}");
        }
        let text = r#"{"tools":[{"name":"f"},{"type":"bash_20250124"},{"type":"text_editor_20250728"}],"service_tier":"auto",
            "system":[{"type":"text","text":"x","cache_control":{"type":"ephemeral"}}]}"#;
        assert_eq!(refused(Endpoint::Messages, text, true), None);
    }

    #[test]
    fn what_only_changes_the_price_is_refused_only_for_dollars() {
        let text = r#"{"messages":[{"content":[{"type":"text","cache_control":{"type":"ephemeral","ttl":"1h"}}]}]}"#;
        assert_eq!(refused(Endpoint::Messages, text, true).as_deref(), Some("cache_control.ttl"));
        assert_eq!(refused(Endpoint::Messages, text, false), None);
    }
}
