//! The tools as clients are told of them. Names, sentences and inputs are kagent's where it has the tool; a property that
//! is not here is refused.

use std::sync::Arc;

use rmcp::model::{JsonObject, Tool, ToolAnnotations};
use serde_json::{Value, json};

pub(super) const GET_SKILL: &str = "Load the full content of a skill by name.";

/// `skills` is what follows the sentence about skills.
pub(super) fn tools(skills: &str) -> Vec<Tool> {
    let path =
        |what: &str| json!({"type": "string", "description": format!("{what}; a relative one starts at /workspace")});
    let text = |what: &str| json!({"type": "string", "description": what});
    vec![
        tool(
            "exec",
            "Execute a shell command in the sandbox",
            &["command"],
            json!({
                "command": text("Given to `sh -c`. More than 64 KiB of stdout or stderr is cut in the middle"),
                "timeout_ms": {"type": "integer", "description":
                    "When everything the command started is killed and exit_code is -1: 120000 if absent, at most 1800000, which 0 and less stand for too"},
                "working_dir": path("The directory it runs in, /workspace if absent"),
            }),
            Effect::Changes,
        ),
        tool(
            "read_file",
            "Read the content of a file",
            &["path"],
            json!({
                "path": path("A text file"),
                "offset": {"type": "integer", "minimum": 1, "description": "The first line to read, counted from 1"},
                "limit": {"type": "integer", "minimum": 1, "description":
                    "How many lines to read; needed for files that are larger than 1 MiB"},
            }),
            Effect::Reads,
        ),
        tool(
            "write_file",
            "Write content to a file (creates parent directories if needed)",
            &["path", "content"],
            json!({"path": path("The file, which is replaced as a whole"), "content": text("All of its new content")}),
            Effect::Changes,
        ),
        tool(
            "edit_file",
            "Replace a string in a file",
            &["path", "old_string", "new_string"],
            json!({
                "path": path("A text file of at most 1 MiB"),
                "old_string": text("What is there, to the letter; it must be there once, unless replace_all is true"),
                "new_string": text("What takes its place"),
                "replace_all": {"type": "boolean", "description": "Replace it wherever it is; false if absent"},
            }),
            Effect::Changes,
        ),
        tool(
            "list_dir",
            "List entries in a directory",
            &[],
            json!({"path": path("The directory, /workspace if absent")}),
            Effect::Reads,
        ),
        tool(
            "get_skill",
            &format!("{GET_SKILL}{skills}"),
            &["name"],
            json!({"name": text("As it is listed above")}),
            Effect::Reads,
        ),
    ]
}

#[derive(PartialEq, Eq)]
enum Effect {
    Reads,
    Changes,
}

fn tool(name: &'static str, description: &str, required: &[&str], properties: Value, effect: Effect) -> Tool {
    let mut schema = JsonObject::new();
    schema.insert("type".to_owned(), "object".into());
    schema.insert("properties".to_owned(), properties);
    if !required.is_empty() {
        schema.insert("required".to_owned(), required.into());
    }
    schema.insert("additionalProperties".to_owned(), false.into());
    let hints = ToolAnnotations::new().read_only(effect == Effect::Reads).open_world(name == "exec");
    Tool::new(name, description.to_owned(), Arc::new(schema)).with_annotations(hints)
}
