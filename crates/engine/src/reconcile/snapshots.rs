//! Snapshots of store and providers made to agree: what only a provider has was never told of, what only the store has
//! is lost, and what served a fork is no longer needed.

use std::collections::{BTreeMap, HashSet};

use sandbar_api::{SnapshotId, StateReason};
use sandbar_provider::{FoundSnapshot, Made};

use super::strays;
use crate::{Inner, OpenError, identity::Fit, owner::reason};

/// Those of forks that were under way when the server ended.
pub(super) async fn of_forks(inner: &Inner) -> Result<HashSet<SnapshotId>, OpenError> {
    let rows = inner.store.snapshots().await.map_err(OpenError::Store)?;
    Ok(rows.into_iter().filter(|row| row.hidden).map(|row| row.snapshot.id).collect())
}

/// After the sandboxes: those of unfinished forks are gone by now, or are looked for again at the next start.
pub(super) async fn reconcile(
    inner: &Inner,
    found: BTreeMap<&'static str, Option<Vec<FoundSnapshot>>>,
    fit: Fit,
) -> Result<(), OpenError> {
    let rows = inner.store.snapshots().await.map_err(OpenError::Store)?;
    let stood_on: HashSet<_> =
        inner.registry.all().iter().filter_map(|handle| handle.record.borrow().from.clone()).collect();
    // Sandboxes of an unfinished fork that could not be removed.
    let unfinished: HashSet<_> =
        rows.iter().filter(|row| row.hidden).map(|row| &row.snapshot.id).filter(|id| stood_on.contains(*id)).collect();
    for (name, found) in found {
        let (Some(provider), Some(found)) = (inner.providers.get(name), found) else { continue };
        let provider = &**provider;
        let mine: Vec<_> = rows.iter().filter(|row| row.snapshot.provider == *name).collect();
        for FoundSnapshot { id, mark } in &found {
            let made = Made::Snapshot(id);
            match mine.iter().find(|row| row.snapshot.id == *id) {
                Some(row) if !row.hidden => strays::keep(inner, provider, made, mark.as_ref()).await,
                Some(_) if unfinished.contains(id) => {}
                Some(_) => {
                    if let Err(error) = provider.discard(id).await {
                        tracing::error!(snapshot = %id, %error, "the snapshot of a fork that was cut off could not be discarded");
                    }
                }
                None => strays::settle(inner, provider, made, mark.clone(), fit).await,
            }
        }
        let found: HashSet<_> = found.iter().map(|found| &found.id).collect();
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
