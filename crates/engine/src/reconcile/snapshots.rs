//! Snapshots of store and providers made to agree: what only a provider has was never told of, what only the store has
//! is lost, and what served a fork is no longer needed.

use std::collections::HashSet;

use sandbar_api::{SnapshotId, StateReason};

use crate::{Inner, OpenError, owner::reason};

/// Those of forks that were under way when the server ended.
pub(super) async fn of_forks(inner: &Inner) -> Result<HashSet<SnapshotId>, OpenError> {
    let rows = inner.store.snapshots().await.map_err(OpenError::Store)?;
    Ok(rows.into_iter().filter(|row| row.hidden).map(|row| row.snapshot.id).collect())
}

/// After the sandboxes: those of unfinished forks are gone by now, or are looked for again at the next start.
pub(super) async fn reconcile(inner: &Inner) -> Result<(), OpenError> {
    let rows = inner.store.snapshots().await.map_err(OpenError::Store)?;
    let stood_on: HashSet<_> =
        inner.registry.all().iter().filter_map(|handle| handle.record.borrow().from.clone()).collect();
    // Sandboxes of an unfinished fork that could not be removed.
    let unfinished: HashSet<_> =
        rows.iter().filter(|row| row.hidden).map(|row| &row.snapshot.id).filter(|id| stood_on.contains(*id)).collect();
    for (name, provider) in &inner.providers {
        let found = match provider.snapshots().await {
            Ok(found) => found.into_iter().collect::<HashSet<_>>(),
            Err(error) => {
                // Nothing is concluded from not knowing.
                tracing::error!(provider = name, %error, "a provider cannot tell which snapshots it has");
                continue;
            }
        };
        let mine: Vec<_> = rows.iter().filter(|row| row.snapshot.provider == *name).collect();
        let kept: HashSet<_> = mine.iter().filter(|row| !row.hidden).map(|row| &row.snapshot.id).collect();
        for id in found.iter().filter(|id| !kept.contains(id) && !unfinished.contains(id)) {
            if let Err(error) = provider.discard(id).await {
                tracing::error!(snapshot = %id, %error, "a snapshot that nobody knows of could not be discarded");
            }
        }
        for row in mine {
            let id = &row.snapshot.id;
            let over = if row.hidden { !unfinished.contains(id) } else { !found.contains(id) };
            if over {
                inner.store.delete_snapshot(id, lost()).await.map_err(OpenError::Store)?;
            }
        }
    }
    Ok(())
}

fn lost() -> StateReason {
    reason("lost", "Its files are no longer there.")
}
