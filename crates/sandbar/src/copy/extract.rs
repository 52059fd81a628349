//! A sandbox's tar archive into a local directory. The sandbox is hostile: nothing is written outside the directory, no
//! link is followed, none that leads out is made, and nothing but files, directories and links comes into being.

use std::{
    borrow::Cow,
    ffi::{OsStr, OsString},
    fs::{self, File},
    io::{self, Read},
    os::{
        fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::{Path, PathBuf},
};

use bytes::{Buf as _, Bytes};
use futures_util::{Stream, StreamExt as _};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Timespec, Timestamps};
use sandbar_api::file::{SKIPPED, SKIPPED_WHY};
use serde::Serialize;
use tar::{Archive, Entry, EntryType, Unpacked};
use tokio::sync::mpsc;

use super::repository::{Guard, Judged, KEPT, Repositories};
use crate::exit::{self, Failure};

const PIECES: usize = 4;
/// A path and a sentence; an honest one is far smaller.
const MAX_NOTE: u64 = 64 * 1024;

#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Refusal {
    #[serde(rename = "path")]
    pub name: String,
    pub why: Cow<'static, str>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Extracted {
    pub entries: u64,
    /// What the sandbox could not read, and what an honest tree may hold but a copy must not.
    pub refused: Vec<Refusal>,
}

#[derive(Debug, thiserror::Error)]
enum ExtractError {
    /// No honest archive has such a name, so nothing more of it is believed.
    #[error("the archive names `{}`, which leads outside", .0.escape_debug())]
    Outside(String),
    #[error("the archive cannot be read")]
    Archive(#[source] io::Error),
    #[error("failed to write {path}")]
    Write { path: String, source: io::Error },
}

/// Unpacks into `root`, which is made if need be.
pub(crate) async fn stream(
    archive: impl Stream<Item = sandbar_client::Result<Bytes>>,
    root: PathBuf,
    repositories: Repositories,
) -> Result<Extracted, Failure> {
    let (sender, receiver) = mpsc::channel(PIECES);
    let incoming = Incoming { receiver, piece: Bytes::new() };
    let extracting = tokio::task::spawn_blocking(move || extract(incoming, &root, repositories));
    let mut archive = std::pin::pin!(archive);
    let mut broken = None;
    while let Some(piece) = archive.next().await {
        let piece = piece.map_err(|error| {
            broken = Some(Failure::from(error));
            io::Error::from(io::ErrorKind::ConnectionReset)
        });
        // Closed early only by a failure, which the task tells.
        if sender.send(piece).await.is_err() {
            break;
        }
    }
    drop(sender);
    let outcome = extracting.await.map_err(|error| Failure::new(exit::FAILED, error.to_string()))?;
    match (broken, outcome) {
        (Some(failure), _) => Err(failure),
        (None, Err(error @ ExtractError::Outside(_))) => Err(Failure::new(exit::FAILED, error.to_string())
            .hint("The sandbox sent a hostile archive; do not trust what it made.")),
        (None, outcome) => outcome.map_err(|error| Failure::new(exit::FAILED, exit::chain(&error))),
    }
}

fn extract(archive: impl Read, root: &Path, repositories: Repositories) -> Result<Extracted, ExtractError> {
    let failed = |source| ExtractError::Write { path: root.display().to_string(), source };
    fs::create_dir_all(root).map_err(failed)?;
    let flags = OFlags::DIRECTORY | OFlags::PATH | OFlags::CLOEXEC;
    let root = rustix::fs::openat(CWD, root, flags, Mode::empty()).map_err(|error| failed(error.into()))?;
    let mut extracted = Extracted { entries: 0, refused: Vec::new() };
    let mut guard = Guard::new(repositories);
    for entry in Archive::new(archive).entries().map_err(ExtractError::Archive)? {
        let mut entry = entry.map_err(ExtractError::Archive)?;
        if entry.header().entry_type() == EntryType::XGlobalHeader {
            let mut note = Vec::new();
            (&mut entry).take(MAX_NOTE).read_to_end(&mut note).map_err(ExtractError::Archive)?;
            extracted.refused.extend(skipped(&note));
            continue;
        }
        let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        let parts = parts(&entry.path_bytes()).ok_or_else(|| ExtractError::Outside(name.clone()))?;
        let Some((last, parents)) = parts.split_last() else { continue };
        match guard.judge(root.as_fd(), &parts) {
            Judged::Fine => {}
            Judged::Kept(first) => {
                // Told once, not for each of its files.
                let told = |there: PathBuf| Refusal { name: there.display().to_string(), why: KEPT.into() };
                extracted.refused.extend(first.map(told));
                continue;
            }
        }
        match place(&mut entry, root.as_fd(), parents, last) {
            Ok(()) => extracted.entries += 1,
            Err(Obstacle::Refused(why)) => extracted.refused.push(Refusal { name, why: why.into() }),
            Err(Obstacle::Failed(source)) => return Err(ExtractError::Write { path: name, source }),
        }
    }
    Ok(extracted)
}

/// What a global header tells of something that is not in the archive. Read by the records' lengths: names may have
/// newlines.
fn skipped(mut records: &[u8]) -> Option<Refusal> {
    let (mut name, mut why) = (None, None);
    while !records.is_empty() {
        let space = records.iter().position(|byte| *byte == b' ')?;
        let length: usize = std::str::from_utf8(&records[..space]).ok()?.parse().ok()?;
        let (record, rest) = records.split_at_checked(length)?;
        let record = record.get(space + 1..)?.strip_suffix(b"\n")?;
        let equals = record.iter().position(|byte| *byte == b'=')?;
        let (key, value) = (&record[..equals], String::from_utf8_lossy(&record[equals + 1..]).into_owned());
        if key == SKIPPED.as_bytes() {
            name = Some(value);
        } else if key == SKIPPED_WHY.as_bytes() {
            why = Some(value);
        }
        records = rest;
    }
    Some(Refusal { name: name?, why: why.unwrap_or_default().into() })
}

/// The names of a path below the root; `None` if it is absolute or climbs.
fn parts(path: &[u8]) -> Option<Vec<OsString>> {
    if path.starts_with(b"/") || path.contains(&0) {
        return None;
    }
    let mut parts = Vec::new();
    for part in path.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => return None,
            part => parts.push(OsStr::from_bytes(part).to_owned()),
        }
    }
    Some(parts)
}

