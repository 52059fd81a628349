//! What a sandbox sees of the filesystem: a private overlay root, the host's programs read-only, a fresh /proc and
//! /dev, its workspace, and nothing else. Ends with pivot_root: the host's tree is no longer anywhere.

use std::{
    fs, io,
    os::fd::{AsFd, OwnedFd},
    path::Path,
};

use rustix::{
    fs::{CWD, Mode, OFlags},
    mount::{
        FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags,
        fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, mount_change, move_mount, open_tree,
        unmount,
    },
};

use crate::{
    base, directory, idmap,
    launch::{Launch, RootKind},
    step::{Failure, Step},
    sys::{self, Reach},
    uids::{Uids, WORKLOAD},
};

const DEVICES: &[&str] = &["null", "zero", "full", "random", "urandom", "tty"];
/// Room for temporary files; they are memory.
const TMP_SIZE: &str = "512m";
const SHM_SIZE: &str = "64m";
const RUN_SIZE: &str = "16m";
const DEV_SIZE: &str = "64k";
/// Of the few thousand that all of the host's terminals share.
const MAX_TERMINALS: &str = "256";

const QUIET: u64 = libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV;

/// Builds the view below the sandbox's directory, where we are, and makes it the root of this mount namespace.
pub(crate) fn build(launch: &Launch, trees: Vec<OwnedFd>) -> Result<(), Failure> {
    let at = |step, what: &str| Failure::at(step, what.to_owned());
    // Nothing mounted here may show on the host, nor the other way round.
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .map_err(|errno| at(Step::Mounts, "make mounts private")(errno.into()))?;

    let mut trees = trees.into_iter();
    let lower = match launch.uids {
        Uids::Range(_) => trees.next().ok_or_else(|| io::Error::other("no tree")),
        Uids::One { .. } => open(directory::LOWER_LINK).and_then(|lower| idmap::detached(lower, None)),
    }
    .map_err(at(Step::Root, "open the lower layer"))?;
    let workspace = match (trees.next(), &launch.workspace) {
        (Some(tree), _) => Ok(tree),
        (None, None) => open(directory::WORKSPACE).and_then(|workspace| idmap::detached(workspace, None)),
        // Opened again: the server's descriptor belongs to another mount namespace, where we may not mount.
        (None, Some(bound)) => bound.open().and_then(|workspace| idmap::detached(workspace, None)),
    }
    .map_err(at(Step::Workspace, "open the workspace"))?;

    let root = overlay(&lower).map_err(at(Step::Root, "mount the root overlay"))?;
    attach(&root, CWD, directory::ROOT).map_err(at(Step::Root, "attach the root"))?;
    let root = open(directory::ROOT).map_err(at(Step::Root, "open the root"))?;
    rustix::process::fchdir(&root).map_err(|errno| at(Step::Root, "enter the root")(errno.into()))?;
    rustix::process::umask(Mode::from_raw_mode(0o022));

    match launch.root {
        RootKind::Host => host_parts().map_err(at(Step::Mounts, "show the host's programs"))?,
        RootKind::Image => image_parts(launch.uids).map_err(at(Step::Root, "complete the image's root"))?,
    }
    let proc = filesystem("proc", &[], QUIET | libc::MOUNT_ATTR_NOEXEC).map_err(at(Step::Proc, "mount /proc"))?;
    attach(&proc, CWD, "proc").map_err(at(Step::Proc, "attach /proc"))?;
    devices().map_err(at(Step::Dev, "build /dev"))?;
    for (name, size, mode) in [("tmp", TMP_SIZE, "1777"), ("run", RUN_SIZE, "755")] {
        let tmpfs =
            filesystem("tmpfs", &[("size", size), ("mode", mode)], QUIET).map_err(at(Step::Mounts, "mount a tmpfs"))?;
        attach(&tmpfs, CWD, name).map_err(at(Step::Mounts, "attach a tmpfs"))?;
    }
    attach(&workspace, CWD, "workspace").map_err(at(Step::Workspace, "attach the workspace"))?;

    pivot().map_err(at(Step::Pivot, "pivot into the root"))
}

