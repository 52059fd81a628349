//! Directories made in advance, with the two files of a first segment in them.
//!
//! Making files is the slow part of a process's first output: three inodes, half a millisecond each on a filesystem
//! without a journal, which passes over inodes that were deleted lately. Moving a directory into place takes
//! microseconds, so they are made while nobody waits.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Mutex,
};

use super::{lock, log::create_directory, segment::Segment};

const MOST: u64 = 16;

pub(super) struct Spares {
    /// Where one is until it is whole. Not in `ready` itself: making in a directory locks out those who take from it.
    making: PathBuf,
    ready: PathBuf,
    state: Mutex<State>,
    /// Held while one is made.
    maker: Mutex<()>,
}

#[derive(Default)]
struct State {
    ready: Vec<u64>,
    next: u64,
    asked: u64,
    busy: bool,
    closed: bool,
}

impl State {
    /// As many as were asked for so far, but none for the first: a home may live for one command only.
    fn enough(&self) -> u64 {
        if self.closed { 0 } else { self.asked.saturating_sub(1).min(MOST) }
    }

    fn there(&self) -> u64 {
        self.ready.len() as u64
    }
}

impl Spares {
    /// Those of an earlier server are as good as new ones: nothing was ever written to them.
    pub(super) fn open(root: &Path) -> io::Result<Self> {
        let (making, ready) = (root.join(".making"), root.join(".ready"));
        let mut state = State::default();
        for entry in found(fs::read_dir(&ready))?.into_iter().flatten() {
            state.ready.extend(entry?.file_name().to_str().and_then(|name| name.parse::<u64>().ok()));
        }
        state.next = state.ready.iter().max().map_or(0, |last| last + 1);
        found(fs::remove_dir_all(&making))?;
        Ok(Self { making, ready, state: Mutex::new(state), maker: Mutex::default() })
    }

    /// Moves one to where `directory` shall be, if there is one.
    pub(super) fn take(&self, directory: &Path) -> io::Result<bool> {
        let spare = {
            let mut state = lock(&self.state);
            state.asked += 1;
            state.ready.pop()
        };
        let Some(spare) = spare else { return Ok(false) };
        match fs::rename(self.path(spare), directory) {
            Ok(()) => Ok(true),
            // Somebody tidied up by hand, or the directory is there already: the ordinary way does both.
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::DirectoryNotEmpty) => {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Whether the caller is to see to it that `make` is called, off everybody's path.
    pub(super) fn wanted(&self) -> bool {
        let mut state = lock(&self.state);
        // Several at a time.
        let wanted = !state.busy && 2 * state.there() < state.enough();
        state.busy |= wanted;
        wanted
    }

    pub(super) fn make(&self) -> io::Result<()> {
        let made = self.make_until_enough();
        lock(&self.state).busy = false;
        made
    }

    fn make_until_enough(&self) -> io::Result<()> {
        loop {
            let _alone = lock(&self.maker);
            let number = {
                let mut state = lock(&self.state);
                if state.there() >= state.enough() {
                    return Ok(());
                }
                state.next += 1;
                state.next
            };
            create_directory(&self.making)?;
            create_directory(&self.ready)?;
            let new = self.making.join(number.to_string());
            create_directory(&new)?;
            Segment::create(&new, 0)?;
            fs::rename(&new, self.path(number))?;
            lock(&self.state).ready.push(number);
        }
    }

    /// Makes no more; nothing is being made when this returns.
    pub(super) fn close(&self) {
        lock(&self.state).closed = true;
        drop(lock(&self.maker));
    }

    fn path(&self, number: u64) -> PathBuf {
        self.ready.join(number.to_string())
    }
}

fn found<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        result => result.map(Some),
    }
}
