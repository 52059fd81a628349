//! A part of the screen, for a window that cannot hold all of it: which part that is, and its rows as text with colours.

use super::{Cursor, Screen, paint::attributes};

/// Sets nothing, so that what [`vt100`] sets after it is all there is.
const NO_INPUT_MODES: &str = "\x1b[?9l\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1005l\x1b[?1006l\x1b[?1004l\x1b[0 q";

/// Where a window lies on a larger screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    pub left: u16,
    pub top: u16,
    pub cols: u16,
    pub rows: u16,
}

impl Screen {
    /// The part that a window of this size shows: the upper left one, or the first beyond it that holds the cursor. A
    /// hidden cursor is followed down, where programs write, but not to the right, where they left it by chance.
    pub fn part(&self, cols: u16, rows: u16) -> Part {
        let ((all_cols, all_rows), (row, col)) = (self.size(), self.cursor());
        let col = if self.cursor_visible() { col } else { 0 };
        Part { left: start(all_cols, cols, col), top: start(all_rows, rows, row), cols, rows }
    }

    /// The rows of a part, each to be drawn from the left edge of a row that holds anything, and with nothing in it that a
    /// terminal would obey but colours and erasing to the right.
    pub fn part_rows(&self, part: Part) -> Vec<String> {
        (0..part.rows).map(|row| self.part_row(part, part.top.saturating_add(row))).collect()
    }

    /// Where the cursor is in a part; not visible if it is outside.
    pub fn part_cursor(&self, part: Part) -> Cursor {
        let ((cols, _), (row, col)) = (self.size(), self.cursor());
        // Behind the last letter of a full row.
        let col = col.min(cols.saturating_sub(1));
        let inside = |place: u16, start: u16, length: u16| place >= start && place - start < length;
        let visible = self.cursor_visible() && inside(row, part.top, part.rows) && inside(col, part.left, part.cols);
        let within = |place: u16, start: u16, length: u16| place.saturating_sub(start).min(length.saturating_sub(1));
        Cursor { row: within(row, part.top, part.rows), col: within(col, part.left, part.cols), visible }
    }

    /// Sets the modes that concern what a viewer's terminal sends, and the cursor's shape, whatever they were.
    pub fn input_modes(&self) -> String {
        let focus = if self.tracked.focus_events { "\x1b[?1004h" } else { "" };
        format!("{NO_INPUT_MODES}{}{focus}", self.grid.screen().input_mode_formatted())
    }

    fn part_row(&self, part: Part, row: u16) -> String {
        let (mut out, mut set, mut drawn) = (String::from("\x1b[m"), String::from("\x1b[0m"), 0);
        let cell = |col: u16| self.grid.screen().cell(row, part.left.saturating_add(col));
        let blank =
            |col: u16| cell(col).is_none_or(|cell| cell.contents().trim().is_empty() && attributes(cell) == "\x1b[0m");
        let length = (0..part.cols).rev().find(|col| !blank(*col)).map_or(0, |last| last + 1);
        while drawn < length {
            let Some(cell) = cell(drawn) else { break };
            let wanted = attributes(cell);
            if wanted != set {
                out.push_str(&wanted);
                set = wanted;
            }
            // Of a wide letter at the edge the half that is inside is empty.
            let whole = !cell.is_wide_continuation() && (!cell.is_wide() || drawn + 1 < part.cols);
            out.push_str(if whole && cell.has_contents() { cell.contents() } else { " " });
            drawn += if whole && cell.is_wide() { 2 } else { 1 };
        }
        if set != "\x1b[0m" {
            out.push_str("\x1b[m");
        }
        // On a full row this would erase the last letter.
        if drawn < part.cols {
            out.push_str("\x1b[K");
        }
        out
    }
}

