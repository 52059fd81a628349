//! The part of a terminal that a smaller window shows: cells of an emulator here, drawn so many times a second at most, so
//! that nothing a program prints reaches the window but letters, colours and what concerns keys.

use std::{fmt::Write as _, time::Duration};

use sandbar_api::TerminalSize;
use sandbar_terminal::{
    Screen,
    screen::{Cursor, Part},
};
use tokio::time::Instant;

use crate::text::inert;

/// About thirty frames a second.
const FRAME: Duration = Duration::from_millis(33);
/// How long a notice covers what is below it.
const NOTICE: Duration = Duration::from_secs(5);

pub(super) struct Window {
    screen: Screen,
    drawn: Option<Drawn>,
    drawn_at: Option<Instant>,
    /// Something changed since.
    stale: bool,
    notice: Option<(String, Instant)>,
}

/// What the window shows.
#[derive(PartialEq)]
struct Drawn {
    size: TerminalSize,
    alternate: bool,
    rows: Vec<String>,
    cursor: Cursor,
    modes: String,
    title: String,
}

impl Window {
    /// On a terminal of `size` that shows `painting`.
    pub(super) fn new(size: TerminalSize, painting: &str) -> Self {
        let mut screen = Screen::new(size.cols, size.rows, 0);
        screen.feed(painting.as_bytes());
        Self { screen, drawn: None, drawn_at: None, stale: true, notice: None }
    }

    /// The server answers what programs ask.
    pub(super) fn feed(&mut self, output: &[u8]) {
        self.screen.feed(output);
        self.stale = true;
    }

    pub(super) fn resize(&mut self, size: TerminalSize) {
        self.screen.resize(size.cols, size.rows);
        self.stale = true;
    }

    pub(super) fn notice(&mut self, text: &str, now: Instant) {
        self.notice = Some((inert(text).into_owned(), now + NOTICE));
        self.stale = true;
    }

    /// What is still told.
    pub(super) fn take_notice(&mut self) -> Option<String> {
        self.stale = true;
        self.notice.take().map(|(text, _)| text)
    }

    /// The size of the terminal, not of the window.
    pub(super) fn size(&self) -> TerminalSize {
        let (cols, rows) = self.screen.size();
        TerminalSize { cols, rows }
    }

    /// All of the terminal, for a window that holds it.
    pub(super) fn painting(&self) -> String {
        String::from_utf8_lossy(&self.screen.snapshot()).into_owned()
    }

    /// When the next frame is due, if one is.
    pub(super) fn due(&self, now: Instant) -> Option<Instant> {
        let frame = self.stale.then(|| self.drawn_at.map_or(now, |at| at + FRAME));
        let uncovered = self.notice.as_ref().map(|(_, until)| *until);
        frame.into_iter().chain(uncovered).min()
    }

    /// Makes a window of this size show what is shown now. Nothing is written of what it shows already.
    pub(super) fn frame(&mut self, size: TerminalSize, now: Instant) -> String {
        self.notice.take_if(|(_, until)| *until <= now);
        (self.stale, self.drawn_at) = (false, Some(now));
        let part = self.screen.part(size.cols, size.rows);
        let next = Drawn {
            size,
            alternate: self.screen.alternate_screen(),
            rows: self.rows(part),
            cursor: self.screen.part_cursor(part),
            modes: self.screen.input_modes(),
            title: self.screen.title().to_owned(),
        };
        let frame = next.after(self.drawn.as_ref());
        self.drawn = Some(next);
        frame
    }

    fn rows(&self, part: Part) -> Vec<String> {
        let mut rows = self.screen.part_rows(part);
        if let Some((text, _)) = &self.notice {
            let most = (rows.len() / 2).max(1);
            let lines: Vec<_> =
                wrapped(text, usize::from(part.cols).saturating_sub(1)).into_iter().take(most).collect();
            let first = rows.len().saturating_sub(lines.len());
            for (row, line) in rows.iter_mut().skip(first).zip(lines) {
                *row = format!("\x1b[m\x1b[7m{line}\x1b[m\x1b[K");
            }
        }
        rows
    }
}

impl Drawn {
    fn after(&self, before: Option<&Self>) -> String {
        if before == Some(self) {
            return String::new();
        }
        let mut out = String::from("\x1b[?2026h\x1b[?25l");
        if before.map(|before| before.alternate).unwrap_or_default() != self.alternate {
            out.push_str(if self.alternate { "\x1b[?1049h" } else { "\x1b[?1049l" });
        }
        let kept = before.filter(|before| (before.size, before.alternate) == (self.size, self.alternate));
        if kept.is_none() {
            out.push_str("\x1b[m\x1b[2J");
        }
        for (index, row) in self.rows.iter().enumerate() {
            if kept.and_then(|kept| kept.rows.get(index)) != Some(row) {
                let _ = write!(out, "\x1b[{};1H{row}", index + 1);
            }
        }
        if before.is_none_or(|before| before.modes != self.modes) {
            out.push_str(&self.modes);
        }
        if before.map_or("", |before| &before.title) != self.title {
            let _ = write!(out, "\x1b]2;{}\x1b\\", self.title);
        }
        let _ = write!(out, "\x1b[{};{}H", self.cursor.row + 1, self.cursor.col + 1);
        out.push_str(if self.cursor.visible { "\x1b[?25h\x1b[?2026l" } else { "\x1b[?2026l" });
        out
    }
}

