//! `get_skill`: instructions that lie in directories with a SKILL.md, of the template under /skills and of the workspace
//! under .claude/skills. A skill is known by its directory's name, in the list as in the call.

use std::{collections::BTreeMap, time::Duration};

use futures_util::StreamExt as _;
use rmcp::model::Tool;
use sandbar_api::{Code, EntryKind, Problem};
use sandbar_engine::Engine;
use serde::Deserialize;
use serde_json::json;

use super::{
    Place,
    listing::{self, Effect},
    read,
    tools::{Outcome, text},
};

/// The template's goes first: what is written in the workspace does not stand in for it.
const PLACES: [&str; 2] = ["/skills", "/workspace/.claude/skills"];
const SENTENCE: &str = "Load the full content of a skill by name.";
const FILE: &str = "SKILL.md";
/// More would crowd out what the model is there for.
const MOST: usize = 64;
const LONGEST_NAME: usize = 64;
const LONGEST_DESCRIPTION: usize = 500;
/// The front matter is at the beginning.
const BEGINNING: u64 = 8 * 1024;
/// A sandbox that does not answer must not keep a client from learning of the other tools.
const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Ask {
    name: String,
}

/// `skills` is what [`described`] gives.
pub(super) fn listed(skills: &str) -> Tool {
    listing::tool(
        "get_skill",
        "Load a skill",
        format!("{SENTENCE}{skills}"),
        &["name"],
        json!({"name": listing::text("As it is listed in the description of this tool")}),
        Effect::Reads,
    )
}

pub(super) async fn load(place: &Place, ask: Ask) -> Outcome {
    let Ask { name } = ask;
    if !usable(&name) {
        return Err(format!("invalid skill name: {name}"));
    }
    let (engine, sandbox) = (&place.app.engine, place.sandbox()?);
    for parent in PLACES {
        let path = format!("{parent}/{name}/{FILE}");
        match engine.stat(sandbox, &path).await {
            Err(problem) if is_absent(&problem) => {}
            Err(problem) => return Err(format!("failed to read skill {name}: {problem}")),
            Ok(_) => {
                let content = read::whole(engine, sandbox, &path).await;
                return content.map(text).map_err(|why| format!("failed to read skill {name}: {why}"));
            }
        }
    }
    Err(format!("failed to read skill {name}: there is none of this name. tools/list names those there are."))
}

fn usable(name: &str) -> bool {
    let forbidden = |character: char| matches!(character, '/' | '\\') || is_active(character);
    !name.is_empty() && name != "." && !name.contains("..") && !name.contains(forbidden) && name.len() <= LONGEST_NAME
}

