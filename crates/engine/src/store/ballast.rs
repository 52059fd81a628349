//! The ballast: a file that only takes up room, so that a full disk still has some for what must be written.
//!
//! Deleting is how a full disk is freed, and deleting has to be recorded first. Such changes are given the ballast in
//! small pieces: whoever filled the disk may take what a piece leaves over, but never more than that.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, ErrorKind},
    os::unix::fs::{FileExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{FallocateFlags, fallocate},
    io::Errno,
};

use super::output;

const SIZE: u64 = 4 * 1024 * 1024;
/// More than a change needs in the database's log, with the log's index.
const PIECE: u64 = 64 * 1024;

pub(super) struct Ballast {
    path: PathBuf,
    length: u64,
}

impl Ballast {
    /// What there is of it; call `refill` for the rest.
    pub(super) fn find(home: &Path) -> io::Result<Self> {
        let path = home.join("ballast");
        let length = match fs::metadata(&path) {
            Ok(found) => found.len(),
            Err(error) if error.kind() == ErrorKind::NotFound => 0,
            Err(error) => return Err(error),
        };
        Ok(Self { path, length })
    }

    pub(super) fn is_whole(&self) -> bool {
        self.length >= SIZE
    }

    /// Makes a piece of it free; false when there is nothing left to give.
    pub(super) fn give(&mut self) -> bool {
        let length = self.length.saturating_sub(PIECE);
        match self.open().and_then(|file| file.set_len(length)) {
            Ok(()) => std::mem::replace(&mut self.length, length) > length,
            Err(error) => {
                tracing::error!(%error, "the ballast cannot be made smaller");
                false
            }
        }
    }

    /// As much as there is room for; whether that made it whole.
    pub(super) fn refill(&mut self) -> io::Result<bool> {
        if self.is_whole() {
            return Ok(true);
        }
        let file = self.open()?;
        let (start, mut size) = (self.length, SIZE - self.length);
        while !self.is_whole() && size > 0 {
            let piece = size.min(SIZE - self.length);
            match occupy(&file, self.length, piece) {
                Ok(()) => self.length += piece,
                Err(error) => {
                    // A part of it may have been taken, and would not be counted.
                    file.set_len(self.length)?;
                    if !output::is_full(&error) {
                        return Err(error);
                    }
                    size = if piece > PIECE { PIECE } else { 0 };
                }
            }
        }
        if self.is_whole() && start > 0 {
            tracing::info!("there is room on the home's disk again");
        }
        Ok(self.is_whole())
    }

    fn open(&self) -> io::Result<File> {
        OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&self.path)
    }
}

fn occupy(file: &File, offset: u64, length: u64) -> io::Result<()> {
    match fallocate(file, FallocateFlags::empty(), offset, length) {
        Ok(()) => Ok(()),
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
            // Not zeros: a filesystem that compresses would keep no room for them.
            let mut bytes = vec![0; usize::try_from(length).unwrap_or(0)];
            getrandom::fill(&mut bytes).map_err(io::Error::other)?;
            file.write_all_at(&bytes, offset)
        }
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_given_in_pieces_and_comes_back() -> io::Result<()> {
        let home = sandbar_test_harness::scratch()?;
        let mut ballast = Ballast::find(home.path())?;
        assert!(!ballast.is_whole() && !ballast.give());
        assert!(ballast.refill()?);
        let mut pieces = 0;
        while ballast.give() {
            pieces += 1;
            assert_eq!(fs::metadata(home.path().join("ballast"))?.len(), SIZE - pieces * PIECE);
        }
        assert_eq!(pieces, SIZE / PIECE);
        assert!(Ballast::find(home.path())?.refill()?);
        assert!(Ballast::find(home.path())?.is_whole());
        Ok(())
    }
}
