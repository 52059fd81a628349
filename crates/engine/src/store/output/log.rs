//! A process's log: its segments in order, the last of them open for appending.

use std::{
    collections::VecDeque,
    fs, io,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
};

use sandbar_api::OutputRange;

use super::{
    segment::{Segment, data_path},
    spares::Spares,
};
use crate::store::Chunk;

const SMALLEST_SEGMENT: u64 = 64 * 1024;
const LARGEST_SEGMENT: u64 = 16 * 1024 * 1024;
/// The oldest of about this many goes when there is too much.
const SEGMENTS: u64 = 8;
/// No chunk is larger, whatever was asked for.
const LARGEST_READ: usize = 1024 * 1024;

pub(super) struct Log {
    directory: PathBuf,
    /// Where the full segments begin; each ends where the next begins.
    full: VecDeque<u64>,
    /// None before the first byte.
    tail: Option<Segment>,
}

impl Log {
    pub(super) fn open(directory: PathBuf) -> io::Result<Self> {
        let Found { mut whole, rest } = Found::in_directory(&directory)?;
        for start in rest {
            tracing::warn!(directory = %directory.display(), offset = start, "removing an unreadable rest of output");
            Segment::remove(&directory, start)?;
        }
        let tail = whole.pop_back().map(|(start, _)| Segment::open(&directory, start)).transpose()?;
        Ok(Self { full: whole.into_iter().map(|(start, _)| start).collect(), tail, directory })
    }

    pub(super) fn range_on_disk(directory: &Path) -> io::Result<OutputRange> {
        let found = Found::in_directory(directory)?.whole;
        let start = found.front().map_or(0, |(start, _)| *start);
        Ok(OutputRange { start, end: found.back().map_or(0, |(start, length)| start + length) })
    }

    pub(super) fn range(&self) -> OutputRange {
        let end = self.tail.as_ref().map_or(0, Segment::end);
        let start = self.full.front().copied().or(self.tail.as_ref().map(Segment::start));
        OutputRange { start: start.unwrap_or(0), end }
    }

    /// After an error this log no longer knows what is on disk: open it again.
    pub(super) fn append(&mut self, chunk: &Chunk, keep: u64, spares: &Spares) -> io::Result<OutputRange> {
        let end = self.range().end;
        let Some(known) = end.checked_sub(chunk.offset) else {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("output at {} would leave a gap after {end}", chunk.offset),
            ));
        };
        let mut new = usize::try_from(known).ok().and_then(|known| chunk.data.get(known..)).unwrap_or_default();
        let size = (keep / SEGMENTS).clamp(SMALLEST_SEGMENT, LARGEST_SEGMENT);
        while !new.is_empty() {
            let tail = self.tail_with_room(size, spares)?;
            let room = usize::try_from(size - tail.length()).unwrap_or(usize::MAX);
            let (now, later) = new.split_at(room.min(new.len()));
            tail.append(chunk.stream, chunk.at, now)?;
            new = later;
        }
        self.retain(keep)?;
        Ok(self.range())
    }

    fn tail_with_room(&mut self, size: u64, spares: &Spares) -> io::Result<&mut Segment> {
        let start = match &self.tail {
            Some(tail) if tail.length() < size => None,
            Some(tail) => Some(tail.end()),
            None => {
                if !spares.take(&self.directory)? {
                    create_directory(&self.directory)?;
                }
                Some(0)
            }
        };
        if let Some(start) = start {
            let next = Segment::create(&self.directory, start)?;
            self.full.extend(self.tail.replace(next).map(|full| full.start()));
        }
        self.tail.as_mut().ok_or_else(|| io::Error::other("a log has no segment to append to"))
    }

    fn retain(&mut self, keep: u64) -> io::Result<()> {
        while let Some(oldest) = self.full.front().copied()
            && self.range().end - oldest > keep
        {
            Segment::remove(&self.directory, oldest)?;
            self.full.pop_front();
        }
        Ok(())
    }

    /// From an offset within `range` and before its end.
    pub(super) fn read(&self, from: u64, limit: usize) -> io::Result<Chunk> {
        self.within(from, |segment| segment.read(from, limit.clamp(1, LARGEST_READ)))
    }

    /// Only what came at the same time.
    pub(super) fn read_moment(&self, from: u64, limit: usize) -> io::Result<Chunk> {
        self.within(from, |segment| segment.read_moment(from, limit.clamp(1, LARGEST_READ)))
    }

    fn within(&self, from: u64, read: impl FnOnce(&Segment) -> io::Result<Chunk>) -> io::Result<Chunk> {
        if let Some(tail) = self.tail.as_ref().filter(|tail| tail.start() <= from) {
            return read(tail);
        }
        let after = self.full.partition_point(|start| *start <= from);
        let start = after.checked_sub(1).and_then(|at| self.full.get(at)).copied();
        let start = start.ok_or_else(|| io::Error::other("no segment has this offset"))?;
        read(&Segment::open(&self.directory, start)?)
    }
}

/// Segments on disk: start and length.
struct Found {
    /// Those that follow each other without a gap up to the newest.
    whole: VecDeque<(u64, u64)>,
    /// Unreadable rests: an index without data, or what lies before a gap.
    rest: Vec<u64>,
}

impl Found {
    fn in_directory(directory: &Path) -> io::Result<Self> {
        let (mut data, mut rest) = (vec![], vec![]);
        let entries = match fs::read_dir(directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self { whole: VecDeque::new(), rest }),
            entries => entries?,
        };
        for entry in entries {
            let name = entry?.file_name();
            let parts = name.to_str().and_then(|name| name.split_once('.'));
            match parts.and_then(|(start, kind)| Some((start.parse::<u64>().ok()?, kind))) {
                Some((start, "data")) => data.push(start),
                Some((start, "index")) => rest.push(start),
                _ => {}
            }
        }
        data.sort_unstable();
        rest.retain(|start| data.binary_search(start).is_err());
        let mut whole = VecDeque::with_capacity(data.len());
        for start in data.into_iter().rev() {
            let length = fs::metadata(data_path(directory, start))?.len();
            // Only the death of the host leaves a gap. What is before it is then told as dropped, never as other bytes.
            let gap = whole.front().is_some_and(|(next, _)| start + length != *next);
            if gap {
                rest.push(start);
            } else {
                whole.push_front((start, length));
            }
        }
        Ok(Self { whole, rest })
    }
}

pub(super) fn create_directory(directory: &Path) -> io::Result<()> {
    match fs::DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}
