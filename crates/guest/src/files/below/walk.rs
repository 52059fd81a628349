//! Finding what a path below a root really is: one name at a time, links followed by hand, each step from the descriptor
//! of the one before, so that whoever swaps a directory for a link meanwhile leads nobody out.

use std::{
    collections::VecDeque,
    ffi::{OsStr, OsString},
    io,
    os::{fd::OwnedFd, unix::ffi::OsStringExt as _},
    path::{Component, Path, PathBuf},
};

use rustix::{
    fs::{FileType, Mode, OFlags, Stat, mkdirat, openat, readlinkat},
    io::{Errno, dup},
};

use super::ESCAPES;
use crate::error::{Code, Fault};

/// As deep as the kernel follows them.
const MAX_LINKS: usize = 40;

/// What a path below the root leads to.
pub(super) struct Found {
    /// The directory that holds it.
    pub(super) parent: OwnedFd,
    /// Its name there; none for the root of all.
    pub(super) name: Option<OsString>,
    /// Itself, not opened; none where nothing is there.
    pub(super) node: Option<(OwnedFd, Stat)>,
    /// Where it really is.
    pub(super) real: PathBuf,
    /// Whether it is the very root that paths are below.
    pub(super) is_root: bool,
}

impl Found {
    pub(super) fn kind(&self) -> Option<FileType> {
        self.node.as_ref().map(|(_, stat)| FileType::from_raw_mode(stat.st_mode))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Missing {
    /// Directories on the way are made.
    Make,
    Refuse,
}

struct Step {
    name: OsString,
    node: OwnedFd,
    stat: Stat,
}

struct Walk {
    top: OwnedFd,
    steps: Vec<Step>,
    links: usize,
}

/// Where the walk has to stay: this deep is this directory.
struct Fence {
    depth: usize,
    identity: Option<(u64, u64)>,
}

enum Next {
    Name(OsString),
    Up,
    Top,
}

pub(super) fn find(root: &Path, path: &Path, missing: Missing) -> Result<Found, Fault> {
    let directory = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let told = |place: &Path| {
        let place = place.display().to_string();
        move |errno: Errno| Fault::file(&format!("look at `{place}`"), &errno.into())
    };
    let top = rustix::fs::open("/", directory, Mode::empty()).map_err(told(Path::new("/")))?;
    let mut walk = Walk { top, steps: Vec::new(), links: 0 };
    if let Some(gone) = walk.follow(root, None, Missing::Refuse).map_err(told(root))? {
        return Err(Fault::file(&format!("look at `{}`", root.join(gone).display()), &Errno::NOENT.into()));
    }
    let fence = Fence { depth: walk.steps.len(), identity: walk.steps.last().map(|step| identity(&step.stat)) };
    walk.links = 0;
    let gone = walk
        .follow(path, Some(&fence), missing)
        .map_err(|errno| if errno == Errno::XDEV { escapes() } else { told(path)(errno) })?;
    walk.arrive(gone, &fence).map_err(told(path))
}

fn escapes() -> Fault {
    Fault::new(Code::FileForbidden, ESCAPES)
}

fn identity(stat: &Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}

impl Fence {
    fn holds(&self, steps: &[Step]) -> bool {
        match self.identity {
            None => true,
            Some(wanted) => steps.get(self.depth - 1).is_some_and(|step| identity(&step.stat) == wanted),
        }
    }
}

impl Walk {
    fn here(&self) -> &OwnedFd {
        self.steps.last().map_or(&self.top, |step| &step.node)
    }

    /// Returns the last name if nothing has it. `XDEV`, as the kernel calls it, where it leads past the fence.
    fn follow(&mut self, path: &Path, fence: Option<&Fence>, missing: Missing) -> rustix::io::Result<Option<OsString>> {
        let mut ahead = VecDeque::new();
        put_first(&mut ahead, path);
        // What is beyond the fence is not told of: neither whether it is there nor whether it may be seen.
        let fenced = |walk: &Self, outcome| {
            if fence.is_none_or(|fence| fence.holds(&walk.steps)) { outcome } else { Err(Errno::XDEV) }
        };
        while let Some(next) = ahead.pop_front() {
            let name = match next {
                Next::Top => {
                    self.steps.clear();
                    continue;
                }
                Next::Up => {
                    self.steps.pop();
                    continue;
                }
                Next::Name(name) => name,
            };
            let opened = openat(self.here(), &name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty());
            let node = match opened {
                Ok(node) => node,
                Err(Errno::NOENT) if ahead.is_empty() => return fenced(self, Ok(Some(name))),
                Err(Errno::NOENT) if missing == Missing::Make => {
                    fenced(self, Ok(None))?;
                    match mkdirat(self.here(), &name, Mode::from_raw_mode(0o777)) {
                        Ok(()) | Err(Errno::EXIST) => {}
                        Err(errno) => return Err(errno),
                    }
                    ahead.push_front(Next::Name(name));
                    continue;
                }
                Err(errno) => return fenced(self, Err(errno)),
            };
            let stat = rustix::fs::fstat(&node)?;
            match FileType::from_raw_mode(stat.st_mode) {
                FileType::Symlink => {
                    self.links += 1;
                    if self.links > MAX_LINKS {
                        return Err(Errno::LOOP);
                    }
                    let target = readlinkat(&node, "", Vec::new())?;
                    put_first(&mut ahead, Path::new(&OsString::from_vec(target.into_bytes())));
                }
                FileType::Directory => self.steps.push(Step { name, node, stat }),
                _ if ahead.is_empty() => self.steps.push(Step { name, node, stat }),
                _ => return fenced(self, Err(Errno::NOTDIR)),
            }
        }
        fenced(self, Ok(None))
    }

    fn arrive(mut self, gone: Option<OsString>, fence: &Fence) -> rustix::io::Result<Found> {
        let mut real = PathBuf::from("/");
        real.extend(self.steps.iter().map(|step| &step.name));
        if let Some(name) = gone {
            real.push(&name);
            return Ok(Found { parent: dup(self.here())?, name: Some(name), node: None, real, is_root: false });
        }
        let is_root = self.steps.len() == fence.depth;
        let Some(Step { name, node, stat }) = self.steps.pop() else {
            let stat = rustix::fs::fstat(&self.top)?;
            return Ok(Found { parent: dup(&self.top)?, name: None, node: Some((self.top, stat)), real, is_root });
        };
        let parent = self.steps.pop().map_or(self.top, |step| step.node);
        Ok(Found { parent, name: Some(name), node: Some((node, stat)), real, is_root })
    }
}

fn put_first(ahead: &mut VecDeque<Next>, path: &Path) {
    for component in path.components().rev() {
        match component {
            Component::Normal(name) => ahead.push_front(Next::Name(name.to_owned())),
            Component::ParentDir => ahead.push_front(Next::Up),
            Component::RootDir => ahead.push_front(Next::Top),
            Component::CurDir | Component::Prefix(_) => {}
        }
    }
}

/// Opens what was found for reading. `None`: it is another thing by now, so that the path has to be walked again.
pub(super) fn open(found: &Found) -> rustix::io::Result<Option<OwnedFd>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let opened = match (&found.name, &found.node) {
        (_, Some((node, _))) if found.kind() == Some(FileType::Directory) => {
            openat(node, ".", flags | OFlags::DIRECTORY, Mode::empty())
        }
        (Some(name), _) => openat(&found.parent, AsRef::<OsStr>::as_ref(name), flags, Mode::empty()),
        (None, _) => Err(Errno::NOENT),
    };
    match opened {
        Ok(opened) => Ok(Some(opened)),
        Err(Errno::LOOP) => Ok(None),
        Err(errno) => Err(errno),
    }
}

pub(super) fn changing(path: &Path) -> Fault {
    let error = io::Error::from(io::ErrorKind::ResourceBusy);
    Fault::file(&format!("open `{}`, which keeps changing", path.display()), &error)
}
