//! A segment: some of a process's output in arrival order, and beside it the index of streams and times.
//!
//! The index is written first. So every byte of data has a record, and after a crash a record too many is seen by its
//! offset; bytes too few are sent again by the guest.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::{FileExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use bytes::Bytes;
use chrono::{DateTime, Utc};
use sandbar_api::Stream;

use super::index::{Index, Record};
use crate::store::Chunk;

pub(super) struct Segment {
    start: u64,
    length: u64,
    data: File,
    index: Index,
}

impl Segment {
    pub(super) fn create(directory: &Path, start: u64) -> io::Result<Self> {
        let file = |path| OpenOptions::new().read(true).write(true).create(true).truncate(true).mode(0o600).open(path);
        let index = Index::create(file(index_path(directory, start))?);
        Ok(Self { start, length: 0, data: file(data_path(directory, start))?, index })
    }

    pub(super) fn open(directory: &Path, start: u64) -> io::Result<Self> {
        let data = OpenOptions::new().read(true).write(true).open(data_path(directory, start))?;
        let length = data.metadata()?.len();
        let index = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(index_path(directory, start))?;
        let index = Index::open(index, start, start + length)?;
        Ok(Self { start, length, data, index })
    }

    /// Data first: an index alone is recognised as a rest, data alone could not be read.
    pub(super) fn remove(directory: &Path, start: u64) -> io::Result<()> {
        for path in [data_path(directory, start), index_path(directory, start)] {
            match std::fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    pub(super) fn start(&self) -> u64 {
        self.start
    }

    pub(super) fn length(&self) -> u64 {
        self.length
    }

    pub(super) fn end(&self) -> u64 {
        self.start + self.length
    }

    /// All of it or nothing. After an error open it again: the index may have a record too many.
    pub(super) fn append(&mut self, stream: Stream, at: DateTime<Utc>, bytes: &[u8]) -> io::Result<()> {
        let written = self.write(stream, at, bytes);
        if written.is_err()
            && let Err(error) = self.data.set_len(self.length)
        {
            // What then lies there is a true beginning of these bytes, and opening again finds where it ends.
            tracing::warn!(%error, "failed to take back output that was written in part");
        }
        written
    }

    fn write(&mut self, stream: Stream, at: DateTime<Utc>, bytes: &[u8]) -> io::Result<()> {
        if !self.index.last().is_some_and(|last| last.covers(stream, at)) {
            self.index.push(Record { offset: self.end(), at, stream })?;
        }
        self.data.write_all_at(bytes, self.length)?;
        self.length += bytes.len() as u64;
        Ok(())
    }

    /// Bytes of one stream from `from`, which is inside.
    pub(super) fn read(&self, from: u64, limit: usize) -> io::Result<Chunk> {
        self.read_run(from, limit, self.index.run(from, self.end())?)
    }

    /// Like `read`, and only up to the next record of the index.
    pub(super) fn read_moment(&self, from: u64, limit: usize) -> io::Result<Chunk> {
        self.read_run(from, limit, self.index.moment(from, self.end())?)
    }

    fn read_run(&self, from: u64, limit: usize, (record, end): (Record, u64)) -> io::Result<Chunk> {
        let length = usize::try_from(end.saturating_sub(from)).unwrap_or(usize::MAX).min(limit);
        let mut data = vec![0; length];
        self.data.read_exact_at(&mut data, from - self.start)?;
        Ok(Chunk { offset: from, stream: record.stream, at: record.at, data: Bytes::from(data) })
    }
}

// Twenty digits hold every offset, so that names sort as offsets do.
pub(super) fn data_path(directory: &Path, start: u64) -> PathBuf {
    directory.join(format!("{start:020}.data"))
}

pub(super) fn index_path(directory: &Path, start: u64) -> PathBuf {
    directory.join(format!("{start:020}.index"))
}
