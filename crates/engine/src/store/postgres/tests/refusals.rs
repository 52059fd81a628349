//! Databases that cannot be used: each says why and what to do, and none shows the password.

use std::{error::Error as _, time::Duration};

use sqlx::Connection as _;

use super::{Database, KEY, cluster, database, leader};
use crate::store::{
    Error, Store as _,
    postgres::{
        PostgresStore,
        lead::{try_lead, watch},
    },
    suite::{Home as _, Outcome},
};

const SECRET: &str = "hunter2-of-the-test";

fn told(error: &Error) -> Result<(String, String), String> {
    let Error::Unusable { what, fix } = error else { return Err(format!("{error:?}")) };
    let all = format!("{error} {error:?} {:?} {fix}", error.source());
    assert!(!all.contains(SECRET), "{all}");
    Ok((what.clone(), fix.clone()))
}

#[tokio::test]
async fn what_cannot_be_reached_or_entered_says_so() -> Outcome {
    let Some(cluster) = cluster::shared() else { return Ok(()) };
    let place = cluster.path().display().to_string();
    let user = format!("CREATE USER victim PASSWORD 'another-than-{SECRET}'");
    cluster.execute(&format!("DO $$ BEGIN {user}; EXCEPTION WHEN duplicate_object THEN NULL; END $$")).await?;
    let at = cluster.url(&format!("victim:{SECRET}"), "postgres");
    let nowhere = format!("postgres://u:{SECRET}@127.0.0.1:1/d?sslmode=disable");
    let missing = cluster.url(&format!("postgres:{SECRET}"), "there_is_none");
    for (url, says, fix) in [
        (format!("postgres://u:{SECRET}@h:notaport/d"), "the URL of PostgreSQL is not one", "postgres://"),
        (format!("nonsense {SECRET}"), "the URL of PostgreSQL is not one", "postgres://"),
        (nowhere, "PostgreSQL at 127.0.0.1:1 cannot be reached", "Start it"),
        (at, "does not let the user `victim` in", "password"),
        (missing, "has no database `there_is_none`", "CREATE DATABASE"),
    ] {
        for error in [try_lead(&url, &leader("a")).await.err(), watch(&url).await.err()] {
            let (what, to_do) = told(&error.ok_or("it went")?)?;
            assert!(what.contains(says) && to_do.contains(fix), "{what} / {to_do}");
            assert!(!what.contains("victim") || what.contains(&place));
        }
    }
    Ok(())
}

#[tokio::test]
async fn another_key_is_refused_and_nothing_is_changed() -> Outcome {
    let home = database!();
    let store = home.open().await?;
    store.close().await;
    for _ in 0..2 {
        let lead = try_lead(&home.0, &leader("b")).await?.ok_or("nobody leads")?;
        let refused = PostgresStore::open(lead.clone(), [8; 32]).await.err().ok_or("it was opened")?;
        let (what, fix) = told(&refused)?;
        assert!(what.contains("another key") && fix.contains("secret.key"), "{what} / {fix}");
        lead.release().await;
    }
    let lead = try_lead(&home.0, &leader("a")).await?.ok_or("nobody leads")?;
    PostgresStore::open(lead, KEY).await?.check().await?;
    Ok(())
}

#[tokio::test]
async fn a_database_of_a_newer_version_is_refused() -> Outcome {
    let home = database!();
    home.open().await?.close().await;
    let mut raw = home.raw().await?;
    sqlx::query(
        "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time)
         VALUES (9999, 'from the future', TRUE, '\\x00', 0)",
    )
    .execute(&mut raw)
    .await?;
    let refused = try_lead(&home.0, &leader("a")).await.err().ok_or("it leads")?;
    let (what, fix) = told(&refused)?;
    assert!(what.contains("newer version") && fix.contains("another database"), "{what} / {fix}");
    // Nobody is kept from leading by it, once the server has seen that the connection is gone.
    let held = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted
                AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    while sqlx::query_scalar::<_, i64>(held).fetch_one(&mut raw).await? != 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    raw.close().await?;
    Ok(())
}
