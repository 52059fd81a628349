//! Tells commands to us from keys for the program, in whatever pieces they are read. Nothing inside a bracketed paste is a
//! command, and what turns out to be none is passed on unchanged.

use super::chord::Chord;

const PASTE_BEGINS: &[u8] = b"\x1b[200~";
const PASTE_ENDS: &[u8] = b"\x1b[201~";

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Typed {
    /// For the program.
    Keys(Vec<u8>),
    Command(Command),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Command {
    Detach,
    Take,
    Redraw,
    Help,
}

#[derive(Debug)]
pub(super) struct Keys {
    chord: Chord,
    /// How many keys of the prefix were typed; they are held back.
    matched: usize,
    pasting: bool,
    /// How much of the mark that begins or ends a paste was seen.
    mark: usize,
}

impl Keys {
    pub(super) fn new(chord: Chord) -> Self {
        Self { chord, matched: 0, pasting: false, mark: 0 }
    }

    pub(super) fn feed(&mut self, bytes: &[u8]) -> Vec<Typed> {
        let mut out = Vec::new();
        for byte in bytes {
            self.step(*byte, &mut out);
        }
        out
    }

    /// What was held back, when nothing more is typed.
    pub(super) fn finish(&mut self) -> Vec<Typed> {
        let mut out = Vec::new();
        self.release(&mut out);
        out
    }

    fn step(&mut self, byte: u8, out: &mut Vec<Typed>) {
        let (prefix, detach) = match &self.chord {
            Chord::Keys { prefix, detach } if !self.pasting => (prefix.as_slice(), *detach),
            _ => return self.pass(byte, out),
        };
        if let Some(expected) = prefix.get(self.matched) {
            if byte == *expected {
                self.matched += 1;
            } else if self.matched > 0 {
                self.release(out);
                self.step(byte, out);
            } else {
                self.pass(byte, out);
            }
            return;
        }
        let first = prefix.first().copied();
        let command = match byte {
            byte if byte == detach => Command::Detach,
            byte if first.is_some_and(|first| byte == first || byte == (first | 0x60)) => return self.release(out),
            b't' if first.is_some() => Command::Take,
            b'r' if first.is_some() => Command::Redraw,
            b'?' if first.is_some() => Command::Help,
            byte => {
                self.release(out);
                return self.pass(byte, out);
            }
        };
        self.matched = 0;
        out.push(Typed::Command(command));
    }

    fn release(&mut self, out: &mut Vec<Typed>) {
        if let Chord::Keys { prefix, .. } = &self.chord {
            let held = prefix[..self.matched].to_vec();
            self.matched = 0;
            held.into_iter().for_each(|byte| self.pass(byte, out));
        }
    }

    fn pass(&mut self, byte: u8, out: &mut Vec<Typed>) {
        let mark = if self.pasting { PASTE_ENDS } else { PASTE_BEGINS };
        self.mark = match mark.get(self.mark) {
            Some(expected) if *expected == byte => self.mark + 1,
            _ => usize::from(byte == 0x1b),
        };
        if self.mark == mark.len() {
            self.pasting = !self.pasting;
            self.mark = 0;
        }
        match out.last_mut() {
            Some(Typed::Keys(keys)) => keys.push(byte),
            _ => out.push(Typed::Keys(vec![byte])),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(text: &str) -> Typed {
        Typed::Keys(text.as_bytes().to_vec())
    }

    /// Neighbouring keys in one piece, however they were read.
    fn joined(typed: Vec<Typed>) -> Vec<Typed> {
        typed.into_iter().fold(Vec::new(), |mut all, one| {
            match (all.last_mut(), one) {
                (Some(Typed::Keys(before)), Typed::Keys(more)) => before.extend(more),
                (_, one) => all.push(one),
            }
            all
        })
    }

    fn expect(chord: &str, text: &str, expected: &[Typed]) -> Result<(), String> {
        for size in 1..=text.len().max(1) {
            let mut machine = Keys::new(chord.parse()?);
            let mut all: Vec<_> = text.as_bytes().chunks(size).flat_map(|piece| machine.feed(piece)).collect();
            all.extend(machine.finish());
            assert_eq!(joined(all), expected, "{chord}: {text:?} in pieces of {size}");
        }
        Ok(())
    }

    #[test]
    fn commands_are_told_from_keys_in_whatever_pieces() -> Result<(), String> {
        use Typed::Command as C;
        for (chord, text, expected) in [
            ("ctrl-a,d", "plain", vec![keys("plain")]),
            ("ctrl-a,d", "x\x01d", vec![keys("x"), C(Command::Detach)]),
            ("ctrl-a,d", "\x01t\x01r\x01?", vec![C(Command::Take), C(Command::Redraw), C(Command::Help)]),
            ("ctrl-a,d", "a\x01ab\x01\x01c", vec![keys("a\x01b\x01c")]),
            ("ctrl-a,d", "\x01x\x01\x1b[A", vec![keys("\x01x\x01\x1b[A")]),
            ("ctrl-a,d", "\x01\x01d", vec![keys("\x01d")]),
            ("ctrl-a,d", "end\x01", vec![keys("end\x01")]),
            (
                "ctrl-a,d",
                "\x1b[200~\x01d\x01t\x1b[201~\x01d",
                vec![keys("\x1b[200~\x01d\x01t\x1b[201~"), C(Command::Detach)],
            ),
            (
                "ctrl-a,d",
                "\x1b[200~\x1b[201\x01d\x1b\x1b[201~\x01d",
                vec![keys("\x1b[200~\x1b[201\x01d\x1b\x1b[201~"), C(Command::Detach)],
            ),
            ("ctrl-a,d", "\x1b\x1b[200~\x01d", vec![keys("\x1b\x1b[200~\x01d")]),
            ("ctrl-a,d", "\x1b[200\x01d", vec![keys("\x1b[200"), C(Command::Detach)]),
            ("ctrl-p,ctrl-q", "\x10\x11", vec![C(Command::Detach)]),
            ("ctrl-p,ctrl-q", "\x10p\x01d", vec![keys("\x10\x01d")]),
            ("ctrl-]", "t\x1d", vec![keys("t"), C(Command::Detach)]),
            ("ctrl-a,t", "\x01t", vec![C(Command::Detach)]),
            ("a,b,c", "aab abx abc abt", vec![keys("aab abx "), C(Command::Detach), keys(" "), C(Command::Take)]),
            ("none", "\x01d", vec![keys("\x01d")]),
        ] {
            expect(chord, text, &expected)?;
        }
        Ok(())
    }
}
