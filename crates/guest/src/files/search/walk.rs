//! Everything below a directory, links not followed; one listing at a time, and of what waits only the names.

use std::{
    ffi::{OsStr, OsString},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, openat, statat},
    io::Errno,
};

use super::{HOLDING, Names, Progress, failed};
use crate::error::Fault;

/// What is done with what matches.
pub(super) trait Finder {
    /// Whether it is to wait for its turn in the order of paths, for `file`.
    fn seen(&mut self, sight: &Sight<'_>, progress: &mut Progress<'_>) -> bool;

    fn file(&mut self, root: BorrowedFd<'_>, path: &Path, progress: &mut Progress<'_>) -> Result<(), Fault>;
}

/// An entry, in the moment in which it is listed.
pub(super) struct Sight<'a> {
    pub(super) directory: BorrowedFd<'a>,
    pub(super) parent: &'a Path,
    pub(super) name: &'a OsStr,
    pub(super) is_file: bool,
}

/// Places are found from `root` on by paths, so that a deep tree costs no descriptors; what is too deep for a path is
/// unreadable.
pub(super) struct Walk<'a> {
    root: OwnedFd,
    names: &'a Names,
    levels: Vec<Level>,
    held: usize,
}

struct Level {
    path: PathBuf,
    /// The next one last.
    waiting: Vec<Waiting>,
}

struct Waiting {
    name: Box<OsStr>,
    is_directory: bool,
}

impl<'a> Walk<'a> {
    pub(super) fn open(path: &Path, names: &'a Names) -> Result<Self, Fault> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = openat(CWD, path, flags, Mode::empty()).map_err(|errno| failed(path, &errno.into()))?;
        Ok(Self { root, names, levels: Vec::new(), held: 0 })
    }

    pub(super) fn go(mut self, finder: &mut dyn Finder, progress: &mut Progress<'_>) -> Result<(), Fault> {
        self.list(PathBuf::new(), finder, progress);
        while let Some(level) = self.levels.last_mut() {
            let Some(next) = level.waiting.pop() else {
                self.levels.pop();
                continue;
            };
            if progress.left == 0 || progress.is_late() {
                break;
            }
            self.held -= next.name.len() + HOLDING;
            let path = level.path.join(&*next.name);
            if next.is_directory {
                self.list(path, finder, progress);
            } else {
                finder.file(self.root.as_fd(), &path, progress)?;
            }
        }
        Ok(())
    }

    fn list(&mut self, path: PathBuf, finder: &mut dyn Finder, progress: &mut Progress<'_>) {
        let mut level = Level { path, waiting: Vec::new() };
        if self.fill(&mut level, finder, progress).is_err() {
            progress.end.unreadable += 1;
        }
        level.waiting.sort_unstable_by(|one, other| other.name.cmp(&one.name));
        self.levels.push(level);
    }

    fn fill(&mut self, level: &mut Level, finder: &mut dyn Finder, progress: &mut Progress<'_>) -> Result<(), Errno> {
        let place = if level.path.as_os_str().is_empty() { Path::new(".") } else { &level.path };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut listing = Dir::new(openat(&self.root, place, flags, Mode::empty())?)?;
        // A second descriptor, because reading the listing borrows the first.
        let directory = listing.fd()?.try_clone_to_owned().map_err(|_| Errno::MFILE)?;
        while let Some(entry) = listing.read() {
            let entry = entry?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." {
                continue;
            }
            if !progress.look() {
                break;
            }
            let kind = match entry.file_type() {
                FileType::Unknown => match statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW) {
                    Ok(stat) => FileType::from_raw_mode(stat.st_mode),
                    Err(_) => {
                        progress.end.unreadable += 1;
                        continue;
                    }
                },
                known => known,
            };
            let is_directory = kind == FileType::Directory;
            if self.names.leaves_out(&level.path, name, is_directory) {
                continue;
            }
            let parent = &level.path;
            let sight = Sight { directory: directory.as_fd(), parent, name, is_file: kind == FileType::RegularFile };
            let waits = self.names.matches(parent, name) && finder.seen(&sight, progress);
            if !is_directory && !waits {
                continue;
            }
            self.held += name.len() + HOLDING;
            if self.held > progress.limits.names {
                self.held -= name.len() + HOLDING;
                progress.end.more = true;
                break;
            }
            level.waiting.push(Waiting { name: OsString::from(name).into_boxed_os_str(), is_directory });
        }
        Ok(())
    }
}
