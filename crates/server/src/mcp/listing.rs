//! The tools as clients are told of them. Each file says it of its own; here is what they say it with. Names, sentences
//! and inputs are kagent's where it has the tool; a property that is not listed is refused.

use std::sync::Arc;

use rmcp::model::{JsonObject, Tool, ToolAnnotations};
use serde_json::{Value, json};

use super::{edit, exec, files, output, processes, read, search, skills};

/// In the order in which a model is to think of them. `skills` is what follows the sentence about skills.
pub(super) fn tools(skills: &str) -> Vec<Tool> {
    vec![
        exec::listed(),
        read::listed(),
        files::write_listed(),
        edit::listed(),
        files::list_listed(),
        search::glob_listed(),
        search::grep_listed(),
        processes::start_listed(),
        output::listed(),
        processes::input_listed(),
        processes::stop_listed(),
        processes::all_listed(),
        skills::listed(skills),
    ]
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect {
    Reads,
    /// May take something away; once is as good as twice.
    Replaces,
    Changes,
    /// As `Changes`, and may reach beyond the sandbox, as far as its policy lets it.
    ChangesAnything,
}

/// A tool that answers with text.
pub(super) fn tool(
    name: &'static str,
    title: &str,
    description: impl Into<String>,
    required: &[&str],
    properties: Value,
    effect: Effect,
) -> Tool {
    let hints = ToolAnnotations::new()
        .read_only(effect == Effect::Reads)
        .destructive(effect != Effect::Reads)
        .idempotent(matches!(effect, Effect::Reads | Effect::Replaces))
        .open_world(effect == Effect::ChangesAnything);
    Tool::new(name, description.into(), Arc::new(object(required, properties)))
        .with_title(title)
        .with_annotations(hints)
}

/// A tool that answers with such an object.
pub(super) fn giving(tool: Tool, required: &[&str], properties: Value) -> Tool {
    tool.with_raw_output_schema(Arc::new(object(required, properties)))
}

fn object(required: &[&str], properties: Value) -> JsonObject {
    let mut schema = JsonObject::new();
    schema.insert("type".to_owned(), "object".into());
    schema.insert("properties".to_owned(), properties);
    if !required.is_empty() {
        schema.insert("required".to_owned(), required.into());
    }
    schema.insert("additionalProperties".to_owned(), false.into());
    schema
}

pub(super) fn text(what: &str) -> Value {
    json!({"type": "string", "description": what})
}

pub(super) fn path(what: &str) -> Value {
    text(&format!("{what}; a relative one starts at /workspace"))
}

pub(super) fn flag(what: &str) -> Value {
    json!({"type": "boolean", "description": what})
}

pub(super) fn number(least: u64, what: &str) -> Value {
    json!({"type": "integer", "minimum": least, "description": what})
}

pub(super) fn one_of(names: &[&str], what: &str) -> Value {
    json!({"type": "string", "enum": names, "description": what})
}

pub(super) fn list(required: &[&str], properties: Value) -> Value {
    json!({"type": "array", "items": object(required, properties)})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tool_says_what_it_wants_and_gives() {
        let tools = tools("");
        for tool in &tools {
            let name = tool.name.as_ref();
            assert_eq!(tool.input_schema["additionalProperties"], false, "{name}");
            let properties = tool.input_schema["properties"].as_object().unwrap_or_else(|| panic!("{name}"));
            for (property, schema) in properties {
                assert!(schema["description"].is_string() && schema["type"].is_string(), "{name}.{property}");
            }
            for required in tool.input_schema.get("required").and_then(Value::as_array).into_iter().flatten() {
                assert!(properties.contains_key(required.as_str().unwrap_or_default()), "{name}: {required}");
            }
            assert!(tool.title.is_some() && tool.description.is_some(), "{name}");
            let text_alone = ["read_file", "get_skill"].contains(&name);
            assert_eq!(tool.output_schema.is_none(), text_alone, "{name}");
            assert!(tool.output_schema.as_ref().is_none_or(|schema| schema["type"] == "object"), "{name}");
        }
        assert_eq!(tools.len(), 13);
    }

    #[test]
    fn hints_are_what_the_tools_do() {
        let tools = tools("");
        let hints = |name: &str| {
            let tool = tools.iter().find(|tool| tool.name == name).unwrap_or_else(|| panic!("no {name}"));
            let hints = tool.annotations.clone().unwrap_or_default();
            let hints = [hints.read_only_hint, hints.destructive_hint, hints.idempotent_hint, hints.open_world_hint];
            hints.map(|hint| hint.unwrap_or_else(|| panic!("{name} leaves a hint open")))
        };
        for name in ["read_file", "list_dir", "glob", "grep", "output", "processes", "get_skill"] {
            assert_eq!(hints(name), [true, false, true, false], "{name}");
        }
        assert_eq!(hints("exec"), [false, true, false, true]);
        assert_eq!(hints("input"), [false, true, false, true]);
        assert_eq!(hints("start"), [false, true, false, true]);
        assert_eq!(hints("write_file"), [false, true, true, false]);
        assert_eq!(hints("stop"), [false, true, true, false]);
        assert_eq!(hints("edit_file"), [false, true, false, false]);
    }
}
