//! The file of the key: made once, never replaced, its owner's alone.

use std::{
    fs::{self, File, OpenOptions},
    io::{ErrorKind, Read as _, Write as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::Path,
};

use rustix::fs::{OFlags, RenameFlags};
use zeroize::Zeroizing;

use crate::ids;

pub(super) const LENGTH: usize = 32;

/// The key, if there is a file; or why it cannot be used.
pub(super) fn read(path: &Path) -> Result<Option<Zeroizing<[u8; LENGTH]>>, String> {
    // Not through a link, which could lead to what somebody else writes; and no FIFO is waited for.
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC).bits();
    let opened = OpenOptions::new().read(true).custom_flags(flags.cast_signed()).open(path);
    let mut file = match opened {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error()) => {
            return Err("it is a symbolic link".into());
        }
        Err(error) => return Err(error.to_string()),
    };
    let found = file.metadata().map_err(|error| error.to_string())?;
    if !found.is_file() {
        return Err("it is no file".into());
    }
    if found.uid() != rustix::process::geteuid().as_raw() {
        return Err("it belongs to another user".into());
    }
    if found.mode() & 0o077 != 0 {
        return Err(format!("others may use it (mode {:04o})", found.mode() & 0o7777));
    }
    if found.len() != LENGTH as u64 {
        return Err(format!("it has {} bytes instead of {LENGTH}", found.len()));
    }
    let mut key = Zeroizing::new([0; LENGTH]);
    file.read_exact(&mut *key).map_err(|error| error.to_string())?;
    Ok(Some(key))
}

/// One that was made elsewhere.
pub(super) fn given(path: &Path) -> Result<Zeroizing<[u8; LENGTH]>, String> {
    let bytes = Zeroizing::new(fs::read(path).map_err(|error| error.to_string())?);
    let key = <[u8; LENGTH]>::try_from(bytes.as_slice());
    key.map(Zeroizing::new).map_err(|_| format!("it has {} bytes instead of {LENGTH}", bytes.len()))
}

pub(super) fn make(path: &Path) -> Result<(), String> {
    put(path, &Zeroizing::new(ids::random::<LENGTH>().map_err(|problem| problem.detail)?))
}

/// Whole or not at all, and never over one that is there: a torn or replaced key would cost every secret.
pub(super) fn put(path: &Path, key: &[u8; LENGTH]) -> Result<(), String> {
    let new = path.with_extension("key.new");
    let made = write_new(&new, key).and_then(|()| rename_new(&new, path)).and_then(|()| sync_parent(path));
    made.map_err(|error| {
        // Whatever is left of it is removed by the next try.
        drop(fs::remove_file(&new));
        format!("it cannot be made: {error}")
    })
}

fn write_new(new: &Path, key: &[u8]) -> std::io::Result<()> {
    match fs::remove_file(new) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(new)?;
    file.write_all(key)?;
    file.sync_all()
}

fn rename_new(new: &Path, path: &Path) -> std::io::Result<()> {
    let here = rustix::fs::CWD;
    match rustix::fs::renameat_with(here, new, here, path, RenameFlags::NOREPLACE) {
        // A file system that does not know how; the home is locked, so nobody else makes one meanwhile.
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS) => fs::rename(new, path),
        renamed => Ok(renamed?),
    }
}

fn sync_parent(path: &Path) -> std::io::Result<()> {
    path.parent().map_or(Ok(()), |home| File::open(home)?.sync_all())
}
