//! Cuts a stream of terminal output into text, controls and sequences, wherever the chunks end and with bounded memory.
//!
//! Everything that reads output (the screen, the filter for operators) reads these tokens, so that both see the same.

use serde::{Deserialize, Serialize};

/// A control sequence longer than this does nothing useful and is dropped.
const LONGEST_SEQUENCE: usize = 256;
/// A string (title, clipboard, image) longer than this is swallowed up to its end and dropped.
pub(crate) const LONGEST_STRING: usize = 8 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Token<'a> {
    /// Printable text, without any control character, also none of C1; what is no UTF-8 became U+FFFD.
    Text(&'a str),
    /// C0 but for ESC, CAN, SUB.
    Control(u8),
    Escape {
        intermediates: &'a [u8],
        last: u8,
    },
    /// `params` are the bytes 0x30–0x3F as written, private markers included.
    Csi {
        params: &'a [u8],
        intermediates: &'a [u8],
        last: u8,
    },
    Osc {
        body: &'a [u8],
        bell: bool,
    },
    Dcs(&'a [u8]),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
enum State {
    #[default]
    Ground,
    Escape,
    Csi,
    Osc,
    Dcs,
    /// APC, PM, SOS and the old title string: nobody wants their bodies.
    Other,
}

/// Serialised inside checkpoints, so that one may be taken in the middle of a sequence.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Scanner {
    state: State,
    /// What is there of an unfinished sequence, or of an unfinished UTF-8 character.
    held: Vec<u8>,
    overlong: bool,
    /// Inside a string an ESC was seen, which a backslash makes its end.
    ending: bool,
    /// Bytes read since nothing unfinished was held.
    #[serde(default)]
    waiting: u64,
}

impl Scanner {
    pub(crate) fn feed(&mut self, mut bytes: &[u8], sink: &mut impl FnMut(Token<'_>)) {
        while !bytes.is_empty() {
            bytes = self.advance(bytes, sink);
        }
    }

    /// Consumes a run of text, or a byte of something else; returns the rest.
    pub(crate) fn advance<'b>(&mut self, bytes: &'b [u8], sink: &mut impl FnMut(Token<'_>)) -> &'b [u8] {
        let Some(&byte) = bytes.first() else { return bytes };
        let rest = if self.state == State::Ground && byte >= 0x20 && byte != 0x7f {
            self.text(bytes, sink)
        } else if self.step(byte, sink) {
            &bytes[1..]
        } else {
            bytes
        };
        self.waiting = match self.state {
            State::Ground => self.held.len() as u64,
            _ => self.waiting + (bytes.len() - rest.len()) as u64,
        };
        rest
    }

    /// How many of the bytes read belong to what is unfinished: reading could begin before them.
    pub(crate) fn waiting(&self) -> u64 {
        self.waiting
    }

    /// No sequence has begun; whatever was told lies before what waits.
    pub(crate) fn in_text(&self) -> bool {
        self.state == State::Ground
    }

    /// Nothing unfinished is held: reading could begin here.
    pub(crate) fn at_rest(&self) -> bool {
        self.state == State::Ground && self.held.is_empty()
    }

    /// Consumes text up to the next control; returns the rest.
    fn text<'b>(&mut self, bytes: &'b [u8], sink: &mut impl FnMut(Token<'_>)) -> &'b [u8] {
        if !self.held.is_empty() {
            return self.held_character(bytes, sink);
        }
        let end = bytes.iter().position(|byte| *byte < 0x20 || *byte == 0x7f).unwrap_or(bytes.len());
        let (run, rest) = bytes.split_at(end);
        let mut seen = 0;
        for chunk in run.utf8_chunks() {
            print(chunk.valid(), sink);
            seen += chunk.valid().len() + chunk.invalid().len();
            if seen == run.len() && unfinished(chunk.invalid()) {
                self.held.extend_from_slice(chunk.invalid());
            } else if !chunk.invalid().is_empty() {
                sink(Token::Text("\u{fffd}"));
            }
        }
        rest
    }

    fn held_character<'b>(&mut self, bytes: &'b [u8], sink: &mut impl FnMut(Token<'_>)) -> &'b [u8] {
        self.held.push(bytes[0]);
        match std::str::from_utf8(&self.held) {
            Ok(text) => print(text, sink),
            Err(_) if unfinished(&self.held) => return &bytes[1..],
            Err(_) => {
                self.held.clear();
                sink(Token::Text("\u{fffd}"));
                return bytes;
            }
        }
        self.held.clear();
        &bytes[1..]
    }

    /// One byte that is no plain text; false asks for the byte again in the state that is now.
    fn step(&mut self, byte: u8, sink: &mut impl FnMut(Token<'_>)) -> bool {
        match (self.state, byte) {
            (State::Ground, _) => {
                if !self.held.is_empty() {
                    self.held.clear();
                    sink(Token::Text("\u{fffd}"));
                }
                match byte {
                    0x1b => self.enter(State::Escape),
                    0x18 | 0x1a | 0x7f => {}
                    _ => sink(Token::Control(byte)),
                }
            }
            (_, 0x18 | 0x1a) => self.enter(State::Ground),
            (State::Escape | State::Csi, 0x1b) => self.enter(State::Escape),
            (State::Escape | State::Csi, 0..0x20) => sink(Token::Control(byte)),
            (State::Escape | State::Csi, 0x7f) => {}
            (State::Escape | State::Csi, 0x80..) => {
                self.enter(State::Ground);
                return false;
            }
            (State::Escape, _) => self.escape(byte, sink),
            (State::Csi, 0x40..) => {
                if !self.overlong {
                    csi(&self.held, byte, sink);
                }
                self.enter(State::Ground);
            }
            (State::Csi, _) => self.hold(byte, LONGEST_SEQUENCE),
            (State::Osc | State::Dcs | State::Other, _) => return self.string(byte, sink),
        }
        true
    }

    fn escape(&mut self, byte: u8, sink: &mut impl FnMut(Token<'_>)) {
        let next = match byte {
            0x20..0x30 => return self.hold(byte, 4),
            _ if !self.held.is_empty() => State::Ground,
            b'[' => State::Csi,
            b']' => State::Osc,
            b'P' => State::Dcs,
            b'X' | b'^' | b'_' | b'k' => State::Other,
            _ => State::Ground,
        };
        if next == State::Ground && !self.overlong {
            sink(Token::Escape { intermediates: &self.held, last: byte });
        }
        self.enter(next);
    }

    fn string(&mut self, byte: u8, sink: &mut impl FnMut(Token<'_>)) -> bool {
        let bell = byte == 0x07 && self.state == State::Osc;
        if self.ending || bell {
            let over = !self.overlong;
            match self.state {
                State::Osc if over => sink(Token::Osc { body: &self.held, bell }),
                State::Dcs if over => sink(Token::Dcs(&self.held)),
                _ => {}
            }
            let ended = bell || byte == b'\\';
            self.enter(if ended { State::Ground } else { State::Escape });
            return ended;
        }
        match byte {
            0x1b => self.ending = true,
            0..0x20 | 0x7f => {}
            _ if self.state == State::Other => {}
            _ => self.hold(byte, LONGEST_STRING),
        }
        true
    }

    fn hold(&mut self, byte: u8, longest: usize) {
        if self.held.len() < longest {
            self.held.push(byte);
        } else {
            self.overlong = true;
        }
    }

    fn enter(&mut self, state: State) {
        self.state = state;
        self.held.clear();
        self.overlong = false;
        self.ending = false;
    }
}

/// The beginning of a character that more bytes may complete.
fn unfinished(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}

/// A parameter byte after an intermediate is malformed, and the whole sequence does nothing.
fn csi(held: &[u8], last: u8, sink: &mut impl FnMut(Token<'_>)) {
    let split = held.iter().position(|byte| *byte < 0x30).unwrap_or(held.len());
    let (params, intermediates) = held.split_at(split);
    if intermediates.iter().all(|byte| *byte < 0x30) {
        sink(Token::Csi { params, intermediates, last });
    }
}

/// Terminals obey C1 controls also when they come as UTF-8, so they never count as text.
fn print(text: &str, sink: &mut impl FnMut(Token<'_>)) {
    for part in text.split(|letter| ('\u{80}'..='\u{9f}').contains(&letter)) {
        if !part.is_empty() {
            sink(Token::Text(part));
        }
    }
}

/// The numbers of a control sequence, colons taken for semicolons; nothing written is `None`, too large is the largest.
pub(crate) fn numbers(params: &[u8]) -> impl Iterator<Item = Option<u16>> + '_ {
    params.split(|byte| matches!(byte, b';' | b':')).map(|digits| {
        let digits = digits.iter().filter(|byte| byte.is_ascii_digit());
        digits.fold(None, |sum: Option<u16>, digit| {
            Some(sum.unwrap_or(0).saturating_mul(10).saturating_add(u16::from(digit - b'0')))
        })
    })
}