enum Obstacle {
    Refused(&'static str),
    Failed(io::Error),
}

impl From<io::Error> for Obstacle {
    fn from(error: io::Error) -> Self {
        Self::Failed(error)
    }
}

impl From<rustix::io::Errno> for Obstacle {
    fn from(error: rustix::io::Errno) -> Self {
        Self::Failed(error.into())
    }
}

fn place(
    entry: &mut Entry<'_, impl Read>,
    root: BorrowedFd<'_>,
    parents: &[OsString],
    name: &OsStr,
) -> Result<(), Obstacle> {
    let header = entry.header();
    let mode = Mode::from_raw_mode(header.mode()? & 0o777);
    let kind = header.entry_type();
    match kind {
        EntryType::Directory => {
            descend(root, parents.iter().map(OsString::as_os_str).chain([name]), mode)?;
        }
        EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
            let parent = descend(root, parents.iter().map(OsString::as_os_str), Mode::from_raw_mode(0o755))?;
            clear(parent.as_fd(), name)?;
            write_file(entry, parent.as_fd(), name, mode, kind == EntryType::GNUSparse)?;
        }
        EntryType::Symlink => {
            let target = entry.link_name_bytes().unwrap_or_default().into_owned();
            if !stays_inside(&target, parents.len()) {
                return Err(Obstacle::Refused("it is a link that leads outside of what is copied"));
            }
            let parent = descend(root, parents.iter().map(OsString::as_os_str), Mode::from_raw_mode(0o755))?;
            clear(parent.as_fd(), name)?;
            rustix::fs::symlinkat(OsStr::from_bytes(&target), parent, name)?;
        }
        EntryType::Link => return Err(Obstacle::Refused("it is a hard link")),
        EntryType::Char | EntryType::Block => return Err(Obstacle::Refused("it is a device")),
        EntryType::Fifo => return Err(Obstacle::Refused("it is a pipe")),
        _ => return Err(Obstacle::Refused("it is of an unknown kind")),
    }
    Ok(())
}

