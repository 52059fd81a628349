//! The Provider itself: directories, uids and groups on this side, guests through the launcher on the other.

use std::{
    fs, io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::DirBuilderExt,
    },
    path::{Path, PathBuf},
    sync::Arc,
};

use async_trait::async_trait;
use rustix::process::Signal;
use sandbar_api::{Layer, LayerReport, Requirement, Root, SandboxId, SnapshotId, User, WorkspaceSource};
use sandbar_guest::protocol::RenameRequest;
use sandbar_provider::{Counters, Error, Found, Guest, HostReport, Provider, Spec};
use tokio::sync::Mutex;

use crate::{
    base,
    cgroup::{Groups, Shape},
    directory::{self, Data, Record},
    disk,
    forge::Forge,
    guest_pid, inspect,
    launch::{Below, Bind, Launch, Request, RootKind},
    launcher::SOCKET,
    layer::{self, Layers},
    probe, snapshot, sys,
    uids::{Register, Uids},
};

/// Whether sandboxes outlive the process that made them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lifetime {
    /// They survive it, and the next one finds them.
    Outlives,
    /// They die with it, however it dies, and `home` is removed.
    WithParent { home: PathBuf },
}

/// Makes sandboxes from the kernel's own parts. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Local {
    pub(crate) shared: Arc<Shared>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    /// Holds a directory for each sandbox.
    pub(crate) directory: PathBuf,
    base: PathBuf,
    pub(crate) register: Register,
    pub(crate) forge: Forge,
    pub(crate) groups: Groups,
    pub(crate) layers: Layers,
    /// Held while it is decided which layers are stood on, so that none goes from under a sandbox being made.
    pub(crate) standing: Mutex<()>,
    /// The directory is on btrfs and we may use its subvolumes.
    subvolumes: bool,
}

