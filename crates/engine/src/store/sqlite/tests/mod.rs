//! The suite on SQLite, and what only SQLite can get wrong.

mod full;
mod plans;

use std::{fs::Permissions, os::unix::fs::PermissionsExt as _, path::PathBuf};

use sandbar_api::{
    Exit, ExitReason, ProcessState, SandboxId, SandboxState, SessionId, StateReason, Template, TokenId, WorkspaceSource,
};
use sqlx::{ConnectOptions as _, SqliteConnection, migrate::Migrator, sqlite::SqliteConnectOptions};
use tempfile::TempDir;

use super::SqliteStore;
use crate::store::{
    ApprovalStore as _, Error, GateStore as _, Result, SecretStore as _, SessionStore as _, Store as _,
    suite::{
        Home, Outcome, all_events, approvals::new as new_approval, gate_row, new_process, now, promises, sandbox,
        secrets::row as new_secret, snapshots::new as new_snapshot, stdout,
    },
};

struct Directory(TempDir);

fn directory() -> Directory {
    Directory(sandbar_test_harness::scratch().unwrap_or_else(|error| panic!("no directory for the test: {error}")))
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
    let oom = Exit { code: 137, signal: Some(9), reason: ExitReason::Oom };
    assert!(store.end_process(&process.id, ProcessState::Exited, Some(oom), now()).await.is_err());
    assert!(store.refuse_process(&process.id, "x").await.is_err());
    let why = StateReason { code: "requested".into(), detail: "Somebody asked.".into() };
    assert!(store.restate(&id, why).await.is_err());
    assert!(store.create_snapshot(new_snapshot(&id, "s")).await.is_err());
    assert_eq!(store.snapshots().await?, []);
    assert!(store.set_network(&id, &[], &["TOKEN".into()], serde_json::json!({})).await.is_err());
    assert_eq!(store.gate(&id).await?, Some(gate_row()));
    assert!(store.set_secret(&new_secret("TOKEN", b"sealed")).await.is_err());
    assert_eq!(store.secrets().await?, []);
    assert!(store.open_approval(&new_approval(&id, now())).await.is_err());
    assert_eq!(store.next_deadline().await?, None);
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

#[tokio::test]
async fn what_an_older_version_wrote_is_read() -> Outcome {
    let home = directory();
    let mut raw =
        SqliteConnectOptions::new().filename(home.path("sandbar.db")).create_if_missing(true).connect().await?;
    let before: Vec<_> =
        crate::store::migrations::SQLITE.iter().filter(|migration| migration.version < 8).cloned().collect();
    Migrator { migrations: before.into(), ..Migrator::DEFAULT }.run_direct(None, &mut raw, false).await?;
    let [living, deleted] = [1, 2].map(|number| SessionId::from_parts(number, [1; 10]));
    for (session, deleted_at) in [(&living, None), (&deleted, Some(9))] {
        sqlx::query(
            "INSERT INTO sessions (id, owner, created_at, name, deleted_at) VALUES ($1, 'socket', 5, 'old', $2)",
        )
        .bind(session.as_str())
        .bind(deleted_at)
        .execute(&mut raw)
        .await?;
    }
    let id = SandboxId::from_parts(3, [1; 10]);
    sqlx::query(
        "INSERT INTO sandboxes (id, name, session, state, template_name, template, provider, labels, env, workspace,
                                created_at, changed_at, expires_at)
         VALUES ($1, 'a', $2, 'stopped', 'default', $3, 'local', '{}', '{}', $4, 5, 6, 7)",
    )
    .bind(id.as_str())
    .bind(living.as_str())
    .bind(serde_json::to_string(&Template::default())?)
    .bind(serde_json::to_string(&WorkspaceSource::Empty)?)
    .execute(&mut raw)
    .await?;
    for (number, session) in [(1, Some(&living)), (2, Some(&deleted)), (3, None)] {
        sqlx::query(
            "INSERT INTO tokens (id, name, role, digest, created_at, session) VALUES ($1, 't', 'agent', $2, 5, $3)",
        )
        .bind(TokenId::from_parts(number, [1; 10]).as_str())
        .bind([u8::try_from(number)?; 32].as_slice())
        .bind(session.map(SessionId::as_str))
        .execute(&mut raw)
        .await?;
    }
    drop(raw);
    let store = home.open().await?;
    let row = store.session(&living).await?.ok_or("the session is gone")?;
    assert_eq!((row.marks.name.as_deref(), row.conversation), (Some("old"), None));
    let row = store.sandbox(&id).await?.ok_or("the sandbox is gone")?;
    assert_eq!((row.sandbox.state, row.lease, row.template), (SandboxState::Stopped, None, Template::default()));
    assert_eq!(store.last_sandbox(&living).await?.map(|row| row.sandbox.id), Some(id.clone()));
    let left: Vec<_> = store.tokens().await?.into_iter().map(|token| token.session).collect();
    assert_eq!(left, [Some(living.clone()), None], "a token ends with its session");
    // Nobody asked for it as a conversation, so it is not forgotten as one.
    assert_eq!(store.forgotten(now()).await?, []);
    Ok(())
}
