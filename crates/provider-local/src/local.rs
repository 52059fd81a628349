//! The Provider itself: directories and uids on this side, guests through the launcher on the other.

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
use sandbar_api::{LayerReport, Root, SandboxId, SnapshotId, WorkspaceSource};
use sandbar_provider::{Counters, Error, Found, Guest, HostReport, Provider, Spec};
use tokio::io::AsyncReadExt;

use crate::{
    base,
    boot::READY,
    directory::{self, Record},
    forge::Forge,
    guest_pid,
    launch::{Launch, RootKind},
    launcher::SOCKET,
    probe, remove,
    step::Failure,
    sys,
    uids::Register,
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
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// Holds a directory for each sandbox.
    directory: PathBuf,
    base: PathBuf,
    register: Register,
    forge: Forge,
}

impl Local {
    /// Opens the provider whose sandboxes live below `directory`, and starts its launcher.
    pub async fn open(directory: PathBuf, lifetime: Lifetime) -> Result<Self, Error> {
        let failed = |error| directory::disk(&directory, "create", error);
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&directory).map_err(failed)?;
        let directory = directory.canonicalize().map_err(Error::io(format!("resolve {}", directory.display())))?;
        // First, because with `Lifetime::WithParent` it is the launcher who cleans up after us.
        let forge = Forge::start(lifetime)?;
        let register = Register::open()?;
        let base = base::ensure(&directory, register.has_ranges())?;
        let local = Self { shared: Arc::new(Shared { directory, base, register, forge }) };
        let mut used = Vec::new();
        for id in local.ids()? {
            let path = local.path(&id);
            used.extend(fs::read_link(path.join(directory::LOWER_LINK)).ok());
            match directory::read(&path) {
                Ok(Some(record)) => {
                    if !local.shared.register.keep(record.uids, &path)? {
                        tracing::error!(sandbox = %id, "its uids are in use by another sandbox; it cannot be started");
                    }
                }
                Ok(None) => {}
                // One broken record must not keep all the others from being served.
                Err(error) => {
                    tracing::error!(sandbox = %id, error = &error as &dyn std::error::Error, "cannot be read")
                }
            }
        }
        local.shared.register.release_below(&local.shared.directory)?;
        base::prune(&local.shared.directory, &local.shared.base, &used).map_err(Error::io("remove old base layers"))?;
        Ok(local)
    }

    /// Ends the launcher. Sandboxes go on, or, with `Lifetime::WithParent`, are gone with their home when this returns.
    pub async fn close(&self) -> Result<(), Error> {
        let shared = self.shared.clone();
        tokio::task::spawn_blocking(move || shared.forge.close())
            .await
            .map_err(|error| Error::io("end the launcher")(io::Error::other(error)))
    }

    fn path(&self, id: &SandboxId) -> PathBuf {
        self.shared.directory.join(id.as_str())
    }

    fn ids(&self) -> Result<Vec<SandboxId>, Error> {
        let failed = || Error::io(format!("list {}", self.shared.directory.display()));
        let mut ids = Vec::new();
        for entry in fs::read_dir(&self.shared.directory).map_err(failed())? {
            let name = entry.map_err(failed())?.file_name();
            ids.extend(name.to_str().and_then(|name| name.parse::<SandboxId>().ok()));
        }
        Ok(ids)
    }

    /// The guest's handle, if it is alive; `Unknown` if there is no such sandbox.
    fn guest(&self, id: &SandboxId) -> Result<Option<OwnedFd>, Error> {
        match fs::File::open(self.path(id)) {
            Ok(directory) => guest_pid::find(&directory).map_err(Error::io("find the guest")),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(Error::Unknown(id.clone())),
            Err(error) => Err(Error::io(format!("open {}", self.path(id).display()))(error)),
        }
    }

    /// Boots the guest and returns when it serves.
    async fn boot(&self, path: &Path, record: &Record) -> Result<(), Error> {
        if !self.shared.register.keep(record.uids, path)? {
            return Err(Error::NotEnforceable {
                layer: "uid separation",
                cause: "another sandbox of this host has the uids of this one".into(),
                fix: "Delete one of the two; /run/sandbar/uids tells who has which.".into(),
            });
        }
        let opened = directory::open(path, record)?;
        let launch = Launch {
            id: record.spec.id.clone(),
            hostname: record.spec.hostname.clone(),
            uids: record.uids,
            root: match record.spec.root {
                Root::Host => RootKind::Host,
                Root::Image { .. } => RootKind::Image,
            },
            workspace: opened.workspace.as_ref().map(|(_, bound)| bound.clone()),
        };
        let mut fds = vec![opened.directory, opened.lower];
        fds.extend(opened.workspace.map(|(directory, _)| directory));
        let (_pidfd, status) = self.shared.forge.launch(launch, fds).await?;
        let failed = || Error::io("hear from the booting guest");
        let mut status = tokio::net::unix::pipe::Receiver::from_owned_fd(status).map_err(failed())?;
        let mut told = Vec::new();
        status.read_to_end(&mut told).await.map_err(failed())?;
        if told == READY {
            return Ok(());
        }
        match serde_json::from_slice::<Failure>(&told) {
            Ok(failure) => Err(failure.into_error()),
            Err(_) => Err(Error::Unreachable { id: record.spec.id.clone(), cause: "it died while booting".into() }),
        }
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
}

