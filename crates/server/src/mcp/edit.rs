//! `edit_file`: one string of a file replaced by another, where it is certain which one is meant.

use rmcp::model::Tool;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{
    Place, files,
    listing::{self, Effect},
    read,
    tools::{Outcome, structured},
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Ask {
    #[serde(alias = "file_path")]
    path: String,
    old_string: String,
    new_string: String,
    #[serde(default)]
    replace_all: bool,
}

#[derive(Serialize)]
struct Edited {
    ok: bool,
    replaced: usize,
}

pub(super) fn listed() -> Tool {
    let tool = listing::tool(
        "edit_file",
        "Edit a file",
        "Replace a string in a file",
        &["path", "old_string", "new_string"],
        json!({
            "path": listing::path("A text file of at most 1 MiB"),
            "old_string":
                listing::text("What is there, to the letter; it must be there once, unless replace_all is true"),
            "new_string": listing::text("What takes its place"),
            "replace_all": listing::flag("Replace it wherever it is; false if absent"),
        }),
        Effect::Changes,
    );
    let ok = listing::flag("Always true: a failure is an error");
    listing::giving(tool, &["ok", "replaced"], json!({"ok": ok, "replaced": listing::number(1, "How many places")}))
}

pub(super) async fn replace(place: &Place, ask: Ask) -> Outcome {
    files::not_empty(&ask.path)?;
    let (engine, sandbox, failed) =
        (&place.app.engine, place.sandbox()?, |why| format!("failed to edit file {}: {why}", ask.path));
    let content = read::whole(engine, sandbox, &ask.path).await.map_err(failed)?;
    let (content, replaced) = edited(&content, &ask).map_err(failed)?;
    files::put(engine, sandbox, &ask.path, content).await?;
    structured(&Edited { ok: true, replaced })
}

fn edited(content: &str, ask: &Ask) -> Result<(String, usize), String> {
    let Ask { old_string, new_string, replace_all, .. } = ask;
    if old_string.is_empty() {
        return Err("old_string must not be empty; write_file makes a new file.".to_owned());
    }
    if old_string == new_string {
        return Err("old_string and new_string are equal, so that nothing would change.".to_owned());
    }
    match content.matches(old_string.as_str()).count() {
        0 => Err("old_string is not in it. Read the file and give the string to the letter, with its white space."
            .to_owned()),
        1 => Ok((content.replacen(old_string.as_str(), new_string, 1), 1)),
        many if *replace_all => Ok((content.replace(old_string.as_str(), new_string), many)),
        many => Err(format!("old_string is in it {many} times. Give more of what surrounds it, or set replace_all.")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edit(content: &str, old: &str, new: &str, replace_all: bool) -> Result<(String, usize), String> {
        let ask = Ask { path: String::new(), old_string: old.to_owned(), new_string: new.to_owned(), replace_all };
        edited(content, &ask)
    }

    #[test]
    fn one_place_is_replaced_or_all() {
        assert_eq!(edit("a b a", "b", "c", false), Ok(("a c a".to_owned(), 1)));
        assert_eq!(edit("a b a", "a", "c", true), Ok(("c b c".to_owned(), 2)));
        assert_eq!(edit("a b a", "b", "", true), Ok(("a  a".to_owned(), 1)));
        for (old, new, says) in [
            ("a", "c", "in it 2 times"),
            ("x", "c", "is not in it"),
            ("a", "a", "are equal"),
            ("", "c", "must not be empty"),
        ] {
            assert!(edit("a b a", old, new, false).is_err_and(|why| why.contains(says)), "{old} {new}");
        }
    }
}
