//! Replacing a file as a whole: whoever reads it sees the old bytes or the new ones, never half of an upload.
//!
//! Allowed is what the workload's user could write into, not what it could remove: a read-only file stays. A file that is
//! more than its name, by other names or another owner, is overwritten where it is, once all of the upload is there.

use std::{
    ffi::{OsStr, OsString},
    fs::{self, File},
    io::{self, Read, Seek, SeekFrom, Write},
    os::{fd::OwnedFd, unix::fs::PermissionsExt},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{Access, AtFlags, FallocateFlags, FileType, Mode, OFlags},
    io::Errno,
};

use super::{frames::Inbox, list};
use crate::{
    error::{Code, Fault},
    protocol::CHUNK,
};

pub(super) const DEFAULT_MODE: u32 = 0o644;
/// What filesystems keep as a whole.
const BLOCK: usize = 4096;
/// As deep as the kernel follows them.
const MAX_LINKS: usize = 40;

pub(super) fn file(path: &Path, mode: Option<u32>, inbox: &mut Inbox) -> Result<u64, Fault> {
    let failed = |error: io::Error| Fault::file(&format!("write `{}`", path.display()), &error);
    let target = resolve(path).map_err(failed)?;
    let kept = match fs::symlink_metadata(&target) {
        Ok(metadata) if !metadata.is_file() => {
            let message = format!("`{}` is {}, not a file.", path.display(), list::kind_of(&metadata));
            return Err(Fault::new(Code::WrongFileKind, message));
        }
        Ok(metadata) => metadata.permissions().mode(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => DEFAULT_MODE,
        Err(error) => return Err(failed(error)),
    };
    let (directory, name) = (target.parent().unwrap_or(Path::new("/")), target.file_name());
    fs::create_dir_all(directory).map_err(failed)?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::open(directory, flags, Mode::empty()).map_err(|errno| failed(errno.into()))?;
    let name = name.ok_or_else(|| failed(io::Error::from_raw_os_error(libc::EISDIR)))?;
    replace(directory, name, Modes { asked: mode, kept }, inbox, &failed)
}

pub(super) struct Modes {
    pub(super) asked: Option<u32>,
    /// Of the file that is there, or else what a new one gets.
    pub(super) kept: u32,
}

/// Puts what comes under this name of a directory when all of it is there.
pub(super) fn replace(
    directory: OwnedFd,
    name: &OsStr,
    modes: Modes,
    inbox: &mut Inbox,
    failed: &dyn Fn(io::Error) -> Fault,
) -> Result<u64, Fault> {
    // Now rather than when the upload has come: that it may be removed does not mean that it may be changed.
    match rustix::fs::accessat(&directory, name, Access::WRITE_OK, AtFlags::EACCESS) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(errno) => return Err(failed(errno.into())),
    }
    let draft = Draft::create(directory).map_err(failed)?;
    let size = draft.fill(inbox).map_err(|error| {
        if inbox.was_aborted() {
            Fault::new(Code::BadRequest, "The upload broke off before its end.")
        } else {
            failed(error)
        }
    })?;
    match draft.in_place(name).map_err(failed)? {
        Some(file) => draft.overwrite(file, modes.asked, size).map_err(failed)?,
        None => draft.publish(name, modes.asked.unwrap_or(modes.kept)).map_err(failed)?,
    }
    Ok(size)
}

/// How many bytes at the beginning are of one kind, in whole blocks, and whether they are zeros.
fn run(bytes: &[u8]) -> Option<(usize, bool)> {
    let is_hole = |block: &[u8]| block.iter().all(|byte| *byte == 0);
    let kind = is_hole(bytes.chunks(BLOCK).next()?);
    Some((bytes.chunks(BLOCK).take_while(|block| is_hole(block) == kind).map(<[u8]>::len).sum(), kind))
}

/// Follows links at the end of the path by hand, because the file at their end need not exist yet.
fn resolve(path: &Path) -> io::Result<PathBuf> {
    let mut path = path.to_path_buf();
    for _ in 0..MAX_LINKS {
        match fs::read_link(&path) {
            Ok(target) => path = path.parent().unwrap_or(Path::new("/")).join(target),
            Err(_) => return Ok(path),
        }
    }
    Err(io::Error::from_raw_os_error(libc::ELOOP))
}

/// The new file under a hidden name, which goes when it is dropped unpublished.
struct Draft {
    directory: OwnedFd,
    name: OsString,
    file: File,
    published: bool,
}