/// In lines of no more than `width` letters, cut between words where that can be.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let (width, mut lines) = (width.max(1), vec![String::new()]);
    for word in text.split(' ') {
        let mut letters: Vec<char> = word.chars().collect();
        while let Some(line) = lines.last_mut() {
            let used = line.chars().count();
            let blank = usize::from(used > 0);
            if used + blank + letters.len() <= width {
                line.extend(std::iter::repeat_n(' ', blank).chain(letters));
                break;
            }
            if used == 0 {
                line.extend(letters.drain(..width));
            }
            lines.push(String::new());
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    const LARGE: TerminalSize = TerminalSize { cols: 30, rows: 6 };

    /// A window and the terminal that it is drawn on.
    struct Desk {
        window: Window,
        terminal: Screen,
        now: Instant,
    }

    impl Desk {
        fn new(painting: &str) -> Self {
            let mut desk =
                Self { window: Window::new(LARGE, painting), terminal: Screen::new(12, 4, 0), now: Instant::now() };
            desk.draw();
            desk
        }

        fn draw(&mut self) -> String {
            let (cols, rows) = self.terminal.size();
            let frame = self.window.frame(TerminalSize { cols, rows }, self.now);
            assert!(self.terminal.feed(frame.as_bytes()).is_empty(), "{frame:?} asks something");
            frame
        }
    }

    #[tokio::test]
    async fn the_part_with_the_cursor_is_drawn_and_only_what_changed() {
        let mut desk = Desk::new("first row is longer than the window\x1b[4;1Hfourth\x1b[2;3H");
        assert_eq!(desk.terminal.lines(), ["first row is", "indow", "", "fourth"]);
        assert_eq!(desk.terminal.cursor(), (1, 2));
        desk.window.feed(b"\x1b[3;1H\x1b[31mthird\x1b[m");
        let frame = desk.draw();
        assert!(frame.contains("third") && !frame.contains("fourth") && !frame.contains("first"), "{frame:?}");
        assert_eq!(desk.draw(), "", "nothing changed");
        desk.window.feed(b"\x1b[6;29Hen\x1b[?25l\x1b[6;29H");
        desk.draw();
        assert_eq!(desk.terminal.lines(), ["third", "fourth", "", ""]);
        assert!(!desk.terminal.cursor_visible());
        desk.window.feed(b"\x1b[?25h");
        desk.draw();
        assert_eq!(desk.terminal.lines()[3], format!("{:>10}en", ""));
        assert_eq!((desk.terminal.cursor(), desk.terminal.cursor_visible()), ((3, 10), true));
    }

    #[tokio::test]
    async fn the_program_s_other_screen_is_ours_and_a_window_of_another_size_is_drawn_anew() {
        let mut desk = Desk::new("main");
        desk.window.feed(b"\x1b[?1049h\x1b[Halternate\x1b[?2004h");
        desk.draw();
        assert!(desk.terminal.alternate_screen() && desk.terminal.modes().bracketed_paste);
        assert_eq!(desk.terminal.lines()[0], "alternate");
        desk.terminal.resize(20, 5);
        desk.terminal.feed(b"\x1b[Hwhatever a terminal makes of it");
        desk.draw();
        assert_eq!(desk.terminal.text(), "alternate");
        desk.window.feed(b"\x1b[?1049l");
        desk.draw();
        assert_eq!((desk.terminal.text().as_str(), desk.terminal.alternate_screen()), ("main", false));
    }

    #[tokio::test]
    async fn nothing_printed_acts_on_the_window() {
        let mut desk = Desk::new("");
        desk.window
            .feed(b"\x1b]52;c;QUFB\x07\x1b[6n\x1b[c\x1bP$qm\x1b\\\x1b]8;;http://x\x07link\x1b]8;;\x07\x1b[3J\x07");
        let frame = desk.draw();
        for harmful in ["\x1b]", "\x07", "[6n", "[c", "\x1bP", "[3J"] {
            assert!(!frame.contains(harmful), "{frame:?}");
        }
        assert_eq!(desk.terminal.text(), "link");
    }

    #[tokio::test]
    async fn frames_are_joined_and_the_last_is_always_due() {
        let mut desk = Desk::new("");
        assert_eq!(desk.window.due(desk.now), None);
        for _ in 0..1000 {
            desk.window.feed(b"x");
        }
        assert_eq!(desk.window.due(desk.now), Some(desk.now + FRAME));
        desk.now += FRAME;
        desk.draw();
        assert_eq!(desk.window.due(desk.now), None);
    }

    #[tokio::test]
    async fn a_notice_covers_the_last_rows_for_a_while() {
        let mut desk = Desk::new("one\r\ntwo\r\nthree\r\nfour\x1b[H");
        desk.window.notice("said to\x1b[2J the viewer, at length, cut", desk.now);
        desk.draw();
        assert_eq!(desk.terminal.lines(), ["one", "two", "said", "to\\x1b[2J"]);
        desk.window.feed(b"\x1b[4;1Hnew\x1b[K");
        desk.now += FRAME;
        desk.draw();
        assert_eq!(desk.terminal.lines()[3], "to\\x1b[2J");
        let due = desk.window.due(desk.now);
        desk.now += NOTICE;
        assert!(due.is_some_and(|due| due <= desk.now));
        desk.draw();
        assert_eq!(desk.terminal.lines(), ["one", "two", "three", "new"]);
        assert_eq!(desk.window.due(desk.now), None);
    }

    #[test]
    fn notices_are_cut_between_words() {
        assert_eq!(wrapped("you see a part of it", 8), ["you see", "a part", "of it"]);
        assert_eq!(wrapped("a sbx_0123456789", 6), ["a", "sbx_01", "234567", "89"]);
        assert_eq!(wrapped("", 0), [""]);
    }
}
