//! What the kernel would do for scripted sandboxes: who stands still, what was counted, which snapshots are kept. Tests
//! look at it, change it, and make its verbs fail.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use sandbar_api::{SandboxId, SnapshotId};
use sandbar_provider::{Counters, Error, Spec};
use tokio::sync::Notify;

use super::lock;

type Failure = fn() -> Error;

#[derive(Default)]
pub(in crate::tests) struct Kernel {
    still: Mutex<HashSet<SandboxId>>,
    counters: Mutex<HashMap<SandboxId, Counters>>,
    refused: Mutex<HashMap<SandboxId, Arc<Notify>>>,
    snapshots: Mutex<HashMap<SnapshotId, SandboxId>>,
    fails: Mutex<HashMap<&'static str, Failure>>,
    refuses: Mutex<Option<String>>,
    log: Mutex<Vec<String>>,
    shyness: Mutex<Duration>,
}

pub(in crate::tests) fn cannot() -> Error {
    Error::NotEnforceable { layer: "freezing", cause: "no cgroup v2".into(), fix: "Mount cgroup v2.".into() }
}

pub(in crate::tests) fn broken() -> Error {
    Error::Io { action: "do as told".into(), source: std::io::Error::other("the script says so") }
}

impl Kernel {
    /// The verb fails until it is mended.
    pub(in crate::tests) fn fail(&self, verb: &'static str, error: Failure) {
        lock(&self.fails).insert(verb, error);
    }

    pub(in crate::tests) fn mend(&self, verb: &'static str) {
        lock(&self.fails).remove(verb);
    }

    /// Creating a sandbox of this host name fails.
    pub(in crate::tests) fn refuse(&self, hostname: &str) {
        *lock(&self.refuses) = Some(hostname.to_owned());
    }

    /// How long guests take to answer first.
    pub(in crate::tests) fn slow_down(&self, shyness: Duration) {
        *lock(&self.shyness) = shyness;
    }

    pub(super) fn shyness(&self) -> Duration {
        *lock(&self.shyness)
    }

    /// What was done since this was asked last.
    pub(in crate::tests) fn done(&self) -> Vec<String> {
        std::mem::take(&mut *lock(&self.log))
    }

    pub(in crate::tests) fn is_still(&self, id: &SandboxId) -> bool {
        lock(&self.still).contains(id)
    }

    /// As the server before left it.
    pub(in crate::tests) fn set_still(&self, id: &SandboxId, still: bool) {
        let mut all = lock(&self.still);
        let _changed = if still { all.insert(id.clone()) } else { all.remove(id) };
    }

    pub(in crate::tests) fn count(&self, id: &SandboxId, change: impl FnOnce(&mut Counters)) {
        change(lock(&self.counters).entry(id.clone()).or_default());
    }

    pub(in crate::tests) fn snapshots(&self) -> Vec<SnapshotId> {
        lock(&self.snapshots).keys().cloned().collect()
    }

    pub(in crate::tests) fn keep(&self, snapshot: &SnapshotId, of: &SandboxId) {
        lock(&self.snapshots).insert(snapshot.clone(), of.clone());
    }

    pub(in crate::tests) fn lose(&self, snapshot: &SnapshotId) {
        lock(&self.snapshots).remove(snapshot);
    }

    pub(in crate::tests) fn refused(&self, id: &SandboxId) -> Arc<Notify> {
        lock(&self.refused).entry(id.clone()).or_default().clone()
    }

    fn does(&self, verb: &'static str) -> Result<(), Error> {
        let fails = lock(&self.fails).get(verb).copied();
        lock(&self.log).push(if fails.is_some() { format!("{verb} fails") } else { verb.to_owned() });
        fails.map_or(Ok(()), |error| Err(error()))
    }

    /// The verb `launch` is that of whoever creates or starts, and is not told.
    pub(super) fn may_launch(&self) -> Result<(), Error> {
        let fails = lock(&self.fails).get("launch").copied();
        fails.map_or(Ok(()), |error| Err(error()))
    }

    pub(super) fn creates(&self, spec: &Spec) -> Result<(), Error> {
        let refuse =
            |what: String| Err(Error::BadSpec { what, cause: "the script says so".into(), fix: String::new() });
        if lock(&self.refuses).as_ref() == Some(&spec.hostname) {
            return refuse(spec.hostname.clone());
        }
        match &spec.from {
            Some(from) if !lock(&self.snapshots).contains_key(from) => refuse(format!("the snapshot {from}")),
            _ => Ok(()),
        }
    }

    /// A new run: nothing was counted. What stood still does so until it is stopped.
    pub(super) fn launches(&self, id: &SandboxId) {
        lock(&self.counters).remove(id);
    }

    pub(super) fn freeze(&self, id: &SandboxId) -> Result<(), Error> {
        self.does("freeze")?;
        self.set_still(id, true);
        Ok(())
    }

    pub(super) fn thaw(&self, id: &SandboxId) -> Result<(), Error> {
        self.does("thaw")?;
        self.set_still(id, false);
        Ok(())
    }

    pub(super) fn snapshot(&self, id: &SandboxId, running: bool, snapshot: &SnapshotId) -> Result<u64, Error> {
        if running && !self.is_still(id) {
            return Err(Error::BadSpec { what: "it".into(), cause: "it runs".into(), fix: "Freeze it.".into() });
        }
        self.does("snapshot")?;
        self.keep(snapshot, id);
        Ok(42)
    }

    pub(super) fn discard(&self, snapshot: &SnapshotId) -> Result<(), Error> {
        self.does("discard")?;
        self.lose(snapshot);
        Ok(())
    }

    pub(super) fn counters(&self, id: &SandboxId) -> Counters {
        lock(&self.counters).get(id).copied().unwrap_or_default()
    }
}
