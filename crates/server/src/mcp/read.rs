//! `read_file`: text as it is, by lines if it is long; images as images; what else is binary is named, and given as
//! base64 to those who ask.

use futures_util::StreamExt as _;
use rmcp::model::{CallToolResult, ContentBlock, ResourceContents, Tool};
use sandbar_api::{Entry, Problem, bytes};
use sandbar_engine::Engine;
use serde::Deserialize;
use serde_json::json;

use super::{
    Place,
    files::not_empty,
    kind,
    listing::{self, Effect},
    tools::{Outcome, text},
};

/// What a model can make use of.
pub(super) const MOST: usize = 1024 * 1024;
/// Models take images of 5 MB in base64.
const MOST_IMAGE: usize = 3584 * 1024;
const MOST_BINARY: usize = 256 * 1024;
/// Read over on the way to a line: a file may be larger than anybody can wait for.
const MOST_PASSED: u64 = 256 * 1024 * 1024;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Ask {
    #[serde(alias = "file_path")]
    path: String,
    offset: Option<u64>,
    limit: Option<u64>,
    #[serde(default)]
    encoding: Encoding,
}

#[derive(Deserialize, Default, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum Encoding {
    #[default]
    Text,
    Base64,
}

pub(super) fn listed() -> Tool {
    listing::tool(
        "read_file",
        "Read a file",
        "Read the content of a file",
        &["path"],
        json!({
            "path": listing::path("A file: text, or an image (PNG, JPEG, GIF, WebP)"),
            "offset": listing::number(1, "The first line to read, counted from 1"),
            "limit": listing::number(1, "How many lines to read; needed for files that are larger than 1 MiB"),
            "encoding": listing::one_of(&["text", "base64"],
                "`base64` gives the bytes of a file of at most 256 KiB, whatever they are; `text` if absent"),
        }),
        Effect::Reads,
    )
}

pub(super) async fn read(place: &Place, ask: Ask) -> Outcome {
    let Ask { path, offset, limit, encoding } = ask;
    not_empty(&path)?;
    let (engine, sandbox) = (&place.app.engine, place.sandbox()?);
    let content = match (encoding, offset, limit) {
        (Encoding::Base64, None, None) => blob(engine, sandbox, &path).await,
        (Encoding::Base64, ..) => Err("offset and limit count lines of text: leave them out with base64.".to_owned()),
        (Encoding::Text, None, None) => shown(engine, sandbox, &path).await,
        (_, Some(0), _) => Err("offset counts lines from 1.".to_owned()),
        (_, _, Some(0)) => Err("limit must be at least 1.".to_owned()),
        (Encoding::Text, offset, limit) => {
            lines(engine, sandbox, &path, offset.unwrap_or(1), limit.unwrap_or(u64::MAX)).await.map(text)
        }
    };
    content.map_err(|why| format!("failed to read file {path}: {why}"))
}

async fn shown(engine: &Engine, sandbox: &str, path: &str) -> Result<CallToolResult, String> {
    let enough = |begin: &[u8]| begin.len() > MOST && kind::image(begin).is_none();
    let (entry, content) = begin(engine, sandbox, path, MOST_IMAGE, enough).await?;
    match kind::image(&content) {
        Some(_) if content.len() > MOST_IMAGE => Err(format!(
            "it is an image of {} bytes, more than the {MOST_IMAGE} that can be shown. Make a smaller one of it with exec.",
            entry.size
        )),
        Some(mime) => Ok(CallToolResult::success(vec![ContentBlock::image(bytes::encode(&content), mime)])),
        None => as_text(content, entry.size).map(text),
    }
}

/// A text file, if it is not too large.
pub(super) async fn whole(engine: &Engine, sandbox: &str, path: &str) -> Result<String, String> {
    let (entry, content) = begin(engine, sandbox, path, MOST, |_| false).await?;
    as_text(content, entry.size)
}

async fn blob(engine: &Engine, sandbox: &str, path: &str) -> Result<CallToolResult, String> {
    let (entry, content) = begin(engine, sandbox, path, MOST_BINARY, |_| false).await?;
    if content.len() > MOST_BINARY {
        return Err(format!(
            "it has {} bytes, more than the {MOST_BINARY} that are given as base64. Take parts of it with exec, for example with `dd` and `base64`.",
            entry.size
        ));
    }
    let file = ResourceContents::blob(bytes::encode(&content), uri(path)).with_mime_type(kind::mime(&content));
    Ok(CallToolResult::success(vec![ContentBlock::resource(file)]))
}

/// Up to one byte more than `most`: the sizes of some files are not what they seem.
async fn begin(
    engine: &Engine,
    sandbox: &str,
    path: &str,
    most: usize,
    enough: impl Fn(&[u8]) -> bool,
) -> Result<(Entry, Vec<u8>), String> {
    let (entry, mut pieces) = engine.read_file(sandbox, path, 0, Some(most as u64 + 1)).await.map_err(told)?;
    let mut content = Vec::new();
    while let Some(piece) = pieces.next().await {
        content.extend_from_slice(&piece.map_err(told)?);
        if enough(&content) {
            break;
        }
    }
    Ok((entry, content))
}

