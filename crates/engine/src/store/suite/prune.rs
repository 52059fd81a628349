//! Pruning, and what is said of what is gone.

use chrono::TimeDelta;
use sandbar_api::SandboxState;

use super::{Home, Outcome, all_events, new_sandbox, now, process, sandbox, stdout};
use crate::store::{Created, Error, IdempotencyKey, NewSandbox, Pruned, SandboxFilter, Store as _};

pub(in crate::store) async fn old_events_go_and_are_called_dropped<H: Home>(home: H) -> Outcome {
    let store = home.open().await?;
    let id = sandbox(&store, "s").await?;
    store.transition(&id, SandboxState::Ready, None).await?;
    let young = all_events(&store).await?.last().ok_or("three were told")?.at;
    assert_eq!(store.prune(young - TimeDelta::hours(1)).await?, Pruned { events: 0, sandboxes: 0 });
    assert_eq!(store.prune(young).await?, Pruned { events: 2, sandboxes: 0 });
    for sandbox in [None, Some(&id)] {
        let dropped = store.events(0, 10, sandbox).await;
        assert!(matches!(dropped, Err(Error::Dropped { from: 1, first_kept: 3 })), "{dropped:?}");
        assert!(matches!(store.events(1, 10, sandbox).await, Err(Error::Dropped { from: 2, first_kept: 3 })));
        assert_eq!(store.events(2, 10, sandbox).await?.len(), 1);
    }
    assert_eq!(store.prune(now() + TimeDelta::hours(1)).await?, Pruned { events: 1, sandboxes: 0 });
    assert!(matches!(store.events(2, 10, None).await, Err(Error::Dropped { from: 3, first_kept: 4 })));
    assert_eq!(store.events(3, 10, None).await?, [], "nothing after it was pruned");
    drop(store);

    let store = home.open().await?;
    assert_eq!(*store.head().borrow(), 3);
    store.transition(&id, SandboxState::Deleted, None).await?;
    let events = store.events(3, 10, None).await?;
    assert_eq!(events.iter().map(|event| event.seq).collect::<Vec<_>>(), [4], "numbers never start again");
    Ok(())
}

pub(in crate::store) async fn deleted_sandboxes_go_with_all_that_is_theirs<H: Home>(home: H) -> Outcome {
    let store = home.open().await?;
    let keyed = |name: &str| {
        let key = IdempotencyKey { owner: "o".into(), key: name.into(), digest: [1; 32] };
        let mut new = NewSandbox { key: Some(key), ..new_sandbox(name) };
        new.row.sandbox.labels.insert("a".into(), "b".into());
        new
    };
    let (gone, shared, stays) = (keyed("gone"), keyed("shared"), keyed("stays"));
    let mut heir = keyed("heir");
    heir.new_session = false;
    heir.row.sandbox.session = shared.row.sandbox.session.clone();
    let (lonely, common) = (gone.row.sandbox.session.clone(), heir.row.sandbox.session.clone());
    let mut processes = vec![];
    for new in [gone.clone(), shared.clone(), stays.clone(), heir.clone()] {
        let id = new.row.sandbox.id.clone();
        store.create_sandbox(new).await?;
        let process = process(&store, &id).await?;
        store.append_output(&process, &stdout(0, "text"), 1 << 20).await?;
        processes.push((id, process));
    }
    for deleted in [&gone, &shared] {
        store.transition(&deleted.row.sandbox.id, SandboxState::Deleted, None).await?;
    }
    let long_ago = now() - TimeDelta::hours(1);
    assert_eq!(store.prune(long_ago).await?.sandboxes, 0, "deleted only just now");
    assert_eq!(store.prune(now() + TimeDelta::hours(1)).await?.sandboxes, 2);
    for (at, (sandbox, process)) in processes.iter().enumerate() {
        let kept = at >= 2;
        assert_eq!(store.sandbox(sandbox).await?.is_some(), kept);
        assert_eq!(store.process(sandbox, process).await?.is_some(), kept);
        assert_eq!(store.output_range(process).await?.end > 0, kept);
    }
    let filter = SandboxFilter { limit: 10, states: SandboxState::ALL.into(), ..SandboxFilter::default() };
    assert_eq!(store.sandboxes(&filter).await?.len(), 2);

    // Keys went by age, also that of the one that stays: its name now speaks for it.
    assert!(matches!(store.create_sandbox(keyed("stays")).await, Err(Error::NameTaken(_))));
    let mut joining = keyed("joins-none");
    (joining.new_session, joining.row.sandbox.session) = (false, lonely);
    let refused = store.create_sandbox(joining.clone()).await;
    assert!(matches!(refused, Err(Error::Missing(_))), "its session went too: {refused:?}");
    joining.row.sandbox.session = common;
    assert!(matches!(store.create_sandbox(joining).await?, Created::New(_)), "a session in use stays");
    Ok(())
}
