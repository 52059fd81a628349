//! Process output in files: a directory a process, segments of bytes in it, beside the database.
//!
//! Everything here is plain blocking I/O on the page cache. No fsync: acknowledged output survives the death of this
//! process, and the death of the host ends the processes that wrote it anyway.

mod index;
mod log;
mod quarantine;
mod segment;
mod spares;
mod terminal;
#[cfg(test)]
mod tests;

use std::{
    collections::HashMap,
    fs, io,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use sandbar_api::{OutputRange, ProcessId};

use self::{log::Log, spares::Spares};
use super::{Chunk, Error, Result};

const DIRECTORY: &str = "output";
/// Logs whose files stay open, two descriptors each; of thousands of processes few write at a time.
const OPEN_LOGS: usize = 64;

pub(super) struct Output {
    root: PathBuf,
    open: Mutex<Open>,
    spares: Spares,
    /// Held while files beside the segments are made, or a directory is removed with them.
    beside: Mutex<()>,
}

#[derive(Default)]
struct Open {
    slots: HashMap<ProcessId, Slot>,
    uses: u64,
}

struct Slot {
    log: Shared,
    last_use: u64,
}

/// None until somebody needs it, and again after a failed write: reopening finds out what is on disk.
type Shared = Arc<Mutex<Option<Log>>>;

impl Output {
    pub(super) fn open(home: &Path) -> Result<Self> {
        let root = home.join(DIRECTORY);
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&root).map_err(fault)?;
        let spares = Spares::open(&root).map_err(fault)?;
        Ok(Self { root, open: Mutex::default(), spares, beside: Mutex::default() })
    }

    pub(super) fn append(&self, process: &ProcessId, chunk: &Chunk, keep: u64) -> Result<OutputRange> {
        self.with_log(process, |slot, mut log| {
            let appended = log.append(chunk, keep, &self.spares);
            if appended.is_ok() {
                *slot = Some(log);
            }
            appended.map_err(fault)
        })
    }

    pub(super) fn read(&self, process: &ProcessId, from: u64, limit: usize) -> Result<Option<Chunk>> {
        self.read_by(process, from, |log| log.read(from, limit))
    }

    pub(super) fn read_moment(&self, process: &ProcessId, from: u64, limit: usize) -> Result<Option<Chunk>> {
        self.read_by(process, from, |log| log.read_moment(from, limit))
    }

    fn read_by(
        &self,
        process: &ProcessId,
        from: u64,
        read: impl FnOnce(&Log) -> io::Result<Chunk>,
    ) -> Result<Option<Chunk>> {
        self.with_log(process, |slot, log| {
            let range = log.range();
            let read = if from < range.start {
                Err(Error::Dropped { from, first_kept: range.start })
            } else if from > range.end {
                Err(Error::Beyond { from, end: range.end })
            } else if from == range.end {
                Ok(None)
            } else {
                read(&log).map(Some).map_err(fault)
            };
            *slot = Some(log);
            read
        })
    }

    pub(super) fn range(&self, process: &ProcessId) -> Result<OutputRange> {
        let open = lock(&self.open).slots.get(process).map(|slot| Arc::clone(&slot.log));
        if let Some(open) = open
            && let Some(log) = &*lock(&open)
        {
            return Ok(log.range());
        }
        // Looking does not open: a list of thousands must not push out the logs that are being written.
        Log::range_on_disk(&self.directory(process)).map_err(fault)
    }

    pub(super) fn remove(&self, process: &ProcessId) -> Result<()> {
        let open = lock(&self.open).slots.get(process).map(|slot| Arc::clone(&slot.log));
        let mut log = open.as_ref().map(|log| lock(log));
        if let Some(log) = &mut log {
            **log = None;
        }
        let _alone = lock(&self.beside);
        match fs::remove_dir_all(self.directory(process)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(fault(error)),
            _ => Ok(()),
        }
    }

    /// Whether the home has any.
    pub(super) fn is_any(home: &Path) -> Result<bool> {
        match fs::read_dir(home.join(DIRECTORY)) {
            Ok(entries) => Ok(entries.flatten().any(|entry| process(&entry).is_some())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(fault(error)),
        }
    }

    /// All that have a directory; whatever else lies there is not ours to remove.
    pub(super) fn processes(&self) -> Result<Vec<ProcessId>> {
        let mut found = vec![];
        for entry in fs::read_dir(&self.root).map_err(fault)? {
            found.extend(process(&entry.map_err(fault)?));
        }
        Ok(found)
    }

    /// Whether the caller is to have `make_spares` called, where it may take some milliseconds.
    pub(super) fn wants_spares(&self) -> bool {
        self.spares.wanted()
    }

    pub(super) fn make_spares(&self) {
        // They are a matter of speed only: without one the first output makes its own files, or says why it cannot.
        if let Err(error) = self.spares.make() {
            tracing::warn!(%error, "failed to make files in advance");
        }
    }

    pub(super) fn close(&self) {
        self.spares.close();
    }

    fn directory(&self, process: &ProcessId) -> PathBuf {
        self.root.join(process.as_str())
    }

    /// Hands over the log to work with; it stays open if it is put back.
    fn with_log<T>(&self, process: &ProcessId, work: impl FnOnce(&mut Option<Log>, Log) -> Result<T>) -> Result<T> {
        let shared = lock(&self.open).slot(process);
        let mut slot = lock(&shared);
        let log = match slot.take() {
            Some(log) => log,
            None => Log::open(self.directory(process)).map_err(fault)?,
        };
        work(&mut slot, log)
    }
}

fn process(entry: &fs::DirEntry) -> Option<ProcessId> {
    entry.file_name().to_str()?.parse().ok()
}

impl Open {
    fn slot(&mut self, process: &ProcessId) -> Shared {
        self.uses += 1;
        if let Some(slot) = self.slots.get_mut(process) {
            slot.last_use = self.uses;
            return Arc::clone(&slot.log);
        }
        if self.slots.len() >= OPEN_LOGS {
            // One that somebody holds stays: two logs of one process would each believe in their own end.
            let idle = self.slots.iter().filter(|(_, slot)| Arc::strong_count(&slot.log) == 1);
            let oldest = idle.min_by_key(|(_, slot)| slot.last_use).map(|(process, _)| process.clone());
            if let Some(oldest) = oldest {
                self.slots.remove(&oldest);
            }
        }
        let log = Shared::default();
        self.slots.insert(process.clone(), Slot { log: Arc::clone(&log), last_use: self.uses });
        log
    }
}

/// A panic elsewhere does not make what is on disk wrong.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

fn fault(error: io::Error) -> Error {
    if is_full(&error) { Error::DiskFull } else { Error::Output(error) }
}
