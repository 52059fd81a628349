//! The output of one process that nobody has acknowledged yet: numbered bytes, bounded, never dropped. Pure.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

use crate::protocol::Stream;

/// What a process may have unacknowledged before it is paused.
const CAPACITY: usize = 1024 * 1024;
/// Counted against the capacity for each chunk, so that one-byte writes to alternating streams stay bounded too.
const CHUNK_COST: usize = 64;
/// Consecutive writes to one stream share a chunk up to this size.
const MERGE: usize = 4096;
/// Chunks read within this time are handed out as one: a follower that lags catches up in large steps. Finer times are not
/// kept anywhere.
const TOGETHER_MS: i64 = 50;

pub(crate) struct Ring {
    start: u64,
    end: u64,
    cost: usize,
    chunks: VecDeque<Piece>,
}

/// A run of bytes of one stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) offset: u64,
    pub(crate) stream: Stream,
    /// When its first byte was read.
    pub(crate) at_ms: i64,
    pub(crate) data: Bytes,
}

impl Piece {
    fn end(&self) -> u64 {
        self.offset + self.data.len() as u64
    }
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Outside {
    #[error("The output starts at offset {start}; what was before it has been acknowledged.")]
    Dropped { start: u64 },
    #[error("The output ends at offset {end}.")]
    Beyond { end: u64 },
}

impl Ring {
    pub(crate) fn new() -> Self {
        Self { start: 0, end: 0, cost: 0, chunks: VecDeque::new() }
    }

    pub(crate) fn start(&self) -> u64 {
        self.start
    }

    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// How many bytes may be pushed now.
    pub(crate) fn room(&self) -> usize {
        CAPACITY.saturating_sub(self.cost + CHUNK_COST)
    }

    pub(crate) fn push(&mut self, stream: Stream, at_ms: i64, data: Bytes) {
        if data.is_empty() {
            return;
        }
        self.cost += data.len();
        let offset = self.end;
        self.end += data.len() as u64;
        if let Some(last) = self.chunks.back_mut()
            && last.stream == stream
            && last.data.len() + data.len() <= MERGE
        {
            let mut merged = BytesMut::with_capacity(last.data.len() + data.len());
            merged.extend_from_slice(&last.data);
            merged.extend_from_slice(&data);
            last.data = merged.freeze();
            return;
        }
        self.cost += CHUNK_COST;
        self.chunks.push_back(Piece { offset, stream, at_ms, data });
    }

    /// The bytes at `offset`, at most `limit` of them; `None` at the end.
    pub(crate) fn read(&self, offset: u64, limit: usize) -> Result<Option<Piece>, Outside> {
        if offset < self.start {
            return Err(Outside::Dropped { start: self.start });
        }
        if offset > self.end {
            return Err(Outside::Beyond { end: self.end });
        }
        let index = self.chunks.partition_point(|chunk| chunk.end() <= offset);
        let Some(chunk) = self.chunks.get(index) else { return Ok(None) };
        // A chunk is at most as long as one read, so its length fits.
        let skip = usize::try_from(offset - chunk.offset).unwrap_or(chunk.data.len());
        let data = chunk.data.slice(skip..chunk.data.len().min(skip.saturating_add(limit)));
        let mut room = limit - data.len();
        let more = self.chunks.range(index + 1..).take_while(|next| {
            let fits = next.stream == chunk.stream
                && (0..=TOGETHER_MS).contains(&(next.at_ms - chunk.at_ms))
                && next.data.len() <= room;
            room -= if fits { next.data.len() } else { 0 };
            fits
        });
        let mut all = BytesMut::new();
        for next in more {
            if all.is_empty() {
                all.reserve(limit.min(self.end.saturating_sub(offset).try_into().unwrap_or(limit)));
                all.extend_from_slice(&data);
            }
            all.extend_from_slice(&next.data);
        }
        let data = if all.is_empty() { data } else { all.freeze() };
        Ok(Some(Piece { offset, data, ..chunk.clone() }))
    }

