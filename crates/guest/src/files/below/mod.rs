//! Files below a root, as the contracts of agent-sandbox have them: what a path really leads to must lie below the root.
//!
//! This is the contract's promise to its clients, not the fence: the worker is the workload's user behind the workload's
//! fence, and could reach nothing that the workload could not.

mod remove;
#[cfg(test)]
mod tests;
mod walk;

use std::{
    ffi::OsString,
    fs::File,
    io::{self, Read, Seek, SeekFrom, Write},
    os::{fd::BorrowedFd, unix::ffi::OsStringExt as _},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, Dir, FileType, Stat, statat},
    io::Errno,
};

use super::{
    frames::{Inbox, Outbox},
    part::Part,
    read, unheard,
    write::{self, Modes},
};
use crate::{
    error::{Code, Fault},
    protocol::{Entry, EntryKind},
};
use walk::{Found, Missing};

/// What the contract says when a path leads out.
pub(crate) const ESCAPES: &str = "path traversal outside sandbox root is forbidden";

/// Bytes of names that are held at once.
const HELD: usize = if cfg!(test) { 4096 } else { 4 << 20 };

/// How often a path is walked again that was changed under our feet.
const WALKS: usize = 16;

#[derive(Debug)]
pub(crate) struct Below {
    /// Absolute.
    pub(crate) root: PathBuf,
    /// Relative, without `.` and `..`; empty for the root itself.
    pub(crate) path: PathBuf,
    pub(crate) ask: Ask,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Ask {
    /// Its entry; as `target`, where it really is.
    Look,
    /// Its entry, then a file's bytes or the entries of a directory, which have links looked through.
    Read(Part),
    Write {
        mode: Option<u32>,
    },
    Remove {
        recursive: bool,
    },
}

pub(super) fn carry_out(below: &Below, inbox: &mut Inbox, outbox: &mut Outbox) -> Result<u64, Fault> {
    match below.ask {
        Ask::Look => look(below, outbox),
        Ask::Read(part) => show(below, part, outbox),
        Ask::Write { mode } => put(below, mode, inbox),
        Ask::Remove { recursive } => remove::path(below, recursive),
    }
}

impl Below {
    fn found(&self) -> Result<Found, Fault> {
        walk::find(&self.root, &self.path, Missing::Refuse)
    }

    fn failed(&self, action: &str) -> impl Fn(io::Error) -> Fault {
        let action = format!("{action} `{}`", self.path.display());
        move |error| Fault::file(&action, &error)
    }
}

fn look(below: &Below, outbox: &mut Outbox) -> Result<u64, Fault> {
    let found = below.found()?;
    let Some((_, stat)) = &found.node else { return Err(below.failed("look at")(Errno::NOENT.into())) };
    let target = found.real.to_string_lossy().into_owned();
    outbox.entry(&Entry { target, ..entry(String::new(), stat) }).map_err(unheard)?;
    Ok(1)
}

fn show(below: &Below, part: Part, outbox: &mut Outbox) -> Result<u64, Fault> {
    let failed = below.failed("read");
    for _ in 0..WALKS {
        let found = below.found()?;
        let kind = found.kind().ok_or_else(|| failed(Errno::NOENT.into()))?;
        if !matches!(kind, FileType::Directory | FileType::RegularFile) {
            let message = format!("`{}` is neither a file nor a directory.", below.path.display());
            return Err(Fault::new(Code::BadRequest, message));
        }
        let Some(opened) = walk::open(&found).map_err(|errno| failed(errno.into()))? else { continue };
        let stat = rustix::fs::fstat(&opened).map_err(|errno| failed(errno.into()))?;
        return match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => bytes(below, File::from(opened), &stat, part, outbox),
            FileType::Directory => {
                outbox.entry(&entry(String::new(), &stat)).map_err(unheard)?;
                outbox.flush().map_err(unheard)?;
                let inner = found.real;
                list(below, &Dir::new(opened).map_err(|errno| failed(errno.into()))?, &inner, outbox)
            }
            _ => continue,
        };
    }
    Err(walk::changing(&below.path))
}

