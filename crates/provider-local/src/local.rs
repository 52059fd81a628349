//! The Provider itself: directories, uids and groups on this side, guests through the launcher on the other.

use std::{
    fs, io,
    os::{fd::OwnedFd, unix::fs::DirBuilderExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use async_trait::async_trait;
use sandbar_api::{LayerReport, SandboxId, SnapshotId, WorkspaceSource};
use sandbar_guest::protocol::{RenameRequest, StartRequest};
use sandbar_provider::{Counters, Error, Found, FoundSnapshot, Gate, Guest, HostReport, Made, Mark, Provider, Spec};
use tokio::sync::Mutex;

use crate::{
    base,
    cgroup::Groups,
    directory::{self, Data, Record},
    disk,
    forge::Forge,
    gate, guest_pid, inspect,
    launch::{Bind, Request},
    launcher::SOCKET,
    layer::Layers,
    life, ownership, probe, snapshot,
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
    pub(crate) base: PathBuf,
    pub(crate) register: Register,
    pub(crate) forge: Forge,
    pub(crate) groups: Groups,
    pub(crate) layers: Layers,
    /// Held while it is decided which layers are stood on, so that none goes from under a sandbox being made.
    pub(crate) standing: Mutex<()>,
    /// The directory is on btrfs and we may use its subvolumes.
    pub(crate) subvolumes: bool,
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
                // A server that was killed may have got no further than the directory; one with anything in it stays.
                Ok(None) => drop(directory::erase_unbegun(&path)),
                // One broken record must not keep all the others from being served; nothing goes that it may need.
                Err(error) => {
                    tracing::error!(sandbox = %id, error = &error as &dyn std::error::Error, "cannot be read");
                    return Ok(());
                }
            }
        }
        shared.register.release_below(&shared.directory)?;
        for (path, uids) in shared.layers.carrying() {
            // Held by the sandbox it was made of, or by another layer, as well as by this one.
            shared.register.keep(uids, &path)?;
        }
        let mut used = shared.layers.collect(&records, |path, uids| self.free(uids, path))?;
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

    /// Frees the uids of what is gone, unless a layer's files carry them too: those of two sandboxes never meet.
    pub(crate) fn free(&self, uids: Uids, gone: &Path) -> Result<(), Error> {
        match self.shared.layers.carrier(uids) {
            Some(heir) => self.shared.register.pass(uids, gone, &heir),
            None => self.shared.register.release(uids, gone),
        }
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

    /// Writes down what it is from now on. Its host name is not worth a write: a name can be given again.
    fn rewrite(&self, spec: &Spec) -> Result<(), Error> {
        let path = self.path(&spec.id);
        let mut record = self.record(&spec.id)?;
        let origin = record.origin();
        record.spec = Some(Box::new(Spec { origin, ..spec.clone() }));
        directory::finish(&path, &record).map_err(|error| directory::disk(&path, "write down the workspace of", error))
    }

    /// What its files say of whose it is. One that was never finished, or cannot be read, says nothing.
    fn mark_of(&self, id: &SandboxId) -> Result<Option<Mark>, Error> {
        let path = self.path(id);
        let begun = match directory::read(&path) {
            Ok(Some(record)) => record.origin(),
            Ok(None) => directory::begun_for(&path),
            Err(_) => None,
        };
        ownership::read(&path, begun).map_err(Error::io(format!("read the mark of {}", path.display())))
    }

    pub(crate) fn record(&self, id: &SandboxId) -> Result<Record, Error> {
        directory::read(&self.path(id))?.ok_or_else(|| Error::Unknown(id.clone()))
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
        let made = match self.make(&path, &record, &spec).await {
            Ok(()) => {
                drop(standing);
                // While the disk takes the record, the kernel makes the sandbox.
                let (synced, booted) = tokio::join!(life::synced(&path), self.boot(&path, &record, &spec));
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
        if workspace.is_some() {
            self.rewrite(spec)?;
        }
        let bind = Bind { hostname: spec.hostname.clone(), uids, user: spec.user, workspace };
        self.shared.forge.ask(Request::Bind(Box::new(bind)), fds).await.map(drop)
    }

    async fn warm(&self, spec: &Spec) -> Result<Vec<LayerReport>, Error> {
        let layers = inspect::inspect(self, spec).await?;
        // A command that is not there goes the whole way of one that is, through the fence, and leaves no record.
        let nothing = StartRequest {
            process_id: "warm".into(),
            argv: vec!["/proc/self/none".into()],
            cwd: "/".into(),
            ..StartRequest::default()
        };
        match self.connect(&spec.id).await?.start(nothing).await {
            Ok(_) => Err(Error::Unreachable { id: spec.id.clone(), cause: "it runs what does not exist".into() }),
            Err(status) if status.code() == tonic::Code::NotFound => Ok(layers),
            Err(status) => Err(Error::Unreachable { id: spec.id.clone(), cause: status.message().to_owned() }),
        }
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

    async fn snapshots(&self) -> Result<Vec<FoundSnapshot>, Error> {
        self.shared.layers.found()
    }

    async fn mark(&self, made: Made<'_>, mark: &Mark) -> Result<(), Error> {
        let path = match made {
            Made::Sandbox(id) => self.path(id),
            Made::Snapshot(id) => self.shared.layers.path(id),
        };
        match (ownership::write(&path, mark), made) {
            (Ok(()), _) => {}
            (Err(error), Made::Sandbox(id)) if error.kind() == io::ErrorKind::NotFound => {
                return Err(Error::Unknown(id.clone()));
            }
            (Err(error), _) => return Err(directory::disk(&path, "mark", error)),
        }
        let Made::Sandbox(id) = made else { return Ok(()) };
        // Nobody looks after it from now on: it stands still, with its memory, where that can be done.
        if mark.is_quarantined()
            && self.guest(id)?.is_some()
            && let Err(error) = self.shared.groups.freeze(id).await
        {
            tracing::warn!(sandbox = %id, %error, "what is in quarantine runs on, because it cannot be held still");
        }
        Ok(())
    }

    async fn spec(&self, made: Made<'_>) -> Result<Option<Spec>, Error> {
        let spec = match made {
            // One that was never finished says nothing.
            Made::Sandbox(id) => directory::read(&self.path(id))?.and_then(|record| record.spec),
            Made::Snapshot(id) => self.shared.layers.read(id)?.and_then(|layer| layer.spec),
        };
        Ok(spec.map(|spec| *spec))
    }

    async fn counters(&self, id: &SandboxId) -> Result<Counters, Error> {
        let counters = self.shared.groups.counters(id);
        Ok(Counters { disk_full: self.record(id)?.data == Data::Image && life::is_full(self, id), ..counters })
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
            move || directory::erase(&path)
        });
        gone.await
            .map_err(|error| Error::io("remove the sandbox's directory")(io::Error::other(error)))?
            .map_err(Error::io(format!("remove {}", path.display())))?;
        // After the files: the range is free only when nothing on disk carries it any more.
        match record {
            Ok(Some(record)) => {
                self.free(record.uids, &path)?;
                if record.layers.is_empty() { Ok(()) } else { snapshot::collect(self).await }
            }
            // Whichever it had: its record was never written, or cannot be read.
            Ok(None) | Err(_) => self.shared.register.release_below(&path),
        }
    }

    async fn gate(&self, id: &SandboxId) -> Result<Gate, Error> {
        gate::take(self, id).await
    }

    async fn list(&self) -> Result<Vec<Found>, Error> {
        let mut found = Vec::new();
        for id in self.ids()? {
            let running = self.guest(&id)?.is_some();
            let mark = self.mark_of(&id)?;
            found.push(Found { id, running, mark });
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
            Some(guest) => life::ended(guest).await,
            None => Ok(()),
        }
    }
}

fn is_btrfs(path: &Path) -> bool {
    const BTRFS: u64 = 0x9123_683e;
    rustix::fs::statfs(path).is_ok_and(|found| found.f_type as u64 == BTRFS)
}
