//! Replacing a file as a whole: whoever reads it sees the old bytes or the new ones, never half of an upload.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

use super::{frames::Inbox, list};
use crate::{
    error::{Code, Fault},
    protocol::CHUNK,
};

const DEFAULT_MODE: u32 = 0o644;
/// As deep as the kernel follows them.
const MAX_LINKS: usize = 40;

pub(super) fn file(path: &Path, mode: Option<u32>, inbox: &mut Inbox) -> Result<u64, Fault> {
    let failed = |error: io::Error| Fault::file(&format!("write `{}`", path.display()), &error);
    let target = resolve(path).map_err(failed)?;
    let mode = match fs::symlink_metadata(&target) {
        Ok(metadata) if !metadata.is_file() => {
            let message = format!("`{}` is {}, not a file.", path.display(), list::kind_of(&metadata));
            return Err(Fault::new(Code::WrongFileKind, message));
        }
        Ok(metadata) => mode.unwrap_or(metadata.permissions().mode() & 0o7777),
        Err(error) if error.kind() == io::ErrorKind::NotFound => mode.unwrap_or(DEFAULT_MODE),
        Err(error) => return Err(failed(error)),
    };
    let directory = target.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(directory).map_err(failed)?;
    let draft = Draft::create(directory).map_err(failed)?;
    let size = draft.fill(inbox).map_err(|error| {
        if inbox.was_aborted() {
            Fault::new(Code::BadRequest, "The upload broke off before its end.")
        } else {
            failed(error)
        }
    })?;
    draft.publish(&target, mode).map_err(failed)?;
    Ok(size)
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
    path: PathBuf,
    file: File,
    published: bool,
}

impl Draft {
    fn create(directory: &Path) -> io::Result<Self> {
        let mut random = [0; 8];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
        let path = directory.join(format!(".sandbar-{:016x}", u64::from_le_bytes(random)));
        let file =
            OpenOptions::new().write(true).create_new(true).mode(0o600).custom_flags(libc::O_NOFOLLOW).open(&path)?;
        Ok(Self { path, file, published: false })
    }

    fn fill(&self, inbox: &mut Inbox) -> io::Result<u64> {
        let mut file = &self.file;
        let mut buffer = vec![0; CHUNK];
        let mut total = 0;
        loop {
            match inbox.read(&mut buffer) {
                Ok(0) => return Ok(total),
                Ok(read) => {
                    file.write_all(&buffer[..read])?;
                    total += read as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn publish(mut self, target: &Path, mode: u32) -> io::Result<()> {
        // Not set-user-id: new content must not inherit what the old one was trusted with, and the fence forbids it.
        self.file.set_permissions(fs::Permissions::from_mode(mode & 0o1777))?;
        self.file.sync_all()?;
        fs::rename(&self.path, target)?;
        self.published = true;
        Ok(())
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if !self.published {
            // The failure that brought us here is what the caller hears of.
            let _ = fs::remove_file(&self.path);
        }
    }
}
