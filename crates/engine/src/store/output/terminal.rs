//! Two small files beside the output of a terminal: `sizes`, a line for each change, and `screen`, the last checkpoint.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use chrono::DateTime;
use sandbar_api::{ProcessId, TerminalSize};

use super::{Output, fault, lock, log::create_directory};
use crate::store::{Result, terminal::SizeChange};

/// A file of sizes that has grown to this is written anew, shorter.
const MOST_SIZES: u64 = 64 * 1024;
const SIZES_KEPT: usize = 500;

impl Output {
    /// False if it has that size already.
    pub(in crate::store) fn record_size(&self, process: &ProcessId, change: &SizeChange) -> Result<bool> {
        let directory = self.directory(process);
        let _alone = lock(&self.beside);
        if !directory.exists() && !self.spares.take(&directory).map_err(fault)? {
            create_directory(&directory).map_err(fault)?;
        }
        let path = directory.join("sizes");
        let known = read_sizes(&path).map_err(fault)?;
        if known.last().is_some_and(|last| last.size == change.size) {
            return Ok(false);
        }
        append(&path, change, &known).map_err(fault)?;
        Ok(true)
    }

    pub(in crate::store) fn sizes(&self, process: &ProcessId) -> Result<Vec<SizeChange>> {
        read_sizes(&self.directory(process).join("sizes")).map_err(fault)
    }

    pub(in crate::store) fn keep_screen(&self, process: &ProcessId, checkpoint: &[u8]) -> Result<()> {
        let directory = self.directory(process);
        // Whoever removes the directory must not meet a file that is just being made.
        let _alone = lock(&self.beside);
        replace(&directory.join("screen"), checkpoint).map_err(fault)
    }

    pub(in crate::store) fn kept_screen(&self, process: &ProcessId) -> Result<Option<Vec<u8>>> {
        found(fs::read(self.directory(process).join("screen"))).map_err(fault)
    }
}

fn append(path: &Path, change: &SizeChange, known: &[SizeChange]) -> io::Result<()> {
    let mut file = OpenOptions::new().append(true).create(true).mode(0o600).open(path)?;
    if file.metadata()?.len() < MOST_SIZES {
        return file.write_all(line(change).as_bytes());
    }
    let newest = &known[known.len().saturating_sub(SIZES_KEPT)..];
    let text: String = newest.iter().chain([change]).map(line).collect();
    replace(path, text.as_bytes())
}

fn line(change: &SizeChange) -> String {
    let TerminalSize { cols, rows } = change.size;
    format!("{} {} {cols} {rows}\n", change.offset, change.at.timestamp_micros())
}

fn parse(line: &str) -> Option<SizeChange> {
    let mut words = line.split(' ');
    let offset = words.next()?.parse().ok()?;
    let at = DateTime::from_timestamp_micros(words.next()?.parse().ok()?)?;
    let size = TerminalSize { cols: words.next()?.parse().ok()?, rows: words.next()?.parse().ok()? };
    Some(SizeChange { offset, at, size })
}

/// Lines that the death of the host left unreadable are passed over. A later change never comes before an earlier one.
fn read_sizes(path: &Path) -> io::Result<Vec<SizeChange>> {
    let bytes = found(fs::read(path))?.unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let mut least = 0;
    let changes = text.lines().filter_map(parse).map(|mut change| {
        change.offset = change.offset.max(least);
        least = change.offset;
        change
    });
    Ok(changes.collect())
}

/// Whoever reads sees the old one or the new one.
fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let new: PathBuf = path.with_extension("new");
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
    file.write_all(bytes)?;
    fs::rename(&new, path)
}

fn found<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        result => result.map(Some),
    }
}
