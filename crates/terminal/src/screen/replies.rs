//! What the emulator answers. Fixed and modest: a program that is told less uses less, and no answer repeats text that
//! the program could have put there.

use std::fmt::Write as _;

use super::modes::Tracked;
use crate::scan::numbers;

/// A program that asks in a loop gets no more than this for one chunk of output.
const MOST: usize = 64 << 10;

const FOREGROUND: (u8, u8, u8) = (0xd8, 0xd8, 0xd8);
const BACKGROUND: (u8, u8, u8) = (0, 0, 0);

pub(super) struct Replies<'a> {
    pub(super) out: &'a mut Vec<u8>,
    pub(super) screen: &'a vt100::Screen,
    pub(super) tracked: &'a Tracked,
}

impl Replies<'_> {
    fn say(&mut self, text: &str) {
        if self.out.len() + text.len() <= MOST {
            self.out.extend_from_slice(text.as_bytes());
        }
    }

    /// The keyboard protocol's query (`CSI ? u`) stays without answer: it means "not supported".
    pub(super) fn csi(&mut self, params: &[u8], intermediates: &[u8], last: u8) {
        let (marker, rest) = match params.split_first() {
            Some((marker @ b'<'..=b'?', rest)) => (Some(*marker), rest),
            _ => (None, params),
        };
        let number = numbers(rest).next().flatten().unwrap_or(0);
        match (marker, intermediates, last) {
            // A VT220 with colours.
            (None, [], b'c') if number == 0 => self.say("\x1b[?62;22c"),
            (Some(b'>'), [], b'c') if number == 0 => self.say("\x1b[>1;10;0c"),
            (Some(b'='), [], b'c') if number == 0 => self.say("\x1bP!|00000000\x1b\\"),
            (marker @ (None | Some(b'?')), [], b'n') => self.status(number, marker.is_some()),
            (marker @ (None | Some(b'?')), [b'$'], b'p') => self.mode(number, marker.is_some()),
            (Some(b'>'), [], b'q') if number == 0 => {
                self.say(concat!("\x1bP>|sandbar(", env!("CARGO_PKG_VERSION"), ")\x1b\\"));
            }
            (None, [], b'x') if number < 2 => self.say(&format!("\x1b[{};1;1;128;128;1;0x", number + 2)),
            (None, [], b't') => self.window(number),
            _ => {}
        }
    }

    fn status(&mut self, number: u16, private: bool) {
        match (number, private) {
            (5, false) => self.say("\x1b[0n"),
            (6, _) => {
                let (row, col) = self.screen.cursor_position();
                let margins = self.tracked.margins(self.screen.alternate_screen());
                let top = margins.region.filter(|_| margins.origin).map_or(0, |(top, _)| top);
                let (row, col) = (row.saturating_sub(top) + 1, (col + 1).min(self.screen.size().1.get()));
                self.say(&format!("\x1b[{}{row};{col}R", if private { "?" } else { "" }));
            }
            // No printer, keys locked, a dark theme.
            (15, true) => self.say("\x1b[?13n"),
            (25, true) => self.say("\x1b[?21n"),
            (996, true) => self.say("\x1b[?997;1n"),
            _ => {}
        }
    }

    fn mode(&mut self, number: u16, private: bool) {
        let (screen, mouse) = (self.screen, self.screen.mouse_protocol_mode());
        let set = match (number, private) {
            (4, false) => Some(self.tracked.insert),
            (1, true) => Some(screen.application_cursor()),
            (6, true) => Some(self.tracked.margins(screen.alternate_screen()).origin),
            (7, true) => Some(self.tracked.autowrap),
            (9, true) => Some(mouse == vt100::MouseProtocolMode::Press),
            (25, true) => Some(!screen.hide_cursor()),
            (47 | 1047 | 1049, true) => Some(screen.alternate_screen()),
            (1000, true) => Some(mouse == vt100::MouseProtocolMode::PressRelease),
            (1002, true) => Some(mouse == vt100::MouseProtocolMode::ButtonMotion),
            (1003, true) => Some(mouse == vt100::MouseProtocolMode::AnyMotion),
            (1004, true) => Some(self.tracked.focus_events),
            (1006, true) => Some(screen.mouse_protocol_encoding() == vt100::MouseProtocolEncoding::Sgr),
            (2004, true) => Some(screen.bracketed_paste()),
            (2026, true) => Some(self.tracked.synchronised),
            _ => None,
        };
        let state = set.map_or(0, |set| if set { 1 } else { 2 });
        self.say(&format!("\x1b[{}{number};{state}$y", if private { "?" } else { "" }));
    }

    /// Titles are reported empty: a reported title is typed to whatever reads next.
    fn window(&mut self, number: u16) {
        let (rows, cols) = self.screen.size();
        match number {
            11 => self.say("\x1b[1t"),
            13 => self.say("\x1b[3;0;0t"),
            18 => self.say(&format!("\x1b[8;{rows};{cols}t")),
            19 => self.say(&format!("\x1b[9;{rows};{cols}t")),
            20 => self.say("\x1b]L\x1b\\"),
            21 => self.say("\x1b]l\x1b\\"),
            _ => {}
        }
    }

    pub(super) fn osc(&mut self, body: &[u8], bell: bool) {
        let end = if bell { "\x07" } else { "\x1b\\" };
        let mut parts = body.split(|byte| *byte == b';');
        let (code, asked) = (parts.next(), parts.next());
        let mut answer = String::new();
        match (code, asked) {
            (Some(b"10" | b"12"), Some(b"?")) => answer = colour(FOREGROUND),
            (Some(b"11"), Some(b"?")) => answer = colour(BACKGROUND),
            (Some(b"4"), Some(index)) if parts.next() == Some(b"?") => {
                let index = numbers(index).next().flatten().and_then(|index| u8::try_from(index).ok());
                if let Some(index) = index {
                    let _ = write!(answer, "{index};{}", colour(palette(index)));
                }
            }
            _ => {}
        }
        if let (Some(code), false) = (code, answer.is_empty()) {
            let code = String::from_utf8_lossy(code).into_owned();
            self.say(&format!("\x1b]{code};{answer}{end}"));
        }
    }

    /// DECRQSS for what is known, "invalid" for the rest; XTGETTCAP likewise.
    pub(super) fn dcs(&mut self, body: &[u8]) {
        if body.starts_with(b"+q") {
            return self.say("\x1bP0+r\x1b\\");
        }
        let Some(asked) = body.strip_prefix(b"$q") else { return };
        let setting = match asked {
            b"m" => Some("0m".to_owned()),
            b"r" => {
                let rows = self.screen.size().0.get();
                let (top, bottom) =
                    self.tracked.margins(self.screen.alternate_screen()).region.unwrap_or((0, rows.saturating_sub(1)));
                Some(format!("{};{}r", top + 1, bottom + 1))
            }
            b" q" => Some(format!("{} q", cursor_style(self.screen.cursor_style()))),
            b"\"p" => Some("62;1\"p".to_owned()),
            _ => None,
        };
        match setting {
            Some(setting) => self.say(&format!("\x1bP1$r{setting}\x1b\\")),
            None => self.say("\x1bP0$r\x1b\\"),
        }
    }
}