#[async_trait]
impl Provider for Local {
    fn name(&self) -> &'static str {
        "local"
    }

    async fn probe(&self) -> HostReport {
        probe::probe(self, self.shared.register.has_ranges()).await
    }

    async fn create(&self, spec: &Spec) -> Result<(), Error> {
        let path = self.path(&spec.id);
        if directory::read(&path)?.is_some() {
            return self.start(spec).await;
        }
        let spec = Spec { workspace: self.check_workspace(&spec.workspace)?, ..spec.clone() };
        let record = Record { uids: self.shared.register.take(&path)?, spec };
        let made = match directory::make(&path, &self.shared.base, &record) {
            Ok(()) => {
                // While the disk takes the record, the kernel makes the sandbox.
                let (synced, booted) = tokio::join!(synced(&path), self.boot(&path, &record));
                booted.and(synced)
            }
            Err(error) => Err(error),
        };
        if made.is_err() {
            self.destroy(&record.spec.id).await?;
            self.shared.register.release(record.uids, &path)?;
        }
        made
    }

    async fn bind(&self, _: &Spec) -> Result<(), Error> {
        Ok(())
    }

    async fn inspect(&self, _: &Spec) -> Result<Vec<LayerReport>, Error> {
        Ok(vec![])
    }

    async fn freeze(&self, _: &SandboxId) -> Result<(), Error> {
        Ok(())
    }

    async fn thaw(&self, _: &SandboxId) -> Result<(), Error> {
        Ok(())
    }

    async fn snapshot(&self, _: &SandboxId, _: &SnapshotId) -> Result<u64, Error> {
        Ok(0)
    }

    async fn discard(&self, _: &SnapshotId) -> Result<(), Error> {
        Ok(())
    }

    async fn snapshots(&self) -> Result<Vec<SnapshotId>, Error> {
        Ok(vec![])
    }

    async fn counters(&self, _: &SandboxId) -> Result<Counters, Error> {
        Ok(Counters::default())
    }

    async fn refused_fork(&self, _: &SandboxId) -> Result<(), Error> {
        std::future::pending().await
    }

    async fn start(&self, spec: &Spec) -> Result<(), Error> {
        let id = &spec.id;
        if self.guest(id)?.is_some() {
            return Ok(());
        }
        let path = self.path(id);
        let record = directory::read(&path)?.ok_or_else(|| Error::Unknown(id.clone()))?;
        let booted = self.boot(&path, &record).await;
        if booted.is_err() {
            self.end(id).await?;
        }
        booted
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
            move || remove::tree(&path)
        });
        gone.await
            .map_err(|error| Error::io("remove the sandbox's directory")(io::Error::other(error)))?
            .map_err(Error::io(format!("remove {}", path.display())))?;
        // After the files: the range is free only when nothing on disk carries it any more.
        match record {
            Ok(Some(record)) => self.shared.register.release(record.uids, &path),
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