impl Local {
    /// Opens the provider whose sandboxes live below `directory`, and starts its launcher.
    pub async fn open(directory: PathBuf, lifetime: Lifetime) -> Result<Self, Error> {
        let failed = |error| directory::disk(&directory, "create", error);
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&directory).map_err(failed)?;
        let directory = directory.canonicalize().map_err(Error::io(format!("resolve {}", directory.display())))?;
        // First, because with `Lifetime::WithParent` it is the launcher who cleans up after us.
        let forge = Forge::start(lifetime, directory.clone())?;
        let register = Register::open()?;
        let base = base::ensure(&directory, register.has_ranges())?;
        let layers = Layers::open(&directory).map_err(|error| directory::disk(&directory, "prepare", error))?;
        let subvolumes = register.has_ranges() && is_btrfs(&directory);
        let groups = Groups::open(&directory);
        let standing = Mutex::default();
        let shared = Shared { directory, base, register, forge, groups, layers, standing, subvolumes };
        let local = Self { shared: Arc::new(shared) };
        local.tidy()?;
        Ok(local)
    }

    /// Registers again what sandboxes have, and removes what no sandbox has any more.
    fn tidy(&self) -> Result<(), Error> {
        let shared = &self.shared;
        let ids = self.ids()?;
        let mut records = Vec::new();
        for id in &ids {
            let path = self.path(id);
            match directory::read(&path) {
                Ok(Some(record)) => {
                    if !shared.register.keep(record.uids, &path)? {
                        tracing::error!(sandbox = %id, "its uids are in use by another sandbox; it cannot be started");
                    }
                    records.push(record);
                }
                Ok(None) => {}
                // One broken record must not keep all the others from being served; nothing goes that it may need.
                Err(error) => {
                    tracing::error!(sandbox = %id, error = &error as &dyn std::error::Error, "cannot be read");
                    return Ok(());
                }
            }
        }
        shared.register.release_below(&shared.directory)?;
        let mut used = shared.layers.collect(&records)?;
        used.extend(records.into_iter().map(|record| record.lower));
        base::prune(&shared.directory, &shared.base, &used).map_err(Error::io("remove old base layers"))?;
        disk::forget_blanks(&shared.directory).map_err(Error::io("remove blank disks"))?;
        if let Err(error) = shared.groups.remove_all_but(&ids) {
            tracing::warn!(%error, "control groups of sandboxes that are gone could not be removed");
        }
        Ok(())
    }

    /// Ends the launcher. Sandboxes go on, or, with `Lifetime::WithParent`, are gone with their home when this returns.
    pub async fn close(&self) -> Result<(), Error> {
        let shared = self.shared.clone();
        tokio::task::spawn_blocking(move || shared.forge.close())
            .await
            .map_err(|error| Error::io("end the launcher")(io::Error::other(error)))
    }

    pub(crate) fn path(&self, id: &SandboxId) -> PathBuf {
        self.shared.directory.join(id.as_str())
    }

    pub(crate) fn ids(&self) -> Result<Vec<SandboxId>, Error> {
        let failed = || Error::io(format!("list {}", self.shared.directory.display()));
        let mut ids = Vec::new();
        for entry in fs::read_dir(&self.shared.directory).map_err(failed())? {
            let name = entry.map_err(failed())?.file_name();
            ids.extend(name.to_str().and_then(|name| name.parse::<SandboxId>().ok()));
        }
        Ok(ids)
    }

    /// The guest's handle, if it is alive; `Unknown` if there is no such sandbox.
    pub(crate) fn guest(&self, id: &SandboxId) -> Result<Option<OwnedFd>, Error> {
        match fs::File::open(self.path(id)) {
            Ok(directory) => guest_pid::find(&directory).map_err(Error::io("find the guest")),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(Error::Unknown(id.clone())),
            Err(error) => Err(Error::io(format!("open {}", self.path(id).display()))(error)),
        }
    }

    /// The root of a running sandbox as the kernel has it; no path inside is looked at.
    pub(crate) fn root(&self, id: &SandboxId) -> io::Result<Option<fs::File>> {
        let Some(pid) = guest_pid::number(fs::File::open(self.path(id))?)? else { return Ok(None) };
        fs::File::open(format!("/proc/{pid}/root")).map(Some)
    }

    pub(crate) fn record(&self, id: &SandboxId) -> Result<Record, Error> {
        directory::read(&self.path(id))?.ok_or_else(|| Error::Unknown(id.clone()))
    }

    /// Boots the guest and returns when it serves.
    async fn boot(&self, path: &Path, record: &Record, spec: &Spec) -> Result<(), Error> {
        let shared = &self.shared;
        if !shared.register.keep(record.uids, path)? {
            return Err(Error::NotEnforceable {
                layer: "uid separation",
                cause: "another sandbox of this host has the uids of this one".into(),
                fix: "Delete one of the two; /run/sandbar/uids tells who has which.".into(),
            });
        }
        let groups = shared.groups.make(&spec.id, &spec.limits, record.uids)?;
        let opened = directory::open(path, record, spec)?;
        let mut fds = vec![opened.directory, opened.lower];
        let workspace = opened.workspace.map(|(directory, bound)| {
            fds.push(directory);
            bound
        });
        fds.extend(opened.image);
        let mut layers = Vec::new();
        for id in &record.layers {
            let (below, fd) = self.below(id)?;
            layers.push(below);
            fds.push(fd);
        }
        let shape = groups.map(|groups| {
            let shape = Shape { joins: groups.joins.len() };
            fds.extend([groups.guest, groups.work]);
            fds.extend(groups.joins);
            shape
        });
        let launch = Launch {
            id: spec.id.clone(),
            hostname: spec.hostname.clone(),
            uids: record.uids,
            root: match spec.root {
                Root::Host => RootKind::Host,
                Root::Image { .. } => RootKind::Image,
            },
            user: spec.user,
            workspace,
            data: record.data,
            lower: record.lower.clone(),
            layers,
            asked: spec.layers.clone(),
            tmp_size: spec.limits.tmpfs.map(|size| size.0),
            open_files: spec.limits.open_files,
            groups: shape,
        };
        shared.forge.ask(Request::Launch(Box::new(launch)), fds).await.map(drop)
    }

    fn below(&self, id: &SnapshotId) -> Result<(Below, OwnedFd), Error> {
        let layers = &self.shared.layers;
        let lost = || Error::io(format!("find the layer {id}"))(io::ErrorKind::NotFound.into());
        let layer = layers.read(id)?.ok_or_else(lost)?;
        let path = layers.path(id);
        let (path, fd) = match layer.data {
            Data::Plain => (path.clone(), directory::open_path(&path)?),
            Data::Subvolume => (path.join(directory::DATA), directory::open_path(&path.join(directory::DATA))?),
            Data::Image => (path.join(disk::IMAGE), directory::open_image(&path.join(disk::IMAGE))?),
        };
        Ok((Below { path, uids: layer.uids, data: layer.data }, fd))
    }

    /// Kills the guest, and with it, as PID 1 of its namespace, everything in the sandbox; returns when all is gone.
    async fn end(&self, id: &SandboxId) -> Result<(), Error> {
        if let Some(guest) = self.guest(id)? {
            match rustix::process::pidfd_send_signal(&guest, Signal::KILL) {
                Ok(()) | Err(rustix::io::Errno::SRCH) => {}
                Err(errno) => return Err(Error::io("kill the guest")(errno.into())),
            }
            ended(guest).await?;
        }
        self.shared.groups.remove(id).map_err(Error::io("remove the sandbox's control groups"))?;
        let directory = fs::File::open(self.path(id)).map_err(Error::io("open the sandbox's directory"))?;
        guest_pid::forget(directory.as_fd()).map_err(Error::io("remove guest.pid"))
    }

    /// A directory of the host may be bound if it does not show, or lie in, Sandbar's own data.
    fn check_workspace(&self, workspace: &WorkspaceSource) -> Result<WorkspaceSource, Error> {
        let WorkspaceSource::Bind { path } = workspace else { return Ok(workspace.clone()) };
        let bad =
            |cause: String, fix: &str| Error::BadSpec { what: format!("workspace {path}"), cause, fix: fix.into() };
        let real = Path::new(path)
            .canonicalize()
            .map_err(|error| bad(error.to_string(), "Bind a directory that exists on the server's host."))?;
        if !real.is_dir() {
            return Err(bad("it is not a directory".into(), "Bind a directory."));
        }
        let home = self.shared.directory.parent().unwrap_or(&self.shared.directory);
        if home.starts_with(&real) || real.starts_with(home) {
            return Err(bad(
                format!("it overlaps Sandbar's home {}", home.display()),
                "Bind a directory that neither contains the home nor lies in it.",
            ));
        }
        match real.into_os_string().into_string() {
            Ok(path) => Ok(WorkspaceSource::Bind { path }),
            Err(_) => Err(bad("its path is not UTF-8".into(), "Rename it, or bind a link's target that is.")),
        }
    }

    /// What this host, or this combination, cannot do is refused before anything is made.
    fn check(&self, spec: &Spec) -> Result<(), Error> {
        let ranges = self.shared.register.has_ranges();
        let unprivileged = |layer: &'static str, cause: &str| {
            let (cause, fix) = (cause.to_owned(), "Run `sandbar up` as root.".to_owned());
            Err(Error::NotEnforceable { layer, cause, fix })
        };
        if !ranges && spec.requirement(Layer::Users) == Requirement::Required {
            return unprivileged("uid separation", "an ordinary user has one uid, shared by all its sandboxes");
        }
        if !ranges && spec.user == User::Root {
            return unprivileged(
                "root inside",
                "an ordinary user has no uids that files of the host's could belong to",
            );
        }
        if spec.limits.disk.is_some() {
            if !ranges {
                return Err(disk::refused(
                    "an ordinary user cannot mount a disk image".into(),
                    "Run `sandbar up` as root.",
                ));
            }
            disk::can_make()?;
        }
        let no_exec = spec.requirement(Layer::NoExec) != Requirement::Off;
        let read_only = spec.requirement(Layer::ReadOnlyRoot) != Requirement::Off;
        if no_exec && (spec.user == User::Root || matches!(spec.root, Root::Image { .. }) && !read_only) {
            return Err(Error::NotEnforceable {
                layer: "no execution outside the workspace",
                cause: "its programs are where the sandbox may write".into(),
                fix: "Ask for read_only_root as well, and for the user `agent`.".into(),
            });
        }
        Ok(())
    }

    /// What a new sandbox stands on, and how its own files are held.
    fn plan(&self, spec: &Spec, path: &Path) -> Result<Record, Error> {
        let shared = &self.shared;
        let (lower, layers) = match &spec.from {
            None => (directory::lower(&shared.base, &spec.root)?, Vec::new()),
            Some(from) => {
                let layer = shared.layers.usable(from)?;
                let layers: Vec<_> = [from.clone()].into_iter().chain(layer.below).collect();
                if layers.len() > layer::DEEPEST {
                    return Err(Error::BadSpec {
                        what: format!("snapshot {from}"),
                        cause: format!("it stands on more than {} others", layer::DEEPEST - 1),
                        fix: "Copy the files into a new sandbox.".into(),
                    });
                }
                (layer.lower, layers)
            }
        };
        let data = match spec.limits.disk {
            Some(_) => Data::Image,
            None if shared.subvolumes => Data::Subvolume,
            None => Data::Plain,
        };
        Ok(Record { uids: shared.register.take(path)?, lower, data, layers })
    }

    /// Whether there is no room left within the disk limit: ext4 refuses a write that does not fit as a whole, so a program
    /// that writes much at once fails before the last block is gone.
    fn is_full(&self, id: &SandboxId) -> bool {
        const LITTLE: u64 = 1024 * 1024;
        let Ok(Some(root)) = self.root(id) else { return false };
        rustix::fs::fstatvfs(&root).is_ok_and(|found| found.f_bavail * found.f_frsize < LITTLE || found.f_favail == 0)
    }
}

