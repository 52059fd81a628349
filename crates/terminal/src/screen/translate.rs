//! From tokens to what `vt100` understands: plain things are passed on in batches, the rest is said in other words.

mod private;

use unicode_width::UnicodeWidthChar as _;

use super::{LARGEST_SIDE, modes::Tracked, replies::Replies, sgr};
use crate::{
    neutral::window_title,
    scan::{Token, numbers},
};

const LONGEST_TITLE: usize = 1024;
const MOST_TITLES: usize = 16;
/// Asks for the coloured form of a letter.
const WIDEN: char = '\u{fe0f}';
/// From `_` to `~` in the line drawing set.
const DRAWING: &str = " ◆▒␉␌␍␊°±␤␋┘┐┌└┼⎺⎻─⎼⎽├┤┴┬│≤≥π≠£·";

pub(super) struct Translation<'a> {
    grid: &'a mut vt100::Parser,
    tracked: &'a mut Tracked,
    /// What `vt100` has not been given yet; flushed before anything looks at the grid.
    batch: Vec<u8>,
    replies: Vec<u8>,
}

impl<'a> Translation<'a> {
    pub(super) fn new(grid: &'a mut vt100::Parser, tracked: &'a mut Tracked) -> Self {
        Self { grid, tracked, batch: Vec::new(), replies: Vec::new() }
    }

    pub(super) fn finish(mut self) -> Vec<u8> {
        self.flush();
        self.replies
    }

    pub(super) fn take(&mut self, token: Token<'_>) {
        match token {
            Token::Text(text) => self.text(text),
            Token::Control(0x0e) => self.tracked.shifted = true,
            Token::Control(0x0f) => self.tracked.shifted = false,
            Token::Control(byte @ 0x08..=0x0d) => self.batch.push(byte),
            Token::Control(_) => {}
            Token::Escape { intermediates, last } => self.escape(intermediates, last),
            Token::Csi { params, intermediates, last } => self.csi(params, intermediates, last),
            Token::Osc { body, bell } => match window_title(body) {
                Some(title) => self.tracked.title = title.chars().take(LONGEST_TITLE).collect(),
                None => self.answers().osc(body, bell),
            },
            Token::Dcs(body) => self.answers().dcs(body),
        }
    }

    fn flush(&mut self) {
        if !self.batch.is_empty() {
            self.grid.process(&self.batch);
            self.batch.clear();
        }
    }

    fn say(&mut self, text: &str) {
        self.batch.extend_from_slice(text.as_bytes());
    }

    fn screen(&mut self) -> &vt100::Screen {
        self.flush();
        self.grid.screen()
    }

