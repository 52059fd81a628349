//! Tables for people: aligned columns, no borders, foreign text made inert.

use comfy_table::{ContentArrangement, Table, presets};

use crate::text::inert;

pub(crate) fn render<const N: usize>(header: [&str; N], rows: impl IntoIterator<Item = [String; N]>) -> String {
    let mut table = Table::new();
    // Never wrapped: a line is a thing, also for grep.
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled).set_header(header);
    for row in rows {
        table.add_row(row.map(|cell| inert(&cell).into_owned()));
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>().join("\n")
}

/// `key: value` lines with the values aligned.
pub(crate) fn fields<'a>(fields: impl IntoIterator<Item = (&'a str, String)>) -> String {
    let fields: Vec<_> = fields.into_iter().collect();
    let width = fields.iter().map(|(key, _)| key.len() + 1).max().unwrap_or(0);
    let line = |(key, value): &(&str, String)| format!("{:width$} {}", format!("{key}:"), inert(value));
    fields.iter().map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_align_and_stay_inert() {
        let rows = [["a".into(), "\u{1b}[2J".into()], ["long-name".into(), "日本".into()]];
        assert_eq!(render(["NAME", "X"], rows), "NAME       X\na          \\x1b[2J\nlong-name  日本");
        assert_eq!(fields([("id", "1".into()), ("state", "a\nb".into())]), "id:    1\nstate: a\\nb");
    }
}
