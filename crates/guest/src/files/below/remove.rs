//! Removing below a root: by descriptors, so that a directory swapped for a link is not emptied through it.

use std::ffi::{OsStr, OsString};

use rustix::{
    fd::{AsFd, OwnedFd},
    fs::{AtFlags, Dir, FileType, Mode, OFlags, openat, unlinkat},
    io::Errno,
};

use super::{
    Below, some,
    walk::{self, Found, Missing},
};
use crate::error::{Code, Fault};

/// A link that leads below the root goes itself, not what it leads to; where a path leads out, nothing does.
pub(super) fn path(below: &Below, recursive: bool) -> Result<u64, Fault> {
    let failed = |errno: Errno| below.failed("remove")(errno.into());
    let found = walk::find(&below.root, &below.path, Missing::Refuse)?;
    let (Some(name), Some(parent)) = (below.path.file_name(), below.path.parent()) else {
        return clear(below, &found, recursive);
    };
    if found.is_root {
        return clear(below, &found, recursive);
    }
    let holder = walk::find(&below.root, parent, Missing::Refuse)?;
    let Some((holder, _)) = holder.node else { return Err(failed(Errno::NOENT)) };
    match unlinkat(&holder, name, AtFlags::empty()) {
        Ok(()) => return Ok(1),
        Err(Errno::ISDIR) => {}
        Err(errno) => return Err(failed(errno)),
    }
    if recursive {
        tree(&holder, name).map_err(failed)?;
    } else {
        unlinkat(&holder, name, AtFlags::REMOVEDIR).map_err(failed)?;
    }
    Ok(1)
}

/// The root stays, whatever is in it.
fn clear(below: &Below, found: &Found, recursive: bool) -> Result<u64, Fault> {
    if !recursive {
        return Err(Fault::new(Code::DirectoryNotEmpty, "The root itself cannot be removed, only what is in it."));
    }
    let failed = |errno: Errno| below.failed("clear")(errno.into());
    let Some(root) = walk::open(found).map_err(failed)? else { return Err(walk::changing(&below.root)) };
    let mut outcome = Ok(1);
    loop {
        let (names, more) = some(&mut Dir::read_from(&root).map_err(failed)?).map_err(failed)?;
        let mut gone = false;
        for name in names {
            // One that cannot go does not keep the rest; the first failure is told.
            match any(&root, &name) {
                Ok(()) => gone = true,
                Err(errno) => outcome = outcome.and(Err(failed(errno))),
            }
        }
        // Those that cannot go are found again, and there may be nothing else.
        if !more || !gone {
            return outcome;
        }
    }
}

fn any(parent: impl AsFd, name: &OsStr) -> rustix::io::Result<()> {
    let stat = match rustix::fs::statat(parent.as_fd(), name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => stat,
        Err(Errno::NOENT) => return Ok(()),
        Err(errno) => return Err(errno),
    };
    if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
        return tree(parent, name);
    }
    gone(unlinkat(parent, name, AtFlags::empty()))
}

/// A directory being entered: its name where it was found, itself, and what is still in it.
struct Level {
    name: OsString,
    directory: OwnedFd,
    left: Vec<OsString>,
    /// Whether there may be more than was listed.
    more: bool,
}

impl Level {
    fn open(parent: impl AsFd, name: &OsStr) -> rustix::io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = openat(parent, name, flags, Mode::empty())?;
        let (left, more) = some(&mut Dir::read_from(&directory)?)?;
        Ok(Self { name: name.to_owned(), directory, left, more })
    }

    fn next(&mut self) -> rustix::io::Result<Option<OsString>> {
        if self.left.is_empty() && self.more {
            (self.left, self.more) = some(&mut Dir::read_from(&self.directory)?)?;
        }
        Ok(self.left.pop())
    }
}

/// Not by recursion: how deep a tree is, its maker says.
fn tree(parent: impl AsFd, name: &OsStr) -> rustix::io::Result<()> {
    let mut levels = vec![Level::open(parent.as_fd(), name)?];
    while let Some(level) = levels.last_mut() {
        let Some(next) = level.next()? else {
            let Some(done) = levels.pop() else { break };
            let above = levels.last().map_or(parent.as_fd(), |level| level.directory.as_fd());
            gone(unlinkat(above, &done.name, AtFlags::REMOVEDIR))?;
            continue;
        };
        match unlinkat(&level.directory, &next, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(Errno::ISDIR) => {
                let below = Level::open(&level.directory, &next)?;
                levels.push(below);
            }
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// What somebody else removed is removed.
fn gone(outcome: rustix::io::Result<()>) -> rustix::io::Result<()> {
    match outcome {
        Err(Errno::NOENT) => Ok(()),
        outcome => outcome,
    }
}
