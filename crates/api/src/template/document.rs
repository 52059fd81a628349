//! A template's file as written: where each key stands, so that every mistake can point at its line.

use std::ops::Range;

use toml::de::{DeTable, DeValue};

use super::BadTemplate;

pub(super) struct Document<'t> {
    text: &'t str,
    table: DeTable<'t>,
}

impl<'t> Document<'t> {
    pub(super) fn read(text: &'t str) -> Result<Self, BadTemplate> {
        match DeTable::parse(text) {
            Ok(table) => Ok(Self { text, table: table.into_inner() }),
            Err(error) => Err(BadTemplate {
                line: error.span().map(|span| line(text, span.start)),
                cause: sentence(error.message()),
            }),
        }
    }

    pub(super) fn table(&self) -> &DeTable<'t> {
        &self.table
    }

    /// A mistake at a key; at what it stands in when the key itself is not written.
    pub(super) fn bad(&self, path: &[&str], cause: impl Into<String>) -> BadTemplate {
        BadTemplate { line: self.line_of(path), cause: cause.into() }
    }

    fn line_of(&self, path: &[&str]) -> Option<usize> {
        let (mut table, mut found) = (Some(&self.table), None);
        for part in path {
            let Some((key, value)) = table.and_then(|table| table.iter().find(|(key, _)| key.get_ref() == part)) else {
                break;
            };
            found = Some(line(self.text, key.span().start));
            table = value.get_ref().as_table();
        }
        found
    }

    /// What the deserializer could not take: its words, with the key they are about.
    pub(super) fn misread(&self, error: &toml::de::Error) -> BadTemplate {
        let cause = sentence(error.message());
        let Some(span) = error.span() else { return BadTemplate { line: None, cause } };
        let line = Some(line(self.text, span.start));
        match key_at(&self.table, span.start) {
            Some(key) => BadTemplate { line, cause: format!("`{key}`: {cause}") },
            None => BadTemplate { line, cause },
        }
    }
}

/// The key whose value begins before the offset and ends after it, innermost, with dots.
fn key_at(table: &DeTable<'_>, offset: usize) -> Option<String> {
    let within = |span: Range<usize>| span.contains(&offset);
    table.iter().find_map(|(key, value)| {
        let name = key.get_ref().escape_debug();
        if let DeValue::Table(inner) = value.get_ref()
            && let Some(rest) = key_at(inner, offset)
        {
            return Some(format!("{name}.{rest}"));
        }
        (within(value.span()) || within(key.span())).then(|| name.to_string())
    })
}

/// Counted in bytes: an offset need not be at the start of a character. What is missing at the end is missing on the
/// last line.
fn line(text: &str, offset: usize) -> usize {
    let above = text.bytes().take(offset).filter(|byte| *byte == b'\n').count();
    (above + 1).min(text.lines().count().max(1))
}

/// One line without its full stop: whoever shows it adds what it needs.
fn sentence(message: &str) -> String {
    message.trim().trim_end_matches('.').replace('\n', ", ")
}
