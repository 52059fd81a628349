//! A full disk: what was being written fails, what was written stays, and it goes on when there is room again.

use sandbar_api::{Exit, ExitReason, ProcessState, Role, SandboxState, Stream, Token, TokenId};

use super::SqliteStore;
use crate::{
    store::{
        Error, Store as _,
        suite::{Outcome, all_events, chunk, joined, now, process, read_all, sandbox},
    },
    tests::disk::SmallDisk,
};

#[tokio::test]
async fn the_database_says_so_and_goes_on_when_there_is_room() -> Outcome {
    let Some(disk) = SmallDisk::new("the_database_says_so_and_goes_on_when_there_is_room")? else { return Ok(()) };
    let store = SqliteStore::open(disk.path()).await?;
    let mut made = 0;
    for round in 0..3 {
        for number in 0..5 {
            sandbox(&store, &format!("s{round}-{number}")).await?;
            made += 1;
        }
        disk.fill()?;
        // The log may reuse space of its own for a while.
        let refused = loop {
            match sandbox(&store, &format!("full{round}-{made}")).await {
                Ok(_) => made += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(refused, Error::DiskFull), "{refused:?}");
        // What a failed transaction wrote of its log is room for a few small ones.
        let mut checked = store.check().await;
        for _ in 0..20 {
            checked = checked.and(store.check().await);
        }
        assert!(matches!(checked, Err(Error::DiskFull)), "it is not ready: {checked:?}");
        assert_eq!(*store.head().borrow(), made * 2);
        assert_eq!(all_events(&store).await?.len() as u64, made * 2, "reading goes on");
        disk.free()?;
        store.check().await?;
    }
    // The log is consistent for the next server too.
    store.close().await;
    let store = SqliteStore::open(disk.path()).await?;
    assert_eq!(*store.head().borrow(), made * 2);
    sandbox(&store, "after").await?;
    let events = all_events(&store).await?;
    assert!(events.iter().zip(1..).all(|(event, seq)| event.seq == seq));
    assert_eq!(events.len() as u64, (made + 1) * 2);
    Ok(())
}

#[tokio::test]
async fn output_says_so_and_goes_on_at_exactly_its_end() -> Outcome {
    let Some(disk) = SmallDisk::new("output_says_so_and_goes_on_at_exactly_its_end")? else { return Ok(()) };
    let store = SqliteStore::open(disk.path()).await?;
    let id = sandbox(&store, "s").await?;
    let (first, second) = (process(&store, &id).await?, process(&store, &id).await?);
    let byte = |offset: u64| (offset / 3 % 251) as u8;
    let bytes = |from: u64, length: u64| (from..from + length).map(byte).collect::<Vec<_>>();
    let mut end = 0;
    for round in 0..3 {
        store.append_output(&first, &chunk(end, Stream::Stdout, bytes(end, 1000)), 1 << 30).await?;
        end += 1000;
        disk.fill()?;
        // Until the last page has no room left; each try is of the other stream, so that the index is written too.
        let refused = loop {
            let stream = if end % 2 == 0 { Stream::Stderr } else { Stream::Stdout };
            match store.append_output(&first, &chunk(end, stream, bytes(end, 3333)), 1 << 30).await {
                Ok(range) => end = range.end,
                Err(error) => break error,
            }
        };
        assert!(matches!(refused, Error::DiskFull), "{refused:?}");
        assert_eq!(store.output_range(&first).await?.end, end);
        let refused = store.append_output(&second, &chunk(0, Stream::Stdout, bytes(0, 5000)), 1 << 30).await;
        assert!(matches!(refused, Err(Error::DiskFull)), "{refused:?}");
        assert_eq!(store.output_range(&second).await?.end, 0);
        let kept = joined(&read_all(&store, &first, 0, 500).await?);
        assert!(kept == bytes(0, end), "round {round}");
        disk.free()?;
    }
    let range = store.append_output(&first, &chunk(end, Stream::Stderr, bytes(end, 100_000)), 1 << 30).await?;
    assert_eq!(range.end, end + 100_000);
    store.append_output(&second, &chunk(0, Stream::Stdout, bytes(0, 5000)), 1 << 30).await?;
    drop(store);
    let store = SqliteStore::open(disk.path()).await?;
    assert!(joined(&read_all(&store, &first, 0, 64 * 1024).await?) == bytes(0, end + 100_000));
    assert!(joined(&read_all(&store, &second, 0, 64 * 1024).await?) == bytes(0, 5000));
    Ok(())
}

/// Ends go through where beginnings are refused, also when the store is opened on a full disk; with room all is as before.
#[tokio::test]
async fn what_ends_something_is_recorded_all_the_same() -> Outcome {
    let Some(disk) = SmallDisk::new("what_ends_something_is_recorded_all_the_same")? else { return Ok(()) };
    let mut store = SqliteStore::open(disk.path()).await?;
    let id = TokenId::from_parts(1, [1; 10]);
    let token = Token { id, name: "t".into(), role: Role::Admin, session: None, created_at: now(), expires_at: None };
    store.create_token(&token, [7; 32]).await?;
    let mut ids = vec![];
    for number in 0..20 {
        let id = sandbox(&store, &format!("s{number}")).await?;
        ids.push((process(&store, &id).await?, id));
    }
    disk.fill()?;
    while sandbox(&store, &format!("more{}", *store.head().borrow())).await.is_ok() {}
    for (round, (process, id)) in ids.iter().enumerate() {
        // Whoever filled the disk takes what each change leaves over.
        disk.fill()?;
        let exit = Exit { code: 0, signal: None, reason: ExitReason::Exited };
        store.end_process(process, ProcessState::Exited, Some(exit), now()).await?;
        store.transition(id, SandboxState::Deleted, None).await?;
        let refused = sandbox(&store, &format!("again{round}")).await;
        assert!(matches!(refused, Err(Error::DiskFull)), "{refused:?}");
        assert!(matches!(store.check().await, Err(Error::DiskFull)));
        if round == 10 {
            // As after a crash: nobody closes it.
            drop(store);
            disk.fill()?;
            store = SqliteStore::open(disk.path()).await?;
        }
    }
    store.revoke_token(&token.id).await?;
    disk.free()?;
    store.check().await?;
    sandbox(&store, "after").await?;
    assert_eq!(std::fs::metadata(disk.path().join("ballast"))?.len(), 4 << 20);
    assert!(all_events(&store).await?.iter().zip(1..).all(|(event, seq)| event.seq == seq));
    Ok(())
}
