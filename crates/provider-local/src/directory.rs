//! A sandbox's directory on the host, and what is in it.

use std::{
    fs, io,
    os::{
        fd::OwnedFd,
        unix::fs::{PermissionsExt, chown},
    },
    path::{Path, PathBuf},
};

use rustix::fs::{Mode, OFlags};
use sandbar_api::{Root, SnapshotId, User, WorkspaceSource};
use sandbar_provider::{Error, Origin, Spec};
use serde::{Deserialize, Serialize};

use crate::{bound::Bound, disk, ownership, remove, sys, uids::Uids};

pub(crate) const UPPER: &str = "upper";
pub(crate) const WORK: &str = "work";
pub(crate) const WORKSPACE: &str = "workspace";
/// The overlay's own directory for a workspace that stands on layers.
pub(crate) const WORK_WORKSPACE: &str = "work-workspace";
/// Holds the rest where that is a subvolume or an image of its own.
pub(crate) const DATA: &str = "data";
/// Where a version before this one kept what leads to the lower layer.
const LOWER_LINK: &str = "lower.link";
const RECORD: &str = "sandbox.json";
const DRAFT: &str = "sandbox.json.draft";
/// To find something without opening it.
pub(crate) const PATH: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Parts of the host that root inside may change, each in an overlay of its own: name, and place.
pub(crate) const OVERLAID: [(&str, &str); 2] = [("usr", "usr"), ("dpkg", "var/lib/dpkg")];

/// What is kept of a sandbox in a snapshot.
pub(crate) const KEPT: [&str; 4] = [UPPER, WORKSPACE, OVERLAID[0].0, OVERLAID[1].0];

/// How a sandbox's own files are held.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Data {
    /// In its directory.
    #[default]
    Plain,
    /// In a btrfs subvolume, which can be copied in an instant.
    Subvolume,
    /// In a filesystem of a given size.
    Image,
}

/// What `start` needs to know besides the spec; written last, so that a directory without it was never finished.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Record {
    pub uids: Uids,
    /// The base layer or the image that its root stands on.
    #[serde(default)]
    pub lower: PathBuf,
    #[serde(default)]
    pub data: Data,
    /// The layers between the two, nearest first.
    #[serde(default)]
    pub layers: Vec<SnapshotId>,
    /// What it was made by, for whoever finds it without a database; and with it, whose it is. Absent of those that an
    /// earlier version made.
    #[serde(default)]
    pub spec: Option<Box<Spec>>,
}

impl Record {
    pub(crate) fn origin(&self) -> Option<Origin> {
        self.spec.as_ref()?.origin.clone()
    }
}

/// Makes the directory of a new sandbox, or finishes one that a crash left.
pub(crate) fn make(local: &Path, path: &Path, record: &Record, spec: &Spec) -> Result<(), Error> {
    let failed = |error| disk(path, "make the sandbox's directory", error);
    passable(path, None).map_err(failed)?;
    // Whose it is comes first: one that is never finished can then be told from what is somebody else's.
    draft(path, record).map_err(failed)?;
    match record.data {
        Data::Plain => furnish(path, record, spec).map_err(failed)?,
        Data::Subvolume => {
            let parent = fs::File::open(path).map_err(failed)?;
            sys::make_subvolume(&parent, DATA).map_err(failed)?;
            passable(&path.join(DATA), None).map_err(failed)?;
            furnish(&path.join(DATA), record, spec).map_err(failed)?;
        }
        Data::Image => {
            // A place to mount it.
            passable(&path.join(DATA), None).map_err(failed)?;
            let size = spec.limits.disk.map_or(0, |disk| disk.0);
            disk::make(local, &path.join(disk::IMAGE), size)?;
        }
    }
    fs::rename(path.join(DRAFT), path.join(RECORD)).map_err(failed)
}

/// The record as it is from now on.
pub(crate) fn finish(path: &Path, record: &Record) -> io::Result<()> {
    draft(path, record)?;
    fs::rename(path.join(DRAFT), path.join(RECORD))
}

fn draft(path: &Path, record: &Record) -> io::Result<()> {
    fs::write(path.join(DRAFT), serde_json::to_vec(record)?)
}

