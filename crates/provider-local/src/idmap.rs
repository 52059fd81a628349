//! Detached copies of host trees whose files belong, inside the sandbox, to the sandbox's own users. Needs root.

use std::{
    fs,
    io::{self, Read as _},
    os::fd::{AsFd, OwnedFd},
};

use rustix::mount::{OpenTreeFlags, open_tree};

use crate::sys::{self, Cloned, Reach};

/// A private copy of the mount at `directory`, not yet anywhere in the tree. Not recursive: mounts inside stay outside.
pub(crate) fn detached(directory: impl AsFd, idmap: Option<&OwnedFd>) -> io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    let tree = open_tree(directory, "", flags)?;
    sys::mount_setattr(&tree, libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV, Reach::Alone, idmap)?;
    Ok(tree)
}

/// A user namespace that exists only as a map: files of `owner` on disk appear as `user` of the host.
pub(crate) fn single(owner: (u32, u32), user: u32) -> io::Result<OwnedFd> {
    let (mut waits, holds) = io::pipe()?;
    match sys::clone_into(libc::CLONE_NEWUSER as u64)? {
        Cloned::Child => {
            drop(holds);
            // Ends when the parent has what it wants, or is dead.
            let _ended = waits.read(&mut [0]);
            sys::exit(0)
        }
        Cloned::Parent { pid, .. } => {
            fs::write(format!("/proc/{pid}/uid_map"), format!("{} {user} 1\n", owner.0))?;
            fs::write(format!("/proc/{pid}/gid_map"), format!("{} {user} 1\n", owner.1))?;
            user_namespace(pid)
        }
    }
}

pub(crate) fn user_namespace(pid: i32) -> io::Result<OwnedFd> {
    Ok(fs::File::open(format!("/proc/{pid}/ns/user"))?.into())
}
