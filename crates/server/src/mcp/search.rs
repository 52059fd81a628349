//! `glob` and `grep`: names by a pattern, lines by an expression. The guest looks, within its bounds; here the answer is
//! put as coding models know it, and what it lacks is told.

use std::collections::BTreeMap;

use rmcp::model::{CallToolResult, ContentBlock, Tool};
use sandbar_api::EntryKind;
use sandbar_engine::{Hit, Hits, SearchQuery};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{
    Place,
    listing::{self, Effect},
    tools::{Outcome, object},
};

const USUAL_NAMES: usize = 200;
const USUAL_LINES: usize = 200;
const MOST: usize = 10_000;
/// Of the text of an answer.
const LONGEST: usize = 64 * 1024;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Glob {
    pattern: String,
    #[serde(default)]
    path: String,
    limit: Option<usize>,
    #[serde(default)]
    hidden: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Grep {
    pattern: String,
    #[serde(default)]
    path: String,
    #[serde(default)]
    glob: String,
    #[serde(default)]
    ignore_case: bool,
    #[serde(default)]
    context: u32,
    before: Option<u32>,
    after: Option<u32>,
    #[serde(default)]
    output_mode: Mode,
    limit: Option<usize>,
    #[serde(default)]
    hidden: bool,
}

#[derive(Deserialize, Default, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum Mode {
    #[default]
    Content,
    Files,
    Count,
}

/// What was found, as programs read it.
#[derive(Serialize, Default, Debug, PartialEq)]
struct Found {
    #[serde(skip_serializing_if = "Option::is_none")]
    files: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lines: Option<Vec<Line>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    counts: Option<Vec<Count>>,
    /// There is, or may be, more than this.
    more: bool,
    unreadable: u64,
}

#[derive(Serialize, Debug, PartialEq)]
struct Line {
    path: String,
    line: u64,
    text: String,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    context: bool,
}

#[derive(Serialize, Debug, PartialEq)]
struct Count {
    path: String,
    count: u64,
}

const HIDDEN: &str = "Look also at what is hidden and into node_modules, target, .venv and __pycache__, which are left out otherwise unless named; false if absent";

pub(super) fn glob_listed() -> Tool {
    let tool = listing::tool(
        "glob",
        "Find files by name",
        "Find files whose path matches a pattern; the last modified first.",
        &["pattern"],
        json!({
            "pattern": listing::text("For example `**/*.rs` or `src/{a,b}/*.ts`; without a slash it is for names at any depth"),
            "path": listing::path("The directory to look in, /workspace if absent"),
            "limit": limit(USUAL_NAMES),
            "hidden": listing::flag(HIDDEN),
        }),
        Effect::Reads,
    );
    listing::giving(
        tool,
        &["files", "more", "unreadable"],
        ends(json!({"files": {"type": "array", "items": {"type": "string"}}})),
    )
}

pub(super) fn grep_listed() -> Tool {
    let tool = listing::tool(
        "grep",
        "Search in files",
        "Find lines that match a regular expression, told as path:line:text.",
        &["pattern"],
        json!({
            "pattern": listing::text("A regular expression as of Rust and ripgrep, matched line by line"),
            "path": listing::path("The directory or file to look in, /workspace if absent"),
            "glob": listing::text("Only in files that match, for example `*.py`"),
            "ignore_case": listing::flag("Do not tell upper from lower case; false if absent"),
            "context": listing::number(0, "Lines to show around each match, at most 50"),
            "before": listing::number(0, "Lines to show before each match; as context if absent"),
            "after": listing::number(0, "Lines to show after each match; as context if absent"),
            "output_mode": listing::one_of(&["content", "files", "count"],
                "Tell the lines, the files that have any, or how many each has; `content` if absent"),
            "limit": limit(USUAL_LINES),
            "hidden": listing::flag(HIDDEN),
        }),
        Effect::Reads,
    );
    let line = json!({
        "path": listing::text("The file"),
        "line": listing::number(1, "The line's number"),
        "text": listing::text("The line, perhaps cut"),
        "context": listing::flag("It does not match itself"),
    });
    let count = json!({"path": listing::text("The file"), "count": listing::number(1, "Its lines that match")});
    let given = ends(json!({
        "lines": listing::list(&["path", "line", "text"], line),
        "files": {"type": "array", "items": {"type": "string"}},
        "counts": listing::list(&["path", "count"], count),
    }));
    listing::giving(tool, &["more", "unreadable"], given)
}

