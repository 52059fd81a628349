//! A look at a screen, cut up once for all recognisers: the line the cursor is in, what stands before and behind it.

use unicode_width::UnicodeWidthChar as _;

use super::Look;

pub(super) struct Scene<'a> {
    pub(super) look: &'a Look,
    pub(super) rows: Vec<&'a str>,
    /// The last row with anything in it.
    pub(super) last: usize,
    /// The row of the cursor.
    pub(super) row: usize,
    /// What stands before the cursor, with rows joined that run on from the one above.
    pub(super) before: String,
    pub(super) behind: String,
}

/// A row of that many columns less than the width may have been broken between words.
const RAGGED: usize = 1;
/// A wrapped question longer than this is no question.
const MOST_WRAPPED: usize = 6;

impl<'a> Scene<'a> {
    pub(super) fn of(look: &'a Look) -> Self {
        let rows: Vec<&str> = look.lines.iter().map(|line| line.trim_end()).collect();
        let last = rows.iter().rposition(|row| !row.is_empty()).unwrap_or(0);
        let row = usize::from(look.cursor.0);
        let (own, behind) = split(rows.get(row).copied().unwrap_or_default(), usize::from(look.cursor.1));
        let mut first = row.min(rows.len());
        while first > 0 && row - first < MOST_WRAPPED && width(rows[first - 1]) + RAGGED > usize::from(look.cols) {
            first -= 1;
        }
        let mut before = rows.get(first..row.min(rows.len())).unwrap_or_default().concat();
        before.push_str(&own);
        Self { look, rows, last, row, before, behind }
    }

    /// The cursor waits at the very end of all there is, behind some text.
    pub(super) fn at_end(&self) -> bool {
        let text = self.before.trim_end();
        let gap = width(&self.before).saturating_sub(width(text));
        self.behind.trim().is_empty() && self.row >= self.last && !text.is_empty() && gap <= 2
    }

    /// The cursor is at the beginning of the row below all there is, as after a line that was printed whole.
    pub(super) fn below_end(&self) -> bool {
        self.row == self.last + 1 && self.look.cursor.1 == 0
    }

    /// The terminal gathers whole lines: the kernel edits and echoes, as for `read` and `input()`.
    pub(super) fn line_mode(&self) -> bool {
        self.look.canonical
    }

    pub(super) fn reading(&self) -> bool {
        self.look.blocked_read == Some(true)
    }

    /// Editors and pagers ask at the bottom; further up stands what they show.
    pub(super) fn at_bottom(&self) -> bool {
        self.row + 3 >= self.look.lines.len()
    }

    /// The rows above `row`, nearest first.
    pub(super) fn above(&self, row: usize) -> impl Iterator<Item = &'a str> + '_ {
        self.rows.get(..row.min(self.rows.len())).unwrap_or_default().iter().rev().copied()
    }

    /// The nearest line above `row` that says something, borders taken away.
    pub(super) fn question_above(&self, row: usize) -> Option<String> {
        let said: Vec<String> = self.above(row).take(12).map(inner).filter(|line| wordy(line)).take(7).collect();
        let near = &said[..said.len().min(4)];
        // Further up, a question may run on into what explains it.
        let explained = said.iter().filter(|line| !line.starts_with('?'));
        let explained = explained.filter_map(|line| Some(line.get(..=line.find("? ")?)?.to_owned()));
        let nearest = near.first().filter(|line| line.contains(['?', '？']));
        let ends = near.iter().find(|line| line.ends_with(['?', '？', ':']));
        ends.or(nearest).cloned().or_else(|| explained.into_iter().next()).or_else(|| near.first().cloned())
    }
}

fn wordy(line: &str) -> bool {
    line.chars().filter(|letter| letter.is_alphabetic()).count() >= 2
}

/// A row without the borders of boxes around it.
pub(super) fn inner(row: &str) -> String {
    let border = |letter: char| {
        letter.is_whitespace() || ('\u{2500}'..='\u{259f}').contains(&letter) || matches!(letter, '|' | '+')
    };
    row.trim_matches(border).to_owned()
}

pub(super) fn width(text: &str) -> usize {
    text.chars().map(|letter| letter.width().unwrap_or(0)).sum()
}

/// A row before and behind a column; blanks that the row lacks are put in.
pub(super) fn split(row: &str, col: usize) -> (String, String) {
    let (mut seen, mut before) = (0, String::new());
    for (index, letter) in row.char_indices() {
        if seen >= col {
            return (before, row[index..].to_owned());
        }
        before.push(letter);
        seen += letter.width().unwrap_or(0);
    }
    before.push_str(&" ".repeat(col.saturating_sub(seen)));
    (before, String::new())
}