fn cursor_style(style: vt100::CursorStyle) -> u8 {
    match style {
        vt100::CursorStyle::Default => 0,
        vt100::CursorStyle::BlinkBlock => 1,
        vt100::CursorStyle::SteadyBlock => 2,
        vt100::CursorStyle::BlinkUnderline => 3,
        vt100::CursorStyle::SteadyUnderline => 4,
        vt100::CursorStyle::BlinkVerticalBar => 5,
        vt100::CursorStyle::SteadyVerticalBar => 6,
    }
}

fn colour((red, green, blue): (u8, u8, u8)) -> String {
    format!("rgb:{red:02x}{red:02x}/{green:02x}{green:02x}/{blue:02x}{blue:02x}")
}

/// The usual 256: sixteen, a cube of six, and greys.
fn palette(index: u8) -> (u8, u8, u8) {
    match index {
        0..16 => {
            let full = if index < 8 { 0xcd } else { 0xff };
            let channel = |bit: u8| if index & bit != 0 { full } else { 0 };
            (channel(1), channel(2), channel(4))
        }
        16..232 => {
            let step = |value: u8| if value == 0 { 0 } else { 55 + value * 40 };
            let cube = index - 16;
            (step(cube / 36), step(cube / 6 % 6), step(cube % 6))
        }
        232.. => {
            let grey = 8 + (index - 232) * 10;
            (grey, grey, grey)
        }
    }
}
