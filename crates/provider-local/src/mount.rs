//! Mounts as the view needs them: made detached, finished, and only then attached.

use std::{io, os::fd::OwnedFd, path::Path};

use rustix::{
    fs::{CWD, Mode},
    mount::{
        FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, fsconfig_create, fsconfig_set_flag,
        fsconfig_set_string, fsmount, fsopen, move_mount, open_tree,
    },
};

use crate::{
    directory,
    sys::{self, Reach},
};

pub(crate) const QUIET: u64 = libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV;
/// A directory that every host has and no sandbox sees: what an overlay is made of is stacked there, in this mount
/// namespace alone, and goes with the old root.
pub(crate) const STACK: &str = "/sys";
const CLONE: OpenTreeFlags = OpenTreeFlags::OPEN_TREE_CLONE.union(OpenTreeFlags::OPEN_TREE_CLOEXEC);

/// An overlay whose lower layers are given topmost first.
pub(crate) fn overlay(lowers: &[String], upper: &str, work: &str) -> io::Result<OwnedFd> {
    let context = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(&context, "source", "sandbar")?;
    match lowers {
        [only] => fsconfig_set_string(&context, "lowerdir", only)?,
        // One at a time, which kernels from 6.7 on take.
        several => {
            for lower in several {
                fsconfig_set_string(&context, "lowerdir+", lower)?;
            }
        }
    }
    fsconfig_set_string(&context, "upperdir", upper)?;
    fsconfig_set_string(&context, "workdir", work)?;
    // Whiteouts in user xattrs: `trusted.*` belongs to the host's root.
    fsconfig_set_flag(&context, "userxattr")?;
    fsconfig_create(&context)?;
    finish(&context, QUIET)
}

/// One without anything to write to. The kernel wants two lower layers then.
pub(crate) fn read_only_overlay(lowers: &str) -> io::Result<OwnedFd> {
    let context = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(&context, "source", "sandbar")?;
    fsconfig_set_string(&context, "lowerdir", lowers)?;
    fsconfig_set_flag(&context, "userxattr")?;
    fsconfig_create(&context)?;
    finish(&context, QUIET | libc::MOUNT_ATTR_RDONLY)
}

/// Puts a tree into this mount namespace, which an overlay demands of its lower layers; it goes with the old root.
pub(crate) fn stack(tree: &OwnedFd) -> io::Result<()> {
    attach(tree, STACK)
}

/// A copy of a host's tree that nothing can be written to.
pub(crate) fn read_only(host: impl AsRef<Path>) -> io::Result<OwnedFd> {
    // Recursive: a user namespace may not look beneath mounts that were made for it.
    let tree = open_tree(CWD, host.as_ref(), CLONE | OpenTreeFlags::AT_RECURSIVE)?;
    sys::mount_setattr(&tree, QUIET | libc::MOUNT_ATTR_RDONLY, Reach::Below, None)?;
    Ok(tree)
}

/// A device of the host's, by its path.
pub(crate) fn device(path: &str) -> io::Result<OwnedFd> {
    Ok(open_tree(CWD, path, CLONE)?)
}

pub(crate) fn filesystem(kind: &str, options: &[(&str, &str)], attributes: u64) -> io::Result<OwnedFd> {
    let context = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (key, value) in options {
        fsconfig_set_string(&context, *key, *value)?;
    }
    fsconfig_create(&context)?;
    finish(&context, attributes)
}

fn finish(context: &OwnedFd, attributes: u64) -> io::Result<OwnedFd> {
    let attributes = MountAttrFlags::from_bits_retain(attributes as u32);
    Ok(fsmount(context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?)
}

pub(crate) fn attach(tree: &OwnedFd, place: &str) -> io::Result<()> {
    Ok(move_mount(tree, "", CWD, place, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?)
}

pub(crate) fn open(path: impl AsRef<Path>) -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(path.as_ref(), directory::PATH, Mode::empty())?)
}