/// Opens a directory below the root, making what is missing; no part of the way may be a link.
fn descend<'a>(
    root: BorrowedFd<'_>,
    names: impl IntoIterator<Item = &'a OsStr>,
    mode: Mode,
) -> Result<OwnedFd, Obstacle> {
    let mut directory = root.try_clone_to_owned()?;
    for name in names {
        // We must be able to fill it.
        match rustix::fs::mkdirat(&directory, name, mode | Mode::RWXU) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::PATH | OFlags::CLOEXEC;
        directory = rustix::fs::openat(&directory, name, flags, Mode::empty()).map_err(|error| match error {
            rustix::io::Errno::NOTDIR | rustix::io::Errno::LOOP => {
                Obstacle::Refused("a link or file stands where a directory must be")
            }
            error => error.into(),
        })?;
    }
    Ok(directory)
}

/// Removes what stands at a name, so that nothing is ever written through it.
fn clear(parent: BorrowedFd<'_>, name: &OsStr) -> Result<(), Obstacle> {
    match rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(rustix::io::Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
        Ok(stat) if FileType::from_raw_mode(stat.st_mode).is_dir() => {
            Err(Obstacle::Refused("a directory stands in its place"))
        }
        Ok(_) => Ok(rustix::fs::unlinkat(parent, name, AtFlags::empty())?),
    }
}

fn write_file(
    entry: &mut Entry<'_, impl Read>,
    parent: BorrowedFd<'_>,
    name: &OsStr,
    mode: Mode,
    holes: bool,
) -> Result<(), Obstacle> {
    let seconds = i64::try_from(entry.header().mtime()?).unwrap_or_default();
    let file = if holes { file_with_holes(entry, parent, name)? } else { plain_file(entry, parent, name)? };
    rustix::fs::fchmod(&file, mode)?;
    let time = Timespec { tv_sec: seconds, tv_nsec: 0 };
    rustix::fs::futimens(&file, &Timestamps { last_access: time, last_modification: time })?;
    Ok(())
}

fn plain_file(entry: &mut Entry<'_, impl Read>, parent: BorrowedFd<'_>, name: &OsStr) -> Result<File, Obstacle> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut file = File::from(rustix::fs::openat(parent, name, flags, Mode::RUSR | Mode::WUSR)?);
    io::copy(entry, &mut file)?;
    Ok(file)
}

/// A few bytes of archive can stand for any number of zeros; they must become neither that much disk nor that much
/// time. Only the library knows where the holes are. It takes a path: the parent's descriptor makes one that no link can
/// redirect, and it opens nothing that is there already.
fn file_with_holes(entry: &mut Entry<'_, impl Read>, parent: BorrowedFd<'_>, name: &OsStr) -> Result<File, Obstacle> {
    entry.set_preserve_mtime(false);
    let place = Path::new("/proc/self/fd").join(parent.as_raw_fd().to_string()).join(name);
    match entry.unpack(place)? {
        Unpacked::File(file) => Ok(file),
        _ => Err(Obstacle::Refused("it is of an unknown kind")),
    }
}

/// Whether a link in a directory `depth` below the root cannot lead out, whatever other links the tree has: it climbs
/// only at its beginning, over real directories, and no further than the root. `a/..` could climb out of where `a`
/// points to.
fn stays_inside(target: &[u8], depth: usize) -> bool {
    if target.is_empty() || target.starts_with(b"/") || target.contains(&0) {
        return false;
    }
    let mut climbed = 0;
    let mut entered = false;
    for part in target.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." if entered => return false,
            b".." => climbed += 1,
            _ => entered = true,
        }
    }
    climbed <= depth
}

/// The archive as it arrives.
struct Incoming {
    receiver: mpsc::Receiver<io::Result<Bytes>>,
    piece: Bytes,
}

impl Read for Incoming {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.piece.is_empty() {
            match self.receiver.blocking_recv() {
                Some(piece) => self.piece = piece?,
                None => return Ok(0),
            }
        }
        let length = buffer.len().min(self.piece.len());
        self.piece.copy_to_slice(&mut buffer[..length]);
        Ok(length)
    }
}

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests;