/// Of one that was never finished: whom it was begun for.
pub(crate) fn begun_for(path: &Path) -> Option<Origin> {
    serde_json::from_slice::<Record>(&fs::read(path.join(DRAFT)).ok()?).ok()?.origin()
}

/// Removes a sandbox's directory. What says whose it is goes last: where a server is killed on the way, the next one knows that
/// it may go on.
pub(crate) fn erase(path: &Path) -> io::Result<()> {
    ownership::withdraw(path)?;
    remove_subvolume(path)?;
    remove::tree_then(path, &[DRAFT, RECORD])
}

pub(crate) fn remove_subvolume(path: &Path) -> io::Result<()> {
    match fs::File::open(path) {
        Ok(parent) => sys::remove_subvolume(&parent, DATA),
        // There is nothing to remove, or what is tried next says why not.
        Err(_) => Ok(()),
    }
}

/// Removes the directory of a sandbox that a server was killed at before it could say whose it is: nothing else is in it.
pub(crate) fn erase_unbegun(path: &Path) -> io::Result<()> {
    let draft = path.join(DRAFT);
    if begun_for(path).is_none() && fs::read_dir(path)?.all(|entry| entry.is_ok_and(|entry| entry.path() == draft)) {
        ownership::gone(&draft)?;
    }
    // Fails where anything else is there.
    fs::remove_dir(path)
}

/// The directories of a sandbox's data, and who owns each on the host.
pub(crate) fn furniture(uids: Uids, layers: usize, user: User, root: &Root) -> Vec<(&'static str, Option<u32>)> {
    let owner = uids.root_on_host();
    let mut names = vec![(UPPER, owner), (WORK, owner), (WORKSPACE, workspace_owner(uids, user))];
    if layers > 0 {
        names.push((WORK_WORKSPACE, owner));
    }
    if user == User::Root && *root == Root::Host {
        names.extend(OVERLAID.iter().map(|(name, _)| (*name, owner)));
        names.extend([("work-usr", owner), ("work-dpkg", owner)]);
    }
    names
}

fn workspace_owner(uids: Uids, user: User) -> Option<u32> {
    match user {
        User::Agent => uids.workload_on_host(),
        User::Root => uids.root_on_host(),
    }
}

fn furnish(path: &Path, record: &Record, spec: &Spec) -> io::Result<()> {
    furniture(record.uids, record.layers.len(), spec.user, &spec.root)
        .into_iter()
        .try_for_each(|(name, owner)| passable(&path.join(name), owner))
}

/// `None` when the directory is not there or was never finished.
pub(crate) fn read(path: &Path) -> Result<Option<Record>, Error> {
    let failed = || Error::io(format!("read {}", path.join(RECORD).display()));
    let text = match fs::read(path.join(RECORD)) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed()(error)),
    };
    let mut record: Record = serde_json::from_slice(&text).map_err(|error| failed()(error.into()))?;
    if record.lower.as_os_str().is_empty() {
        record.lower = fs::read_link(path.join(LOWER_LINK)).map_err(failed())?;
    }
    Ok(Some(record))
}

/// Brings a finished directory onto the disk: a power cut must not leave a sandbox without its record.
pub(crate) fn sync(path: &Path) -> io::Result<()> {
    fs::File::open(path.join(RECORD))?.sync_all()?;
    fs::File::open(path)?.sync_all()
}

/// The descriptors a launch needs, opened by the server, which is outside.
pub(crate) struct Opened {
    pub directory: OwnedFd,
    pub lower: OwnedFd,
    pub workspace: Option<(OwnedFd, Bound)>,
    pub skills: Option<(OwnedFd, Bound)>,
    pub image: Option<OwnedFd>,
}

pub(crate) fn open(path: &Path, record: &Record, spec: &Spec) -> Result<Opened, Error> {
    let workspace = match &spec.workspace {
        WorkspaceSource::Empty => None,
        WorkspaceSource::Bind { path } => Some(bound(path)?),
    };
    let skills = spec.skills.as_deref().map(skills).transpose()?;
    let image = match record.data {
        Data::Image => Some(open_image(&path.join(disk::IMAGE))?),
        Data::Plain | Data::Subvolume => None,
    };
    Ok(Opened { directory: open_path(path)?, lower: open_path(&record.lower)?, workspace, skills, image })
}