impl Draft {
    fn create(directory: OwnedFd) -> io::Result<Self> {
        let mut random = [0; 8];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
        let name = OsString::from(format!(".sandbar-{:016x}", u64::from_le_bytes(random)));
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&directory, &name, flags, Mode::from_raw_mode(0o600))?.into();
        Ok(Self { directory, name, file, published: false })
    }

    /// Zeros are not written, so that holes stay holes.
    fn fill(&self, inbox: &mut impl Read) -> io::Result<u64> {
        let mut file = &self.file;
        let mut buffer = vec![0; CHUNK];
        let mut total = 0;
        let mut hole = false;
        loop {
            match inbox.read(&mut buffer) {
                Ok(0) => {
                    if hole {
                        file.set_len(total)?;
                    }
                    return Ok(total);
                }
                Ok(read) => {
                    let mut rest = &buffer[..read];
                    while let Some((run, is_hole)) = run(rest) {
                        if !is_hole {
                            if hole {
                                file.seek(SeekFrom::Start(total))?;
                            }
                            file.write_all(&rest[..run])?;
                        }
                        hole = is_hole;
                        total += run as u64;
                        rest = &rest[run..];
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// The file under this name, if another one in its place would not be the same: it has other names, or another owner.
    fn in_place(&self, target: &OsStr) -> io::Result<Option<File>> {
        let there = match rustix::fs::statat(&self.directory, target, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return Ok(None),
            there => there?,
        };
        let ours = rustix::fs::fstat(&self.file)?;
        let alone = there.st_nlink == 1 && (there.st_uid, there.st_gid) == (ours.st_uid, ours.st_gid);
        if alone || !FileType::from_raw_mode(there.st_mode).is_file() {
            return Ok(None);
        }
        let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        Ok(Some(rustix::fs::openat(&self.directory, target, flags, Mode::empty())?.into()))
    }

    /// What can fail comes first, while nothing has changed: its mode, and room for all of it.
    fn overwrite(&self, mut there: File, mode: Option<u32>, size: u64) -> io::Result<()> {
        if let Some(mode) = mode {
            there.set_permissions(fs::Permissions::from_mode(mode & 0o1777))?;
        }
        let room = rustix::fs::fallocate(&there, FallocateFlags::KEEP_SIZE, 0, size.max(1));
        // Not every filesystem can tell beforehand.
        if let Err(errno @ (Errno::NOSPC | Errno::DQUOT | Errno::FBIG)) = room {
            return Err(errno.into());
        }
        let mut draft = &self.file;
        draft.rewind()?;
        let mut buffer = vec![0; CHUNK];
        loop {
            match draft.read(&mut buffer)? {
                0 => break,
                read => there.write_all(&buffer[..read])?,
            }
        }
        there.set_len(size)?;
        there.sync_all()
    }

    fn publish(mut self, target: &OsStr, mode: u32) -> io::Result<()> {
        // Not set-user-id: new content must not inherit what the old one was trusted with, and the fence forbids it.
        self.file.set_permissions(fs::Permissions::from_mode(mode & 0o1777))?;
        self.file.sync_all()?;
        rustix::fs::renameat(&self.directory, &self.name, &self.directory, target)?;
        self.published = true;
        Ok(())
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if !self.published {
            // The failure that brought us here is what the caller hears of.
            let _ = rustix::fs::unlinkat(&self.directory, &self.name, AtFlags::empty());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    #[test]
    fn zeros_take_no_room_and_everything_else_arrives() -> io::Result<()> {
        let place = tempfile::tempdir()?;
        let zeros = vec![0; 1 << 20];
        let mut wanted = [b"begin".as_slice(), &zeros, b"middle", &zeros[..9000], &[1; 9000], &zeros].concat();
        for (name, end) in [("zeros", b"".as_slice()), ("data", b"end")] {
            wanted.extend_from_slice(end);
            let draft = Draft::create(File::open(place.path())?.into())?;
            assert_eq!(draft.fill(&mut &wanted[..])?, wanted.len() as u64);
            draft.publish(OsStr::new(name), 0o644)?;
            let path = place.path().join(name);
            assert!(fs::read(&path)? == wanted, "{name}");
            let taken = fs::metadata(&path)?.blocks() * 512;
            assert!(taken < 256 * 1024, "{taken} bytes on the disk");
        }
        Ok(())
    }
}
