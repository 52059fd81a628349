//! Server-sent events as their bytes come: cut after each event and nowhere else, so that an event can be read, changed or
//! taken out while all others pass as they are.

use bytes::{Bytes, BytesMut};

/// A larger event passes in pieces that are not read, and what it says of usage is not known: only the last event of a
/// Responses stream, which repeats the whole answer, comes near.
const LARGEST: usize = 1 << 20;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Piece {
    /// A whole event with the empty line that ends it.
    Event(Bytes),
    /// Part of an event that is too large, or that never ended.
    Part(Bytes),
}

impl Piece {
    pub(super) fn into_bytes(self) -> Bytes {
        match self {
            Self::Event(bytes) | Self::Part(bytes) => bytes,
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Splitter {
    kept: BytesMut,
    /// Up to where `kept` was looked at.
    seen: usize,
    /// The line under way has bytes other than its end.
    filled: bool,
    /// The last byte was a CR, whose LF may follow.
    cr: bool,
    /// The event under way is passed in pieces.
    oversized: bool,
    largest: Option<usize>,
}

impl Splitter {
    /// With another bound than the usual one.
    #[cfg(test)]
    pub(super) fn bounded(largest: usize) -> Self {
        Self { largest: Some(largest), ..Self::default() }
    }

    /// What is complete with this chunk, in order.
    pub(super) fn push(&mut self, chunk: &[u8]) -> Vec<Piece> {
        self.kept.extend_from_slice(chunk);
        let mut pieces = Vec::new();
        while let Some(byte) = self.kept.get(self.seen) {
            self.seen += 1;
            match byte {
                // the LF of a CRLF whose CR has ended the line, and perhaps the event, already
                b'\n' if self.cr => {
                    self.cr = false;
                    if self.seen == 1 {
                        // belongs to what has passed, whatever becomes of the next event
                        self.seen = 0;
                        pieces.push(Piece::Part(self.kept.split_to(1).freeze()));
                    }
                }
                b'\n' | b'\r' => {
                    self.cr = *byte == b'\r';
                    if !std::mem::take(&mut self.filled) {
                        // the LF goes with its CR as long as it is there
                        if self.cr && self.kept.get(self.seen) == Some(&b'\n') {
                            self.seen += 1;
                            self.cr = false;
                        }
                        pieces.push(self.cut());
                    }
                }
                _ => (self.cr, self.filled) = (false, true),
            }
        }
        if self.kept.len() > self.largest.unwrap_or(LARGEST) {
            self.oversized = true;
        }
        if self.oversized && !self.kept.is_empty() {
            self.seen = 0;
            pieces.push(Piece::Part(self.kept.split().freeze()));
        }
        pieces
    }

    /// What is left when the stream is over.
    pub(super) fn finish(&mut self) -> Option<Piece> {
        self.seen = 0;
        let rest = self.kept.split().freeze();
        (!rest.is_empty()).then_some(Piece::Part(rest))
    }

    fn cut(&mut self) -> Piece {
        let bytes = self.kept.split_to(self.seen).freeze();
        self.seen = 0;
        if std::mem::take(&mut self.oversized) { Piece::Part(bytes) } else { Piece::Event(bytes) }
    }
}

/// An event's data: one line as it stands, several joined; nothing if it has none.
pub(super) fn data(event: &[u8]) -> Option<std::borrow::Cow<'_, [u8]>> {
    let mut lines = data_lines(event);
    let first = lines.next()?;
    let mut joined: Option<Vec<u8>> = None;
    for line in lines {
        let joined = joined.get_or_insert_with(|| first.to_vec());
        joined.push(b'\n');
        joined.extend_from_slice(line);
    }
    Some(joined.map_or(first.into(), Into::into))
}

/// The event with other data; nothing if its data are not one line.
pub(super) fn with_data(event: &[u8], data: &[u8]) -> Option<Vec<u8>> {
    let mut lines = data_lines(event);
    let (line, None) = (lines.next()?, lines.next()) else { return None };
    let start = line.as_ptr().addr().checked_sub(event.as_ptr().addr())?;
    Some([event.get(..start)?, data, event.get(start + line.len()..)?].concat())
}

fn data_lines(event: &[u8]) -> impl Iterator<Item = &[u8]> {
    let event = event.strip_prefix(b"\xef\xbb\xbf").unwrap_or(event);
    event.split(|byte| matches!(byte, b'\n' | b'\r')).filter_map(|line| {
        let value = line.strip_prefix(b"data:")?;
        Some(value.strip_prefix(b" ").unwrap_or(value))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(text: &[u8], size: usize) -> Vec<Piece> {
        let mut splitter = Splitter::default();
        let mut pieces: Vec<Piece> = text.chunks(size).flat_map(|chunk| splitter.push(chunk)).collect();
        pieces.extend(splitter.finish());
        pieces
    }

    #[test]
    fn events_end_at_an_empty_line_of_any_kind() {
        for text in ["data: 1\n\ndata: 2\n\n", "data: 1\r\n\r\ndata: 2\r\n\r\n", "data: 1\r\rdata: 2\r\r"] {
            let whole = split(text.as_bytes(), text.len());
            assert_eq!(whole.len(), 2, "{text:?}");
            for size in 1..text.len() {
                let seen: Vec<_> = split(text.as_bytes(), size)
                    .into_iter()
                    .filter_map(|piece| match piece {
                        Piece::Event(event) => data(&event).map(|data| data.to_vec()),
                        Piece::Part(_) => None,
                    })
                    .collect();
                assert_eq!(seen, [b"1".to_vec(), b"2".to_vec()], "{text:?} by {size}");
            }
        }
    }

    #[test]
    fn an_event_is_not_held_back_for_what_might_follow() {
        let mut splitter = Splitter::default();
        assert!(splitter.push(b"data: 1\r\n").is_empty());
        assert_eq!(splitter.push(b"\r").len(), 1);
        assert_eq!(splitter.push(b"\ndata: 2\n"), [Piece::Part(Bytes::from_static(b"\n"))]);
        assert_eq!(splitter.push(b"\n").len(), 1);
    }

    #[test]
    fn data_are_read_as_clients_read_them() {
        assert_eq!(data(b"\xef\xbb\xbfdata:x\n\n").as_deref(), Some(&b"x"[..]));
        assert_eq!(data(b"event: a\r\ndata: 1\r\ndata:  2\r\n\r\n").as_deref(), Some(&b"1\n 2"[..]));
        assert_eq!(data(b": comment\n\n"), None);
        assert_eq!(with_data(b"id: 1\ndata: {}\r\n\r\n", b"[]").as_deref(), Some(&b"id: 1\ndata: []\r\n\r\n"[..]));
        assert_eq!(with_data(b"data: 1\ndata: 2\n\n", b""), None);
    }

    #[test]
    fn no_more_than_a_mebibyte_of_an_event_is_kept() {
        let mut splitter = Splitter::default();
        for _ in 0..64 {
            splitter.push(&[b'x'; 32 << 10]);
            assert!(splitter.kept.len() <= 1 << 20);
        }
        assert!(splitter.oversized);
    }

    #[test]
    fn an_event_that_is_too_large_passes_in_bounded_memory() {
        let mut splitter = Splitter::bounded(100);
        let mut passed = Vec::new();
        let text = [b"data: ".to_vec(), vec![b'x'; 1000], b"\n\ndata: y\n\n".to_vec()].concat();
        for chunk in text.chunks(40) {
            let pieces = splitter.push(chunk);
            assert!(splitter.kept.len() <= 140);
            passed.extend(pieces);
        }
        assert_eq!(passed.last(), Some(&Piece::Event(Bytes::from_static(b"data: y\n\n"))));
        assert!(passed[..passed.len() - 1].iter().all(|piece| matches!(piece, Piece::Part(_))));
        let bytes: Vec<u8> = passed.into_iter().flat_map(Piece::into_bytes).collect();
        assert_eq!(bytes, text);
    }
}
