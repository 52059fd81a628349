//! Whether store and files belong together. A server that starts over another database than its files were made for would
//! take all of them for garbage, so it does not start; `judge` says why, and nothing was touched until then.

use std::{
    fs,
    io::{self, ErrorKind, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use sandbar_api::InstanceId;
use sandbar_provider::{Found, FoundSnapshot, Mark, Origin};
use tokio::time::sleep;

use crate::{Inner, OpenError, clock, ids, store::Identity};

const FILE: &str = "instance.json";
/// How far the home's mark may lag behind the store when the server is killed.
const LAG: Duration = Duration::from_secs(5);

/// Why a store and the files beside it do not belong together.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Mismatch {
    #[error("the database is empty or missing, but there are files that one knew of: {files}")]
    Empty { files: String },
    #[error("the database is older than the files: its newest event is {store}, theirs {files}")]
    Older { store: u64, files: u64 },
    #[error("the database is of another instance ({store}) than the files ({files})")]
    Foreign { store: InstanceId, files: InstanceId },
    #[error("{} cannot be read: {cause}", .path.display())]
    Unreadable { path: PathBuf, cause: String },
}

/// How well a store and the files beside it fit, which decides what may be concluded from what the store says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fit {
    /// The files were made for this store.
    Same,
    /// The same, but the store is from before stores had ids: a file that it does not know may belong to another one.
    Unmarked,
    /// The store is another one, or an older copy. The operator started it with `--adopt`.
    Other,
}

/// What the files say of the store they were made for.
#[derive(Debug, Default)]
pub(crate) struct Files {
    /// Of the home.
    pub(crate) home: Option<Origin>,
    /// Of each sandbox and each snapshot that is not quarantined, whichever provider has it.
    pub(crate) sandboxes: Vec<Option<Origin>>,
    pub(crate) snapshots: Vec<Option<Origin>>,
    /// Whether there is output of processes.
    pub(crate) output: bool,
}

impl Files {
    pub(crate) fn add(&mut self, sandboxes: &[Found], snapshots: &[FoundSnapshot]) {
        let told = |mark: &Option<Mark>| mark.as_ref().and_then(Mark::origin).cloned();
        let counts = |mark: &Option<Mark>| !mark.as_ref().is_some_and(Mark::is_quarantined);
        self.sandboxes.extend(sandboxes.iter().filter(|one| counts(&one.mark)).map(|one| told(&one.mark)));
        self.snapshots.extend(snapshots.iter().filter(|one| counts(&one.mark)).map(|one| told(&one.mark)));
    }

    fn origins(&self) -> impl Iterator<Item = &Origin> {
        self.home.iter().chain(self.sandboxes.iter().chain(&self.snapshots).flatten())
    }

    fn describe(&self) -> Option<String> {
        let mut parts = Vec::new();
        parts.extend(self.home.as_ref().map(|home| format!("a home of {} at event {}", home.instance, home.epoch)));
        let count = |count: usize, one: &str, many: &str| match count {
            0 => None,
            1 => Some(format!("1 {one}")),
            count => Some(format!("{count} {many}")),
        };
        parts.extend(count(self.sandboxes.len(), "sandbox", "sandboxes"));
        parts.extend(count(self.snapshots.len(), "snapshot", "snapshots"));
        parts.extend(self.output.then(|| "output of processes".to_owned()));
        (!parts.is_empty()).then(|| parts.join(", "))
    }
}

/// `store` is none where there is no database at all.
pub(crate) fn judge(store: Option<&Identity>, files: &Files) -> Result<(), Mismatch> {
    let Some(store) = store.filter(|store| store.epoch > 0 || store.instance.is_some()) else {
        return files.describe().map_or(Ok(()), |files| Err(Mismatch::Empty { files }));
    };
    let newest = files.origins().map(|origin| origin.epoch).max().unwrap_or(0);
    let Some(instance) = &store.instance else {
        // From before stores had names, and so are files that belong to it.
        return match files.origins().next() {
            Some(_) => Err(Mismatch::Older { store: store.epoch, files: newest }),
            None => Ok(()),
        };
    };
    if let Some(other) = files.origins().find(|origin| origin.instance != *instance) {
        return Err(Mismatch::Foreign { store: instance.clone(), files: other.instance.clone() });
    }
    match newest > store.epoch {
        true => Err(Mismatch::Older { store: store.epoch, files: newest }),
        false => Ok(()),
    }
}

/// What the home says of the store it belongs to; nothing where no server since marks began has used it.
pub(crate) fn read(home: &Path) -> Result<Option<Origin>, OpenError> {
    let path = home.join(FILE);
    let text = match fs::read(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(OpenError::HomeNotWritable { path, source }),
    };
    serde_json::from_slice(&text).map(Some).map_err(|error| {
        let mismatch = Mismatch::Unreadable { path, cause: error.to_string() };
        OpenError::Mismatch { home: home.to_owned(), mismatch }
    })
}

pub(crate) fn new() -> Result<InstanceId, OpenError> {
    ids::instance(clock::now()).map_err(OpenError::Furnish)
}

