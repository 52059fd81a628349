//! A sandbox's directory on the host, and what is in it.

use std::{
    fs, io,
    os::{
        fd::OwnedFd,
        unix::fs::{PermissionsExt, chown, symlink},
    },
    path::{Path, PathBuf},
};

use rustix::fs::{Mode, OFlags};
use sandbar_api::{Root, WorkspaceSource};
use sandbar_provider::{Error, Spec};
use serde::{Deserialize, Serialize};

use crate::{bound::Bound, uids::Uids};

/// Where the lower layer is attached, in the sandbox's own mount namespace only.
pub(crate) const LOWER: &str = "lower";
/// Leads to the lower layer on the host.
pub(crate) const LOWER_LINK: &str = "lower.link";
pub(crate) const UPPER: &str = "upper";
pub(crate) const WORK: &str = "work";
pub(crate) const ROOT: &str = "root";
pub(crate) const WORKSPACE: &str = "workspace";
const SPEC: &str = "sandbox.json";

/// What `start` needs to know; written last, so that a directory without it was never finished.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Record {
    pub spec: Spec,
    pub uids: Uids,
}

/// Makes the directory of a new sandbox, or finishes one that a crash left.
pub(crate) fn make(path: &Path, base: &Path, record: &Record) -> Result<(), Error> {
    let lower = match &record.spec.root {
        Root::Host => base.to_owned(),
        Root::Image { path } => image(path)?,
    };
    make_files(path, &lower, record).map_err(|error| disk(path, "make the sandbox's directory", error))
}

fn make_files(path: &Path, lower: &Path, record: &Record) -> io::Result<()> {
    let owner = record.uids.root_on_host();
    directory(path, None)?;
    for name in [LOWER, ROOT] {
        directory(&path.join(name), None)?;
    }
    for name in [UPPER, WORK] {
        directory(&path.join(name), owner)?;
    }
    link(lower, &path.join(LOWER_LINK))?;
    if record.spec.workspace == WorkspaceSource::Empty {
        directory(&path.join(WORKSPACE), record.uids.workload_on_host())?;
    }
    let draft = path.join("sandbox.json.draft");
    fs::write(&draft, serde_json::to_vec_pretty(record)?)?;
    fs::rename(draft, path.join(SPEC))
}

/// `None` when the directory is not there or was never finished.
pub(crate) fn read(path: &Path) -> Result<Option<Record>, Error> {
    let text = match fs::read(path.join(SPEC)) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::io(format!("read {}", path.join(SPEC).display()))(error)),
    };
    serde_json::from_slice(&text)
        .map(Some)
        .map_err(|error| Error::io(format!("read {}", path.join(SPEC).display()))(error.into()))
}

/// Brings a finished directory onto the disk: a power cut must not leave a sandbox without its record.
pub(crate) fn sync(path: &Path) -> io::Result<()> {
    fs::File::open(path.join(SPEC))?.sync_all()?;
    fs::File::open(path)?.sync_all()
}

/// The descriptors a launch needs, opened by the server, which is outside.
pub(crate) struct Opened {
    pub directory: OwnedFd,
    pub lower: OwnedFd,
    pub workspace: Option<(OwnedFd, Bound)>,
}

pub(crate) fn open(path: &Path, record: &Record) -> Result<Opened, Error> {
    let named = |name: &Path| -> Result<OwnedFd, Error> {
        rustix::fs::open(name, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .map_err(|errno| Error::io(format!("open {}", name.display()))(errno.into()))
    };
    let workspace = match &record.spec.workspace {
        WorkspaceSource::Empty => None,
        WorkspaceSource::Bind { path } => Some(Bound::find(path).map_err(|error| Error::BadSpec {
            what: format!("workspace {path}"),
            cause: error.to_string(),
            fix: "Bind an existing directory whose path has no symbolic link in it.".into(),
        })?),
    };
    Ok(Opened { directory: named(path)?, lower: named(&path.join(LOWER_LINK))?, workspace })
}

fn image(path: &str) -> Result<PathBuf, Error> {
    let image = PathBuf::from(path);
    let bad = |cause: String| Error::BadSpec {
        what: format!("image {path}"),
        cause,
        fix: "Give the absolute path of an unpacked root filesystem on the server's host.".into(),
    };
    if !image.is_absolute() {
        return Err(bad("the path is not absolute".into()));
    }
    match fs::metadata(&image) {
        Ok(found) if found.is_dir() && image.parent().is_some() => Ok(image),
        Ok(_) => Err(bad("it is not a directory of its own".into())),
        Err(error) => Err(bad(error.to_string())),
    }
}

fn directory(path: &Path, owner: Option<u32>) -> io::Result<()> {
    match fs::create_dir(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    // Passable for the sandbox's uids; the directory above keeps everybody else out.
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))?;
    if owner.is_some() {
        chown(path, owner, owner)?;
    }
    Ok(())
}

fn link(target: &Path, path: &Path) -> io::Result<()> {
    match symlink(target, path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            fs::remove_file(path)?;
            symlink(target, path)
        }
        other => other,
    }
}

/// Tells a full disk from other failures.
pub(crate) fn disk(path: &Path, action: &str, error: io::Error) -> Error {
    match error.raw_os_error() {
        Some(libc::ENOSPC | libc::EDQUOT) => Error::DiskFull { path: path.to_owned() },
        _ => Error::io(format!("{action} {}", path.display()))(error),
    }
}
