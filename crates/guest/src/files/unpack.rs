//! A tar archive into a directory. Names that lead elsewhere, devices and pipes are refused, and nothing is written
//! through a link that leads out of the directory, whoever made it.

use std::{
    cell::Cell,
    fs,
    io::{self, Read},
    path::{Component, Path, PathBuf},
    rc::Rc,
};

use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, UTIME_OMIT};
use tar::{Archive, Entry, EntryType};

use super::frames::Inbox;
use crate::error::{Code, Fault, file_code};

pub(super) fn tree(path: &Path, inbox: &mut Inbox) -> Result<u64, Fault> {
    let failed = |error: io::Error| Fault::file(&format!("unpack into `{}`", path.display()), &error);
    fs::create_dir_all(path).map_err(failed)?;
    let root = path.canonicalize().map_err(failed)?;
    let outcome = unpack(&root, inbox);
    if inbox.was_aborted() {
        return Err(Fault::new(Code::BadRequest, "The upload broke off before its end."));
    }
    outcome
}

fn unpack(root: &Path, inbox: &mut Inbox) -> Result<u64, Fault> {
    let ended = Rc::new(Cell::new(false));
    let mut archive = Archive::new(Watched { inner: &mut *inbox, ended: Rc::clone(&ended) });
    archive.set_preserve_permissions(true);
    let mut directories = Vec::new();
    let mut count = 0;
    let mut recognised = false;
    for entry in archive.entries().map_err(|error| bad("the archive", &error))? {
        let entry = entry.map_err(|error| match bad("the archive", &error) {
            fault if fault.code == Code::BadArchive && !recognised => {
                Fault::new(Code::BadArchive, "This is not a tar archive.")
            }
            fault => fault,
        })?;
        recognised = true;
        if unpack_entry(entry, root, &mut directories)? {
            count += 1;
        }
    }
    finish(directories, root)?;
    if ended.get() {
        return Err(Fault::new(Code::BadArchive, "The archive is truncated: it has no end mark."));
    }
    drop(archive);
    // What follows the end mark is padding, but the upload is only complete when all of it came.
    io::copy(inbox, &mut io::sink()).map_err(|error| bad("the archive", &error))?;
    Ok(count)
}

/// Whether it was something that counts.
fn unpack_entry<'a, R: Read>(
    mut entry: Entry<'a, R>,
    root: &Path,
    directories: &mut Vec<Directory<'a, R>>,
) -> Result<bool, Fault> {
    let shown = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
    let kind = entry.header().entry_type();
    match kind {
        EntryType::XGlobalHeader => return Ok(false),
        EntryType::Char | EntryType::Block | EntryType::Fifo => {
            return Err(Fault::new(Code::BadArchive, format!("`{shown}` is a device or a pipe.")));
        }
        _ => {}
    }
    let place = place(&entry, root, &shown)?;
    if place == root {
        return Ok(true);
    }
    let modified = entry.header().mtime().ok().and_then(|modified| i64::try_from(modified).ok());
    if modified.is_none() {
        // The library would panic on a time before all times.
        entry.set_preserve_mtime(false);
    }
    if kind.is_dir() {
        let restricted = entry.header().mode().is_ok_and(|mode| mode & 0o300 != 0o300);
        if !restricted {
            unpack_in(&mut entry, root, &shown)?;
        }
        directories.push(Directory { place, modified, restricted: restricted.then_some(entry) });
        return Ok(true);
    }
    if kind.is_hard_link() && fs::symlink_metadata(&place).is_ok_and(|there| !there.is_dir()) {
        // Other kinds are replaced by the library. Not through a link: the parent is checked first.
        if parent_is_inside(&place, root) {
            fs::remove_file(&place).map_err(|error| bad(&shown, &error))?;
        }
    }
    unpack_in(&mut entry, root, &shown)?;
    Ok(true)
}

fn unpack_in<R: Read>(entry: &mut Entry<'_, R>, root: &Path, shown: &str) -> Result<(), Fault> {
    match entry.unpack_in(root) {
        Ok(true) => Ok(()),
        Ok(false) => Err(Fault::new(Code::BadArchive, format!("`{shown}` leads out of the directory."))),
        Err(error) => Err(bad(shown, &error)),
    }
}

fn place<R: Read>(entry: &Entry<'_, R>, root: &Path, shown: &str) -> Result<PathBuf, Fault> {
    let name = entry.path().map_err(|error| bad(shown, &error))?;
    let mut place = root.to_path_buf();
    for part in name.components() {
        match part {
            Component::Normal(part) => place.push(part),
            Component::CurDir => {}
            Component::RootDir | Component::ParentDir | Component::Prefix(_) => {
                return Err(Fault::new(Code::BadArchive, format!("`{shown}` leads out of the directory.")));
            }
        }
    }
    Ok(place)
}

/// A directory's mode and time can only be set once everything is in it.
struct Directory<'a, R: Read> {
    place: PathBuf,
    modified: Option<i64>,
    /// Still to be unpacked: its owner may not write to it, which would keep out its own contents.
    restricted: Option<Entry<'a, R>>,
}

fn finish<R: Read>(mut directories: Vec<Directory<'_, R>>, root: &Path) -> Result<(), Fault> {
    // The deepest first: what is above may change by it, and may not be entered afterwards.
    directories.sort_by(|a, b| b.place.cmp(&a.place));
    for directory in directories {
        let shown = directory.place.display().to_string();
        if let Some(mut entry) = directory.restricted {
            entry.unpack_in(root).map_err(|error| bad(&shown, &error))?;
        }
        if let Some(modified) = directory.modified
            && parent_is_inside(&directory.place, root)
        {
            let times = Timestamps {
                last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
                last_modification: Timespec { tv_sec: modified, tv_nsec: 0 },
            };
            rustix::fs::utimensat(CWD, &directory.place, &times, AtFlags::SYMLINK_NOFOLLOW)
                .map_err(|error| bad(&shown, &error.into()))?;
        }
    }
    Ok(())
}

fn parent_is_inside(place: &Path, root: &Path) -> bool {
    place.parent().and_then(|parent| parent.canonicalize().ok()).is_some_and(|parent| parent.starts_with(root))
}

/// Notices when the archive's bytes end before the archive does.
struct Watched<'a> {
    inner: &'a mut Inbox,
    ended: Rc<Cell<bool>>,
}

impl Read for Watched<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        if read == 0 && !buffer.is_empty() {
            self.ended.set(true);
        }
        Ok(read)
    }
}

/// Trouble with the disk keeps its own code; everything else is the archive's.
fn bad(what: &str, error: &io::Error) -> Fault {
    // A missing file can only be the target of a hard link.
    let code = file_code(error).filter(|code| *code != Code::UnknownFile).unwrap_or(Code::BadArchive);
    Fault::new(code, format!("Failed to unpack `{what}`: {error}."))
}
