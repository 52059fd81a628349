//! `sets.toml`: named sets of rules. Those that come with the server are such a file too; the home's adds to them, and
//! replaces those it names again.

use sandbar_policy::{Rule, Sets};

use super::document::{Document, Field, Mistake, Read};

const BUILT_IN: &str = include_str!("../sets.toml");

pub(super) fn built_in() -> Result<Sets, Vec<Mistake>> {
    read(BUILT_IN)
}

pub(super) fn read(text: &str) -> Result<Sets, Vec<Mistake>> {
    let document = Document::read(text).map_err(|mistake| vec![mistake])?;
    let (mut sets, mut mistakes) = (Sets::new(), Vec::new());
    for field in document.whole().fields() {
        match set(&field) {
            Ok(rules) => drop(sets.insert(field.name.to_owned(), rules)),
            Err(mistake) => mistakes.push(mistake),
        }
    }
    if mistakes.is_empty() { Ok(sets) } else { Err(mistakes) }
}

fn set(field: &Field<'_>) -> Read<Vec<String>> {
    let name = Rule::parse(&format!("@{}", field.name));
    if !name.is_ok_and(|rule| rule.set() == Some(field.name)) {
        return Err(field.bad(format!(
            "`{}` cannot be the name of a set: use 1 to 63 of a-z, 0-9 and `-`",
            field.name.escape_debug()
        )));
    }
    field.list()?.iter().map(rule).collect()
}

fn rule(item: &Field<'_>) -> Read<String> {
    let rule = Rule::parse(item.text()?).map_err(|bad| item.bad(bad.to_string()))?;
    match rule.set() {
        Some(other) => Err(item.bad(format!("a set cannot name another, `@{other}`: write its rules here"))),
        None => Ok(rule.text),
    }
}