/// Ends a line, turns text around or is there without being seen: among the server's words a skill's stay on their line and
/// say nothing that a person who looks at them does not see.
fn is_active(character: char) -> bool {
    character.is_control()
        || matches!(character,
            '\u{61c}' | '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            | '\u{feff}' | '\u{e0000}'..='\u{e007f}')
}

fn is_absent(problem: &Problem) -> bool {
    matches!(problem.code, Code::UnknownFile | Code::WrongFileKind)
}

/// What follows the tool's sentence: nothing, or the skills there are now.
pub(super) async fn described(place: &Place) -> String {
    known(place).await.unwrap_or_else(|| "\n\nThe skills cannot be listed now.".to_owned())
}

/// The same, unless the sandbox does not tell.
pub(super) async fn known(place: &Place) -> Option<String> {
    let Ok(sandbox) = place.sandbox() else { return Some(String::new()) };
    match tokio::time::timeout(PATIENCE, all(&place.app.engine, sandbox)).await {
        Ok(Ok(skills)) => Some(list(&skills)),
        Ok(Err(problem)) => {
            tracing::debug!(sandbox, %problem, "skills cannot be listed");
            None
        }
        Err(_) => None,
    }
}

fn list(skills: &BTreeMap<String, String>) -> String {
    if skills.is_empty() {
        return String::new();
    }
    let mut text = "\n\nAvailable skills:".to_owned();
    for (name, description) in skills.iter().take(MOST) {
        let colon = if description.is_empty() { "" } else { ": " };
        text.push_str(&format!("\n- {name}{colon}{description}"));
    }
    if skills.len() > MOST {
        text.push_str(&format!("\n({} more are not listed.)", skills.len() - MOST));
    }
    text
}

async fn all(engine: &Engine, sandbox: &str) -> Result<BTreeMap<String, String>, Problem> {
    let mut skills = BTreeMap::new();
    for parent in PLACES {
        let listing = match engine.list_directory(sandbox, parent).await {
            Ok(listing) => listing,
            Err(problem) if is_absent(&problem) => continue,
            Err(problem) => return Err(problem),
        };
        for entry in listing.entries {
            let directory = matches!(entry.kind, EntryKind::Directory | EntryKind::Symlink);
            if !directory || !usable(&entry.name) || skills.contains_key(&entry.name) {
                continue;
            }
            // One that cannot be read is no skill.
            if let Ok(beginning) = beginning(engine, sandbox, &format!("{parent}/{}/{FILE}", entry.name)).await {
                skills.insert(entry.name, description(&beginning));
            }
            if skills.len() > MOST * PLACES.len() {
                return Ok(skills);
            }
        }
    }
    Ok(skills)
}

async fn beginning(engine: &Engine, sandbox: &str, path: &str) -> Result<String, Problem> {
    let (_, mut pieces) = engine.read_file(sandbox, path, 0, Some(BEGINNING)).await?;
    let mut content = Vec::new();
    while let Some(piece) = pieces.next().await {
        content.extend_from_slice(&piece?);
    }
    Ok(String::from_utf8_lossy(&content).into_owned())
}

/// The front matter's, on one line: it stands among the words of the server.
fn description(content: &str) -> String {
    let lines = content.lines().skip_while(|line| line.trim_end() != "---").skip(1);
    let mut lines = lines.take_while(|line| line.trim_end() != "---");
    let found = lines
        .by_ref()
        .find_map(|line| line.split_once(':').filter(|(key, _)| key.trim() == "description").map(|(_, value)| value));
    let Some(value) = found.map(str::trim) else { return String::new() };
    let value = match value.trim_end_matches(['-', '+']) {
        // YAML's text of several lines, each of them indented.
        ">" | "|" => {
            let below = lines.take_while(|line| line.is_empty() || line.starts_with([' ', '\t'])).map(str::trim);
            below.filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" ")
        }
        _ => value.trim_matches(['"', '\'']).to_owned(),
    };
    value.chars().filter(|character| !is_active(*character)).take(LONGEST_DESCRIPTION).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_below_their_place() {
        assert!(usable("pdf") && usable("a.b") && usable("größe"));
        for name in [
            "",
            ".",
            "..",
            "../x",
            "a/b",
            "a\\b",
            "a..b",
            "/etc",
            "a\0b",
            "a\nb",
            "a\u{202e}b",
            "a\u{2028}b",
            &"x".repeat(65),
        ] {
            assert!(!usable(name), "{name:?}");
        }
    }

    #[test]
    fn front_matter_describes() {
        for (content, want) in [
            ("---\nname: x\ndescription: \"Reads: PDFs\"\n---\nbody", "Reads: PDFs"),
            ("---\ndescription: 'a\u{1b}[31m'\n---", "a[31m"),
            ("---\ndescription: a\u{2028}- b\u{202e}c\u{e0041}\u{85}\n---", "a- bc"),
            ("---\nname: x\n---\ndescription: not here", ""),
            ("description: no front matter", ""),
            ("---\ndescription: >-\n  Reads\n\n  PDFs.\nname: x\n---\nbody", "Reads PDFs."),
            ("---\ndescription: |\n---\n  body", ""),
            ("---\r\ndescription: x\r\n---\r\n", "x"),
            ("", ""),
        ] {
            assert_eq!(description(content), want, "{content}");
        }
        let long = format!("---\ndescription: {}\n", "é".repeat(600));
        assert_eq!(description(&long).chars().count(), LONGEST_DESCRIPTION);
    }

    #[test]
    fn the_list_is_kagents_and_ends() {
        assert_eq!(list(&BTreeMap::new()), "");
        let two = [("a", "does a"), ("b", "")].map(|(name, text)| (name.to_owned(), text.to_owned()));
        assert_eq!(list(&BTreeMap::from(two)), "\n\nAvailable skills:\n- a: does a\n- b");
        let many = (0..70).map(|number| (format!("s{number:02}"), String::new())).collect();
        let text = list(&many);
        assert!(text.contains("\n- s63") && !text.contains("s64") && text.ends_with("\n(6 more are not listed.)"));
    }
}
