//! Layers: what sandboxes had written at one moment, kept under a snapshot's id and never changed. Sandboxes made from a
//! snapshot stand on its layer and on those it stood on itself; a layer goes when its snapshot was given up and nothing
//! stands on it any more.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
};

use sandbar_api::SnapshotId;
use sandbar_provider::{Error, FoundSnapshot, Spec};
use serde::{Deserialize, Serialize};

use crate::{
    directory::{self, Data, Record},
    ownership, remove,
    uids::Uids,
};

const DIRECTORY: &str = "layers";
const RECORD: &str = "layer.json";
/// Its snapshot was given up.
const DISCARDED: &str = "discarded";
/// An overlay takes more, but each costs a mount at every start.
pub(crate) const DEEPEST: usize = 32;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Layer {
    /// Who owns its files on the disk.
    pub uids: Uids,
    pub data: Data,
    /// What it stands on, nearest first.
    pub below: Vec<SnapshotId>,
    /// What all of them stand on.
    pub lower: PathBuf,
    pub bytes: u64,
    /// What the sandbox was made by, and whose that was. Absent of those that an earlier version made.
    #[serde(default)]
    pub spec: Option<Box<Spec>>,
}

#[derive(Debug)]
pub(crate) struct Layers {
    directory: PathBuf,
    /// Those being made: not finished, and not to be removed for that.
    begun: Mutex<BTreeSet<SnapshotId>>,
    /// Whose uids the files of each layer carry.
    carried: Mutex<BTreeMap<SnapshotId, Uids>>,
}

impl Layers {
    pub(crate) fn open(local: &Path) -> io::Result<Self> {
        let directory = local.join(DIRECTORY);
        directory::passable(&directory, None)?;
        let layers = Self { directory, begun: Mutex::default(), carried: Mutex::default() };
        for id in layers.ids()? {
            // One that cannot be read is told of when it is needed.
            if let Ok(Some(layer)) = layers.read(&id) {
                layers.carried().insert(id, layer.uids);
            }
        }
        Ok(layers)
    }

    fn carried(&self) -> MutexGuard<'_, BTreeMap<SnapshotId, Uids>> {
        self.carried.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Every layer with the uids its files carry.
    pub(crate) fn carrying(&self) -> Vec<(PathBuf, Uids)> {
        self.carried().iter().map(|(id, uids)| (self.path(id), *uids)).collect()
    }

    /// A layer whose files carry these uids.
    pub(crate) fn carrier(&self, uids: Uids) -> Option<PathBuf> {
        self.carried().iter().find(|(_, carried)| **carried == uids).map(|(id, _)| self.path(id))
    }

    pub(crate) fn path(&self, id: &SnapshotId) -> PathBuf {
        self.directory.join(id.as_str())
    }

    /// One that was finished, whether or not its snapshot still exists.
    pub(crate) fn read(&self, id: &SnapshotId) -> Result<Option<Layer>, Error> {
        let path = self.path(id).join(RECORD);
        let failed = || Error::io(format!("read {}", path.display()));
        match fs::read(&path) {
            Ok(text) => serde_json::from_slice(&text).map(Some).map_err(|error| failed()(error.into())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed()(error)),
        }
    }

    /// One that sandboxes may still be made from.
    pub(crate) fn usable(&self, id: &SnapshotId) -> Result<Layer, Error> {
        let path = self.path(id);
        let usable = !path.join(DISCARDED).exists() && !ownership::is_quarantined(&path);
        let layer = if usable { self.read(id)? } else { None };
        layer.ok_or_else(|| Error::BadSpec {
            what: format!("snapshot {id}"),
            cause: "its files are not there".into(),
            fix: "Use a snapshot that exists.".into(),
        })
    }

    /// Empties the place of a layer that is about to be made.
    pub(crate) fn begin(&self, id: &SnapshotId) -> io::Result<PathBuf> {
        let path = self.path(id);
        self.begun().insert(id.clone());
        erase(&path)?;
        directory::passable(&path, None)?;
        Ok(path)
    }

    fn begun(&self) -> MutexGuard<'_, BTreeSet<SnapshotId>> {
        self.begun.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Written last: without it a layer was never finished.
    pub(crate) fn finish(&self, id: &SnapshotId, layer: &Layer) -> io::Result<()> {
        let path = self.path(id);
        let draft = path.join("layer.json.draft");
        fs::write(&draft, serde_json::to_vec_pretty(layer)?)?;
        fs::File::open(&draft)?.sync_all()?;
        fs::rename(draft, path.join(RECORD))?;
        // The files as well as their record, and the names that lead to them.
        rustix::fs::syncfs(fs::File::open(&path)?)?;
        self.begun().remove(id);
        self.carried().insert(id.clone(), layer.uids);
        Ok(())
    }

    pub(crate) fn discard(&self, id: &SnapshotId) -> io::Result<()> {
        let path = self.path(id);
        self.begun().remove(id);
        if !path.join(RECORD).exists() {
            return erase(&path);
        }
        fs::write(path.join(DISCARDED), "")
    }

    fn ids(&self) -> io::Result<Vec<SnapshotId>> {
        let mut ids = Vec::new();
        for entry in fs::read_dir(&self.directory)? {
            ids.extend(entry?.file_name().to_str().and_then(|name| name.parse().ok()));
        }
        Ok(ids)
    }

    /// With their marks.
    pub(crate) fn found(&self) -> Result<Vec<FoundSnapshot>, Error> {
        let found = self.snapshots()?.into_iter().map(|id| {
            let begun = self.read(&id)?.and_then(|layer| layer.spec?.origin);
            let path = self.path(&id);
            let mark =
                ownership::read(&path, begun).map_err(Error::io(format!("read the mark of {}", path.display())))?;
            Ok(FoundSnapshot { id, mark })
        });
        found.collect()
    }

    fn snapshots(&self) -> Result<Vec<SnapshotId>, Error> {
        let ids = self.ids().map_err(Error::io("list the snapshots"))?;
        let kept = |id: &SnapshotId| {
            let path = self.path(id);
            path.join(RECORD).exists() && !path.join(DISCARDED).exists()
        };
        Ok(ids.into_iter().filter(kept).collect())
    }

    /// Removes what was never finished, and what was given up and nothing stands on: `gone` hears of each, with the uids
    /// that its files carried. Tells the lower layers in use.
    pub(crate) fn collect(
        &self,
        records: &[Record],
        gone: impl Fn(&Path, Uids) -> Result<(), Error>,
    ) -> Result<Vec<PathBuf>, Error> {
        let failed = || Error::io("remove layers that nothing stands on");
        // In this order: one that is begun or finished meanwhile is not among those looked at.
        let ids = self.ids().map_err(failed())?;
        let mut used: BTreeSet<SnapshotId> = records.iter().flat_map(|record| record.layers.iter().cloned()).collect();
        used.extend(self.begun().iter().cloned());
        let mut lowers = Vec::new();
        for id in self.snapshots()? {
            if let Some(layer) = self.read(&id)? {
                used.extend(layer.below);
                lowers.push(layer.lower);
            }
            used.insert(id);
        }
        for id in ids {
            if !used.contains(&id) {
                erase(&self.path(&id)).map_err(failed())?;
                let carried = self.carried().remove(&id);
                carried.map_or(Ok(()), |uids| gone(&self.path(&id), uids))?;
            }
        }
        Ok(lowers)
    }
}

/// A directory that may have a subvolume in it.
pub(crate) fn erase(path: &Path) -> io::Result<()> {
    directory::remove_subvolume(path)?;
    remove::tree(path)
}
