//! What was used: sums of calls that ended.

use chrono::{DateTime, TimeDelta, Utc};
use sandbar_api::{SessionId, UsageBy, UsageRow};
use sqlx::Row as _;

use super::{
    DbRow, Pool,
    columns::{text, time, unsigned},
    writer::Transaction,
};
use crate::store::{Result, gate::UsageQuery};

const DAY: i64 = 24 * 60 * 60 * 1_000_000;
/// Beyond everything else, so that what was spent can be told of the last months.
const KEPT: TimeDelta = TimeDelta::days(90);
/// Calls a transaction.
const PRUNED: u32 = 5_000;

/// A session and all below it.
macro_rules! of_tree {
    ($select:literal, $where:literal) => {
        concat!(
            "WITH RECURSIVE tree (id) AS (
                SELECT ",
            collated!("$1"),
            " UNION SELECT sessions.id FROM sessions JOIN tree ON sessions.parent = tree.id)
            SELECT ",
            $select,
            " FROM tree CROSS JOIN llm_calls AS c WHERE c.session = tree.id AND c.ended_at IS NOT NULL ",
            $where
        )
    };
}

pub(super) async fn used(readers: &Pool, session: &SessionId) -> Result<(u64, u64)> {
    let sql = of_tree!(
        "CAST(coalesce(sum(c.tokens), 0) AS BIGINT) AS tokens, CAST(coalesce(sum(c.micros), 0) AS BIGINT) AS micros",
        ""
    );
    let row = sqlx::query(sql).bind(session.as_str()).fetch_one(readers).await?;
    Ok((unsigned(row.try_get("tokens")?)?, unsigned(row.try_get("micros")?)?))
}

pub(super) async fn settled_since(
    readers: &Pool,
    session: &SessionId,
    since: DateTime<Utc>,
) -> Result<Vec<(DateTime<Utc>, u64)>> {
    let sql = of_tree!("c.ended_at, c.tokens", "AND c.ended_at >= $2 AND c.tokens > 0 ORDER BY c.ended_at");
    let rows = sqlx::query(sql).bind(session.as_str()).bind(since.timestamp_micros()).fetch_all(readers).await?;
    rows.iter().map(|row| Ok((time(row.try_get("ended_at")?)?, unsigned(row.try_get("tokens")?)?))).collect()
}

// Each with its own text, so that the session's index serves where there is a session. What failed without costing
// anything is no call.
macro_rules! sums {
    ($key:literal, $of:literal) => {
        concat!(
            "SELECT ",
            $key,
            " AS key, count(*) AS calls, CAST(sum(estimated) AS BIGINT) AS estimated,
                CAST(sum(input) AS BIGINT) AS input, CAST(sum(cached_input) AS BIGINT) AS cached_input,
                CAST(sum(output) AS BIGINT) AS output, CAST(sum(tokens) AS BIGINT) AS tokens,
                CAST(sum(micros) AS BIGINT) AS micros
            FROM llm_calls
            WHERE began_at >= $1 AND began_at < $2 AND ended_at IS NOT NULL
                AND (tokens > 0 OR status BETWEEN 200 AND 299) AND ($3 IS NULL OR model = $3)",
            $of,
            " GROUP BY key ORDER BY key"
        )
    };
}

pub(super) async fn sums(readers: &Pool, query: &UsageQuery) -> Result<Vec<UsageRow>> {
    let sql = match (query.by, query.session.is_some()) {
        (UsageBy::Model, false) => sums!("model", ""),
        (UsageBy::Model, true) => sums!("model", " AND session = $4"),
        (UsageBy::Session, false) => sums!("session", ""),
        (UsageBy::Session, true) => sums!("session", " AND session = $4"),
        (UsageBy::Day, false) => sums!("began_at / 86400000000", ""),
        (UsageBy::Day, true) => sums!("began_at / 86400000000", " AND session = $4"),
    };
    let mut rows = sqlx::query(sql)
        .bind(query.from.timestamp_micros())
        .bind(query.to.timestamp_micros())
        .bind(query.model.as_deref().map(text));
    if let Some(session) = &query.session {
        rows = rows.bind(session.as_str());
    }
    rows.fetch_all(readers).await?.iter().map(|row| decode(query.by, row)).collect()
}

fn decode(by: UsageBy, row: &DbRow) -> Result<UsageRow> {
    let number = |column: &str| unsigned(row.try_get(column)?);
    let mut sums = UsageRow {
        calls: number("calls")?,
        estimated: number("estimated")?,
        input_tokens: number("input")?,
        cached_input_tokens: number("cached_input")?,
        output_tokens: number("output")?,
        total_tokens: number("tokens")?,
        usd: crate::budget::usd(number("micros")?),
        ..UsageRow::default()
    };
    match by {
        UsageBy::Model => sums.model = Some(row.try_get("key")?),
        UsageBy::Session => sums.session = Some(row.try_get("key")?),
        UsageBy::Day => {
            let day: i64 = row.try_get("key")?;
            sums.day = Some(time(day.saturating_mul(DAY))?.date_naive());
        }
    }
    Ok(sums)
}

/// Calls of sessions that are gone, which only reports count; and sooner those that cost nothing, of which one who is
/// refused can make any number. How many went.
pub(super) async fn prune(transaction: &mut Transaction, before: DateTime<Utc>) -> Result<u64> {
    let gone = sqlx::query(
        "DELETE FROM llm_calls WHERE id IN (
            SELECT id FROM llm_calls WHERE began_at < $1 AND ended_at IS NOT NULL
                AND NOT EXISTS (SELECT 1 FROM sessions WHERE sessions.id = llm_calls.session) LIMIT $2)",
    )
    .bind((before - KEPT).timestamp_micros())
    .bind(i64::from(PRUNED))
    .execute(&mut transaction.connection)
    .await?;
    let free = sqlx::query(
        "DELETE FROM llm_calls WHERE id IN (
            SELECT id FROM llm_calls WHERE began_at < $1 AND ended_at IS NOT NULL AND tokens = 0 LIMIT $2)",
    )
    .bind(before.timestamp_micros())
    .bind(i64::from(PRUNED))
    .execute(&mut transaction.connection)
    .await?;
    Ok(gone.rows_affected() + free.rows_affected())
}
