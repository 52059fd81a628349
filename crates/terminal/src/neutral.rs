//! What a program inside printed, made harmless for the real terminal of the person who looks: drawing passes, whatever
//! acts on the person's machine (clipboard, titles, links, printers) or makes the terminal type an answer does not.
//!
//! Output is written anew from whole tokens that are on a list, so no difference between our reading and a terminal's
//! can carry anything through.

mod rules;

use crate::scan::{Scanner, Token};

/// What becomes of window titles.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Titles {
    #[default]
    Drop,
    /// The operator sees whose title it is.
    Prefix(String),
}

/// Whether modes that make the terminal send other or more input pass: mouse, bracketed paste, focus, cursor keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputModes {
    /// For an attached person, whose keys go to the program.
    Pass,
    /// For replays and logs, where input would land in the operator's shell.
    Drop,
}

/// Puts a terminal that was shown a session back in order, whatever the session left behind, the cursor where it is.
///
/// Margins and origin mode send the cursor home, and so may leaving an alternate screen that was not entered: it is saved
/// before. Taking it back takes back origin mode too, so a soft reset, which does not move it, ends that first.
pub const RESTORE: &[u8] = b"\x1b7\x1b[?1049l\x1b[!p\x1b7\x1b[?6l\x1b[r\x1b8\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1005l\
\x1b[?1006l\x1b[?1015l\x1b[?1004l\x1b[?2004l\x1b[?2026l\x1b[?1l\x1b>\x1b[?7h\x1b[4l\x1b(B\x1b)B\x0f\x1b[m\x1b[0 q\x1b[?25h";

/// A reset by the program clears what is seen and resets modes, but leaves the operator's scrollback, colours and tabs.
const SOFT_RESET: &[u8] = b"\x1b[!p\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?1004l\x1b[?2004l\x1b[?1049l\
\x1b(B\x1b)B\x0f\x1b[m\x1b[2J\x1b[H";

const LONGEST_TITLE: usize = 200;
/// Controls inside a sequence that does not end pass anyway when there are so many.
const MOST_CARRIED: usize = 4 << 10;

/// A streaming filter; one for each stream that is shown.
#[derive(Clone, Debug)]
pub struct Neutral {
    scanner: Scanner,
    titles: Titles,
    input: InputModes,
    /// What an unfinished sequence has let pass, where that waits for its end.
    carried: Vec<u8>,
}

impl Neutral {
    pub fn new(titles: Titles, input: InputModes) -> Self {
        Self { scanner: Scanner::default(), titles, input, carried: vec![] }
    }

    /// The same, but nothing of an unfinished sequence comes before its end, so that another filter can go on at
    /// [`Neutral::waiting`] bytes before the end of `bytes`, and both together pass what one would have.
    pub fn filter_whole(&mut self, mut bytes: &[u8]) -> Vec<u8> {
        let mut out = std::mem::take(&mut self.carried);
        let mut whole = 0;
        while !bytes.is_empty() {
            let (titles, input) = (&self.titles, self.input);
            bytes = self.scanner.advance(bytes, &mut |token| pass(token, titles, input, &mut out));
            if self.scanner.in_text() || out.len() - whole > MOST_CARRIED {
                whole = out.len();
            }
        }
        self.carried = out.split_off(whole);
        out
    }

    /// How many of the bytes filtered wait for the end of what they began.
    pub fn waiting(&self) -> u64 {
        self.scanner.waiting()
    }

    /// The harmless part of `bytes`; an unfinished sequence waits for the next call.
    pub fn filter(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(bytes.len());
        let (titles, input) = (&self.titles, self.input);
        self.scanner.feed(bytes, &mut |token| pass(token, titles, input, &mut out));
        out
    }
}

fn pass(token: Token<'_>, titles: &Titles, input: InputModes, out: &mut Vec<u8>) {
    match token {
        Token::Text(text) => out.extend_from_slice(text.as_bytes()),
        Token::Control(byte @ 0x07..=0x0f) => out.push(byte),
        Token::Control(_) | Token::Dcs(_) => {}
        Token::Escape { intermediates: [], last: b'c' } => out.extend_from_slice(SOFT_RESET),
        Token::Escape { intermediates, last } => {
            if rules::escape(intermediates, last, input) {
                out.push(0x1b);
                out.extend_from_slice(intermediates);
                out.push(last);
            }
        }
        Token::Csi { params, intermediates, last } => {
            if let Some(params) = rules::csi(params, intermediates, last, input) {
                out.extend_from_slice(b"\x1b[");
                out.extend_from_slice(&params);
                out.extend_from_slice(intermediates);
                out.push(last);
            }
        }
        Token::Osc { body, .. } => title(body, titles, out),
    }
}

fn title(body: &[u8], titles: &Titles, out: &mut Vec<u8>) {
    let (Titles::Prefix(prefix), Some(text)) = (titles, window_title(body)) else { return };
    out.extend_from_slice(b"\x1b]2;");
    let plain = prefix.chars().chain(text.chars()).filter(|letter| !letter.is_control());
    out.extend_from_slice(plain.take(LONGEST_TITLE).collect::<String>().as_bytes());
    out.extend_from_slice(b"\x1b\\");
}

/// The title that an OSC sets, if it sets one, without controls.
pub(crate) fn window_title(body: &[u8]) -> Option<String> {
    let text = body.strip_prefix(b"0;").or_else(|| body.strip_prefix(b"2;"))?;
    Some(String::from_utf8_lossy(text).chars().filter(|letter| !letter.is_control()).collect())
}

#[cfg(test)]
#[path = "neutral/tests.rs"]
mod tests;
