//! Connections and servers that go in the middle of writing: what was told is there, once; what failed is not.

use std::{sync::Arc, time::Duration};

use sandbar_api::{SandboxId, Stream};
use tokio::{task::JoinSet, time::timeout};

use super::{Database, KEY, cluster::Cluster, database, leader};
use crate::store::{
    Created, Error, Result, Store as _,
    postgres::{PostgresStore, lead, open::READERS},
    suite::{Dice, Home as _, Outcome, all_events, chunk, joined, new_sandbox, process, read_all, sandbox},
};

/// One of each, until told to stop or until nothing goes any more.
async fn make(store: Arc<PostgresStore>, writer: u64, rounds: u64) -> (Vec<SandboxId>, Vec<SandboxId>) {
    let (mut made, mut failed) = (vec![], vec![]);
    for round in 0..rounds {
        let new = new_sandbox(&format!("s{writer}-{round}"));
        let id = new.row.sandbox.id.clone();
        match store.create_sandbox(new).await {
            Ok(Created::New(_) | Created::Replayed(_)) => made.push(id),
            // Whether that was written is not known, and said so.
            Err(Error::Database(source)) if source.to_string().contains("is not known") => {}
            Err(_) => failed.push(id),
        }
    }
    (made, failed)
}

async fn check(store: &PostgresStore, made: &[SandboxId], failed: &[SandboxId]) -> Outcome {
    store.check().await?;
    let events = all_events(store).await?;
    assert!(events.iter().zip(1..).all(|(event, seq)| event.seq == seq), "numbers without gaps");
    assert_eq!(*store.head().borrow(), events.len() as u64);
    let told = |id: &SandboxId| {
        let of = events.iter().filter(|event| event.sandbox.as_deref() == Some(id.as_str()));
        of.filter(|event| event.kind == "sandbox.created").count()
    };
    for id in made {
        assert!(store.sandbox(id).await?.is_some(), "{id} was told to be made");
        assert_eq!(told(id), 1);
    }
    for id in failed {
        assert!(store.sandbox(id).await?.is_none(), "{id} was told to have failed");
        assert_eq!(told(id), 0);
    }
    Ok(())
}

#[tokio::test]
async fn a_connection_that_ends_in_the_middle_loses_and_doubles_nothing() -> Outcome {
    let home = database!();
    let store = Arc::new(home.open().await?);
    let mut writers: JoinSet<_> = (0..8).map(|writer| make(store.clone(), writer, 40)).collect();
    let process = process(&*store, &sandbox(&*store, "output").await?).await?;
    let mut raw = home.raw().await?;
    let (mut dice, mut end, mut ended) = (Dice(9), 0u64, 0);
    let (mut made, mut failed) = (vec![], vec![]);
    let bytes = |from: u64| (from..from + 5000).map(|at| (at / 7 % 251) as u8).collect::<Vec<_>>();
    while !writers.is_empty() {
        if ended < 12 && dice.roll(3) == 0 {
            // Writers and readers, whatever they are at; not the one that holds the lead.
            ended += sqlx::query(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                 WHERE datname = current_database() AND pid <> pg_backend_pid()
                   AND pid <> (SELECT backend FROM leadership)",
            )
            .fetch_all(&mut raw)
            .await?
            .len();
        }
        match store.append_output(&process, &chunk(end, Stream::Stdout, bytes(end)), 1 << 30).await {
            Ok(range) => end = range.end,
            // As the pump does: the same again.
            Err(error) => assert!(matches!(error, Error::Database(_)), "{error:?}"),
        }
        if let Ok(Some(done)) = timeout(Duration::from_millis(20), writers.join_next()).await {
            let (these, those) = done?;
            made.extend(these);
            failed.extend(those);
        }
    }
    assert!(ended > 0 && !made.is_empty());
    let range = loop {
        match store.append_output(&process, &chunk(end, Stream::Stdout, ""), 1 << 30).await {
            Ok(range) => break range,
            Err(error) => assert!(matches!(error, Error::Database(_)), "{error:?}"),
        }
    };
    assert!(range.end >= end, "{range:?} {end}");
    let look = async || -> Outcome {
        let kept = joined(&read_all(&*store, &process, 0, 64 * 1024).await?);
        assert!(kept.iter().zip(0..).all(|(byte, at)| *byte == (at / 7 % 251) as u8) && kept.len() as u64 == range.end);
        // The head counts what is committed, also if nobody was told.
        check(&store, &made, &failed).await
    };
    // A reader whose connection was ended fails once, whenever its turn comes.
    for _ in 0..2 * READERS {
        match look().await {
            Err(error) if matches!(error.downcast_ref(), Some(Error::Database(_))) => {}
            done => return done,
        }
    }
    look().await
}

#[tokio::test]
async fn a_server_that_is_killed_in_the_middle_loses_and_doubles_nothing() -> Outcome {
    let Some(mut cluster) = Cluster::start() else {
        super::cluster::shared();
        return Ok(());
    };
    let url = cluster.database().await?;
    let open = async |url: &str| -> Result<PostgresStore> {
        PostgresStore::open(lead::wait_to_lead(url, &leader("a")).await?, KEY).await
    };
    let store = Arc::new(open(&url).await?);
    let process = process(&*store, &sandbox(&*store, "output").await?).await?;
    let byte = |at: u64| (at / 7 % 251) as u8;
    let (mut made, mut failed, mut end, mut store) = (vec![], vec![], 0u64, store);
    for round in 0..2 {
        let mut writers: JoinSet<_> = (0..4).map(|one| make(store.clone(), round * 10 + one, 10_000)).collect();
        let lead = store.lead.clone();
        let until = tokio::time::Instant::now() + Duration::from_millis(400);
        while tokio::time::Instant::now() < until {
            let bytes: Vec<u8> = (end..end + 3000).map(byte).collect();
            end = store.append_output(&process, &chunk(end, Stream::Stdout, bytes), 1 << 30).await?.end;
        }
        cluster.kill()?;
        timeout(Duration::from_secs(30), lead.lost()).await?;
        assert!(store.append_output(&process, &chunk(end, Stream::Stdout, "x"), 1 << 30).await.is_err());
        // The server is told that it leads no longer, and ends.
        writers.abort_all();
        while let Some(done) = writers.join_next().await {
            if let Ok((these, those)) = done {
                made.extend(these);
                failed.extend(those);
            }
        }
        cluster.run()?;
        store = Arc::new(open(&url).await?);
        let range = store.output_range(&process).await?;
        assert_eq!(range.end, end, "what was acknowledged is there, and nothing more");
        let kept = joined(&read_all(&*store, &process, 0, 64 * 1024).await?);
        assert!(kept.iter().zip(0..).all(|(got, at)| *got == byte(at)) && kept.len() as u64 == end);
        let events = all_events(&*store).await?;
        assert!(events.iter().zip(1..).all(|(event, seq)| event.seq == seq), "numbers without gaps");
        assert!(events.len() > 20, "{}", events.len());
    }
    check(&store, &made, &failed).await
}
