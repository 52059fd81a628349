//! Pruning: what is old enough goes, a little at a time so that no other write waits long.

use chrono::{DateTime, Utc};
use sandbar_api::ProcessId;

use super::{Pool, columns, writer::Transaction};
use crate::store::Result;

/// Events a transaction.
const EVENTS: u32 = 5_000;
/// Sandboxes a transaction; each takes its processes along.
const SANDBOXES: u32 = 20;

// The first event that is to stay, rather than all that are old: so what stays has no gap even if the clock once went back.
const FIRST_STAYING: &str = "
    SELECT coalesce(
        (SELECT min(seq) FROM events WHERE at >= $1),
        (SELECT seq + 1 FROM event_counter WHERE one = 1))";

pub(super) async fn first_staying(readers: &Pool, before: DateTime<Utc>) -> Result<i64> {
    Ok(sqlx::query_scalar(FIRST_STAYING).bind(before.timestamp_micros()).fetch_one(readers).await?)
}

/// How many went; zero when there are none left below `first_staying`.
pub(super) async fn events(transaction: &mut Transaction, first_staying: i64) -> Result<u64> {
    let gone = sqlx::query("DELETE FROM events WHERE seq < $1 AND seq < (SELECT min(seq) FROM events) + $2")
        .bind(first_staying)
        .bind(i64::from(EVENTS))
        .execute(&mut transaction.connection)
        .await?;
    Ok(gone.rows_affected())
}

pub(super) async fn keys(transaction: &mut Transaction, before: DateTime<Utc>) -> Result<()> {
    sqlx::query("DELETE FROM idempotency_keys WHERE created_at < $1")
        .bind(before.timestamp_micros())
        .execute(&mut transaction.connection)
        .await?;
    Ok(())
}

pub(super) struct Gone {
    pub(super) sandboxes: u64,
    pub(super) processes: Vec<ProcessId>,
}

// What a sub-session used is its parent's spending too, so parents and children go together or not at all. A conversation
// is there for its next sandbox.
const SESSIONS: &str = concat!(
    "WITH RECURSIVE
        above (id, parent) AS (
            SELECT id, parent FROM sessions WHERE id IN ",
    list!("$1"),
    " UNION SELECT sessions.id, sessions.parent FROM sessions JOIN above ON sessions.id = above.parent),
        family (eldest, id) AS (
            SELECT id, id FROM above WHERE parent IS NULL
            UNION SELECT family.eldest, sessions.id FROM sessions JOIN family ON sessions.parent = family.id)
    DELETE FROM sessions WHERE id IN (
        SELECT id FROM family WHERE eldest NOT IN (
            SELECT family.eldest FROM family JOIN sandboxes ON sandboxes.session = family.id)
        AND eldest NOT IN (
            SELECT family.eldest FROM family JOIN sessions ON sessions.id = family.id
            WHERE sessions.agent IS NOT NULL AND sessions.deleted_at IS NULL))"
);

/// Labels, gates, processes and keys go with their sandbox by the schema; a session goes with the last sandbox of its family.
pub(super) async fn sandboxes(transaction: &mut Transaction, before: DateTime<Utc>) -> Result<Gone> {
    let connection = &mut transaction.connection;
    let old: Vec<(String, String)> = sqlx::query_as(
        "SELECT id, session FROM sandboxes WHERE state = 'deleted' AND changed_at < $1 ORDER BY id LIMIT $2",
    )
    .bind(before.timestamp_micros())
    .bind(i64::from(SANDBOXES))
    .fetch_all(&mut *connection)
    .await?;
    let (ids, sessions): (Vec<String>, Vec<String>) = old.into_iter().unzip();
    if ids.is_empty() {
        return Ok(Gone { sandboxes: 0, processes: vec![] });
    }
    let (ids, sessions) = (columns::json(&ids)?, columns::json(&sessions)?);
    let processes: Vec<String> = sqlx::query_scalar(concat!("SELECT id FROM processes WHERE sandbox IN ", list!("$1")))
        .bind(&ids)
        .fetch_all(&mut *connection)
        .await?;
    let gone = sqlx::query(concat!("DELETE FROM sandboxes WHERE id IN ", list!("$1")))
        .bind(&ids)
        .execute(&mut *connection)
        .await?;
    sqlx::query(SESSIONS).bind(&sessions).execute(&mut *connection).await?;
    Ok(Gone {
        sandboxes: gone.rows_affected(),
        processes: processes.iter().map(|id| columns::parse(id)).collect::<Result<_>>()?,
    })
}

/// Deleted ones that had no sandbox to go with; and the tokens of all that are gone.
pub(super) async fn sessions(transaction: &mut Transaction, before: DateTime<Utc>) -> Result<()> {
    let connection = &mut transaction.connection;
    let old: Vec<String> = sqlx::query_scalar("SELECT id FROM sessions WHERE deleted_at < $1")
        .bind(before.timestamp_micros())
        .fetch_all(&mut *connection)
        .await?;
    if !old.is_empty() {
        sqlx::query(SESSIONS).bind(columns::json(&old)?).execute(&mut *connection).await?;
    }
    sqlx::query("DELETE FROM tokens WHERE session IS NOT NULL AND session NOT IN (SELECT id FROM sessions)")
        .execute(&mut *connection)
        .await?;
    Ok(())
}
