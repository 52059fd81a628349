//! Snapshots as surfaces call them: taking, finding and giving up.

use sandbar_api::{Code, CreateSnapshot, Problem, Snapshot, SnapshotId, StateReason, check};

use crate::{
    Caller, Engine, Inner, clock, ids,
    owner::{self, Keep, Verb},
    problem,
    store::{self, SnapshotRow},
};

impl Engine {
    pub async fn snapshot(&self, caller: &Caller, sandbox: &str, request: CreateSnapshot) -> Result<Snapshot, Problem> {
        if let Some(name) = &request.name {
            check_name(name)?;
        }
        let handle = self.inner.handle(sandbox).await?;
        handle.activity.touch();
        let id = ids::snapshot(clock::now())?;
        let name = request.name.unwrap_or_else(|| ids::default_snapshot_name(&id));
        let keep = Keep { id, name, hidden: false, owner: caller.owner.clone() };
        Ok(handle.ask(|reply| Verb::Keep(keep, reply)).await?.snapshot)
    }

    pub async fn snapshots(&self) -> Result<Vec<Snapshot>, Problem> {
        let rows = self.inner.store.snapshots().await?;
        Ok(rows.into_iter().filter(|row| !row.hidden).map(|row| row.snapshot).collect())
    }

    /// By id or name.
    pub async fn snapshot_named(&self, snapshot: &str) -> Result<Snapshot, Problem> {
        Ok(self.inner.snapshot(snapshot).await?.snapshot)
    }

    /// Returns when it is given up; deleting it again is no error. Sandboxes made from it stay.
    pub async fn delete_snapshot(&self, snapshot: &str) -> Result<(), Problem> {
        if self.inner.closing.is_cancelled() {
            return Err(problem::shutting_down());
        }
        let row = self.inner.find_snapshot(snapshot).await?;
        if row.deleted {
            return Ok(());
        }
        self.inner.give_up(&row, owner::requested_delete()).await
    }
}

impl Inner {
    /// By id or name, also one that is deleted.
    async fn find_snapshot(&self, text: &str) -> Result<SnapshotRow, Problem> {
        let found = match text.parse::<SnapshotId>() {
            Ok(id) => self.store.snapshot(&id).await?,
            Err(_) => self.store.snapshot_named(text).await?,
        };
        found.filter(|row| !row.hidden).ok_or_else(|| problem::unknown_snapshot(text))
    }

    /// By id or name, one that is there.
    pub(crate) async fn snapshot(&self, text: &str) -> Result<SnapshotRow, Problem> {
        let row = self.find_snapshot(text).await?;
        if row.deleted { Err(problem::unknown_snapshot(text)) } else { Ok(row) }
    }

    /// The provider's part goes first: a server that ends in between leaves a record that the next one removes.
    pub(crate) async fn give_up(&self, row: &SnapshotRow, why: StateReason) -> Result<(), Problem> {
        let Snapshot { id, provider, .. } = &row.snapshot;
        self.provider(provider)?.discard(id).await.map_err(problem::from_provider)?;
        match self.store.delete_snapshot(id, why).await {
            // Somebody else was faster.
            Ok(()) | Err(store::Error::Missing(_)) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// Like a sandbox's, and never mistaken for an id.
fn check_name(name: &str) -> Result<(), Problem> {
    if check::name(name).is_ok() && !name.starts_with(SnapshotId::PREFIX) {
        return Ok(());
    }
    Err(Problem::new(
        Code::BadName,
        format!("`{}` cannot be the name of a snapshot.", name.escape_debug()),
        "Use 1 to 63 of a-z, 0-9 and `-`, not starting or ending with `-`, not starting with `sbx-` or `snp-`.",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_labels_and_no_ids() {
        for name in ["", "A", "snp-x", "sbx-x", "-a", "a/b"] {
            assert_eq!(check_name(name).map_err(|problem| problem.code), Err(Code::BadName), "{name}");
        }
        assert_eq!(check_name("base-1"), Ok(()));
        let id = ids::snapshot(clock::now()).unwrap_or_else(|problem| panic!("{problem}"));
        assert_eq!(check_name(&ids::default_snapshot_name(&id)), Ok(()));
    }
}
