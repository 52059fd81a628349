//! What is there: one entry, or those of a directory.

use std::{
    fs::{self, Metadata},
    io,
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::Path,
};

use super::{frames::Outbox, unheard};
use crate::{
    error::Fault,
    protocol::{Entry, EntryKind},
};

pub(super) fn stat(path: &Path, outbox: &mut Outbox) -> Result<u64, Fault> {
    let metadata = fs::metadata(path).map_err(|error| failed(path, &error))?;
    outbox.entry(&entry(name(path), &metadata, String::new())).map_err(unheard)?;
    Ok(1)
}

pub(super) fn directory(path: &Path, outbox: &mut Outbox) -> Result<u64, Fault> {
    let mut names = Vec::new();
    for entry in fs::read_dir(path).map_err(|error| failed(path, &error))? {
        names.push(entry.map_err(|error| failed(path, &error))?.file_name());
    }
    names.sort_unstable();
    let mut count = 0;
    for name in names {
        let place = path.join(&name);
        let metadata = match fs::symlink_metadata(&place) {
            Ok(metadata) => metadata,
            // Removed since it was listed.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(failed(&place, &error)),
        };
        let target = if metadata.is_symlink() {
            fs::read_link(&place).map(|target| target.to_string_lossy().into_owned()).unwrap_or_default()
        } else {
            String::new()
        };
        outbox.entry(&entry(name.to_string_lossy().into_owned(), &metadata, target)).map_err(unheard)?;
        count += 1;
    }
    Ok(count)
}

/// The last part of a path; of the root, which has none, the root itself.
pub(super) fn name(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

pub(super) fn entry(name: String, metadata: &Metadata, target: String) -> Entry {
    let kind = metadata.file_type();
    let kind = if kind.is_file() {
        EntryKind::File
    } else if kind.is_dir() {
        EntryKind::Directory
    } else if kind.is_symlink() {
        EntryKind::Symlink
    } else {
        EntryKind::Other
    };
    Entry {
        name,
        kind: kind.into(),
        size: metadata.size(),
        mode: metadata.mode() & 0o7777,
        modified_ms: modified_ms(metadata),
        target,
    }
}

pub(super) fn modified_ms(metadata: &Metadata) -> i64 {
    metadata.mtime().saturating_mul(1000).saturating_add(metadata.mtime_nsec() / 1_000_000)
}

/// In the words of people, for what is neither file nor directory.
pub(super) fn kind_of(metadata: &Metadata) -> &'static str {
    let kind = metadata.file_type();
    if kind.is_dir() {
        "a directory"
    } else if kind.is_fifo() {
        "a pipe"
    } else if kind.is_socket() {
        "a socket"
    } else if kind.is_char_device() || kind.is_block_device() {
        "a device"
    } else {
        "no regular file"
    }
}

fn failed(path: &Path, error: &io::Error) -> Fault {
    Fault::file(&format!("look at `{}`", path.display()), error)
}