fn bytes(below: &Below, mut file: File, stat: &Stat, part: Part, outbox: &mut Outbox) -> Result<u64, Fault> {
    let failed = below.failed("read");
    let entry = entry(String::new(), stat);
    outbox.entry(&entry).map_err(unheard)?;
    outbox.flush().map_err(unheard)?;
    let Some((start, length)) = part.within(entry.size) else { return Ok(0) };
    file.seek(SeekFrom::Start(start)).map_err(&failed)?;
    read::pass_on(file.take(length), outbox, failed)
}

/// The next names of a listing, as many as are held at once, and whether there may be more. A directory's maker says how
/// many it has, and outside the workload's limits they are read.
fn some(listing: &mut Dir) -> rustix::io::Result<(Vec<OsString>, bool)> {
    let (mut names, mut held) = (Vec::new(), 0);
    while let Some(found) = listing.read() {
        let name = found?.file_name().to_bytes().to_vec();
        if name == b"." || name == b".." {
            continue;
        }
        held += name.len() + size_of::<OsString>();
        names.push(OsString::from_vec(name));
        if held >= HELD {
            return Ok((names, true));
        }
    }
    Ok((names, false))
}

/// In order, as far as names are held at once. Links that are broken or lead out are left out, as if they were not there.
fn list(below: &Below, directory: &Dir, real: &Path, outbox: &mut Outbox) -> Result<u64, Fault> {
    let failed = |errno: Errno| below.failed("list")(errno.into());
    let fd = directory.fd().map_err(failed)?;
    let mut listing = Dir::read_from(fd).map_err(failed)?;
    let mut count = 0;
    loop {
        let (mut names, more) = some(&mut listing).map_err(failed)?;
        names.sort_unstable();
        count += tell(below, fd, names, real, outbox)?;
        if !more {
            return Ok(count);
        }
    }
}

fn tell(
    below: &Below,
    fd: BorrowedFd<'_>,
    names: Vec<OsString>,
    real: &Path,
    outbox: &mut Outbox,
) -> Result<u64, Fault> {
    let mut count = 0;
    for name in names {
        let stat = match statat(fd, &name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            // Removed since it was listed.
            Err(Errno::NOENT) => continue,
            Err(errno) => return Err(below.failed("list")(errno.into())),
        };
        let stat = if FileType::from_raw_mode(stat.st_mode) == FileType::Symlink {
            // By the real path, which is below the root: what is there now is judged, not what was.
            let Some(stat) = behind_link(below, &real.join(&name)) else { continue };
            stat
        } else {
            stat
        };
        outbox.entry(&entry(name.to_string_lossy().into_owned(), &stat)).map_err(unheard)?;
        count += 1;
    }
    Ok(count)
}

fn behind_link(below: &Below, link: &Path) -> Option<Stat> {
    let found = walk::find(&below.root, link, Missing::Refuse).ok()?;
    found.node.map(|(_, stat)| stat)
}

fn put(below: &Below, mode: Option<u32>, inbox: &mut Inbox) -> Result<u64, Fault> {
    let found = walk::find(&below.root, &below.path, Missing::Make)?;
    let is_directory = found.kind() == Some(FileType::Directory);
    let (Some(name), false) = (&found.name, is_directory) else {
        let message = format!("`{}` is a directory, not a file.", below.path.display());
        return Err(Fault::new(Code::WrongFileKind, message));
    };
    let kept = match &found.node {
        Some((_, stat)) if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile => {
            let message = format!("`{}` is not a regular file.", below.path.display());
            return Err(Fault::new(Code::WrongFileKind, message));
        }
        Some((_, stat)) => stat.st_mode,
        None => write::DEFAULT_MODE,
    };
    write::replace(found.parent, name, Modes { asked: mode, kept }, inbox, &below.failed("write"))
}

pub(super) fn entry(name: String, stat: &Stat) -> Entry {
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => EntryKind::File,
        FileType::Directory => EntryKind::Directory,
        FileType::Symlink => EntryKind::Symlink,
        _ => EntryKind::Other,
    };
    let nanoseconds = i64::try_from(stat.st_mtime_nsec).unwrap_or(0);
    Entry {
        name,
        kind: kind.into(),
        size: u64::try_from(stat.st_size).unwrap_or(0),
        mode: stat.st_mode & 0o7777,
        modified_ms: stat.st_mtime.saturating_mul(1000).saturating_add(nanoseconds / 1_000_000),
        target: String::new(),
    }
}
