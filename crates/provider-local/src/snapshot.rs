//! Keeping a sandbox's files as they are, and giving up what was kept.

use std::{fs, io, os::fd::OwnedFd};

use sandbar_api::{SandboxId, SnapshotId};
use sandbar_provider::{Error, Mark};

use crate::{
    copy,
    directory::{self, Data, Record},
    disk,
    launch::{Keep, Request, Told},
    layer::{DEEPEST, Layer},
    local::Local,
    ownership, sys,
};

pub(crate) async fn keep(local: &Local, id: &SandboxId, snapshot: &SnapshotId) -> Result<u64, Error> {
    let shared = &local.shared;
    if let Some(done) = shared.layers.read(snapshot)? {
        return Ok(done.bytes);
    }
    if local.guest(id)?.is_some() && !shared.groups.is_frozen(id) {
        return Err(Error::io("take a snapshot")(io::Error::other("the sandbox is running and not frozen")));
    }
    let record = local.record(id)?;
    if record.layers.len() >= DEEPEST {
        return Err(Error::BadSpec {
            what: format!("sandbox {id}"),
            cause: format!("it stands on {DEEPEST} snapshots already"),
            fix: "Copy the files into a new sandbox, and take the snapshot of that.".into(),
        });
    }
    let path =
        shared.layers.begin(snapshot).map_err(|error| directory::disk(&shared.directory, "make a layer in", error))?;
    let kept = files(local, id, &record, &path).await.and_then(|bytes| {
        let mark = ownership::read(&local.path(id), record.origin()).map_err(Error::io("read the sandbox's mark"))?;
        let Record { uids, data, layers: below, lower, mut spec } = record;
        if let Some(spec) = &mut spec {
            spec.origin = mark.as_ref().and_then(Mark::origin).cloned();
        }
        let finished = shared.layers.finish(snapshot, &Layer { uids, data, below, lower, bytes, spec });
        finished.map(|()| bytes).map_err(|error| directory::disk(&path, "finish the layer", error))
    });
    if kept.is_err() {
        shared.layers.discard(snapshot).map_err(Error::io("remove a layer that was not finished"))?;
    }
    kept
}

async fn files(local: &Local, id: &SandboxId, record: &Record, layer: &std::path::Path) -> Result<u64, Error> {
    let own = local.path(id);
    let failed = || Error::io("keep the sandbox's files");
    match record.data {
        Data::Plain => {
            let readable = |path| fs::File::open(path).map(OwnedFd::from).map_err(failed());
            let fds = vec![readable(own.as_path())?, readable(layer)?];
            match local.shared.forge.ask(Request::Keep(Keep { uids: record.uids }), fds).await? {
                Told::Kept(bytes) => Ok(bytes),
                Told::Done | Told::Failed(_) => Err(failed()(io::ErrorKind::InvalidData.into())),
            }
        }
        Data::Subvolume => {
            let subvolume = fs::File::open(own.join(directory::DATA)).map_err(failed())?;
            let layer = fs::File::open(layer).map_err(failed())?;
            sys::snapshot_subvolume(&subvolume, &layer, directory::DATA).map(|()| 0).map_err(failed())
        }
        Data::Image => {
            // What the kernel still holds in memory belongs to the image too.
            if let Some(root) = local.root(id).map_err(failed())? {
                rustix::fs::syncfs(&root).map_err(|errno| failed()(errno.into()))?;
            }
            let (from, to) = (own.join(disk::IMAGE), layer.join(disk::IMAGE));
            let copied = tokio::task::spawn_blocking(move || copy::image(&from, &to)).await;
            copied
                .unwrap_or_else(|error| Err(io::Error::other(error)))
                .map_err(|error| directory::disk(layer, "copy the disk to", error))
        }
    }
}

pub(crate) async fn discard(local: &Local, snapshot: &SnapshotId) -> Result<(), Error> {
    local.shared.layers.discard(snapshot).map_err(Error::io(format!("give up {snapshot}")))?;
    collect(local).await
}

/// Removes the layers that nothing stands on any more.
pub(crate) async fn collect(local: &Local) -> Result<(), Error> {
    let _standing = local.shared.standing.lock().await;
    let local = local.clone();
    let collected = tokio::task::spawn_blocking(move || {
        let mut records = Vec::new();
        for id in local.ids()? {
            records.extend(directory::read(&local.path(&id))?);
        }
        local.shared.layers.collect(&records, |path, uids| local.free(uids, path)).map(drop)
    });
    collected.await.unwrap_or_else(|error| Err(Error::io("remove layers")(io::Error::other(error))))
}
