//! The suite on PostgreSQL, and what only PostgreSQL can get wrong.

pub(crate) mod cluster;
mod crash;
mod refusals;
mod reservations;

use sandbar_api::{Exit, ExitReason, ProcessState, SandboxState, Stream};
use sqlx::{ConnectOptions as _, Connection as _, PgConnection, postgres::PgConnectOptions};

use super::{
    PostgresStore,
    lead::{self, Leader},
};
use crate::store::{
    Error, Result, Store as _,
    suite::{Home, Outcome, all_events, chunk, joined, new_process, now, process, promises, read_all, sandbox},
};

pub(crate) const KEY: [u8; 32] = [7; 32];

/// A database of its own for each test.
pub(super) struct Database(pub(super) String);

impl Database {
    /// None, said by name, where there is no PostgreSQL.
    pub(super) async fn new() -> Option<Self> {
        let cluster = cluster::shared()?;
        Some(Self(cluster.database().await.unwrap_or_else(|error| panic!("no database for the test: {error}"))))
    }

    /// A connection past the store.
    pub(super) async fn raw(&self) -> sqlx::Result<PgConnection> {
        self.0.parse::<PgConnectOptions>()?.connect().await
    }
}

pub(crate) fn leader(server: &str) -> Leader {
    Leader { server: server.into(), address: "127.0.0.1:1".into() }
}

impl Home for Database {
    type Store = PostgresStore;
    async fn open(&self) -> Result<PostgresStore> {
        PostgresStore::open(lead::wait_to_lead(&self.0, &leader("a")).await?, KEY).await
    }
}

macro_rules! database {
    () => {
        match Database::new().await {
            Some(database) => database,
            None => return Ok(()),
        }
    };
}
pub(super) use database;

promises!(database!());

/// A state change whose event cannot be written is no state change.
#[tokio::test]
async fn state_and_event_are_written_together() -> Outcome {
    let home = database!();
    let store = home.open().await?;
    let id = sandbox(&store, "s").await?;
    let process = new_process(&id);
    store.create_process(&process).await?;
    let mut raw = home.raw().await?;
    sqlx::raw_sql(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no events'; END $$;
         CREATE TRIGGER refuse BEFORE INSERT ON events EXECUTE FUNCTION refuse()",
    )
    .execute(&mut raw)
    .await?;
    let before = (store.sandbox(&id).await?, store.processes(&id).await?, all_events(&store).await?);
    assert!(store.transition(&id, SandboxState::Ready, None).await.is_err());
    assert!(store.create_process(&new_process(&id)).await.is_err());
    assert!(store.end_process(&process.id, ProcessState::Lost, None, now()).await.is_err());
    let oom = Exit { code: 137, signal: Some(9), reason: ExitReason::Oom };
    assert!(store.end_process(&process.id, ProcessState::Exited, Some(oom), now()).await.is_err());
    assert!(sandbox(&store, "t").await.is_err());
    let after = (store.sandbox(&id).await?, store.processes(&id).await?, all_events(&store).await?);
    assert_eq!(before, after);
    assert_eq!(*store.head().borrow(), 3);
    sqlx::raw_sql("DROP TRIGGER refuse ON events").execute(&mut raw).await?;
    sandbox(&store, "t").await?;
    assert_eq!(all_events(&store).await?.last().map(|event| event.seq), Some(5), "failures took no number");
    Ok(())
}

/// A commit that fails is not announced, and the writer goes on afterwards.
#[tokio::test]
async fn a_failed_commit_announces_nothing() -> Outcome {
    let home = database!();
    let store = home.open().await?;
    let mut raw = home.raw().await?;
    sqlx::raw_sql(
        "CREATE FUNCTION doom() RETURNS trigger LANGUAGE plpgsql AS
         $$ BEGIN IF new.name = 'doomed' THEN RAISE EXCEPTION 'doomed'; END IF; RETURN new; END $$;
         CREATE CONSTRAINT TRIGGER doom AFTER INSERT ON sandboxes DEFERRABLE INITIALLY DEFERRED
         FOR EACH ROW EXECUTE FUNCTION doom()",
    )
    .execute(&mut raw)
    .await?;
    assert!(matches!(sandbox(&store, "doomed").await, Err(Error::Database(_))));
    assert_eq!(*store.head().borrow(), 0);
    assert_eq!(all_events(&store).await?, []);
    sandbox(&store, "fine").await?;
    assert_eq!(*store.head().borrow(), 2);
    Ok(())
}

/// Many processes at once share transactions; each reads back what it wrote.
#[tokio::test]
async fn output_of_many_is_written_together() -> Outcome {
    let home = database!();
    let store = std::sync::Arc::new(home.open().await?);
    let id = sandbox(&*store, "s").await?;
    let mut writers = tokio::task::JoinSet::new();
    for number in 0..40u8 {
        let (store, process) = (store.clone(), process(&*store, &id).await?);
        writers.spawn(async move {
            let mut end = 0;
            for round in 0..20 {
                let stream = if round % 3 == 0 { Stream::Stderr } else { Stream::Stdout };
                end = store.append_output(&process, &chunk(end, stream, vec![number; 3000]), 1 << 20).await?.end;
            }
            // A gap is one's own error, whoever else is in the transaction.
            let gap = store.append_output(&process, &chunk(end + 1, Stream::Stdout, "x"), 1 << 20).await;
            assert!(matches!(gap, Err(Error::Output(_))), "{gap:?}");
            let kept = joined(&read_all(&*store, &process, 0, 100_000).await?);
            assert!(kept == vec![number; 60_000]);
            Ok::<_, Error>(())
        });
    }
    while let Some(writer) = writers.join_next().await {
        writer??;
    }
    let mut raw = home.raw().await?;
    let largest: i32 = sqlx::query_scalar("SELECT max(octet_length(data)) FROM output").fetch_one(&mut raw).await?;
    assert!(largest <= 64 * 1024);
    raw.close().await?;
    Ok(())
}
