//! Names and idempotency keys: what makes creating safe to repeat.

use std::sync::Arc;

use sandbar_api::SandboxState;
use tokio::task::JoinSet;

use super::{Home, Outcome, kinds, new_sandbox, sandbox};
use crate::store::{Created, Error, IdempotencyKey, NewSandbox, Store as _};

pub(in crate::store) async fn they_are_unique_until_their_sandbox_is_deleted<H: Home>(home: H) -> Outcome {
    let store = home.open().await?;
    let first = sandbox(&store, "agent").await?;
    let second = store.create_sandbox(new_sandbox("agent")).await;
    assert!(matches!(&second, Err(Error::NameTaken(name)) if name == "agent"), "{second:?}");
    assert_eq!(kinds(&store).await?.len(), 2, "not even its session was made");

    store.transition(&first, SandboxState::Failed, None).await?;
    assert!(matches!(sandbox(&store, "agent").await, Err(Error::NameTaken(_))));
    store.transition(&first, SandboxState::Deleted, None).await?;
    assert_eq!(store.sandbox_named("agent").await?, None);
    let second = sandbox(&store, "agent").await?;
    let named = store.sandbox_named("agent").await?.map(|row| row.sandbox.id);
    assert_eq!(named.as_ref(), Some(&second));
    assert!(store.sandbox(&first).await?.is_some(), "a deleted one is still known by its id");
    Ok(())
}

pub(in crate::store) async fn the_last_that_had_one_is_found<H: Home>(home: H) -> Outcome {
    let store = home.open().await?;
    let mut last = None;
    for _ in 0..3 {
        let id = sandbox(&store, "agent").await?;
        let found = store.sandbox_last_named("agent").await?.map(|row| row.sandbox.id);
        assert_eq!(found, last, "one that is there had no end yet");
        store.transition(&id, SandboxState::Deleted, None).await?;
        last = Some(id);
    }
    sandbox(&store, "other").await?;
    assert_eq!(store.sandbox_last_named("agent").await?.map(|row| row.sandbox.id), last);
    assert_eq!(store.sandbox_last_named("other").await?, None);
    assert_eq!(store.sandbox_last_named("nobody\0").await?, None);
    Ok(())
}

fn keyed(name: &str, key: &str, digest: u8) -> NewSandbox {
    let key = IdempotencyKey { owner: "token:one".into(), key: key.into(), digest: [digest; 32] };
    NewSandbox { key: Some(key), ..new_sandbox(name) }
}

pub(in crate::store) async fn one_key_makes_one_sandbox<H: Home>(home: H) -> Outcome {
    let store = home.open().await?;
    let Created::New(made) = store.create_sandbox(keyed("a", "k", 1)).await? else {
        return Err("the first use of a key makes a sandbox".into());
    };
    let ready = store.transition(&made.sandbox.id, SandboxState::Ready, None).await?;
    let told = kinds(&store).await?.len();
    assert_eq!(store.create_sandbox(keyed("a", "k", 1)).await?, Created::Replayed(ready));
    let reused = store.create_sandbox(keyed("a", "k", 2)).await;
    assert!(matches!(reused, Err(Error::KeyReused)), "{reused:?}");
    assert_eq!(kinds(&store).await?.len(), told, "a replay tells nothing");

    let deleted = store.transition(&made.sandbox.id, SandboxState::Deleted, None).await?;
    assert_eq!(store.create_sandbox(keyed("a", "k", 1)).await?, Created::Replayed(deleted));

    let mut other = keyed("b", "k", 2);
    if let Some(key) = &mut other.key {
        key.owner = "token:two".into();
    }
    assert!(matches!(store.create_sandbox(other).await?, Created::New(_)), "keys belong to who used them");
    // A create that failed has not used its key.
    assert!(matches!(store.create_sandbox(keyed("b", "fresh", 3)).await, Err(Error::NameTaken(_))));
    assert!(matches!(store.create_sandbox(keyed("c", "fresh", 4)).await?, Created::New(_)));
    Ok(())
}

pub(in crate::store) async fn one_key_makes_one_sandbox_at_the_same_time_too<H: Home>(home: H) -> Outcome {
    let store = Arc::new(home.open().await?);
    let mut callers = JoinSet::new();
    for _ in 0..20 {
        let store = Arc::clone(&store);
        callers.spawn(async move { store.create_sandbox(keyed("same", "k", 1)).await });
    }
    let (mut ids, mut new) = (vec![], 0);
    while let Some(answer) = callers.join_next().await {
        match answer?? {
            Created::New(row) => {
                new += 1;
                ids.push(row.sandbox.id);
            }
            Created::Replayed(row) => ids.push(row.sandbox.id),
        }
    }
    ids.dedup();
    assert_eq!((new, ids.len()), (1, 1));
    Ok(())
}
