//! The one emulator of a terminal: what is on the screen, and the answers to what programs ask of a terminal.
//!
//! Wraps `vt100`, which knows grids and colours, with what it lacks: line drawing, insert mode, no-wrap mode, titles,
//! replies, the main screen below an alternate one, checkpoints.

mod checkpoint;
mod modes;
mod paint;
mod part;
mod replies;
mod sgr;
mod translate;
mod view;

use std::num::NonZeroU16;

pub use checkpoint::RestoreError;
pub use modes::{Modes, Mouse};
pub use part::Part;
pub use view::{Cursor, View};

use crate::scan::Scanner;
use modes::Tracked;

/// Larger or smaller sizes are taken for the nearest of these; a program that believes in more could make us allocate
/// without end.
pub const LARGEST_SIDE: u16 = 1000;
/// `vt100` cannot hold a wide letter in one column.
pub const NARROWEST: u16 = 2;
pub const SHORTEST: u16 = 1;
/// More scrollback than this is asked of the transcript instead.
pub const LONGEST_SCROLLBACK: usize = 10_000;

/// A terminal's state after all bytes that were fed.
pub struct Screen {
    scanner: Scanner,
    grid: vt100::Parser,
    tracked: Tracked,
    scrollback: usize,
}

impl Screen {
    pub fn new(cols: u16, rows: u16, scrollback_lines: usize) -> Self {
        let (cols, rows) = within(cols, rows);
        let scrollback = scrollback_lines.min(LONGEST_SCROLLBACK);
        let grid = vt100::Parser::new(rows, cols, scrollback);
        Self { scanner: Scanner::default(), grid, tracked: Tracked::default(), scrollback }
    }

    /// Takes in output of the program; returns what the terminal answers to queries in it, to be typed to the program
    /// exactly once and thrown away when old output is fed again.
    pub fn feed(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut scanner = std::mem::take(&mut self.scanner);
        let mut translation = translate::Translation::new(&mut self.grid, &mut self.tracked);
        scanner.feed(bytes, &mut |token| translation.take(token));
        let replies = translation.finish();
        self.scanner = scanner;
        replies
    }

    /// How many of the bytes fed last began something that is not finished, and are not on the screen.
    pub fn waiting(&self) -> u64 {
        self.scanner.waiting()
    }

    pub fn resize(&mut self, cols: u16, rows: u16) {
        let (cols, rows) = within(cols, rows);
        if self.size() == (cols.get(), rows.get()) {
            return;
        }
        self.grid.set_size(rows, cols);
        self.tracked.resized();
    }

    /// Columns and rows.
    pub fn size(&self) -> (u16, u16) {
        let (rows, cols) = self.grid.screen().size();
        (cols.get(), rows.get())
    }

    /// The rows as text, without blanks at their ends.
    pub fn lines(&self) -> Vec<String> {
        let (cols, _) = self.size();
        self.grid.screen().rows(0, cols).map(|line| line.trim_end().to_owned()).collect()
    }

    /// The rows as one text, without empty ones at the end.
    pub fn text(&self) -> String {
        let text = self.lines().join("\n");
        text.trim_end_matches('\n').to_owned()
    }

    /// The rows with their colours and nothing else that a terminal would obey.
    pub fn as_ansi(&self) -> String {
        let mut text = self.grid.screen().contents_formatted_basic();
        text.push_str("\x1b[m");
        text
    }

    /// Row and column from 0; the column equals the width when the next letter would begin a new row.
    pub fn cursor(&self) -> (u16, u16) {
        self.grid.screen().cursor_position()
    }

    pub fn cursor_visible(&self) -> bool {
        !self.grid.screen().hide_cursor()
    }

    pub fn alternate_screen(&self) -> bool {
        self.grid.screen().alternate_screen()
    }

    pub fn title(&self) -> &str {
        &self.tracked.title
    }

    /// The lines above the screen, oldest first; of the main screen also while an alternate one is shown.
    pub fn scrollback(&self) -> Vec<String> {
        let mut main = paint::main_screen(&self.grid);
        let (cols, _) = self.size();
        paint::above(&mut main, |screen, count| {
            screen.rows(0, cols).take(count).map(|line| line.trim_end().to_owned()).collect()
        })
    }
}

/// The nearest size that can be had.
fn within(cols: u16, rows: u16) -> (NonZeroU16, NonZeroU16) {
    let side = |value: u16, least: u16| NonZeroU16::new(value.clamp(least, LARGEST_SIDE)).unwrap_or(NonZeroU16::MIN);
    (side(cols, NARROWEST), side(rows, SHORTEST))
}

#[cfg(test)]
impl Screen {
    /// What is seen of each cell: a blank has no more than a background.
    pub(crate) fn cells(&self) -> Vec<String> {
        let (cols, rows) = self.size();
        let seen = |cell: &vt100::Cell| {
            let blank = cell.contents().trim().is_empty();
            let ink = (!blank).then(|| (cell.contents(), cell.fgcolor(), cell.bold(), cell.italic()));
            format!("{ink:?} {:?} {} {}", cell.bgcolor(), cell.inverse() && !blank, cell.underline() && !blank)
        };
        let places = (0..rows).flat_map(|row| (0..cols).map(move |col| (row, col)));
        places.filter_map(|(row, col)| self.grid.screen().cell(row, col)).map(seen).collect()
    }
}

#[cfg(test)]
#[path = "screen/tests.rs"]
mod tests;