pub(crate) fn bound(path: &str) -> Result<(OwnedFd, Bound), Error> {
    Bound::find(path).map_err(|error| Error::BadSpec {
        what: format!("workspace {path}"),
        cause: error.to_string(),
        fix: "Bind an existing directory whose path has no symbolic link in it.".into(),
    })
}

/// Links are not followed to it: who can write to a directory above could put one in its place.
fn skills(path: &str) -> Result<(OwnedFd, Bound), Error> {
    Bound::find(path).map_err(|error| {
        let real = Path::new(path).canonicalize();
        let fix = match real {
            Ok(real) if real.is_dir() => format!("Name it in the template without symbolic links: {}.", real.display()),
            _ => "Name an existing directory of the server's host in the template, or leave `skills` out.".into(),
        };
        Error::BadSpec { what: format!("the directory of skills {path}"), cause: error.to_string(), fix }
    })
}

pub(crate) fn open_path(path: &Path) -> Result<OwnedFd, Error> {
    rustix::fs::open(path, PATH, Mode::empty())
        .map_err(|errno| Error::io(format!("open {}", path.display()))(errno.into()))
}

pub(crate) fn open_image(path: &Path) -> Result<OwnedFd, Error> {
    let opened = fs::File::options().read(true).write(true).open(path);
    opened.map(OwnedFd::from).map_err(Error::io(format!("open {}", path.display())))
}

/// What a root stands on: the base layer, or an unpacked image.
pub(crate) fn lower(base: &Path, root: &Root) -> Result<PathBuf, Error> {
    match root {
        Root::Host => Ok(base.to_owned()),
        Root::Image { path } => image(path),
        Root::Oci { image } => Err(Error::BadSpec {
            what: format!("image {image}"),
            cause: "the provider `local` fetches no images".into(),
            fix: "Unpack it on the server's host and name the directory (`kind = \"image\"`), or use a template of the provider `kubernetes`.".into(),
        }),
    }
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

/// Makes a directory that the sandbox's uids can pass, whatever the umask; the home above it keeps everybody else out.
pub(crate) fn passable(path: &Path, owner: Option<u32>) -> io::Result<()> {
    match fs::create_dir(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))?;
    if owner.is_some() {
        chown(path, owner, owner)?;
    }
    Ok(())
}

/// Tells a full disk from other failures.
pub(crate) fn disk(path: &Path, action: &str, error: io::Error) -> Error {
    match error.raw_os_error() {
        Some(libc::ENOSPC | libc::EDQUOT) => Error::DiskFull { path: path.to_owned() },
        _ => Error::io(format!("{action} {}", path.display()))(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_says_whose_it_is_goes_last() -> io::Result<()> {
        let scratch = sandbar_test_harness::scratch()?;
        let path = scratch.path().join("sandbox");
        fs::create_dir_all(path.join("upper/deep/er"))?;
        for file in ["workspace", "kept", DRAFT] {
            fs::write(path.join(file), "x")?;
        }
        // A record that cannot be unlinked: what is there when that fails is what a server that is killed then leaves.
        fs::create_dir_all(path.join(RECORD))?;
        assert!(erase(&path).is_err());
        let left: Vec<_> = fs::read_dir(&path)?.map(|entry| Ok(entry?.file_name())).collect::<io::Result<_>>()?;
        assert_eq!(left, [RECORD]);
        fs::remove_dir(path.join(RECORD))?;
        fs::write(path.join(RECORD), "x")?;
        erase(&path)?;
        assert!(!path.exists());
        erase(&path)
    }

    #[test]
    fn only_a_directory_with_nothing_in_it_was_never_begun() -> io::Result<()> {
        let scratch = sandbar_test_harness::scratch()?;
        let path = scratch.path().join("sandbox");
        for torn in [None, Some(""), Some("{\"uids\":")] {
            fs::create_dir(&path)?;
            torn.map_or(Ok(()), |text| fs::write(path.join(DRAFT), text))?;
            erase_unbegun(&path)?;
            assert!(!path.exists(), "{torn:?}");
        }
        fs::create_dir_all(path.join(UPPER))?;
        fs::write(path.join(DRAFT), "")?;
        assert!(erase_unbegun(&path).is_err());
        assert!(path.join(DRAFT).exists() && path.join(UPPER).exists(), "there may be something in it");
        Ok(())
    }
}
