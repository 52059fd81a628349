//! The bytes that paint the screen on an empty terminal of the same size, both grids, modes and cursor.

use std::fmt::Write as _;

use super::{Screen, modes::Margins};

impl Screen {
    /// Paints what is seen now: for a viewer that attaches. Goes through [`crate::Neutral`] like all output.
    pub fn snapshot(&self) -> Vec<u8> {
        self.paint(false)
    }

    /// The same with the lines above the screen first, which scroll up into the viewer's own scrollback.
    pub fn snapshot_with_scrollback(&self) -> Vec<u8> {
        self.paint(true)
    }

    fn paint(&self, scrollback: bool) -> Vec<u8> {
        let mut out = String::from("\x1b[?1049l\x1b[m\x1b[?6l\x1b[r\x1b[?7h\x1b[4l\x1b(B\x1b)B\x0f");
        let screen = self.grid.screen();
        let alternate = screen.alternate_screen();
        let mut main = main_screen(&self.grid);
        if scrollback {
            lines_above(&mut main, &mut out);
        }
        face(&mut main, self.tracked.main, alternate, &mut out);
        if alternate {
            out.push_str("\x1b[?6l\x1b[r");
            let mut shown = copy(&self.grid);
            face(&mut shown, self.tracked.alternate, false, &mut out);
        }
        self.paint_modes(&mut out);
        out.into_bytes()
    }

    fn paint_modes(&self, out: &mut String) {
        let (screen, tracked) = (self.grid.screen(), &self.tracked);
        out.push_str(&screen.input_mode_formatted());
        out.push_str(if screen.hide_cursor() { "\x1b[?25l" } else { "\x1b[?25h" });
        if tracked.focus_events {
            out.push_str("\x1b[?1004h");
        }
        if tracked.insert {
            out.push_str("\x1b[4h");
        }
        if !tracked.autowrap {
            out.push_str("\x1b[?7l");
        }
        for (set, bracket) in tracked.drawing.iter().zip(['(', ')']) {
            if *set {
                let _ = write!(out, "\x1b{bracket}0");
            }
        }
        if tracked.shifted {
            out.push('\x0e');
        }
        if !tracked.title.is_empty() {
            let _ = write!(out, "\x1b]2;{}\x1b\\", tracked.title);
        }
    }
}

/// A second parser in the same state, to be asked what the first cannot be without changing it.
fn copy(grid: &vt100::Parser) -> vt100::Parser {
    let (rows, cols) = grid.screen().size();
    let mut copy = vt100::Parser::new(rows, cols, 0);
    *copy.screen_mut() = grid.screen().clone();
    copy
}

/// The main screen, also while the alternate one is shown.
pub(super) fn main_screen(grid: &vt100::Parser) -> vt100::Parser {
    let mut main = copy(grid);
    main.process(b"\x1b[?47l");
    main
}

/// What `each` makes of the lines above the main screen, a screenful at a time: how many of its rows are new is its
/// second argument.
pub(super) fn above<T>(main: &mut vt100::Parser, each: impl Fn(&vt100::Screen, usize) -> Vec<T>) -> Vec<T> {
    let screen = main.screen_mut();
    let (mut left, rows) = (screen.scrollback_len(), usize::from(screen.size().0.get()));
    let mut all = Vec::with_capacity(left);
    while left > 0 {
        screen.set_scrollback(left);
        all.extend(each(screen, left.min(rows)));
        left = left.saturating_sub(rows);
    }
    screen.set_scrollback(0);
    all
}

/// Prints the lines above and as many empty ones as push the last of them off the screen.
fn lines_above(main: &mut vt100::Parser, out: &mut String) {
    let (rows, cols) = main.screen().size();
    let lines = above(main, |screen, count| screen.rows_formatted(0, cols.get()).take(count).collect());
    out.push_str("\x1b[H\x1b[J");
    for line in &lines {
        let _ = write!(out, "\x1b[m{line}\x1b[m\r\n");
    }
    if !lines.is_empty() {
        out.push_str(&"\n".repeat(usize::from(rows.get()).saturating_sub(1)));
    }
}