fn limit(usual: usize) -> serde_json::Value {
    json!({"type": "integer", "minimum": 1, "maximum": MOST, "description":
        format!("How many to tell at most; {usual} if absent")})
}

fn ends(mut of: serde_json::Value) -> serde_json::Value {
    of["more"] = listing::flag("There is, or may be, more than this");
    of["unreadable"] = listing::number(0, "How many files and directories could not be read");
    of
}

pub(super) async fn glob(place: &Place, ask: Glob) -> Outcome {
    if ask.pattern.is_empty() {
        return Err("pattern must not be empty".to_owned());
    }
    let limit = checked(ask.limit, USUAL_NAMES)?;
    let (path, names) = split(&ask.path, &ask.pattern);
    let query = SearchQuery { path: path.clone(), names, all: ask.hidden, ..SearchQuery::default() };
    let hits = place.app.engine.search(place.sandbox()?, query).await;
    let hits = hits.map_err(|problem| format!("failed to look for {} in {path}: {problem}", ask.pattern))?;
    let found = named(&path, hits, limit);
    answer(found, limit)
}

pub(super) async fn grep(place: &Place, ask: Grep) -> Outcome {
    if ask.pattern.is_empty() {
        return Err("pattern must not be empty".to_owned());
    }
    let limit = checked(ask.limit, USUAL_LINES)?;
    let (path, mode) = (if ask.path.is_empty() { ".".to_owned() } else { ask.path }, ask.output_mode);
    let (engine, sandbox) = (&place.app.engine, place.sandbox()?);
    let shown = |lines: Option<u32>| if mode == Mode::Content { lines.unwrap_or(ask.context) } else { 0 };
    let most = if mode == Mode::Content { limit } else { MOST };
    let query = SearchQuery {
        path: path.clone(),
        names: ask.glob,
        pattern: Some(ask.pattern.clone()),
        ignore_case: ask.ignore_case,
        before: shown(ask.before),
        after: shown(ask.after),
        most: u32::try_from(most).unwrap_or(u32::MAX),
        all: ask.hidden,
    };
    let hits = engine.search(sandbox, query).await;
    let hits = hits.map_err(|problem| format!("failed to search for `{}` in {path}: {problem}", ask.pattern))?;
    // What was searched is a file if its hits are of its own name alone.
    let single = hits.hits.first().is_some_and(|hit| of_itself(&path, &hit.path))
        && engine.stat(sandbox, &path).await.is_ok_and(|entry| entry.kind != EntryKind::Directory);
    let base = if single { parent(&path) } else { path };
    answer(matched(&base, hits, mode, limit), limit)
}

fn checked(asked: Option<usize>, usual: usize) -> Result<usize, String> {
    match asked.unwrap_or(usual) {
        limit @ 1..=MOST => Ok(limit),
        limit => Err(format!("limit is {limit}, and must be 1 to {MOST}")),
    }
}

/// Where to look, and for what: models write whole paths as patterns.
fn split(path: &str, pattern: &str) -> (String, String) {
    if !path.is_empty() || !pattern.starts_with('/') {
        return (if path.is_empty() { "." } else { path }.to_owned(), pattern.to_owned());
    }
    let special = pattern.find(['*', '?', '[', '{', '\\']).unwrap_or(pattern.len());
    let slash = pattern[..special].rfind('/').unwrap_or_default();
    let (base, rest) = pattern.split_at(slash);
    // With its slash: a name alone would be looked for at any depth.
    (if base.is_empty() { "/" } else { base }.to_owned(), rest.to_owned())
}

fn of_itself(path: &str, hit: &str) -> bool {
    path.trim_end_matches('/').rsplit('/').next() == Some(hit)
}

fn parent(path: &str) -> String {
    let path = path.trim_end_matches('/');
    path.rsplit_once('/').map_or_else(|| ".".to_owned(), |(parent, _)| format!("{parent}/"))
}

/// As the other tools take it.
fn joined(base: &str, path: &str) -> String {
    let base = base.strip_prefix("./").unwrap_or(base);
    match base {
        "" | "." => path.to_owned(),
        base if base.ends_with('/') => format!("{base}{path}"),
        base => format!("{base}/{path}"),
    }
}

