//! Where a process's output ends, and what some more bytes make of it. No I/O.

use std::{
    collections::{BTreeMap, HashMap},
    io::{Error as IoError, ErrorKind},
};

use chrono::{DateTime, SubsecRound as _, TimeDelta, Utc};
use sandbar_api::{OutputRange, ProcessId, Stream};

use crate::store::{Chunk, Error, Result};

/// Bytes a row.
const LARGEST: usize = 64 * 1024;
/// What comes of one stream within this of the first is of one moment.
const FINENESS: TimeDelta = TimeDelta::milliseconds(100);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tail {
    pub(super) range: OutputRange,
    pub(super) last: Option<Last>,
}

impl Tail {
    /// Of a process that wrote nothing.
    pub(super) const NONE: Self = Self { range: OutputRange { start: 0, end: 0 }, last: None };
}

/// The last row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Last {
    pub(super) start: u64,
    pub(super) stream: Stream,
    pub(super) at: DateTime<Utc>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) process: ProcessId,
    pub(super) start: u64,
    pub(super) stream: Stream,
    pub(super) at: DateTime<Utc>,
    pub(super) data: Vec<u8>,
}

/// What is written in one transaction.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) rows: Vec<Row>,
    /// Rows of these that begin before these offsets go.
    pub(super) old: BTreeMap<ProcessId, u64>,
    /// How they end afterwards.
    pub(super) tails: HashMap<ProcessId, Tail>,
    /// The last row of each.
    newest: HashMap<ProcessId, usize>,
}

impl Batch {
    pub(super) fn new(tails: HashMap<ProcessId, Tail>) -> Self {
        Self { tails, ..Self::default() }
    }

    /// Where its output ends then. Bytes that are known are skipped; a gap is an error and changes nothing.
    pub(super) fn append(&mut self, process: &ProcessId, chunk: &Chunk, keep: u64) -> Result<u64> {
        let mut tail = self.tails.get(process).copied().unwrap_or(Tail::NONE);
        let end = tail.range.end;
        let Some(known) = end.checked_sub(chunk.offset) else {
            let gap = format!("output at {} would leave a gap after {end}", chunk.offset);
            return Err(Error::Output(IoError::new(ErrorKind::InvalidInput, gap)));
        };
        let new = usize::try_from(known).ok().and_then(|known| chunk.data.get(known..)).unwrap_or_default();
        let at = chunk.at.trunc_subsecs(6);
        let same = |last: &Last| last.stream == chunk.stream && (at - last.at).abs() < FINENESS;
        let at = tail.last.filter(same).map_or(at, |last| last.at);
        let mut rest = new;
        while !rest.is_empty() {
            let row = self.row_with_room(process, tail.range.end, chunk.stream, at);
            let (now, later) = rest.split_at(rest.len().min(LARGEST - row.data.len()));
            row.data.extend_from_slice(now);
            tail.last = Some(Last { start: row.start, stream: chunk.stream, at });
            tail.range.end += now.len() as u64;
            rest = later;
        }
        // The last row stays, however little is to be kept.
        let below = tail.last.map_or(0, |last| last.start.min(tail.range.end.saturating_sub(keep)));
        if tail.range.start < below {
            self.old.insert(process.clone(), below);
        }
        self.tails.insert(process.clone(), tail);
        Ok(tail.range.end)
    }

    fn row_with_room(&mut self, process: &ProcessId, start: u64, stream: Stream, at: DateTime<Utc>) -> &mut Row {
        let fits = |row: &Row| row.stream == stream && row.at == at && row.data.len() < LARGEST;
        let known = self.newest.get(process).copied();
        let index = match known.filter(|index| self.rows.get(*index).is_some_and(fits)) {
            Some(index) => index,
            None => {
                self.rows.push(Row { process: process.clone(), start, stream, at, data: Vec::new() });
                self.newest.insert(process.clone(), self.rows.len() - 1);
                self.rows.len() - 1
            }
        };
        &mut self.rows[index]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::suite::{Outcome, chunk, now, stdout};

    #[test]
    fn rows_are_of_one_stream_and_moment_and_not_too_large() -> Outcome {
        let (process, at) = (ProcessId::from_parts(1, [1; 10]), now());
        let mut batch = Batch::default();
        let late = at + TimeDelta::milliseconds(99);
        batch.append(&process, &Chunk { at, ..stdout(0, "ab") }, 1 << 20)?;
        batch.append(&process, &Chunk { at: late, ..stdout(1, "bc") }, 1 << 20)?;
        batch.append(&process, &Chunk { at: late, ..chunk(3, Stream::Stderr, "d") }, 1 << 20)?;
        batch.append(&process, &Chunk { at: late, ..stdout(4, vec![b'e'; LARGEST + 1]) }, 1 << 20)?;
        assert!(batch.append(&process, &stdout(99_999, "f"), 1).is_err());
        let rows: Vec<_> = batch.rows.iter().map(|row| (row.start, row.stream, row.data.len(), row.at)).collect();
        let (out, err, large) = (Stream::Stdout, Stream::Stderr, LARGEST as u64);
        assert_eq!(rows, [(0, out, 3, at), (3, err, 1, late), (4, out, LARGEST, late), (4 + large, out, 1, late)]);
        assert_eq!(batch.tails[&process].range, OutputRange { start: 0, end: 5 + large });
        assert!(batch.old.is_empty());
        Ok(())
    }

    #[test]
    fn the_last_row_stays() -> Outcome {
        let process = ProcessId::from_parts(1, [1; 10]);
        let mut batch = Batch::default();
        batch.append(&process, &stdout(0, vec![1; 100]), 10)?;
        assert!(batch.old.is_empty());
        batch.append(&process, &chunk(100, Stream::Stderr, vec![1; 100]), 10)?;
        assert_eq!(batch.old[&process], 100);
        Ok(())
    }
}