fn as_text(content: Vec<u8>, size: u64) -> Result<String, String> {
    let (length, size) = (content.len(), size.max(content.len() as u64));
    match String::from_utf8(content) {
        Ok(text) if length <= MOST => Ok(text),
        // What was not read further may have ended within a character.
        Err(error) if length <= MOST || error.utf8_error().error_len().is_some() => {
            Err(binary(error.as_bytes(), error.utf8_error().valid_up_to(), size))
        }
        Ok(_) | Err(_) => Err(format!(
            "it has {size} bytes, more than the {MOST} that are read at once. Read it by lines, with offset and limit, or look into it with exec."
        )),
    }
}

fn binary(content: &[u8], at: usize, size: u64) -> String {
    let what = kind::words(content);
    let small = if size <= MOST_BINARY as u64 { ", or read it again with encoding \"base64\"" } else { "" };
    format!(
        "it is binary: {what}, {size} bytes, which are not UTF-8 from byte {at} on. Look into it with exec, for example with `file`, `strings` or `xxd`{small}."
    )
}

/// As a client may show it; the sandbox's own path, not one of the client's machine.
fn uri(path: &str) -> String {
    let absolute = if path.starts_with('/') { path.to_owned() } else { format!("/workspace/{path}") };
    let mut uri = "file://".to_owned();
    for byte in absolute.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'-' | b'_' | b'.' | b'~' => uri.push(char::from(byte)),
            other => uri.push_str(&format!("%{other:02X}")),
        }
    }
    uri
}

async fn lines(engine: &Engine, sandbox: &str, path: &str, first: u64, count: u64) -> Result<String, String> {
    let (entry, mut pieces) = engine.read_file(sandbox, path, 0, None).await.map_err(told)?;
    let mut range = Lines::new(first, count);
    while let Some(piece) = pieces.next().await
        && range.push(&piece.map_err(told)?)
    {}
    range.end(entry.size)
}

/// Takes a range of lines out of what passes by.
struct Lines {
    /// Lines before the range, and lines of it, that are still to come.
    before: u64,
    left: u64,
    passed: u64,
    within: bool,
    /// Bytes before the range.
    skipped: u64,
    taken: Vec<u8>,
}

impl Lines {
    fn new(first: u64, count: u64) -> Self {
        Self { before: first - 1, left: count, passed: 0, within: false, skipped: 0, taken: Vec::new() }
    }

    /// Whether more is wanted.
    fn push(&mut self, piece: &[u8]) -> bool {
        for line in piece.split_inclusive(|byte| *byte == b'\n') {
            let ends = line.ends_with(b"\n");
            self.within = !ends;
            self.passed += u64::from(ends);
            if self.before > 0 {
                self.before -= u64::from(ends);
                self.skipped += line.len() as u64;
                if self.is_too_far() {
                    return false;
                }
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

    fn is_too_far(&self) -> bool {
        self.before > 0 && self.skipped > MOST_PASSED
    }

    fn end(self, size: u64) -> Result<String, String> {
        if self.is_too_far() {
            return Err(format!(
                "line offset is not within the first {MOST_PASSED} bytes of it. Look into it with exec, for example with `tail`."
            ));
        }
        if self.taken.len() > MOST {
            return Err(format!("these lines have more than {MOST} bytes. Ask for fewer with limit."));
        }
        if self.taken.is_empty() && self.before + self.passed > 0 {
            return Err(format!("it has only {} lines.", self.passed + u64::from(self.within)));
        }
        String::from_utf8(self.taken).map_err(|error| binary(error.as_bytes(), error.utf8_error().valid_up_to(), size))
    }
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
        lines.end(9)
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
        let why = as_text(vec![b'a', 0xff], 2).err().unwrap_or_default();
        assert!(
            why.contains("data, 2 bytes") && why.contains("byte 1") && why.contains("encoding \"base64\""),
            "{why}"
        );
        let large =
            |last: &[u8]| as_text([vec![b'x'; MOST], last.to_vec()].concat(), 9_000_000).err().unwrap_or_default();
        assert!(large(b"x").contains("9000000 bytes, more than"));
        assert!(large(&[0xc3]).contains("9000000 bytes, more than"), "cut within a character");
        assert!(large(&[0xff]).contains("it is binary: data, 9000000 bytes") && !large(&[0xff]).contains("base64"));
    }

    #[test]
    fn paths_are_uris() {
        assert_eq!(uri("a b/ü"), "file:///workspace/a%20b/%C3%BC");
        assert_eq!(uri("/etc/x-1.2_3~"), "file:///etc/x-1.2_3~");
    }
}
