//! What is typed at our own terminal without being shown.

use tokio::io::AsyncReadExt as _;

use crate::{
    exit::Failure,
    print::Printer,
    terminal::{Raw, Signals},
};

/// Asks without showing what is typed. The terminal is raw, so that not even an interrupt leaves it without echo.
pub(crate) async fn hidden(what: &str, most: usize, print: Printer) -> Result<Vec<u8>, Failure> {
    let mut signals = Signals::install().map_err(Failure::io("failed to listen for signals"))?;
    print.ask(format!("{what}, which is not shown: "));
    let raw = Raw::enter().map_err(Failure::io("failed to hide what is typed"))?;
    let mut stdin = tokio::io::stdin();
    let mut typed = Typed::new(most);
    let outcome = loop {
        let mut byte = [0];
        let read = tokio::select! {
            read = stdin.read(&mut byte) => read,
            code = signals.interrupted() => break Err(Failure::Quiet(code)),
        };
        match read {
            Err(error) => break Err(Failure::io("failed to read the value")(error)),
            Ok(0) => break Ok(()),
            Ok(_) => match typed.take(byte[0]) {
                Key::More => {}
                Key::End => break Ok(()),
                Key::Interrupt => break Err(Failure::Quiet(130)),
            },
        }
    };
    drop(raw);
    print.say("");
    outcome.map(|()| typed.value)
}

struct Typed {
    value: Vec<u8>,
    most: usize,
}

#[derive(Debug, PartialEq, Eq)]
enum Key {
    More,
    End,
    Interrupt,
}

impl Typed {
    fn new(most: usize) -> Self {
        Self { value: Vec::new(), most }
    }

    /// What a terminal in its usual mode does with the keys.
    fn take(&mut self, key: u8) -> Key {
        match key {
            b'\r' | b'\n' | 0x04 => return Key::End,
            0x03 | 0x1c => return Key::Interrupt,
            0x15 => self.value.clear(),
            0x08 | 0x7f => {
                // A letter may have several bytes.
                while self.value.pop().is_some_and(|byte| byte & 0xc0 == 0x80) {}
            }
            // Pasted beyond any limit: the rest is noticed, not kept.
            key if self.value.len() <= self.most => self.value.push(key),
            _ => {}
        }
        Key::More
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_edit_what_is_typed() {
        let mut typed = Typed::new(100);
        for key in "wrong\u{15}sé\u{7f}\u{7f}\u{7f}key".bytes() {
            assert_eq!(typed.take(key), Key::More);
        }
        assert_eq!(typed.value, b"key");
        assert_eq!((typed.take(b'\r'), typed.take(0x03)), (Key::End, Key::Interrupt));
    }
}
