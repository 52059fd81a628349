//! Two servers on one database: one leads, the other can be sure of it.

use std::time::Duration;

use sqlx::Connection as _;
use tokio::{
    sync::oneshot,
    time::{sleep, timeout},
};

use super::{Leader, try_lead, wait_to_lead, watch};
use crate::store::{
    Error, GateStore as _, SecretStore as _, Store as _, TerminalStore as _,
    postgres::{
        PostgresStore,
        tests::{Database, KEY, database, leader},
        writer::Need::Ordinary,
    },
    suite::{Home as _, Outcome, all_events, new_sandbox, process, sandbox, secrets::row, stdout},
};

const SOON: Duration = Duration::from_secs(20);

/// The connection that holds the lock goes, and its server does not know yet.
async fn cut(home: &Database) -> Outcome {
    let mut raw = home.raw().await?;
    sqlx::query("SELECT pg_terminate_backend(CAST(backend AS INTEGER)) FROM leadership").execute(&mut raw).await?;
    raw.close().await?;
    Ok(())
}

#[tokio::test]
async fn of_many_that_start_at_once_one_leads() -> Outcome {
    let home = database!();
    let tried = futures_util::future::join_all((0..8).map(|number| {
        let url = home.0.clone();
        async move { try_lead(&url, &leader(&number.to_string())).await }
    }))
    .await;
    let leads = tried.into_iter().collect::<Result<Vec<_>, _>>()?;
    let [lead] = &leads.into_iter().flatten().collect::<Vec<_>>()[..] else { return Err("not one leads".into()) };
    assert!(lead.epoch() > 0 && !lead.is_lost());
    assert!(try_lead(&home.0, &leader("late")).await?.is_none());
    Ok(())
}

/// One that hangs: the database ends its connection, and with it the lock.
#[tokio::test]
async fn a_leader_that_says_nothing_loses_its_lock() -> Outcome {
    let home = database!();
    let mut raw = home.raw().await?;
    super::keep::give_up_if_silent(&mut raw).await?;
    let version: i32 =
        sqlx::query_scalar("SELECT CAST(current_setting('server_version_num') AS INTEGER)").fetch_one(&mut raw).await?;
    if version < 140_000 {
        sandbar_test_harness::not_run("a_leader_that_says_nothing_loses_its_lock", "PostgreSQL is older than 14");
        return Ok(());
    }
    let told: String = sqlx::query_scalar("SHOW idle_session_timeout").fetch_one(&mut raw).await?;
    assert_eq!(told, "15s");
    Ok(())
}

#[tokio::test]
async fn an_old_leader_writes_nothing_after_another_took_over() -> Outcome {
    let home = database!();
    let old = home.open().await?;
    let id = sandbox(&old, "s").await?;
    let process = process(&old, &id).await?;
    old.append_output(&process, &stdout(0, "abc"), 1 << 20).await?;
    let lead = old.lead.clone();
    cut(&home).await?;
    let new = timeout(SOON, home.open()).await??;
    assert!(new.lead.epoch() > lead.epoch());
    let before = all_events(&new).await?;
    let refused = old.create_sandbox(new_sandbox("t")).await.err().ok_or("it was written")?;
    let Error::Database(why) = &refused else { return Err(format!("{refused:?}").into()) };
    assert!(why.to_string().contains("another server leads"), "{why}");
    assert!(old.append_output(&process, &stdout(3, "def"), 1 << 20).await.is_err());
    assert!(old.drop_output(&id).await.is_err());
    assert!(old.set_secret(&row("A", b"x")).await.is_err());
    assert!(old.append_facts(vec![]).await.is_ok(), "nothing is written");
    assert!(old.keep_screen(&process, b"x").await.is_err());
    assert!(old.check().await.is_err());
    timeout(SOON, lead.lost()).await?;
    assert_eq!(all_events(&new).await?, before);
    assert_eq!(new.output_range(&process).await?.end, 3);
    sandbox(&new, "t").await?;
    Ok(())
}

#[tokio::test]
async fn a_write_under_way_is_over_before_another_leads() -> Outcome {
    let home = database!();
    let old = home.open().await?;
    let ((begun, has_begun), (go_on, may_go_on)) = (oneshot::channel::<()>(), oneshot::channel::<()>());
    let hold = std::sync::Mutex::new(Some((begun, may_go_on)));
    let head = old.head();
    let writing = async {
        let write = old.writer.write(Ordinary, move |transaction| {
            let held = hold.lock().ok().and_then(|mut held| held.take());
            Box::pin(async move {
                let event = crate::store::postgres::events::NewEvent {
                    kind: "test.slow",
                    sandbox: None,
                    process: None,
                    data: serde_json::json!({}),
                };
                transaction.append(event).await?;
                if let Some((begun, may_go_on)) = held {
                    begun.send(()).ok();
                    may_go_on.await.ok();
                }
                Ok(())
            })
        });
        write.await
    };
    let overtaking = async {
        has_begun.await?;
        cut(&home).await?;
        let mut next = Box::pin(home.open());
        // The lock is free; the epoch is held by the transaction under way.
        assert!(timeout(Duration::from_millis(700), &mut next).await.is_err(), "it overtook a transaction");
        go_on.send(()).map_err(|()| "the write is gone")?;
        let new = timeout(SOON, next).await??;
        assert_eq!(*new.head().borrow(), 1, "what was committed before is there");
        Ok::<_, Box<dyn std::error::Error + Send + Sync>>(new)
    };
    let (written, new) = tokio::join!(writing, overtaking);
    let new = new?;
    written?;
    assert_eq!(*head.borrow(), 1);
    assert!(old.check().await.is_err());
    new.check().await?;
    Ok(())
}

#[tokio::test]
async fn who_stands_by_sees_who_leads_and_takes_over() -> Outcome {
    let home = database!();
    let mut seen = watch(&home.0).await?;
    assert_eq!(*seen.borrow(), None, "an empty database has no leader");
    let first = wait_to_lead(&home.0, &Leader { server: "one".into(), address: "127.0.0.1:7".into() }).await?;
    let named =
        |name: &'static str| move |leader: &Option<Leader>| leader.as_ref().is_some_and(|one| one.server == name);
    let found = timeout(SOON, seen.wait_for(named("one"))).await??.clone();
    assert_eq!(found.map(|one| one.address).as_deref(), Some("127.0.0.1:7"));
    let store = PostgresStore::open(first.clone(), KEY).await?;
    let waiting = tokio::spawn({
        let url = home.0.clone();
        async move { wait_to_lead(&url, &leader("two")).await }
    });
    sleep(Duration::from_millis(600)).await;
    assert!(!waiting.is_finished());
    store.close().await;
    let second = timeout(SOON, waiting).await???;
    assert!(first.is_lost() && second.epoch() > first.epoch());
    timeout(SOON, seen.wait_for(named("two"))).await??;
    drop(second);
    timeout(SOON, seen.wait_for(Option::is_none)).await??;
    Ok(())
}
