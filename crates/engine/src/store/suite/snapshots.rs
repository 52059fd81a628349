//! Snapshots: rows that outlive the sandboxes they were taken of.

use chrono::TimeDelta;
use sandbar_api::{SandboxId, SandboxState, Snapshot, SnapshotId, StateReason, Template};

use super::{Home, Outcome, kinds, next, now, sandbox};
use crate::store::{Error, NewSnapshot, OWNER_SOCKET, SnapshotRow, Store as _};

pub(in crate::store) fn new(sandbox: &SandboxId, name: &str) -> NewSnapshot {
    let (millis, random) = next();
    let snapshot = Snapshot {
        id: SnapshotId::from_parts(millis, random),
        name: name.into(),
        sandbox: sandbox.clone(),
        template: "default".into(),
        provider: "local".into(),
        created_at: now(),
        size: 1 << 40,
    };
    let row = SnapshotRow { snapshot, template: Template::default(), hidden: false, deleted: false };
    NewSnapshot { row, owner: OWNER_SOCKET.into() }
}

fn why() -> StateReason {
    StateReason { code: "requested".into(), detail: "It was asked to be deleted.".into() }
}

pub(in crate::store) async fn they_outlive_their_origin_and_give_their_names_back<H: Home>(home: H) -> Outcome {
    let store = home.open().await?;
    let origin = sandbox(&store, "origin").await?;
    let first = store.create_snapshot(new(&origin, "base")).await?;
    let taken = store.create_snapshot(new(&origin, "base")).await;
    assert!(matches!(&taken, Err(Error::NameTaken(name)) if name == "base"), "{taken:?}");
    let second = store.create_snapshot(new(&origin, "other")).await?;
    store.transition(&origin, SandboxState::Deleted, None).await?;
    store.prune(now() + TimeDelta::days(1)).await?;
    drop(store);

    let store = home.open().await?;
    assert!(store.sandbox(&origin).await?.is_none());
    assert_eq!(store.snapshots().await?, [first.clone(), second.clone()]);
    assert_eq!(store.snapshot(&first.snapshot.id).await?.as_ref(), Some(&first));
    assert_eq!(store.snapshot_named("other").await?.as_ref(), Some(&second));
    assert_eq!(store.snapshot_named("none").await?, None);

    let id = &first.snapshot.id;
    store.delete_snapshot(id, why()).await?;
    let head = *store.head().borrow();
    let event = store.events(head - 1, 1, None).await?.pop().ok_or("it was told")?;
    assert_eq!((event.kind.as_str(), &event.data["reason"]["code"]), ("snapshot.deleted", &"requested".into()));
    assert_eq!(event.data["snapshot"], id.as_str());
    let again = store.delete_snapshot(id, why()).await;
    assert!(matches!(again, Err(Error::Missing(_))), "{again:?}");
    assert_eq!(store.snapshots().await?, [second]);
    assert_eq!(store.snapshot(id).await?.map(|row| row.deleted), Some(true), "it is still known by its id");
    assert_eq!(store.snapshot_named("base").await?.map(|row| row.deleted), Some(true));

    let third = store.create_snapshot(new(&origin, "base")).await?;
    assert_eq!(store.snapshot_named("base").await?, Some(third));
    store.prune(now() + TimeDelta::days(1)).await?;
    assert_eq!(store.snapshot(id).await?, None);
    assert_eq!(store.snapshots().await?.len(), 2);
    Ok(())
}

pub(in crate::store) async fn hidden_ones_are_told_to_nobody<H: Home>(home: H) -> Outcome {
    let store = home.open().await?;
    let origin = sandbox(&store, "origin").await?;
    let told = kinds(&store).await?;
    let mut hidden = new(&origin, "of-a-fork");
    hidden.row.hidden = true;
    let row = store.create_snapshot(hidden).await?;
    assert_eq!(store.snapshots().await?, std::slice::from_ref(&row));
    store.delete_snapshot(&row.snapshot.id, why()).await?;
    assert_eq!(store.snapshot(&row.snapshot.id).await?, None, "nothing is left of it");
    assert_eq!(kinds(&store).await?, told);
    Ok(())
}
