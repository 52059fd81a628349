//! A segment's index: from which offset on bytes are of which stream, and when they came.

use std::{fs::File, io, os::unix::fs::FileExt as _};

use chrono::{DateTime, TimeDelta, Utc};
use sandbar_api::Stream;

/// Offset, microseconds since 1970, stream.
pub(super) const RECORD: usize = 8 + 8 + 1;
/// Records read at a time: about a page.
const BLOCK: u64 = 240;
/// A record at most this often while the stream stays the same, so that a chatty process does not bloat the index.
const FINENESS: TimeDelta = TimeDelta::milliseconds(100);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) offset: u64,
    pub(super) at: DateTime<Utc>,
    pub(super) stream: Stream,
}

impl Record {
    /// Whether bytes of `stream` that come at `at` may go without a record of their own.
    pub(super) fn covers(&self, stream: Stream, at: DateTime<Utc>) -> bool {
        self.stream == stream && (at - self.at).abs() < FINENESS
    }

    fn encode(&self) -> [u8; RECORD] {
        let mut bytes = [0; RECORD];
        bytes[..8].copy_from_slice(&self.offset.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.at.timestamp_micros().to_le_bytes());
        bytes[16] = match self.stream {
            Stream::Stdout => 1,
            Stream::Stderr => 2,
        };
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (offset, rest) = bytes.split_first_chunk()?;
        let (micros, rest) = rest.split_first_chunk()?;
        let stream = match rest {
            [1] => Stream::Stdout,
            [2] => Stream::Stderr,
            _ => return None,
        };
        let at = DateTime::from_timestamp_micros(i64::from_le_bytes(*micros))?;
        Some(Self { offset: u64::from_le_bytes(*offset), at, stream })
    }
}

pub(super) struct Index {
    file: File,
    records: u64,
    last: Option<Record>,
}

impl Index {
    pub(super) fn create(file: File) -> Self {
        Self { file, records: 0, last: None }
    }

    /// Trims what a crash left: half a record, and records of bytes that were never written.
    pub(super) fn open(file: File, start: u64, end: u64) -> io::Result<Self> {
        let meta = file.metadata()?;
        let mut index = Self { file, records: meta.len() / RECORD as u64, last: None };
        while index.records > 0 {
            index.last = index.record(index.records - 1).ok().filter(|last| last.offset < end);
            if index.last.is_some() {
                break;
            }
            index.records -= 1;
        }
        if end > start && (index.records == 0 || index.record(0).ok().is_none_or(|first| first.offset != start)) {
            // Only the death of the host loses it. The bytes are worth more than the name of their stream.
            tracing::warn!(offset = start, "the index of a segment of output was lost; calling all of it stdout");
            index.records = 0;
            index.push(Record { offset: start, at: meta.modified()?.into(), stream: Stream::Stdout })?;
        }
        if meta.len() != index.length() {
            index.file.set_len(index.length())?;
        }
        Ok(index)
    }

    pub(super) fn last(&self) -> Option<Record> {
        self.last
    }

    pub(super) fn push(&mut self, record: Record) -> io::Result<()> {
        self.file.write_all_at(&record.encode(), self.length())?;
        self.records += 1;
        self.last = Some(record);
        Ok(())
    }

    fn length(&self) -> u64 {
        self.records * RECORD as u64
    }

    /// The record of the byte at `from`, and how far bytes of its stream go on from there (`end` at most).
    pub(super) fn run(&self, from: u64, end: u64) -> io::Result<(Record, u64)> {
        if let Some(last) = self.last.filter(|last| last.offset <= from) {
            return Ok((last, end));
        }
        let at = self.find(from)?;
        let block = self.block(at, BLOCK)?;
        let (first, later) = block.split_first().ok_or_else(|| damaged("an index is empty"))?;
        let change = later.iter().find(|record| record.stream != first.stream);
        // Without a change in this block the run goes on after it; the caller comes back for the rest.
        let cut = change.or(if at + BLOCK < self.records { later.last() } else { None });
        Ok((*first, cut.map_or(end, |record| record.offset.min(end))))
    }

    /// The record of the byte at `from`, and where the next record begins (`end` at most).
    pub(super) fn moment(&self, from: u64, end: u64) -> io::Result<(Record, u64)> {
        if let Some(last) = self.last.filter(|last| last.offset <= from) {
            return Ok((last, end));
        }
        let block = self.block(self.find(from)?, 2)?;
        let first = block.first().ok_or_else(|| damaged("an index is empty"))?;
        Ok((*first, block.get(1).map_or(end, |next| next.offset.min(end))))
    }

    /// The last record at or below `from`.
    fn find(&self, from: u64) -> io::Result<u64> {
        let (mut low, mut high) = (0, self.records);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.record(middle)?.offset <= from {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low.checked_sub(1).ok_or_else(|| damaged("an index begins too late"))
    }

    fn record(&self, at: u64) -> io::Result<Record> {
        self.block(at, 1)?.pop().ok_or_else(|| damaged("an index is short"))
    }

    fn block(&self, at: u64, count: u64) -> io::Result<Vec<Record>> {
        let count = count.min(self.records - at);
        let mut bytes = vec![0; count as usize * RECORD];
        self.file.read_exact_at(&mut bytes, at * RECORD as u64)?;
        let records = bytes.chunks_exact(RECORD).map(Record::decode);
        records.map(|record| record.ok_or_else(|| damaged("an index holds what is no record"))).collect()
    }
}

fn damaged(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}
