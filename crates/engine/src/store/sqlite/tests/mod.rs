//! The suite on SQLite, and what only SQLite can get wrong.

mod full;

use std::{fs::Permissions, os::unix::fs::PermissionsExt as _, path::PathBuf, time::Instant};

use sandbar_api::{Exit, ExitReason, ProcessState};
use sqlx::{ConnectOptions as _, SqliteConnection, sqlite::SqliteConnectOptions};
use tempfile::TempDir;

use super::SqliteStore;
use crate::store::{
    Error, Result, Store as _,
    suite::{Home, Outcome, all_events, new_process, now, promises, sandbox, stdout},
};

struct Directory(TempDir);

fn directory() -> Directory {
    Directory(tempfile::tempdir().unwrap_or_else(|error| panic!("no directory for the test: {error}")))
}

impl Directory {
    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A connection past the store.
    async fn raw(&self) -> sqlx::Result<SqliteConnection> {
        SqliteConnectOptions::new().filename(self.path("sandbar.db")).connect().await
    }
}

impl Home for Directory {
    type Store = SqliteStore;
    async fn open(&self) -> Result<SqliteStore> {
        SqliteStore::open(self.0.path()).await
    }
}

promises!(directory());

/// A state change whose event cannot be written is no state change.
#[tokio::test]
async fn state_and_event_are_written_together() -> Outcome {
    let home = directory();
    let store = home.open().await?;
    let id = sandbox(&store, "s").await?;
    let process = new_process(&id);
    store.create_process(&process).await?;
    let mut raw = home.raw().await?;
    sqlx::query("CREATE TRIGGER refuse BEFORE INSERT ON events BEGIN SELECT RAISE(ABORT, 'no events'); END")
        .execute(&mut raw)
        .await?;
    let before = (store.sandbox(&id).await?, store.processes(&id).await?, all_events(&store).await?);
    assert!(store.transition(&id, sandbar_api::SandboxState::Ready, None).await.is_err());
    assert!(store.create_process(&new_process(&id)).await.is_err());
    assert!(store.end_process(&process.id, ProcessState::Lost, None, now()).await.is_err());
    assert!(store.refuse_process(&process.id, "x").await.is_err());
    assert!(sandbox(&store, "t").await.is_err());
    let after = (store.sandbox(&id).await?, store.processes(&id).await?, all_events(&store).await?);
    assert_eq!(before, after);
    assert_eq!(*store.head().borrow(), 3);

    sqlx::query("DROP TRIGGER refuse").execute(&mut raw).await?;
    sandbox(&store, "t").await?;
    assert_eq!(all_events(&store).await?.last().map(|event| event.seq), Some(5), "failures took no number");
    Ok(())
}

/// A commit that fails is not announced, and the writer goes on afterwards.
#[tokio::test]
async fn a_failed_commit_announces_nothing() -> Outcome {
    let home = directory();
    let store = home.open().await?;
    let mut raw = home.raw().await?;
    // A deferred constraint is only checked by COMMIT, which then fails and leaves the transaction open.
    sqlx::raw_sql(
        "CREATE TABLE nowhere (id INTEGER PRIMARY KEY);
         CREATE TABLE doomed (id INTEGER REFERENCES nowhere (id) DEFERRABLE INITIALLY DEFERRED);
         CREATE TRIGGER doom AFTER INSERT ON sandboxes WHEN new.name = 'doomed'
         BEGIN INSERT INTO doomed VALUES (1); END",
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

#[tokio::test]
async fn only_the_owner_reads_its_files() -> Outcome {
    let home = directory();
    std::fs::write(home.path("sandbar.db"), "")?;
    std::fs::set_permissions(home.path("sandbar.db"), Permissions::from_mode(0o644))?;
    let store = home.open().await?;
    let id = sandbox(&store, "s").await?;
    store.append_output(&new_process(&id).id, &stdout(0, "x"), 1 << 20).await?;
    for (name, mode) in [("sandbar.db", 0o600), ("sandbar.db-wal", 0o600), ("sandbar.db-shm", 0o600), ("output", 0o700)]
    {
        let found = std::fs::metadata(home.path(name))?.permissions().mode() & 0o777;
        assert_eq!(found, mode, "{name}");
    }
    Ok(())
}

#[tokio::test]
async fn a_database_of_a_newer_version_is_refused() -> Outcome {
    let home = directory();
    home.open().await?.close().await;
    let mut raw = home.raw().await?;
    sqlx::query(
        "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time)
         VALUES (9999, 'from the future', TRUE, x'00', 0)",
    )
    .execute(&mut raw)
    .await?;
    let refused = home.open().await.err().ok_or("it was opened")?;
    assert!(matches!(refused, Error::Unreadable(_)), "{refused:?}");
    assert!(refused.to_string().contains("newer version"), "{refused}");
    Ok(())
}

/// Not a promise, a measurement: `cargo test -p sandbar-engine --lib -- --ignored --nocapture how_long`.
#[tokio::test]
#[ignore = "prints how long things take; nothing to pass"]
async fn how_long_things_take() -> Outcome {
    const ROUNDS: u32 = 2000;
    let home = directory();
    let store = home.open().await?;
    let id = sandbox(&store, "s").await?;
    let (mut create, mut append, mut read, mut end) = <(Vec<_>, Vec<_>, Vec<_>, Vec<_>)>::default();
    for _ in 0..ROUNDS {
        let process = new_process(&id);
        let start = Instant::now();
        store.create_process(&process).await?;
        create.push(start.elapsed());
        let start = Instant::now();
        store.append_output(&process.id, &stdout(0, "hello\n"), 1 << 30).await?;
        append.push(start.elapsed());
        let start = Instant::now();
        store.read_output(&process.id, 0, 65536).await?;
        read.push(start.elapsed());
        let start = Instant::now();
        let exit = Exit { code: 0, signal: None, reason: ExitReason::Exited };
        store.end_process(&process.id, ProcessState::Exited, Some(exit), now()).await?;
        end.push(start.elapsed());
    }
    let process = new_process(&id).id;
    let (mut more, mut find) = (vec![], vec![]);
    for round in 0..u64::from(ROUNDS) {
        let piece = stdout(round * 100, vec![b'x'; 100]);
        let start = Instant::now();
        store.append_output(&process, &piece, 1 << 30).await?;
        more.push(start.elapsed());
        let start = Instant::now();
        store.sandbox(&id).await?;
        find.push(start.elapsed());
    }
    let steps = [("create_process", create), ("first append", append), ("read", read), ("end_process", end)];
    for (name, mut took) in steps.into_iter().chain([("next append", more), ("find sandbox", find)]) {
        took.sort_unstable();
        eprintln!("{name:15} median {:?}, 99th percentile {:?}", took[took.len() / 2], took[took.len() * 99 / 100]);
    }
    Ok(())
}