#[async_trait]
impl Provider for Local {
    fn name(&self) -> &'static str {
        "local"
    }

    async fn probe(&self) -> HostReport {
        probe::probe(self).await
    }

    async fn create(&self, spec: &Spec) -> Result<(), Error> {
        let path = self.path(&spec.id);
        if directory::read(&path)?.is_some() {
            return self.start(spec).await;
        }
        self.check(spec)?;
        let spec = Spec { workspace: self.check_workspace(&spec.workspace)?, ..spec.clone() };
        let standing = if spec.from.is_some() { Some(self.shared.standing.lock().await) } else { None };
        let record = self.plan(&spec, &path)?;
        let made = match directory::make(&self.shared.directory, &path, &record, &spec) {
            Ok(()) => {
                drop(standing);
                // While the disk takes the record, the kernel makes the sandbox.
                let (synced, booted) = tokio::join!(synced(&path), self.boot(&path, &record, &spec));
                booted.and(synced)
            }
            Err(error) => Err(error),
        };
        if made.is_err() {
            self.destroy(&spec.id).await?;
            self.shared.register.release(record.uids, &path)?;
        }
        made
    }

    async fn start(&self, spec: &Spec) -> Result<(), Error> {
        if self.guest(&spec.id)?.is_some() {
            return Ok(());
        }
        self.check(spec)?;
        let record = self.record(&spec.id)?;
        let booted = self.boot(&self.path(&spec.id), &record, spec).await;
        if booted.is_err() {
            self.end(&spec.id).await?;
        }
        booted
    }

    async fn bind(&self, spec: &Spec) -> Result<(), Error> {
        let uids = self.record(&spec.id)?.uids;
        let gone = || Error::Unreachable { id: spec.id.clone(), cause: "it is not running".into() };
        let mut fds = vec![self.guest(&spec.id)?.ok_or_else(gone)?];
        let workspace = match self.check_workspace(&spec.workspace)? {
            WorkspaceSource::Empty => None,
            // A mount of the host's cannot be brought into another namespace without privilege.
            WorkspaceSource::Bind { .. } if matches!(uids, Uids::One { .. }) => {
                return Err(Error::Declined { provider: self.name(), verb: "bind a workspace late to" });
            }
            WorkspaceSource::Bind { path } => {
                let (directory, bound) = directory::bound(&path)?;
                fds.push(directory);
                Some(bound)
            }
        };
        if matches!(uids, Uids::One { .. }) {
            // Its namespaces can be entered by root alone, because a guest shows itself to nobody else.
            let rename = RenameRequest { hostname: spec.hostname.clone() };
            let failed =
                |status: tonic::Status| Error::Unreachable { id: spec.id.clone(), cause: status.message().into() };
            return self.connect(&spec.id).await?.rename(rename).await.map(drop).map_err(failed);
        }
        let bind = Bind { hostname: spec.hostname.clone(), uids, user: spec.user, workspace };
        self.shared.forge.ask(Request::Bind(Box::new(bind)), fds).await.map(drop)
    }

    async fn inspect(&self, spec: &Spec) -> Result<Vec<LayerReport>, Error> {
        inspect::inspect(self, spec).await
    }

    async fn freeze(&self, id: &SandboxId) -> Result<(), Error> {
        self.guest(id)?;
        self.shared.groups.freeze(id).await
    }

    async fn thaw(&self, id: &SandboxId) -> Result<(), Error> {
        self.guest(id)?;
        self.shared.groups.thaw(id)
    }

    async fn snapshot(&self, id: &SandboxId, snapshot: &SnapshotId) -> Result<u64, Error> {
        snapshot::keep(self, id, snapshot).await
    }

    async fn discard(&self, snapshot: &SnapshotId) -> Result<(), Error> {
        snapshot::discard(self, snapshot).await
    }

    async fn snapshots(&self) -> Result<Vec<SnapshotId>, Error> {
        self.shared.layers.snapshots()
    }

    async fn counters(&self, id: &SandboxId) -> Result<Counters, Error> {
        let counters = self.shared.groups.counters(id);
        Ok(Counters { disk_full: self.record(id)?.data == Data::Image && self.is_full(id), ..counters })
    }

    async fn refused_fork(&self, id: &SandboxId) -> Result<(), Error> {
        self.shared.groups.refused_fork(id).await.map_err(Error::io("watch the process limit"))
    }

    async fn stop(&self, id: &SandboxId) -> Result<(), Error> {
        self.end(id).await
    }

    async fn destroy(&self, id: &SandboxId) -> Result<(), Error> {
        let path = self.path(id);
        match self.end(id).await {
            Err(Error::Unknown(_)) => return Ok(()),
            other => other?,
        }
        let record = directory::read(&path);
        let gone = tokio::task::spawn_blocking({
            let path = path.clone();
            move || layer::erase(&path)
        });
        gone.await
            .map_err(|error| Error::io("remove the sandbox's directory")(io::Error::other(error)))?
            .map_err(Error::io(format!("remove {}", path.display())))?;
        // After the files: the range is free only when nothing on disk carries it any more.
        match record {
            Ok(Some(record)) => {
                self.shared.register.release(record.uids, &path)?;
                if record.layers.is_empty() { Ok(()) } else { snapshot::collect(self).await }
            }
            // Whichever it had: its record was never written, or cannot be read.
            Ok(None) | Err(_) => self.shared.register.release_below(&path),
        }
    }

    async fn list(&self) -> Result<Vec<Found>, Error> {
        let mut found = Vec::new();
        for id in self.ids()? {
            let running = self.guest(&id)?.is_some();
            found.push(Found { id, running });
        }
        Ok(found)
    }

    async fn connect(&self, id: &SandboxId) -> Result<Guest, Error> {
        if self.guest(id)?.is_none() {
            return Err(Error::Unreachable { id: id.clone(), cause: "it is not running".into() });
        }
        sandbar_provider::unix::connect(self.path(id), SOCKET)
            .await
            .map_err(|cause| Error::Unreachable { id: id.clone(), cause })
    }

    async fn gone(&self, id: &SandboxId) -> Result<(), Error> {
        match self.guest(id)? {
            Some(guest) => ended(guest).await,
            None => Ok(()),
        }
    }
}

async fn synced(path: &Path) -> Result<(), Error> {
    let at = path.to_owned();
    tokio::task::spawn_blocking(move || directory::sync(&at))
        .await
        .unwrap_or_else(|error| Err(io::Error::other(error)))
        .map_err(|error| directory::disk(path, "write to disk", error))
}

/// A pidfd is readable when its process is dead.
async fn ended(guest: OwnedFd) -> Result<(), Error> {
    let failed = || Error::io("wait for the guest");
    let guest = sys::watch(guest).map_err(failed())?;
    guest.readable().await.map(|_| ()).map_err(failed())
}

fn is_btrfs(path: &Path) -> bool {
    const BTRFS: u64 = 0x9123_683e;
    rustix::fs::statfs(path).is_ok_and(|found| found.f_type as u64 == BTRFS)
}
