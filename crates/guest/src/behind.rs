//! Keys that were promised and are not all typed yet: because the terminal took only a part, or because a program that reads
//! single keys must see each of them alone. One that gets an arrow and Enter in one piece may take the whole for another key.

use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout_at};

use crate::{answers::Keys, process::Process};

/// Between two keys at least.
const GAP: Duration = Duration::from_millis(30);
/// A program that was pressed a key shows something; one that does not by then shows nothing.
const PATIENCE: Duration = Duration::from_millis(250);

/// They go before all else: a key that is typed by halves is another key.
#[derive(Default)]
pub(crate) struct Behind {
    keys: Keys,
    counts: bool,
    pace: Option<Pace>,
}

struct Pace {
    /// Of the key that is being typed.
    left: usize,
    last: Instant,
    /// Where the output ended when the last key was typed.
    output: u64,
}

impl Behind {
    /// The rest of what was typed in one piece.
    pub(crate) fn rest(keys: Keys, counts: bool) -> Self {
        Self { keys, counts, pace: None }
    }

    /// What follows a key that was just typed, one by one.
    pub(crate) fn paced(keys: Keys, left: usize, output: u64) -> Self {
        Self { keys, counts: true, pace: Some(Pace { left, last: Instant::now(), output }) }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    pub(crate) fn counts(&self) -> bool {
        self.counts
    }

    pub(crate) fn is_paced(&self) -> bool {
        self.pace.is_some()
    }

    /// What may be written when it is due.
    pub(crate) fn next(&self) -> &[u8] {
        match &self.pace {
            Some(Pace { left: 0, .. }) => &self.keys[..key(&self.keys)],
            Some(pace) => &self.keys[..pace.left],
            None => &self.keys,
        }
    }

    /// Returns when the next may be written. May be given up and asked again.
    pub(crate) async fn due(&self, process: &Process) {
        let Some(pace) = self.pace.as_ref().filter(|pace| pace.left == 0) else { return };
        sleep_until(pace.last + GAP).await;
        let mut changes = process.changes();
        let shown = async {
            // The sender lives in `process`.
            while process.state().ring.end() == pace.output && changes.changed().await.is_ok() {}
        };
        // A program that shows nothing gets its keys all the same.
        let _shown = timeout_at(pace.last + PATIENCE, shown).await;
    }

    pub(crate) fn took(&mut self, length: usize, output: u64) {
        if let Some(pace) = &mut self.pace {
            let whole = if pace.left == 0 { key(&self.keys) } else { pace.left };
            *pace = Pace { left: whole.saturating_sub(length), last: Instant::now(), output };
        }
        let length = length.min(self.keys.len());
        drop(self.keys.drain(..length));
    }
}

/// How many of these bytes are the first key: a sequence, a control letter, or all letters up to the next of those.
pub(crate) fn key(keys: &[u8]) -> usize {
    let is_control = |byte: &u8| *byte < 0x20 || *byte == 0x7f;
    let sequence = |skip: usize, last: fn(u8) -> bool| {
        keys.iter().skip(skip).position(|byte| last(*byte)).map_or(keys.len(), |found| skip + found + 1)
    };
    match keys {
        [0x1b, b'[', ..] => sequence(2, |byte| (0x40..=0x7e).contains(&byte)),
        [0x1b, b'O', ..] => keys.len().min(3),
        [0x1b, ..] => keys.len().min(2),
        [first, ..] if is_control(first) => 1,
        _ => keys.iter().position(is_control).unwrap_or(keys.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_told_apart() {
        for (keys, first) in [
            (&b"\x1b[B\x1b[B\r"[..], 3),
            (b"\x1bOB\r", 3),
            (b"\x1b[1;5C\r", 6),
            (b"\x1bb\r", 2),
            (b"\r\r", 1),
            ("grüße\r".as_bytes(), 7),
            (b"2", 1),
            (b"\x1b[", 2),
            (b"\x1b", 1),
            (b"", 0),
        ] {
            assert_eq!(key(keys), first, "{keys:?}");
        }
    }

    #[test]
    fn a_key_that_was_taken_in_part_is_finished_first() {
        let mut behind = Behind::paced(b"\x1b[B\x1b[B\r".to_vec().into(), 0, 0);
        assert_eq!(behind.next(), b"\x1b[B");
        behind.took(1, 0);
        assert_eq!(behind.next(), b"[B");
        behind.took(2, 0);
        assert_eq!(behind.next(), b"\x1b[B");
        behind.took(3, 0);
        assert_eq!(behind.next(), b"\r");
        behind.took(1, 0);
        assert!(behind.is_empty());
    }
}