/// One grid: cells, saved cursor, margins, cursor. With `leaving`, the cursor is the saved one, and the
/// alternate screen is entered.
fn face(grid: &mut vt100::Parser, margins: Margins, leaving: bool, out: &mut String) {
    let screen = grid.screen();
    out.push_str(&screen.contents_formatted());
    let now = Place::of(screen);
    grid.process(b"\x1b8");
    let saved = Place::of(grid.screen());

    if let Some((top, bottom)) = margins.region {
        let _ = write!(out, "\x1b[{};{}r", top + 1, bottom + 1);
    }
    saved.go(out, margins, margins.saved_origin);
    if leaving {
        // 1049 saves the cursor, as the program's own entering mostly did; it must not when origin mode changed since.
        out.push_str(match (margins.saved_origin == margins.origin, margins.origin) {
            (true, _) => "\x1b[?1049h",
            (false, true) => "\x1b7\x1b[?6h\x1b[?47h",
            (false, false) => "\x1b7\x1b[?6l\x1b[?47h",
        });
        return;
    }
    out.push_str("\x1b7");
    now.go(out, margins, margins.origin);
}

/// Where the cursor is and with which attributes it writes.
struct Place {
    row: u16,
    col: u16,
    attributes: String,
    edge: Option<(u16, String)>,
}

impl Place {
    fn of(screen: &vt100::Screen) -> Self {
        let (row, col) = screen.cursor_position();
        Self { row, col, attributes: screen.attributes_formatted(), edge: edge(screen, (row, col)) }
    }

    /// Rows count from the region's top in origin mode; a cursor outside the region is then reached by the row alone.
    fn go(&self, out: &mut String, margins: Margins, origin: bool) {
        out.push_str(if origin { "\x1b[?6h" } else { "\x1b[?6l" });
        let (top, bottom) = margins.region.filter(|_| origin).unwrap_or((0, u16::MAX));
        let _ = write!(out, "\x1b[{};{}H", self.row.saturating_sub(top) + 1, self.col + 1);
        if self.row < top || self.row > bottom {
            let _ = write!(out, "\x1b[{}d", self.row + 1);
        }
        if let Some((col, cell)) = &self.edge {
            let _ = write!(out, "\x1b[{}G{cell}", col + 1);
        }
        out.push_str(&self.attributes);
    }
}

/// A cursor behind the last column is only reached by printing there: where, and what is there already.
fn edge(screen: &vt100::Screen, (row, col): (u16, u16)) -> Option<(u16, String)> {
    let last = screen.size().1.get().saturating_sub(1);
    if col <= last {
        return None;
    }
    let wide = screen.cell(row, last).is_some_and(vt100::Cell::is_wide_continuation);
    let col = last.saturating_sub(u16::from(wide));
    let cell = screen.cell(row, col)?;
    let text = if cell.has_contents() { cell.contents() } else { " " };
    Some((col, format!("{}{text}", attributes(cell))))
}

/// Sets what a cell is drawn with, whatever was set before.
pub(super) fn attributes(cell: &vt100::Cell) -> String {
    let mut out = String::from("\x1b[0");
    let flags = [(cell.bold(), 1), (cell.dim(), 2), (cell.italic(), 3), (cell.underline(), 4), (cell.inverse(), 7)];
    for (_, code) in flags.iter().filter(|(set, _)| *set) {
        let _ = write!(out, ";{code}");
    }
    for (colour, code) in [(cell.fgcolor(), 38), (cell.bgcolor(), 48)] {
        let _ = match colour {
            vt100::Color::Default => Ok(()),
            vt100::Color::Idx(index) => write!(out, ";{code};5;{index}"),
            vt100::Color::Rgb(red, green, blue) => write!(out, ";{code};2;{red};{green};{blue}"),
        };
    }
    out.push('m');
    out
}
