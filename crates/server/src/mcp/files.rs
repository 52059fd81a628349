//! `write_file` and `list_dir`. The guest does it all, inside and as the workload's user: there is no path that could
//! lead to a file of the host.

use bytes::Bytes;
use futures_util::stream;
use rmcp::model::Tool;
use sandbar_api::EntryKind;
use sandbar_engine::{ByteStream, Engine};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{
    Place,
    listing::{self, Effect},
    tools::{Outcome, structured},
};

/// Told of a directory.
const MOST_ENTRIES: usize = 10_000;
/// Looked at: those that are told are the first of these by name.
const MOST_SEEN: usize = 100_000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Write {
    #[serde(alias = "file_path")]
    path: String,
    content: String,
}

#[derive(Serialize)]
struct Written {
    ok: bool,
}

pub(super) fn write_listed() -> Tool {
    let tool = listing::tool(
        "write_file",
        "Write a file",
        "Write content to a file (creates parent directories if needed)",
        &["path", "content"],
        json!({
            "path": listing::path("The file, which is replaced as a whole"),
            "content": listing::text("All of its new content"),
        }),
        Effect::Replaces,
    );
    listing::giving(tool, &["ok"], json!({"ok": listing::flag("Always true: a failure is an error")}))
}

pub(super) async fn write(place: &Place, ask: Write) -> Outcome {
    not_empty(&ask.path)?;
    put(&place.app.engine, place.sandbox()?, &ask.path, ask.content).await?;
    structured(&Written { ok: true })
}

pub(super) fn not_empty(path: &str) -> Result<(), String> {
    if path.is_empty() { Err("path must not be empty".to_owned()) } else { Ok(()) }
}

/// As a whole or not at all; a file that is there keeps its mode.
pub(super) async fn put(engine: &Engine, sandbox: &str, path: &str, content: String) -> Result<(), String> {
    let body: ByteStream = Box::pin(stream::iter([Ok(Bytes::from(content))]));
    let written = engine.write_file(sandbox, path, None, body).await;
    written.map(drop).map_err(|problem| format!("failed to write file {path}: {problem}"))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct List {
    #[serde(default)]
    path: String,
}

#[derive(Serialize)]
struct Listed {
    entries: Vec<Entry>,
    /// How many there are, if they were counted and not all are told.
    #[serde(skip_serializing_if = "Option::is_none")]
    total: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
}

#[derive(Serialize)]
struct Entry {
    name: String,
    #[serde(rename = "type")]
    kind: &'static str,
    size: u64,
}

pub(super) fn list_listed() -> Tool {
    let tool = listing::tool(
        "list_dir",
        "List a directory",
        "List entries in a directory",
        &[],
        json!({"path": listing::path("The directory, /workspace if absent")}),
        Effect::Reads,
    );
    let entry = json!({
        "name": listing::text("Without the directory"),
        "type": listing::one_of(&["file", "dir"], "A symbolic link counts as a file"),
        "size": listing::number(0, "In bytes"),
    });
    listing::giving(
        tool,
        &["entries"],
        json!({
            "entries": listing::list(&["name", "type", "size"], entry),
            "total": listing::number(0, "How many there are, if not all of them are told"),
            "note": listing::text("What is missing"),
        }),
    )
}

pub(super) async fn list(place: &Place, ask: List) -> Outcome {
    let path = if ask.path.is_empty() { "." } else { &ask.path };
    let listed = place.app.engine.list_some(place.sandbox()?, path, MOST_SEEN).await;
    let (listing, all) = listed.map_err(|problem| format!("failed to list directory {path}: {problem}"))?;
    let entries = listing.entries.into_iter().map(|entry| Entry {
        kind: if entry.kind == EntryKind::Directory { "dir" } else { "file" },
        name: entry.name,
        size: entry.size,
    });
    structured(&told(entries.collect(), all))
}

fn told(mut entries: Vec<Entry>, all: bool) -> Listed {
    entries.sort_by(|one, other| one.name.cmp(&other.name));
    let seen = entries.len();
    entries.truncate(MOST_ENTRIES);
    let note = match (all, seen > MOST_ENTRIES) {
        (true, false) => None,
        (true, true) => Some(format!("These are the first {MOST_ENTRIES} of {seen}. glob finds the others by name.")),
        (false, _) => Some(format!(
            "There are more than {seen}; these are {} of them, and others may stand between. glob finds them by name.",
            entries.len()
        )),
    };
    Listed { entries, total: Some(seen).filter(|_| all && note.is_some()), note }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(count: usize, all: bool) -> Listed {
        let entry = |number: usize| Entry { name: format!("{number:06}"), kind: "file", size: 0 };
        told((0..count).rev().map(entry).collect(), all)
    }

    #[test]
    fn a_listing_tells_what_it_lacks() {
        let few = listed(3, true);
        assert_eq!((few.entries[0].name.as_str(), few.total, few.note), ("000000", None, None));
        let many = listed(MOST_ENTRIES + 1, true);
        assert_eq!((many.entries.len(), many.total), (MOST_ENTRIES, Some(MOST_ENTRIES + 1)));
        assert!(many.note.is_some_and(|note| note.starts_with("These are the first 10000 of 10001.")));
        let cut = listed(MOST_ENTRIES + 5, false);
        assert_eq!((cut.entries.len(), cut.total), (MOST_ENTRIES, None));
        assert!(cut.note.is_some_and(|note| note.starts_with("There are more than 10005; these are 10000 of them")));
    }
}
