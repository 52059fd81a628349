//! A directory of the host that is bound as a workspace. Whoever can write beside it could put a link in its place, so
//! it is found by a path without links, each time anew, and never followed anywhere else.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Bound {
    /// Absolute, and without links when it was first bound.
    path: String,
    device: u64,
    inode: u64,
    /// Who owns it on the host.
    pub owner: (u32, u32),
}

impl Bound {
    pub(crate) fn find(path: &str) -> io::Result<(OwnedFd, Self)> {
        let directory = open(path)?;
        let found = rustix::fs::fstat(&directory)?;
        let owner = (found.st_uid, found.st_gid);
        Ok((directory, Self { path: path.to_owned(), device: found.st_dev, inode: found.st_ino, owner }))
    }

    /// The same directory once more, in another mount namespace.
    pub(crate) fn open(&self) -> io::Result<OwnedFd> {
        let directory = open(&self.path)?;
        let found = rustix::fs::fstat(directory.as_fd())?;
        if (found.st_dev, found.st_ino) != (self.device, self.inode) {
            return Err(io::Error::other("it was exchanged for another directory"));
        }
        Ok(directory)
    }
}

fn open(path: &str) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    Ok(rustix::fs::openat2(CWD, path, flags, Mode::empty(), resolve)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_in_its_place_is_not_followed() -> io::Result<()> {
        let home = std::env::temp_dir().canonicalize()?.join(format!("sandbar-bound-{}", std::process::id()));
        let (bound, secret) = (home.join("bound"), home.join("secret"));
        std::fs::create_dir_all(&bound)?;
        std::fs::create_dir_all(&secret)?;
        let path = bound.to_string_lossy().into_owned();
        let (_directory, found) = Bound::find(&path)?;
        found.open()?;
        std::fs::rename(&bound, home.join("moved"))?;
        std::os::unix::fs::symlink(&secret, &bound)?;
        // The control: an ordinary open follows it.
        assert!(std::fs::read_dir(&bound).is_ok());
        assert!(Bound::find(&path).is_err() && found.open().is_err());
        std::fs::remove_file(&bound)?;
        std::fs::create_dir(&bound)?;
        assert!(Bound::find(&path).is_ok());
        assert!(found.open().is_err(), "another directory of that name");
        std::fs::remove_dir_all(&home)
    }
}