    /// Drops everything below `offset`; what was dropped before is fine.
    pub(crate) fn acknowledge(&mut self, offset: u64) -> Result<(), Outside> {
        if offset > self.end {
            return Err(Outside::Beyond { end: self.end });
        }
        while let Some(chunk) = self.chunks.front_mut()
            && chunk.offset < offset
        {
            if chunk.end() > offset {
                let part = usize::try_from(offset - chunk.offset).unwrap_or(chunk.data.len());
                chunk.data = chunk.data.slice(part..);
                chunk.offset = offset;
                self.cost -= part;
                break;
            }
            self.cost -= chunk.data.len() + CHUNK_COST;
            self.chunks.pop_front();
        }
        if self.chunks.is_empty() {
            self.chunks = VecDeque::new();
        }
        self.start = self.start.max(offset);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(ring: &Ring, mut from: u64, limit: usize) -> Result<Vec<(u64, Stream, String)>, Outside> {
        let mut pieces = Vec::new();
        while let Some(piece) = ring.read(from, limit)? {
            from = piece.end();
            pieces.push((piece.offset, piece.stream, String::from_utf8_lossy(&piece.data).into_owned()));
        }
        Ok(pieces)
    }

    #[test]
    fn small_writes_to_one_stream_become_one_chunk() {
        let mut ring = Ring::new();
        for letter in ["a", "b", "c"] {
            ring.push(Stream::Stdout, 1, Bytes::from_static(letter.as_bytes()));
        }
        ring.push(Stream::Stderr, 2, Bytes::from_static(b"E"));
        ring.push(Stream::Stdout, 3, Bytes::from_static(b"d"));
        assert_eq!(
            text(&ring, 0, 64),
            Ok(vec![
                (0, Stream::Stdout, "abc".into()),
                (3, Stream::Stderr, "E".into()),
                (4, Stream::Stdout, "d".into())
            ])
        );
        assert_eq!(text(&ring, 1, 1).map(|pieces| pieces.len()), Ok(4));
    }

    #[test]
    fn a_follower_that_lags_is_given_much_at_once() {
        let mut ring = Ring::new();
        let line = |letter: u8| Bytes::from(vec![letter; MERGE]);
        for (at, letter) in [(0, b'a'), (10, b'b'), (TOGETHER_MS + 1, b'c'), (TOGETHER_MS + 2, b'd')] {
            ring.push(Stream::Stdout, at, line(letter));
        }
        ring.push(Stream::Stderr, TOGETHER_MS + 2, line(b'e'));
        let lengths = |limit| text(&ring, 0, limit).map(|pieces| pieces.iter().map(|piece| piece.2.len()).collect());
        assert_eq!(lengths(1 << 20), Ok(vec![2 * MERGE, 2 * MERGE, MERGE]));
        assert_eq!(lengths(MERGE + 1), Ok(vec![MERGE; 5]), "what does not fit whole waits");
        let whole = |limit| text(&ring, 0, limit).map(|all| all.into_iter().map(|piece| piece.2).collect::<String>());
        for limit in [1, 1000, MERGE, 3 * MERGE, 1 << 20] {
            assert_eq!(whole(limit), Ok("abcde".chars().map(|letter| letter.to_string().repeat(MERGE)).collect()));
        }
    }

    #[test]
    fn acknowledged_bytes_go_and_the_rest_keeps_its_numbers() {
        let mut ring = Ring::new();
        ring.push(Stream::Stdout, 1, Bytes::from_static(b"hello"));
        ring.push(Stream::Stderr, 1, Bytes::from_static(b"world"));
        assert_eq!(ring.acknowledge(7), Ok(()));
        assert_eq!(text(&ring, 7, 64), Ok(vec![(7, Stream::Stderr, "rld".into())]));
        assert_eq!(ring.read(6, 1), Err(Outside::Dropped { start: 7 }));
        assert_eq!(ring.read(11, 1), Err(Outside::Beyond { end: 10 }));
        assert_eq!(ring.acknowledge(3), Ok(()));
        assert_eq!(ring.start(), 7);
        assert_eq!(ring.acknowledge(11), Err(Outside::Beyond { end: 10 }));
        assert_eq!(ring.acknowledge(10), Ok(()));
        assert_eq!((ring.read(10, 1), ring.cost), (Ok(None), 0));
    }

    #[test]
    fn one_byte_writes_to_alternating_streams_fill_it() {
        let mut ring = Ring::new();
        let mut pushed = 0_usize;
        while ring.room() > 0 {
            let stream = if pushed.is_multiple_of(2) { Stream::Stdout } else { Stream::Stderr };
            ring.push(stream, 0, Bytes::from_static(b"x"));
            pushed += 1;
        }
        assert!(ring.chunks.len() <= CAPACITY / CHUNK_COST);
        assert_eq!(ring.acknowledge(ring.end()), Ok(()));
        assert_eq!(ring.room(), CAPACITY - CHUNK_COST);
    }
}
