//! What was typed and is not known to have been taken: kept until it is, so that a new connection can send it again.

use std::collections::VecDeque;

use bytes::{BufMut as _, Bytes, BytesMut};
use sandbar_api::ATTACH_HEADER;

/// With so much underway, typing waits.
pub(super) const ROOM: usize = 1 << 20;
/// A frame is no larger, so that other frames get in between.
const PIECE: usize = 64 << 10;

#[derive(Debug, Default)]
pub(super) struct Pending {
    /// The number of the first byte, among all that this writer types.
    base: u64,
    bytes: VecDeque<u8>,
    /// How many of them this connection was given.
    sent: usize,
    /// How many of them any connection was given: only these may have been typed.
    offered: usize,
    /// Whether the other end's count is known; nothing is sent before.
    sure: bool,
}

impl Pending {
    /// Takes what there is room for from the front of `data`.
    pub(super) fn push(&mut self, data: &mut Bytes) {
        let room = ROOM.saturating_sub(self.bytes.len());
        self.bytes.extend(data.split_to(data.len().min(room)));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The next frame to send.
    pub(super) fn frame(&mut self) -> Option<Bytes> {
        let length = (self.bytes.len() - self.sent).min(PIECE);
        if length == 0 || !self.sure {
            return None;
        }
        let mut frame = BytesMut::with_capacity(ATTACH_HEADER + length);
        frame.put_u64(self.base + self.sent as u64);
        frame.extend(self.bytes.range(self.sent..self.sent + length).copied());
        self.sent += length;
        self.offered = self.offered.max(self.sent);
        Some(frame.freeze())
    }

    /// So many bytes of this writer were taken. What cannot be told from bytes that were typed is given up, so that
    /// nothing is typed twice; returns how much that was.
    pub(super) fn taken(&mut self, input: u64) -> u64 {
        if self.may_be(input) {
            let count = (input - self.base) as usize;
            self.bytes.drain(..count);
            (self.sent, self.offered) = (self.sent.saturating_sub(count), self.offered - count);
            (self.base, self.sure) = (input, true);
            return 0;
        }
        // Told late.
        if self.sure && input < self.base {
            return 0;
        }
        let lost = self.offered;
        self.bytes.drain(..lost);
        (self.sent, self.offered, self.base, self.sure) = (0, 0, input, true);
        lost as u64
    }

    fn may_be(&self, input: u64) -> bool {
        (self.base..=self.base + self.offered as u64).contains(&input)
    }

    /// A new connection in control, whose other end says that it took `input` bytes. Returns whether that can be: where
    /// the count was forgotten, or could not be had in time, it must be asked for again.
    pub(super) fn resume(&mut self, input: u64) -> bool {
        self.sent = 0;
        self.sure = false;
        let known = self.may_be(input);
        if known {
            self.taken(input);
        }
        known
    }

    /// Somebody else controls the terminal: what was not taken will not be, and how much that is will be told when this
    /// viewer takes control again.
    pub(super) fn give_up(&mut self) -> u64 {
        let lost = self.bytes.len() as u64;
        self.bytes.clear();
        (self.sent, self.offered, self.sure) = (0, 0, false);
        lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typed(pending: &mut Pending, text: &'static str) {
        pending.push(&mut Bytes::from_static(text.as_bytes()));
    }

    fn sent(pending: &mut Pending) -> Option<(u64, Vec<u8>)> {
        let frame = pending.frame()?;
        let (offset, data) = frame.split_first_chunk::<ATTACH_HEADER>()?;
        Some((u64::from_be_bytes(*offset), data.to_vec()))
    }

    fn begun() -> Pending {
        let mut pending = Pending::default();
        assert!(pending.resume(0));
        pending
    }

    #[test]
    fn what_was_not_taken_is_sent_again_from_there() {
        let mut pending = begun();
        typed(&mut pending, "abc");
        assert_eq!(sent(&mut pending), Some((0, b"abc".to_vec())));
        assert_eq!(sent(&mut pending), None);
        typed(&mut pending, "def");
        assert_eq!(sent(&mut pending), Some((3, b"def".to_vec())));
        assert_eq!(pending.taken(2), 0);
        assert_eq!(sent(&mut pending), None, "it is underway");
        assert!(pending.resume(4));
        assert_eq!(sent(&mut pending), Some((4, b"ef".to_vec())));
        assert_eq!((pending.taken(6), pending.taken(5)), (0, 0));
        assert!(pending.is_empty());
        typed(&mut pending, "g");
        assert_eq!(sent(&mut pending), Some((6, b"g".to_vec())));
    }

    #[test]
    fn a_count_that_cannot_be_is_asked_for_again_and_nothing_is_typed_twice() {
        for (told, lost, next) in [(4, 0, (4, b"efx".to_vec())), (0, 3, (0, b"x".to_vec())), (9, 3, (9, b"x".to_vec()))]
        {
            let mut pending = begun();
            typed(&mut pending, "abcdef");
            let _ = pending.frame();
            pending.taken(3);
            assert!(!pending.resume(0));
            assert_eq!(sent(&mut pending), None, "nothing is sent on a guess");
            assert_eq!(pending.taken(told), lost, "{told}");
            typed(&mut pending, "x");
            assert_eq!(sent(&mut pending), Some(next));
        }
    }

    #[test]
    fn after_control_was_lost_numbers_go_on_where_the_server_is() {
        let mut pending = begun();
        typed(&mut pending, "abcd");
        let _ = pending.frame();
        pending.taken(1);
        assert_eq!(pending.give_up(), 3);
        typed(&mut pending, "xy");
        assert_eq!(sent(&mut pending), None);
        // Told when control is taken again; what had been handed on before was typed.
        assert_eq!(pending.taken(2), 0);
        assert_eq!(sent(&mut pending), Some((2, b"xy".to_vec())));
    }

    #[test]
    fn room_is_bounded_and_frames_are_small() {
        let mut pending = begun();
        let mut paste = Bytes::from(vec![7; ROOM + 10]);
        pending.push(&mut paste);
        assert_eq!(paste.len(), 10);
        let mut total = 0;
        while let Some((offset, data)) = sent(&mut pending) {
            assert_eq!(offset, total);
            assert!(data.len() <= PIECE);
            total += data.len() as u64;
        }
        assert_eq!(total, ROOM as u64);
        pending.push(&mut paste);
        assert_eq!(paste.len(), 10, "it is full until something was taken");
        pending.taken(4);
        pending.push(&mut paste);
        assert_eq!(paste.len(), 6);
    }
}
