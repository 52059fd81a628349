//! Detached copies of host trees whose files belong, inside the sandbox, to the sandbox's own users. Needs root.

use std::{
    fs,
    io::{self, Read as _},
    os::fd::{AsFd, OwnedFd},
};

use rustix::mount::{OpenTreeFlags, open_tree};

use crate::{
    sys::{self, Cloned, Reach},
    uids,
};

/// The last uid there is, and no file's.
const UNUSED: u32 = u32::MAX - 1;

const QUIET: u64 = libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV;

/// A private copy of the mount at `directory`, not yet anywhere in the tree. Not recursive: mounts inside stay outside.
pub(crate) fn detached(directory: impl AsFd, idmap: Option<&OwnedFd>) -> io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    let tree = open_tree(directory, "", flags)?;
    sys::mount_setattr(&tree, QUIET, Reach::Alone, idmap)?;
    Ok(tree)
}

/// The same, and nothing can be written to it.
pub(crate) fn readable(directory: impl AsFd, idmap: Option<&OwnedFd>) -> io::Result<OwnedFd> {
    let tree = detached(directory, idmap)?;
    sys::mount_setattr(&tree, libc::MOUNT_ATTR_RDONLY, Reach::Alone, None)?;
    Ok(tree)
}

/// A mount that is not in the tree yet, with its files' owners shifted.
pub(crate) fn shift(mount: OwnedFd, map: &OwnedFd) -> io::Result<OwnedFd> {
    sys::mount_setattr(&mount, QUIET, Reach::Alone, Some(map))?;
    Ok(mount)
}

/// Files of `owner` on disk appear as `user` of the host.
pub(crate) fn single(owner: (u32, u32), user: u32) -> io::Result<OwnedFd> {
    map((owner.0, owner.1), user, 1)
}

/// Files appear as nobody's, which the kernel lets nobody write to, whatever their modes say.
pub(crate) fn nobodys(user: u32) -> io::Result<OwnedFd> {
    map((UNUSED, UNUSED), user, 1)
}

/// Files of one sandbox's users appear as those of another's.
pub(crate) fn range(from: u32, to: u32) -> io::Result<OwnedFd> {
    map((from, from), to, uids::WIDTH)
}

/// A user namespace that exists only as a map.
fn map(from: (u32, u32), to: u32, count: u32) -> io::Result<OwnedFd> {
    let (mut waits, holds) = io::pipe()?;
    match sys::clone_into(libc::CLONE_NEWUSER as u64, None)? {
        Cloned::Child => {
            drop(holds);
            // Ends when the parent has what it wants, or is dead.
            let _ended = waits.read(&mut [0]);
            sys::exit(0)
        }
        Cloned::Parent { pid, .. } => {
            fs::write(format!("/proc/{pid}/uid_map"), format!("{} {to} {count}\n", from.0))?;
            fs::write(format!("/proc/{pid}/gid_map"), format!("{} {to} {count}\n", from.1))?;
            user_namespace(pid)
        }
    }
}

pub(crate) fn user_namespace(pid: i32) -> io::Result<OwnedFd> {
    Ok(fs::File::open(format!("/proc/{pid}/ns/user"))?.into())
}