fn overlay(lower: &OwnedFd) -> io::Result<OwnedFd> {
    // An overlay takes its layers by path: the lower one is put at a private name first. Relative names need no escaping.
    attach(lower, CWD, directory::LOWER)?;
    let context = fsopen("overlay", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(&context, "source", "sandbar")?;
    fsconfig_set_string(&context, "lowerdir", directory::LOWER)?;
    fsconfig_set_string(&context, "upperdir", directory::UPPER)?;
    fsconfig_set_string(&context, "workdir", directory::WORK)?;
    // Whiteouts in user xattrs: `trusted.*` belongs to the host's root.
    fsconfig_set_flag(&context, "userxattr")?;
    fsconfig_create(&context)?;
    finish(&context, QUIET)
}

/// The host's programs and libraries, read-only, and the harmless part of its /etc.
fn host_parts() -> io::Result<()> {
    bind_read_only("/usr", "usr")?;
    for name in base::USR_LINKS {
        let host = Path::new("/").join(name);
        if fs::symlink_metadata(&host).is_ok_and(|found| found.is_dir()) {
            bind_read_only(host, name)?;
        }
    }
    for name in base::BOUND {
        let place = format!("etc/{name}");
        // The base has a place for what the host had when it was made.
        if Path::new(&place).exists() {
            bind_read_only(Path::new("/etc").join(name), &place)?;
        }
    }
    Ok(())
}

/// An image has a root of its own; what it lacks to be a sandbox is added in the overlay.
fn image_parts(uids: Uids) -> io::Result<()> {
    for name in ["proc", "dev", "tmp", "run", "workspace", "home", "home/agent"] {
        match fs::create_dir(name) {
            Ok(()) if name == "home/agent" && matches!(uids, Uids::Range(_)) => {
                std::os::unix::fs::chown(name, Some(WORKLOAD), Some(WORKLOAD))?;
            }
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// A /dev with the harmless devices, its own terminals and nothing else.
fn devices() -> io::Result<()> {
    let dev = filesystem("tmpfs", &[("size", DEV_SIZE), ("mode", "755")], libc::MOUNT_ATTR_NOSUID)?;
    attach(&dev, CWD, "dev")?;
    for name in DEVICES {
        let place = format!("dev/{name}");
        fs::write(&place, "")?;
        let device =
            open_tree(CWD, format!("/dev/{name}"), OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC)?;
        attach(&device, CWD, &place)?;
    }
    for (target, name) in [
        ("/proc/self/fd", "dev/fd"),
        ("/proc/self/fd/0", "dev/stdin"),
        ("/proc/self/fd/1", "dev/stdout"),
        ("/proc/self/fd/2", "dev/stderr"),
        ("pts/ptmx", "dev/ptmx"),
    ] {
        std::os::unix::fs::symlink(target, name)?;
    }
    fs::create_dir("dev/pts")?;
    fs::create_dir("dev/shm")?;
    let quiet = libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NOEXEC;
    let terminals = filesystem("devpts", &[("ptmxmode", "0666"), ("mode", "0620"), ("max", MAX_TERMINALS)], quiet)?;
    attach(&terminals, CWD, "dev/pts")?;
    let shared = filesystem("tmpfs", &[("size", SHM_SIZE), ("mode", "1777")], QUIET)?;
    attach(&shared, CWD, "dev/shm")?;
    // Where there is one uid, it is the workload's own: it could put something else in the place of a device.
    sys::mount_setattr(&dev, libc::MOUNT_ATTR_RDONLY, Reach::Alone, None)
}

/// The old root is stacked under the new one and then taken away; nothing has to be left to stand on.
fn pivot() -> io::Result<()> {
    rustix::process::pivot_root(".", ".")?;
    unmount(".", UnmountFlags::DETACH)?;
    Ok(rustix::process::chdir("/")?)
}

fn bind_read_only(host: impl AsRef<Path>, place: &str) -> io::Result<()> {
    // Recursive: a user namespace may not look beneath mounts that were made for it.
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE;
    let tree = open_tree(CWD, host.as_ref(), flags)?;
    sys::mount_setattr(&tree, QUIET | libc::MOUNT_ATTR_RDONLY, Reach::Below, None)?;
    attach(&tree, CWD, place)
}

fn filesystem(kind: &str, options: &[(&str, &str)], attributes: u64) -> io::Result<OwnedFd> {
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

fn attach(tree: &OwnedFd, at: impl AsFd, place: &str) -> io::Result<()> {
    Ok(move_mount(tree, "", at, place, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?)
}

fn open(path: &str) -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}
