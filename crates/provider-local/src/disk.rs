//! A disk limit: everything a sandbox keeps lies in a filesystem of its own size, in a sparse file that is mounted into
//! the sandbox alone. The mount dies with the guest, and the loop device with the mount: nothing is left on the host.

use std::{
    fs, io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::OpenOptionsExt,
    },
    path::{Path, PathBuf},
    process::Command,
    sync::{Mutex, PoisonError},
};

use rustix::{
    fs::{AtFlags, Gid, Mode, Uid},
    mount::{
        FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount,
        fsopen,
    },
};
use sandbar_provider::Error;

use crate::{copy, sys};

pub(crate) const IMAGE: &str = "disk.img";
const MKFS: [&str; 3] = ["/usr/sbin/mke2fs", "/sbin/mke2fs", "/usr/bin/mke2fs"];
/// Two that format at once would write into each other's file.
static FORMATTING: Mutex<()> = Mutex::new(());
/// Others may take a free loop device first.
const TRIES: u32 = 32;

/// Makes an empty filesystem of that size at `path`. A blank one of each size is kept in `local`, and copied.
pub(crate) fn make(local: &Path, path: &Path, size: u64) -> Result<(), Error> {
    let blank = local.join(format!("blank-{size}.img"));
    {
        let _one = FORMATTING.lock().unwrap_or_else(PoisonError::into_inner);
        if !blank.exists() {
            format(&blank, size)?;
        }
    }
    copy::image(&blank, path).map(drop).map_err(|error| crate::directory::disk(path, "make the sandbox's disk", error))
}

pub(crate) fn can_make() -> Result<(), Error> {
    mkfs().map(drop)?;
    fs::File::options().read(true).write(true).open("/dev/loop-control").map(drop).map_err(|error| {
        refused(
            format!("/dev/loop-control: {error}"),
            "Load the loop module (modprobe loop), and run the server as root.",
        )
    })
}

pub(crate) fn refused(cause: String, fix: &str) -> Error {
    Error::NotEnforceable { layer: "disk limit", cause, fix: format!("{fix} Or leave the limit out of the template.") }
}

fn mkfs() -> Result<&'static str, Error> {
    let found = MKFS.into_iter().find(|path| Path::new(path).exists());
    found.ok_or_else(|| refused("mke2fs is not installed".into(), "Install e2fsprogs."))
}

fn format(blank: &Path, size: u64) -> Result<(), Error> {
    let draft = blank.with_extension("draft");
    let failed = |error| crate::directory::disk(&draft, "make a blank disk", error);
    let file = fs::File::options().create(true).truncate(true).write(true).mode(0o600).open(&draft).map_err(failed)?;
    file.set_len(size).map_err(failed)?;
    // A small journal: a power cut of the host must not cost the sandbox its files.
    let made = Command::new(mkfs()?)
        .env_clear()
        .args(["-q", "-F", "-t", "ext4", "-m", "0", "-J", "size=4", "-O", "^resize_inode"])
        .args(["-E", "lazy_itable_init=1,lazy_journal_init=1,nodiscard"])
        .arg(&draft)
        .output()
        .map_err(failed)?;
    if !made.status.success() {
        let said = String::from_utf8_lossy(&made.stderr).trim().to_owned();
        return Err(refused(format!("mke2fs: {said}"), "State a disk limit of 16MiB or more."));
    }
    fs::rename(&draft, blank).map_err(failed)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    ReadWrite,
    ReadOnly,
}

/// Mounts an image, not yet anywhere in the tree. Needs root.
pub(crate) fn mount(image: &OwnedFd, access: Access) -> io::Result<OwnedFd> {
    let mut last = io::Error::other("there is no free loop device");
    for _ in 0..TRIES {
        let (device, held) = match sys::loop_device(image) {
            Ok(found) => found,
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                last = error;
                continue;
            }
            Err(error) => return Err(error),
        };
        let context = fsopen("ext4", FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_set_string(&context, "source", &device)?;
        // What is deleted inside makes room on the host.
        fsconfig_set_flag(&context, "discard")?;
        if access == Access::ReadOnly {
            fsconfig_set_flag(&context, "ro")?;
        }
        fsconfig_create(&context)?;
        let attributes = libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV;
        let mount =
            fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::from_bits_retain(attributes as u32))?;
        // Held until it is mounted: it would be cleared with its last user.
        drop(held);
        return Ok(mount);
    }
    Err(last)
}

/// The directories that a sandbox's data has, on a fresh image.
pub(crate) fn furnish(mount: &OwnedFd, names: &[(&str, Option<u32>)]) -> io::Result<()> {
    for (name, owner) in names {
        match rustix::fs::mkdirat(mount, *name, Mode::from_raw_mode(0o755)) {
            Ok(()) => {
                let (uid, gid) = (owner.map(Uid::from_raw), owner.map(Gid::from_raw));
                rustix::fs::chownat(mount.as_fd(), *name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)?;
            }
            Err(rustix::io::Errno::EXIST) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// Blank images that no limit needs any more cost little, but a home that is opened starts without them.
pub(crate) fn forget_blanks(local: &Path) -> io::Result<()> {
    for entry in fs::read_dir(local)? {
        let path: PathBuf = entry?.path();
        let blank = path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with("blank-"));
        if blank {
            fs::remove_file(&path)?;
        }
    }
    Ok(())
}