fn write(home: &Path, origin: &Origin) -> io::Result<()> {
    let (path, draft) = (home.join(FILE), home.join("instance.json.draft"));
    let mut file = fs::File::options().write(true).create(true).truncate(true).mode(0o600).open(&draft)?;
    file.write_all(&serde_json::to_vec(origin)?)?;
    // A torn one would keep the next server from starting.
    file.sync_all()?;
    fs::rename(draft, path)
}

/// At the start: from now on the home belongs to this store. Without room on the disk that is written later.
pub(crate) fn record(inner: &Inner) -> Result<(), OpenError> {
    match write(&inner.home, &inner.origin()) {
        Err(error) if matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded) => {
            tracing::warn!("the disk is full: the home is not marked as this store's yet");
            Ok(())
        }
        written => written.map_err(|source| OpenError::HomeNotWritable { path: inner.home.join(FILE), source }),
    }
}

/// Keeps the home's mark up with the store.
pub(crate) async fn follow(inner: Arc<Inner>) {
    let mut head = inner.store.head();
    let mut told = false;
    loop {
        tokio::select! {
            () = inner.closing.cancelled() => return,
            changed = head.changed() => if changed.is_err() { return },
        }
        head.borrow_and_update();
        let at = Arc::clone(&inner);
        let written = tokio::task::spawn_blocking(move || write(&at.home, &at.origin())).await;
        let failed = written.map_err(io::Error::other).and_then(|written| written).err();
        if let Some(error) = &failed
            && !told
        {
            tracing::warn!(%error, "the home's mark does not keep up with the database");
        }
        told = failed.is_some();
        tokio::select! {
            () = inner.closing.cancelled() => return,
            () = sleep(LAG) => {}
        }
    }
}

/// The last word, when nothing changes the store any more.
pub(crate) fn finish(inner: &Inner) {
    if let Err(error) = write(&inner.home, &inner.origin()) {
        tracing::warn!(%error, "the home's mark does not keep up with the database");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ours() -> InstanceId {
        InstanceId::from_parts(1, [1; 10])
    }

    fn origin(epoch: u64) -> Option<Origin> {
        Some(Origin { instance: ours(), epoch })
    }

    fn store(epoch: u64) -> Identity {
        Identity { instance: Some(ours()), epoch }
    }

    #[test]
    fn a_new_home_and_one_that_fits_are_started() {
        let none = Files::default();
        let empty = Identity { instance: None, epoch: 0 };
        assert_eq!(judge(None, &none), Ok(()));
        assert_eq!(judge(Some(&empty), &none), Ok(()));
        let files = Files { home: origin(7), sandboxes: vec![origin(3), None], output: true, ..Files::default() };
        assert_eq!(judge(Some(&store(7)), &files), Ok(()));
        assert_eq!(judge(Some(&store(8)), &files), Ok(()));
        // What was there before there were marks.
        let unmarked = Files { sandboxes: vec![None], snapshots: vec![None], output: true, home: None };
        assert_eq!(judge(Some(&Identity { instance: None, epoch: 9 }), &unmarked), Ok(()));
    }

    #[test]
    fn files_of_a_store_that_is_not_there_are_not_taken_for_garbage() {
        let empty = Identity { instance: None, epoch: 0 };
        for files in [
            Files { home: origin(7), ..Files::default() },
            Files { sandboxes: vec![None], ..Files::default() },
            Files { snapshots: vec![origin(1)], ..Files::default() },
            Files { output: true, ..Files::default() },
        ] {
            assert!(matches!(judge(None, &files), Err(Mismatch::Empty { .. })), "{files:?}");
            assert!(matches!(judge(Some(&empty), &files), Err(Mismatch::Empty { .. })), "{files:?}");
        }
    }

    #[test]
    fn an_older_store_and_one_of_another_instance_are_refused() {
        let older = |files: &Files| judge(Some(&store(6)), files);
        let expected = Err(Mismatch::Older { store: 6, files: 7 });
        assert_eq!(older(&Files { home: origin(7), ..Files::default() }), expected);
        assert_eq!(older(&Files { sandboxes: vec![origin(2), origin(7)], ..Files::default() }), expected);
        assert_eq!(older(&Files { snapshots: vec![origin(7)], ..Files::default() }), expected);
        let before_marks = Identity { instance: None, epoch: 6 };
        assert_eq!(judge(Some(&before_marks), &Files { home: origin(7), ..Files::default() }), expected);
        let theirs = InstanceId::from_parts(1, [2; 10]);
        let files = Files { sandboxes: vec![Some(Origin { instance: theirs.clone(), epoch: 1 })], ..Files::default() };
        assert_eq!(judge(Some(&store(6)), &files), Err(Mismatch::Foreign { store: ours(), files: theirs }));
    }

    #[test]
    fn what_is_quarantined_says_nothing_about_the_store() {
        let quarantine = sandbar_provider::Quarantine {
            since: clock::now(),
            reason: String::new(),
            origin: Some(Origin { instance: InstanceId::from_parts(1, [2; 10]), epoch: 99 }),
        };
        let id = sandbar_api::SandboxId::from_parts(1, [1; 10]);
        let mut files = Files::default();
        files.add(&[Found { id, running: false, mark: Some(Mark::Quarantined(quarantine)) }], &[]);
        assert_eq!(judge(Some(&store(1)), &files), Ok(()));
        assert_eq!(judge(None, &files), Ok(()));
    }
}
