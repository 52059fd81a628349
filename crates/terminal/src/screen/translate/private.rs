//! Private modes: the alternate screen as terminals do it, and modes that `vt100` does not know.

use super::Translation;
use crate::{scan::numbers, screen::modes::Margins};

impl Translation<'_> {
    pub(super) fn private(&mut self, params: &[u8], intermediates: &[u8], last: u8) {
        let (marker, rest) = params.split_at(1);
        match (marker, intermediates, last) {
            (b"?", [], b'h' | b'l') => {
                for mode in numbers(rest).flatten() {
                    self.mode(mode, last == b'h');
                }
            }
            (b"?", [], b'J' | b'K') => {
                let what = numbers(rest).next().flatten().unwrap_or(0);
                self.say(&format!("\x1b[?{what}{}", last as char));
            }
            _ => self.answers().csi(params, intermediates, last),
        }
    }

    fn mode(&mut self, mode: u16, on: bool) {
        let letter = if on { 'h' } else { 'l' };
        match mode {
            1 | 9 | 25 | 1000 | 1002 | 1003 | 1005 | 1006 | 2004 => self.say(&format!("\x1b[?{mode}{letter}")),
            6 => {
                self.say(&format!("\x1b[?6{letter}"));
                let alternate = self.screen().alternate_screen();
                self.tracked.margins_mut(alternate).origin = on;
            }
            7 => self.tracked.autowrap = on,
            47 | 1047 | 1049 if on => self.enter_alternate(mode == 1049),
            47 | 1047 | 1049 => self.leave_alternate(mode == 1049),
            1048 if on => self.save(),
            1048 => self.restore(),
            1004 => self.tracked.focus_events = on,
            2026 => self.tracked.synchronised = on,
            _ => {}
        }
    }

    /// Terminals show an empty grid with the cursor where it was; twice is once.
    fn enter_alternate(&mut self, save: bool) {
        if self.screen().alternate_screen() {
            return;
        }
        let (row, col) = self.screen().cursor_position();
        if save {
            self.save();
        }
        // Nothing of an earlier visit stays: no margins, no saved cursor.
        self.say(if save { "\x1b[?1049h" } else { "\x1b[?47h\x1b[?6l\x1b[r\x1b[2J\x1b[H\x1b7" });
        self.tracked.alternate = Margins::default();
        self.say(&format!("\x1b[{};{}H", row + 1, col + 1));
    }

    fn leave_alternate(&mut self, restore: bool) {
        if !self.screen().alternate_screen() {
            return;
        }
        let (row, col) = self.screen().cursor_position();
        self.say("\x1b[?47l");
        if restore {
            self.restore();
        } else {
            let top = self.tracked.main.region.filter(|_| self.tracked.main.origin).map_or(0, |(top, _)| top);
            self.say(&format!("\x1b[{};{}H", (row + 1).saturating_sub(top).max(1), col + 1));
        }
    }
}