/// Where a window of `length` begins so that it holds `place`; in steps of half of it, so that it does not move with each
/// letter.
fn start(all: u16, length: u16, place: u16) -> u16 {
    let last = all.saturating_sub(length);
    let beyond = place.min(all.saturating_sub(1)).saturating_add(1).saturating_sub(length);
    beyond.checked_next_multiple_of((length / 2).max(1)).unwrap_or(last).min(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_begins_where_it_holds_the_cursor() {
        for (all, length, place, begins) in [
            (100, 49, 0, 0),
            (100, 49, 48, 0),
            (100, 49, 49, 24),
            (100, 49, 72, 24),
            (100, 49, 73, 48),
            (100, 49, 99, 51),
            (100, 49, 100, 51),
            (30, 30, 29, 0),
            (30, 40, 29, 0),
            (30, 1, 17, 17),
            (30, 0, 17, 18),
        ] {
            assert_eq!(start(all, length, place), begins, "{length} of {all} at {place}");
        }
        for (all, length) in (1..40).flat_map(|all| (1..50).map(move |length| (all, length))) {
            for place in 0..all {
                let begins = start(all, length, place);
                assert!(begins <= place && place < begins + length, "{length} of {all} at {place}: {begins}");
                assert!(begins == 0 || begins + length <= all, "{length} of {all} at {place}: {begins}");
            }
        }
    }

    fn screen(output: &str) -> Screen {
        let mut screen = Screen::new(20, 4, 0);
        screen.feed(output.as_bytes());
        screen
    }

    #[test]
    fn rows_are_cut_at_both_edges_and_wide_letters_too() {
        let part = Part { left: 3, top: 1, cols: 5, rows: 3 };
        let output = "hidden\r\n0123456789\r\n日本日本日\r\n\x1b[31mab\x1b[7mcde\x1b[mf";
        assert_eq!(
            screen(output).part_rows(part),
            ["\x1b[m34567", "\x1b[m 日本", "\x1b[m\x1b[0;7;38;5;1mde\x1b[0mf\x1b[K"]
        );
        let even = Part { left: 2, ..part };
        assert_eq!(screen(output).part_rows(even)[1], "\x1b[m本日 ");
        let beyond = Part { left: 18, top: 3, cols: 5, rows: 2 };
        assert_eq!(screen("").part_rows(beyond), ["\x1b[m\x1b[K"; 2]);
    }

    #[test]
    fn a_part_drawn_over_anything_is_the_cut_of_the_screen() {
        let whole = screen("\x1b[44mblue\x1b[K\r\n\x1b[m12345678901234567890\r\n\x1b[1mbold\x1b[m\x1b[2;19H");
        for (cols, rows) in [(5, 2), (19, 4), (20, 3), (1, 1)] {
            let part = whole.part(cols, rows);
            let mut window = Screen::new(cols.max(2), rows, 0);
            window.feed("#".repeat(usize::from(cols * rows)).as_bytes());
            for (row, text) in (1..).zip(whole.part_rows(part)) {
                window.feed(format!("\x1b[{row};1H{text}").as_bytes());
            }
            let places = (0..rows).flat_map(|row| (0..cols).map(move |col| (row, col)));
            for (row, col) in places {
                let (seen, real) =
                    (window.grid.screen().cell(row, col), whole.grid.screen().cell(part.top + row, part.left + col));
                let ink = |cell: &vt100::Cell| (cell.contents().trim().to_owned(), cell.bgcolor(), cell.bold());
                assert_eq!(seen.map(ink), real.map(ink), "{row}, {col} of {part:?}");
            }
        }
    }

    #[test]
    fn the_cursor_is_followed_and_a_hidden_one_only_down() {
        let at = |output: &str| {
            let screen = screen(output);
            let part = screen.part(8, 2);
            let Cursor { row, col, visible } = screen.part_cursor(part);
            ((part.left, part.top), (row, col), visible)
        };
        assert_eq!(at("abc"), ((0, 0), (0, 3), true));
        assert_eq!(at("\x1b[4;20H"), ((12, 2), (1, 7), true));
        assert_eq!(at("\x1b[4;20Hx"), ((12, 2), (1, 7), true), "behind the last letter");
        assert_eq!(at("\x1b[4;20H\x1b[?25l"), ((0, 2), (1, 7), false));
    }

    #[test]
    fn input_modes_are_those_of_the_program_and_no_others() {
        let mut window = screen("\x1b[?1003h\x1b[?1006h\x1b[?1004h\x1b[?1h\x1b[4 q");
        for output in ["\x1b[?2004h\x1b[?1000h", "", "\x1b[?1002h\x1b[?1006h\x1b[?1h\x1b=\x1b[?1004h"] {
            let program = screen(output);
            window.feed(program.input_modes().as_bytes());
            assert_eq!(window.modes(), program.modes(), "{output:?}");
        }
    }
}