    fn answers(&mut self) -> Replies<'_> {
        self.flush();
        Replies { out: &mut self.replies, screen: self.grid.screen(), tracked: self.tracked }
    }

    fn text(&mut self, text: &str) {
        // `vt100` panics when this makes a letter wide at the end of a row.
        if text.contains(WIDEN) {
            return text.split(WIDEN).for_each(|part| self.text(part));
        }
        self.tracked.last = text.chars().rfind(|letter| letter.width() > Some(0)).or(self.tracked.last);
        let drawing = self.tracked.drawing[usize::from(self.tracked.shifted)];
        if !drawing && !self.tracked.insert && self.tracked.autowrap {
            return self.say(text);
        }
        for letter in text.chars() {
            let drawn = (letter as u32).checked_sub(u32::from(b'_')).filter(|_| drawing && letter.is_ascii());
            let letter = drawn.and_then(|index| DRAWING.chars().nth(index as usize)).unwrap_or(letter);
            let width = u16::try_from(letter.width().unwrap_or(0)).unwrap_or(1);
            if !self.tracked.autowrap {
                let (cols, (_, col)) = (self.screen().size().1.get(), self.screen().cursor_position());
                if col + width > cols {
                    self.say(&format!("\x1b[{}G", cols + 1 - width.max(1)));
                }
            }
            if self.tracked.insert && width > 0 {
                self.say(&format!("\x1b[{width}@"));
            }
            self.say(letter.encode_utf8(&mut [0; 4]));
            if !self.tracked.autowrap {
                self.stay_in_row();
            }
        }
    }

    /// Without wrapping the cursor stops on the last column, and waits for no next letter there.
    fn stay_in_row(&mut self) {
        let (cols, (_, col)) = (self.screen().size().1.get(), self.screen().cursor_position());
        if col >= cols {
            self.say(&format!("\x1b[{cols}G"));
        }
    }

    fn escape(&mut self, intermediates: &[u8], last: u8) {
        match (intermediates, last) {
            ([], b'7') => self.save(),
            ([], b'8') => self.restore(),
            ([], b'D') => self.batch.push(b'\n'),
            ([], b'E') => self.say("\r\n"),
            ([], b'M') => self.say("\x1bM"),
            ([], b'=') => self.say("\x1b="),
            ([], b'>') => self.say("\x1b>"),
            ([], b'c') => {
                self.say("\x1bc");
                self.tracked.reset();
            }
            ([b'('], set) => self.tracked.drawing[0] = set == b'0',
            ([b')'], set) => self.tracked.drawing[1] = set == b'0',
            _ => {}
        }
    }

    fn save(&mut self) {
        self.say("\x1b7");
        let alternate = self.screen().alternate_screen();
        let margins = self.tracked.margins_mut(alternate);
        margins.saved_origin = margins.origin;
    }

    fn restore(&mut self) {
        self.say("\x1b8");
        let alternate = self.screen().alternate_screen();
        let margins = self.tracked.margins_mut(alternate);
        margins.origin = margins.saved_origin;
    }

    fn csi(&mut self, params: &[u8], intermediates: &[u8], last: u8) {
        if let Some((b'<'..=b'?', _)) = params.split_first() {
            return self.private(params, intermediates, last);
        }
        let first = numbers(params).next().flatten();
        let count = first.unwrap_or(1).clamp(1, LARGEST_SIDE);
        match (intermediates, last) {
            ([], b'm') => {
                let params = sgr::rewrite(params);
                self.batch.extend_from_slice(b"\x1b[");
                self.batch.extend_from_slice(&params);
                self.batch.push(b'm');
            }
            // More than the grid holds would only keep us busy.
            ([], b'@' | b'A'..=b'G' | b'L' | b'M' | b'P' | b'S' | b'X' | b'`' | b'd') => {
                self.say(&format!("\x1b[{count}{}", last as char));
            }
            ([], b'T') if numbers(params).count() <= 1 => self.say(&format!("\x1b[{count}T")),
            ([], b'a') => self.say(&format!("\x1b[{count}C")),
            ([], b'e') => self.say(&format!("\x1b[{count}B")),
            ([], b'H' | b'f') => {
                let col = numbers(params).nth(1).flatten().unwrap_or(1).clamp(1, LARGEST_SIDE);
                self.say(&format!("\x1b[{count};{col}H"));
            }
            ([], b'J' | b'K') => self.say(&format!("\x1b[{}{}", first.unwrap_or(0), last as char)),
            ([], b'I') => self.say(&"\t".repeat(usize::from(count.min(LARGEST_SIDE / 8)))),
            ([], b'Z') => {
                let (_, col) = self.screen().cursor_position();
                let stop = (col.div_ceil(8)).saturating_sub(count) * 8;
                self.say(&format!("\x1b[{}G", stop + 1));
            }
            // Repeats end with the row, so that a few bytes cannot cost a screenful of work each.
            ([], b'b') => {
                let (cols, (_, col)) = (self.screen().size().1.get(), self.screen().cursor_position());
                let room = cols.saturating_sub(col);
                if let Some(letter) = self.tracked.last {
                    self.text(&String::from(letter).repeat(usize::from(count.min(room))));
                }
            }
            ([], b'r') => self.region(params),
            ([], b's') if params.is_empty() => self.save(),
            ([], b'u') if params.is_empty() => self.restore(),
            ([], b'h' | b'l') => {
                if numbers(params).any(|mode| mode == Some(4)) {
                    self.tracked.insert = last == b'h';
                }
            }
            ([], b't') => self.window(first.unwrap_or(0), params),
            ([b' '], b'q') => self.say(&format!("\x1b[{} q", first.unwrap_or(0))),
            ([b'!'], b'p') => self.soft_reset(),
            _ => self.answers().csi(params, intermediates, last),
        }
    }

    fn region(&mut self, params: &[u8]) {
        let screen = self.screen();
        let (rows, alternate) = (screen.size().0.get(), screen.alternate_screen());
        let mut edges = numbers(params).map(|edge| edge.unwrap_or(0).min(LARGEST_SIDE));
        let top = edges.next().unwrap_or(0).max(1);
        let bottom = Some(edges.next().unwrap_or(0)).filter(|bottom| *bottom > 0).unwrap_or(rows).min(rows);
        self.tracked.margins_mut(alternate).region =
            (top < bottom && (top, bottom) != (1, rows)).then(|| (top - 1, bottom - 1));
        // `vt100` goes to the region's top, terminals go home.
        self.say(&format!("\x1b[{top};{bottom}r\x1b[H"));
    }

    /// Titles are put away and taken back (22 and 23); the rest are questions, or would move a window.
    fn window(&mut self, operation: u16, params: &[u8]) {
        match operation {
            22 if self.tracked.titles.len() < MOST_TITLES => self.tracked.titles.push(self.tracked.title.clone()),
            22 => {}
            23 => {
                if let Some(title) = self.tracked.titles.pop() {
                    self.tracked.title = title;
                }
            }
            _ => self.answers().csi(params, &[], b't'),
        }
    }

    fn soft_reset(&mut self) {
        let (row, col) = self.screen().cursor_position();
        let alternate = self.screen().alternate_screen();
        self.tracked.reset_drawing();
        *self.tracked.margins_mut(alternate) = super::modes::Margins::default();
        self.say(&format!("\x1b[m\x1b[?25h\x1b[?1l\x1b>\x1b[?6l\x1b[r\x1b[H\x1b7\x1b[{};{}H", row + 1, col + 1));
    }
}
