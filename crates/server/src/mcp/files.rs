//! `read_file`, `write_file` and `list_dir`. The guest does it all, inside and as the workload's user: there is no path
//! that could lead to a file of the host.

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use sandbar_api::{EntryKind, Problem};
use sandbar_engine::{ByteStream, Engine};
use serde::{Deserialize, Serialize};

use super::{
    Place,
    tools::{Outcome, structured, text},
};

/// What a model can make use of.
pub(super) const MOST: usize = 1024 * 1024;
const MOST_ENTRIES: usize = 10_000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Read {
    path: String,
    offset: Option<u64>,
    limit: Option<u64>,
}

pub(super) async fn read(place: &Place, ask: Read) -> Outcome {
    let Read { path, offset, limit } = ask;
    not_empty(&path)?;
    let (engine, sandbox) = (&place.app.engine, place.sandbox()?);
    let content = match (offset, limit) {
        (None, None) => whole(engine, sandbox, &path).await,
        (Some(0), _) => Err("offset counts lines from 1.".to_owned()),
        (_, Some(0)) => Err("limit must be at least 1.".to_owned()),
        (offset, limit) => lines(engine, sandbox, &path, offset.unwrap_or(1), limit.unwrap_or(u64::MAX)).await,
    };
    content.map(text).map_err(|why| format!("failed to read file {path}: {why}"))
}

pub(super) fn not_empty(path: &str) -> Result<(), String> {
    if path.is_empty() { Err("path must not be empty".to_owned()) } else { Ok(()) }
}

/// A text file, if it is not too large.
pub(super) async fn whole(engine: &Engine, sandbox: &str, path: &str) -> Result<String, String> {
    // Asked for one more byte: the sizes of some files are not what they seem.
    let (entry, mut pieces) = engine.read_file(sandbox, path, 0, Some(MOST as u64 + 1)).await.map_err(told)?;
    let mut content = Vec::new();
    while let Some(piece) = pieces.next().await {
        content.extend_from_slice(&piece.map_err(told)?);
    }
    if content.len() > MOST {
        return Err(format!(
            "it has {} bytes, more than the {MOST} that are read at once. Read it by lines, with offset and limit, or look into it with exec.",
            entry.size
        ));
    }
    utf8(content)
}

fn utf8(content: Vec<u8>) -> Result<String, String> {
    String::from_utf8(content).map_err(|error| {
        let (size, at) = (error.as_bytes().len(), error.utf8_error().valid_up_to());
        format!(
            "it is binary: {size} bytes that are not UTF-8 from byte {at} on. Look into it with exec, for example with `base64`, `xxd` or `file`."
        )
    })
}

async fn lines(engine: &Engine, sandbox: &str, path: &str, first: u64, count: u64) -> Result<String, String> {
    let (_, mut pieces) = engine.read_file(sandbox, path, 0, None).await.map_err(told)?;
    let mut range = Lines::new(first, count);
    while let Some(piece) = pieces.next().await
        && range.push(&piece.map_err(told)?)
    {}
    range.end()
}

/// Takes a range of lines out of what passes by.
struct Lines {
    /// Lines before the range, and lines of it, that are still to come.
    before: u64,
    left: u64,
    passed: u64,
    within: bool,
    taken: Vec<u8>,
}

impl Lines {
    fn new(first: u64, count: u64) -> Self {
        Self { before: first - 1, left: count, passed: 0, within: false, taken: Vec::new() }
    }

    /// Whether more is wanted.
    fn push(&mut self, piece: &[u8]) -> bool {
        for line in piece.split_inclusive(|byte| *byte == b'\n') {
            let ends = line.ends_with(b"\n");
            self.within = !ends;
            self.passed += u64::from(ends);
            if self.before > 0 {
                self.before -= u64::from(ends);
                continue;
            }
            self.taken.extend_from_slice(line);
            self.left -= u64::from(ends);
            if self.left == 0 || self.taken.len() > MOST {
                return false;
            }
        }
        true
    }

    fn end(self) -> Result<String, String> {
        if self.taken.len() > MOST {
            return Err(format!("these lines have more than {MOST} bytes. Ask for fewer with limit."));
        }
        if self.taken.is_empty() && self.before + self.passed > 0 {
            return Err(format!("it has only {} lines.", self.passed + u64::from(self.within)));
        }
        utf8(self.taken)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Write {
    path: String,
    content: String,
}

#[derive(Serialize)]
struct Written {
    ok: bool,
}

pub(super) async fn write(place: &Place, ask: Write) -> Outcome {
    not_empty(&ask.path)?;
    put(&place.app.engine, place.sandbox()?, &ask.path, ask.content).await?;
    structured(&Written { ok: true })
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
    /// How many there are, if not all are told.
    #[serde(skip_serializing_if = "Option::is_none")]
    total: Option<usize>,
}

#[derive(Serialize)]
struct Entry {
    name: String,
    #[serde(rename = "type")]
    kind: &'static str,
    size: u64,
}

pub(super) async fn list(place: &Place, ask: List) -> Outcome {
    let path = if ask.path.is_empty() { "." } else { &ask.path };
    let listed = place.app.engine.list_directory(place.sandbox()?, path).await;
    let mut entries: Vec<_> = listed
        .map_err(|problem| format!("failed to list directory {path}: {problem}"))?
        .entries
        .into_iter()
        .map(|entry| Entry {
            kind: if entry.kind == EntryKind::Directory { "dir" } else { "file" },
            name: entry.name,
            size: entry.size,
        })
        .collect();
    entries.sort_by(|one, other| one.name.cmp(&other.name));
    let total = Some(entries.len()).filter(|total| *total > MOST_ENTRIES);
    entries.truncate(MOST_ENTRIES);
    structured(&Listed { entries, total })
}

#[expect(clippy::needless_pass_by_value, reason = "the shape map_err wants")]
fn told(problem: Problem) -> String {
    problem.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(first: u64, count: u64, pieces: &[&str]) -> Result<String, String> {
        let mut lines = Lines::new(first, count);
        let _more = pieces.iter().all(|piece| lines.push(piece.as_bytes()));
        lines.end()
    }

    #[test]
    fn lines_are_counted_whatever_the_pieces() {
        for pieces in [&["a\nbb\nccc"][..], &["a", "\nb", "b\n", "c", "cc"], &["", "a\n", "bb\nccc", ""]] {
            for (first, count, want) in
                [(1, 1, "a\n"), (1, u64::MAX, "a\nbb\nccc"), (2, 1, "bb\n"), (2, 5, "bb\nccc"), (3, 1, "ccc")]
            {
                assert_eq!(range(first, count, pieces).as_deref(), Ok(want), "{first} {count} {pieces:?}");
            }
            assert_eq!(range(4, 1, pieces), Err("it has only 3 lines.".to_owned()));
        }
        assert_eq!(range(1, 1, &[]).as_deref(), Ok(""));
        assert_eq!(range(2, 1, &["a\n"]), Err("it has only 1 lines.".to_owned()));
    }

    #[test]
    fn a_range_is_not_larger_than_a_file_may_be() {
        let line = "x".repeat(MOST);
        assert!(range(1, 9, &[&line, "y"]).is_err_and(|why| why.contains("Ask for fewer")));
        assert_eq!(range(2, 1, &[&line, "\n", "ok\n"]).as_deref(), Ok("ok\n"));
    }

    #[test]
    fn what_is_no_text_is_told() {
        assert!(utf8(vec![b'a', 0xff]).is_err_and(|why| why.contains("2 bytes") && why.contains("byte 1")));
    }
}
