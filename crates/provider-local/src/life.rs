//! Starting and ending a sandbox's guest.

use std::{
    fs, io,
    os::fd::{AsFd, OwnedFd},
    path::Path,
};

use rustix::process::Signal;
use sandbar_api::{Root, SandboxId, SnapshotId};
use sandbar_provider::{Error, Spec};

use crate::{
    cgroup::Shape,
    directory::{self, Data, Record},
    disk, guest_pid,
    launch::{Below, Launch, Request, RootKind},
    local::Local,
    sys,
};

impl Local {
    /// Makes the sandbox's directory; a few calls, but for a disk image, which takes its time on a thread of its own.
    pub(crate) async fn make(&self, path: &Path, record: &Record, spec: &Spec) -> Result<(), Error> {
        let local = self.shared.directory.clone();
        if record.data != Data::Image {
            return directory::make(&local, path, record, spec);
        }
        let (path, record, spec) = (path.to_owned(), record.clone(), spec.clone());
        tokio::task::spawn_blocking(move || directory::make(&local, &path, &record, &spec))
            .await
            .unwrap_or_else(|error| Err(Error::io("make the sandbox's disk")(io::Error::other(error))))
    }

    /// Boots the guest and returns when it serves.
    pub(crate) async fn boot(&self, path: &Path, record: &Record, spec: &Spec) -> Result<(), Error> {
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
        let skills = opened.skills.map(|(directory, bound)| {
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
                Root::Image { .. } | Root::Oci { .. } => RootKind::Image,
            },
            user: spec.user,
            workspace,
            skills,
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

    pub(crate) fn below(&self, id: &SnapshotId) -> Result<(Below, OwnedFd), Error> {
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
    pub(crate) async fn end(&self, id: &SandboxId) -> Result<(), Error> {
        if let Some(guest) = self.guest(id)? {
            match rustix::process::pidfd_send_signal(&guest, Signal::KILL) {
                Ok(()) | Err(rustix::io::Errno::SRCH) => {}
                Err(errno) => return Err(Error::io("kill the guest")(errno.into())),
            }
            ended(guest).await?;
        }
        self.shared.groups.remove(id).await.map_err(Error::io("remove the sandbox's control groups"))?;
        let directory = fs::File::open(self.path(id)).map_err(Error::io("open the sandbox's directory"))?;
        guest_pid::forget(directory.as_fd()).map_err(Error::io("remove guest.pid"))
    }
}

/// Whether there is no room left within the disk limit: ext4 refuses a write that does not fit as a whole, so a program
/// that writes much at once fails before the last block is gone.
pub(crate) fn is_full(local: &Local, id: &SandboxId) -> bool {
    const LITTLE: u64 = 1024 * 1024;
    let Ok(Some(root)) = local.root(id) else { return false };
    rustix::fs::fstatvfs(&root).is_ok_and(|found| found.f_bavail * found.f_frsize < LITTLE || found.f_favail == 0)
}

pub(crate) async fn synced(path: &Path) -> Result<(), Error> {
    let at = path.to_owned();
    tokio::task::spawn_blocking(move || directory::sync(&at))
        .await
        .unwrap_or_else(|error| Err(io::Error::other(error)))
        .map_err(|error| directory::disk(path, "write to disk", error))
}

/// A pidfd is readable when its process is dead.
pub(crate) async fn ended(guest: OwnedFd) -> Result<(), Error> {
    let failed = || Error::io("wait for the guest");
    let guest = sys::watch(guest).map_err(failed())?;
    guest.readable().await.map(|_| ()).map_err(failed())
}