fn named(base: &str, hits: Hits, limit: usize) -> Found {
    let of_files = hits.hits.iter().filter(|hit| hit.kind != EntryKind::Directory);
    let mut files: Vec<_> = of_files.map(|hit| joined(base, &hit.path)).collect();
    let more = hits.more || files.len() > limit;
    files.truncate(limit);
    Found { files: Some(files), more, unreadable: hits.unreadable, ..Found::default() }
}

fn matched(base: &str, hits: Hits, mode: Mode, limit: usize) -> Found {
    let found = Found { more: hits.more, unreadable: hits.unreadable, ..Found::default() };
    if mode == Mode::Content {
        let lines = hits.hits.into_iter().map(|hit| line(base, hit)).collect();
        return Found { lines: Some(lines), ..found };
    }
    let mut counts = BTreeMap::<String, u64>::new();
    for hit in hits.hits {
        *counts.entry(hit.path).or_default() += 1;
    }
    let more = found.more || counts.len() > limit;
    let counts = counts.into_iter().take(limit).map(|(path, count)| (joined(base, &path), count));
    match mode {
        Mode::Files => Found { files: Some(counts.map(|(path, _)| path).collect()), more, ..found },
        _ => Found { counts: Some(counts.map(|(path, count)| Count { path, count }).collect()), more, ..found },
    }
}

fn line(base: &str, hit: Hit) -> Line {
    let cut = if hit.cut { "…" } else { "" };
    let text = format!("{}{cut}", String::from_utf8_lossy(&hit.text));
    Line { path: joined(base, &hit.path), line: hit.line, text, context: hit.context }
}

/// A name with line ends in it would look like several; as it is, it stands in the structured form.
fn on_a_line(path: &str) -> String {
    let escaped = |character: char| match character.is_control() {
        true => character.escape_default().to_string(),
        false => character.to_string(),
    };
    path.chars().map(escaped).collect()
}

/// Each on a line of its own, then what is missing.
fn answer(mut found: Found, limit: usize) -> Outcome {
    let mut text = String::new();
    let mut room = LONGEST;
    let mut add = |line: String| {
        let fits = line.len() < room;
        if fits {
            room -= line.len() + 1;
            text.push_str(&line);
            text.push('\n');
        }
        fits
    };
    let fitting = if let Some(lines) = &found.lines {
        let apart = lines.iter().any(|line| line.context);
        let mut last: Option<&Line> = None;
        lines
            .iter()
            .take_while(|line| {
                let follows = last.is_none_or(|last| last.path == line.path && last.line + 1 == line.line);
                last = Some(line);
                let mark = if line.context { '-' } else { ':' };
                let shown = format!("{}{mark}{}{mark}{}", on_a_line(&line.path), line.line, line.text);
                add(if apart && !follows { format!("--\n{shown}") } else { shown })
            })
            .count()
    } else if let Some(counts) = &found.counts {
        counts.iter().take_while(|count| add(format!("{}:{}", on_a_line(&count.path), count.count))).count()
    } else {
        found.files.iter().flatten().take_while(|file| add(on_a_line(file))).count()
    };
    // The same in both forms.
    let cut = found.cut(fitting);
    if fitting == 0 && !cut {
        text.push_str("Nothing was found.\n");
    }
    if cut {
        text.push_str(&format!(
            "(More than {LONGEST} bytes were found; this is the beginning. Narrow it with path or glob.)\n"
        ));
    } else if found.more {
        text.push_str(&format!(
            "(There is more: the limit was {limit}, or the search grew too large. Narrow it, or raise limit.)\n"
        ));
    }
    if found.unreadable > 0 {
        text.push_str(&format!("({} files or directories could not be read.)\n", found.unreadable));
    }
    let mut result = CallToolResult::success(vec![ContentBlock::text(text)]);
    result.structured_content = Some(object(&found)?);
    Ok(result)
}

impl Found {
    /// Keeps so many, and tells whether that left any out.
    fn cut(&mut self, fitting: usize) -> bool {
        let before = self.len();
        let Self { files, lines, counts, .. } = self;
        files.iter_mut().for_each(|files| files.truncate(fitting));
        lines.iter_mut().for_each(|lines| lines.truncate(fitting));
        counts.iter_mut().for_each(|counts| counts.truncate(fitting));
        let cut = self.len() < before;
        self.more |= cut;
        cut
    }

    fn len(&self) -> usize {
        self.files.as_ref().map_or(0, Vec::len)
            + self.lines.as_ref().map_or(0, Vec::len)
            + self.counts.as_ref().map_or(0, Vec::len)
    }
}

#[cfg(test)]
mod tests;
