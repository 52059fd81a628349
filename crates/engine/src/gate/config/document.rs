//! A file as written: where each key stands, so that every mistake can point at its line. Total: whatever the text, the
//! answer is a value or a line that is wrong.

use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

/// Below this two words are not alike.
const ALIKE: f64 = 0.8;

/// What is wrong with a file, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mistake {
    pub(crate) line: Option<usize>,
    /// One clause without a full stop, with what to do about it.
    pub(crate) cause: String,
}

pub(crate) type Read<T> = Result<T, Mistake>;

pub(crate) struct Document<'t> {
    text: &'t str,
    table: DeTable<'t>,
}

impl<'t> Document<'t> {
    pub(crate) fn read(text: &'t str) -> Read<Self> {
        match DeTable::parse(text) {
            Ok(table) => Ok(Self { text, table: table.into_inner() }),
            Err(error) => Err(Mistake {
                line: error.span().map(|span| line(text, span.start)),
                cause: error.message().trim().trim_end_matches('.').replace('\n', ", "),
            }),
        }
    }

    pub(crate) fn whole(&self) -> Section<'_> {
        Section { text: self.text, path: String::new(), at: 0, table: &self.table }
    }
}

/// A table, with its name as one would write it.
pub(crate) struct Section<'d> {
    text: &'d str,
    path: String,
    at: usize,
    table: &'d DeTable<'d>,
}

/// A key, or an item of a list, with its value.
pub(crate) struct Field<'d> {
    pub(crate) name: &'d str,
    text: &'d str,
    path: String,
    at: usize,
    value: &'d DeValue<'d>,
}

impl<'d> Section<'d> {
    pub(crate) fn bad(&self, cause: impl Into<String>) -> Mistake {
        Mistake { line: Some(line(self.text, self.at)), cause: cause.into() }
    }

    /// Finds a misspelt key before anything is read, so that what it should have been can be told.
    pub(crate) fn only(&self, known: &[&str]) -> Read<()> {
        let stranger = self.fields().find(|field| !known.contains(&field.name));
        let Some(stranger) = stranger else { return Ok(()) };
        let what = if self.path.is_empty() { "section".to_owned() } else { format!("field of [{}]", self.path) };
        Err(stranger.bad(unknown(&what, stranger.name, known)))
    }

    pub(crate) fn fields(&self) -> impl Iterator<Item = Field<'d>> {
        let (text, path) = (self.text, self.path.clone());
        self.table.iter().map(move |(key, value)| {
            let name = key.get_ref().as_ref();
            let path = if path.is_empty() { shown(name) } else { format!("{path}.{}", shown(name)) };
            Field { name, text, path, at: key.span().start, value: value.get_ref() }
        })
    }

    pub(crate) fn field(&self, name: &str) -> Option<Field<'d>> {
        self.fields().find(|field| field.name == name)
    }

    /// What cannot be left out.
    pub(crate) fn needed(&self, name: &str, example: &str) -> Read<Field<'d>> {
        self.field(name)
            .ok_or_else(|| self.bad(format!("[{}] says no `{name}`: write `{name} = {example}`", self.path)))
    }
}

impl<'d> Field<'d> {
    pub(crate) fn bad(&self, cause: impl Into<String>) -> Mistake {
        Mistake { line: Some(line(self.text, self.at)), cause: cause.into() }
    }

    fn not_a(&self, what: &str) -> Mistake {
        self.bad(format!("`{}` is not {what}", self.path))
    }

    pub(crate) fn section(&self) -> Read<Section<'d>> {
        let table = self.value.as_table();
        let table = table.ok_or_else(|| self.not_a(&format!("a table: write it as [{}]", self.path)))?;
        Ok(Section { text: self.text, path: self.path.clone(), at: self.at, table })
    }

    pub(crate) fn text(&self) -> Read<&'d str> {
        self.value.as_str().ok_or_else(|| self.not_a("a text: write it in quotes"))
    }

    pub(crate) fn flag(&self) -> Read<bool> {
        self.value.as_bool().ok_or_else(|| self.not_a("`true` or `false`"))
    }

    /// From 1 to `most`.
    pub(crate) fn count(&self, most: u64) -> Read<u64> {
        let number =
            self.value.as_integer().and_then(|number| u64::from_str_radix(number.as_str(), number.radix()).ok());
        number
            .filter(|number| (1..=most).contains(number))
            .ok_or_else(|| self.not_a(&format!("a number from 1 to {most}")))
    }

    /// As written; may be anything that a float can be.
    pub(crate) fn number(&self) -> Read<f64> {
        let number = match self.value {
            DeValue::Float(number) => number.as_str().parse().ok(),
            DeValue::Integer(number) if number.radix() == 10 => number.as_str().parse().ok(),
            _ => None,
        };
        number.ok_or_else(|| self.not_a("a number"))
    }

    pub(crate) fn list(&self) -> Read<Vec<Field<'d>>> {
        let items = self.value.as_array().ok_or_else(|| self.not_a("a list: write it in brackets"))?;
        let item = |item: &'d Spanned<DeValue<'d>>| Field {
            name: self.name,
            text: self.text,
            path: self.path.clone(),
            at: item.span().start,
            value: item.get_ref(),
        };
        Ok(items.iter().map(item).collect())
    }
}

/// As it has to be written in a path.
fn shown(key: &str) -> String {
    let bare = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
    if bare { key.to_owned() } else { format!("{key:?}") }
}

/// Counted in bytes: an offset need not be at the start of a character. What is missing at the end is missing on the
/// last line.
fn line(text: &str, offset: usize) -> usize {
    let above = text.bytes().take(offset).filter(|byte| *byte == b'\n').count();
    (above + 1).min(text.lines().count().max(1))
}

/// There is no such thing; says what was probably meant, else what there is.
pub(crate) fn unknown(what: &str, text: &str, there_are: &[&str]) -> String {
    let (lower, text) = (text.to_lowercase(), text.escape_debug());
    let alike = |known: &&&str| strsim::jaro_winkler(&lower, &known.to_lowercase());
    let nearest = there_are.iter().max_by(|a, b| alike(a).total_cmp(&alike(b))).filter(|known| alike(known) >= ALIKE);
    match nearest {
        Some(nearest) => format!("there is no {what} `{text}`: did you mean `{nearest}`?"),
        None if there_are.is_empty() => format!("there is no {what} `{text}`, and no other either"),
        None => format!("there is no {what} `{text}`: there are {}", there_are.join(", ")),
    }
}
