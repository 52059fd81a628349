//! Sandboxes as they are found: by id, by name, by filter, by expiry.

use std::{collections::BTreeMap, time::Duration};

use chrono::{DateTime, Utc};
use sandbar_api::{HumanDuration, Sandbox, SandboxId, SandboxState, SessionId};
use sqlx::Row as _;

use super::{
    Db, DbRow, Executor, Pool,
    columns::{from_json, json, labels, parse, text, time, unsigned},
};
use crate::store::{Result, SandboxFilter, SandboxRow};

pub(super) async fn by_id(executor: impl Executor<'_>, id: &SandboxId) -> Result<Option<SandboxRow>> {
    let row =
        sqlx::query::<Db>("SELECT * FROM sandboxes WHERE id = $1").bind(id.as_str()).fetch_optional(executor).await?;
    row.as_ref().map(decode).transpose()
}

pub(super) async fn by_name(readers: &Pool, name: &str) -> Result<Option<SandboxRow>> {
    let row = sqlx::query("SELECT * FROM sandboxes WHERE name = $1 AND state <> 'deleted'")
        .bind(text(name))
        .fetch_optional(readers)
        .await?;
    row.as_ref().map(decode).transpose()
}

/// Ids ascend with time.
pub(super) const LAST_NAMED: &str =
    "SELECT * FROM sandboxes WHERE name = $1 AND state = 'deleted' ORDER BY id DESC LIMIT 1";

pub(super) async fn last_named(readers: &Pool, name: &str) -> Result<Option<SandboxRow>> {
    let row = sqlx::query(LAST_NAMED).bind(text(name)).fetch_optional(readers).await?;
    row.as_ref().map(decode).transpose()
}

/// Of one session; one that is there goes before one that was.
pub(super) const WITHIN: &str = "SELECT id FROM sandboxes WHERE session = $1 AND (id = $2 OR name = $2)
    ORDER BY CASE WHEN state = 'deleted' THEN 1 ELSE 0 END, id DESC LIMIT 1";

pub(super) async fn within(readers: &Pool, session: &SessionId, of: &str) -> Result<Option<SandboxId>> {
    let id: Option<String> =
        sqlx::query_scalar(WITHIN).bind(session.as_str()).bind(text(of)).fetch_optional(readers).await?;
    id.as_deref().map(parse).transpose()
}

/// By when it came to be there: one out of a pool has an id of before.
pub(super) async fn last_of(readers: &Pool, session: &SessionId) -> Result<Option<SandboxRow>> {
    let row = sqlx::query("SELECT * FROM sandboxes WHERE session = $1 ORDER BY created_at DESC, id DESC LIMIT 1")
        .bind(session.as_str())
        .fetch_optional(readers)
        .await?;
    row.as_ref().map(decode).transpose()
}

// One statement whatever the filter, so that it is prepared once: lists come in as JSON.
const PAGE: &str = concat!(
    "SELECT * FROM sandboxes AS s WHERE s.id > $1 AND s.state IN ",
    list!("$2"),
    " AND NOT EXISTS (SELECT 1 FROM ",
    pairs!("$3"),
    " AS wanted
          WHERE NOT EXISTS (
              SELECT 1 FROM sandbox_labels AS l
              WHERE l.sandbox = s.id AND l.key = wanted.key AND l.value = wanted.value))
    ORDER BY s.id LIMIT $4"
);

pub(super) async fn page(readers: &Pool, filter: &SandboxFilter) -> Result<Vec<SandboxRow>> {
    let states: Vec<&str> = if filter.states.is_empty() {
        SandboxState::ALL.iter().filter(|state| **state != SandboxState::Deleted).map(|state| state.as_str()).collect()
    } else {
        filter.states.iter().map(|state| state.as_str()).collect()
    };
    let rows = sqlx::query(PAGE)
        .bind(filter.after.as_ref().map_or("", SandboxId::as_str))
        .bind(json(&states)?)
        .bind(labels(&filter.labels)?)
        .bind(i64::from(filter.limit))
        .fetch_all(readers)
        .await?;
    rows.iter().map(decode).collect()
}

pub(super) async fn expired(readers: &Pool, now: DateTime<Utc>) -> Result<Vec<SandboxId>> {
    let ids: Vec<String> = sqlx::query_scalar(
        "SELECT id FROM sandboxes WHERE state <> 'deleted' AND expires_at IS NOT NULL AND expires_at <= $1
         ORDER BY expires_at",
    )
    .bind(now.timestamp_micros())
    .fetch_all(readers)
    .await?;
    ids.iter().map(|id| parse(id)).collect()
}

pub(super) async fn next_expiry(readers: &Pool) -> Result<Option<DateTime<Utc>>> {
    let micros: Option<i64> =
        sqlx::query_scalar("SELECT min(expires_at) FROM sandboxes WHERE state <> 'deleted' AND expires_at IS NOT NULL")
            .fetch_one(readers)
            .await?;
    micros.map(time).transpose()
}

pub(super) async fn count(readers: &Pool) -> Result<BTreeMap<String, u64>> {
    let found: Vec<(String, i64)> =
        sqlx::query_as("SELECT state, count(*) FROM sandboxes GROUP BY state").fetch_all(readers).await?;
    // A gauge has to be able to go back to zero.
    let mut counts: BTreeMap<_, _> = SandboxState::ALL.iter().map(|state| (state.as_str().to_owned(), 0)).collect();
    for (state, number) in found {
        counts.insert(state, unsigned(number)?);
    }
    Ok(counts)
}

fn decode(row: &DbRow) -> Result<SandboxRow> {
    let sandbox = Sandbox {
        id: parse(row.try_get("id")?)?,
        name: row.try_get("name")?,
        session: parse(row.try_get("session")?)?,
        state: parse(row.try_get("state")?)?,
        reason: row.try_get::<Option<&str>, _>("reason")?.map(from_json).transpose()?,
        template: row.try_get("template_name")?,
        provider: row.try_get("provider")?,
        labels: from_json(row.try_get("labels")?)?,
        env: from_json(row.try_get("env")?)?,
        workspace: from_json(row.try_get("workspace")?)?,
        from: row.try_get::<Option<&str>, _>("from_snapshot")?.map(parse).transpose()?,
        created_at: time(row.try_get("created_at")?)?,
        changed_at: time(row.try_get("changed_at")?)?,
        expires_at: row.try_get::<Option<i64>, _>("expires_at")?.map(time).transpose()?,
    };
    let lease = row.try_get::<Option<i64>, _>("lease")?.map(unsigned).transpose()?;
    let lease = lease.map(|millis| HumanDuration(Duration::from_millis(millis)));
    Ok(SandboxRow { sandbox, template: from_json(row.try_get("template")?)?, lease })
}
