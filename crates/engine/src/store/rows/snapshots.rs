//! Snapshots. A deleted one stays known by its id until it is pruned, so that deleting it again is no error; a hidden
//! one leaves nothing.

use chrono::{DateTime, SubsecRound as _, Utc};
use sandbar_api::{Snapshot, SnapshotId, StateReason};
use serde_json::{Value, json};
use sqlx::Row as _;

use super::{
    Db, DbRow, Executor, Pool,
    columns::{self, flag, from_json, parse, signed, text, time, unsigned},
    events::NewEvent,
    fault,
    writer::Transaction,
};
use crate::store::{Error, NewSnapshot, Result, SnapshotRow};

pub(super) async fn create(transaction: &mut Transaction, new: NewSnapshot) -> Result<SnapshotRow> {
    let mut row = new.row;
    row.snapshot.created_at = row.snapshot.created_at.trunc_subsecs(6);
    let snapshot = &row.snapshot;
    sqlx::query(
        "INSERT INTO snapshots (id, name, hidden, sandbox, template_name, template, provider, size, created_at)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
    )
    .bind(snapshot.id.as_str())
    .bind(text(&snapshot.name))
    .bind(i64::from(row.hidden))
    .bind(snapshot.sandbox.as_str())
    .bind(text(&snapshot.template))
    .bind(columns::json(&row.template)?)
    .bind(&snapshot.provider)
    .bind(signed(snapshot.size))
    .bind(snapshot.created_at.timestamp_micros())
    .execute(&mut transaction.connection)
    .await
    .map_err(|error| {
        if fault::not_unique(&error, "snapshots.name") {
            return Error::NameTaken(snapshot.name.clone());
        }
        error.into()
    })?;
    if !row.hidden {
        let mut data = told(snapshot);
        data["owner"] = new.owner.into();
        tell(transaction, "snapshot.created", snapshot, data).await?;
    }
    Ok(row)
}

pub(super) async fn delete(transaction: &mut Transaction, id: SnapshotId, why: StateReason) -> Result<()> {
    let missing = || Error::Missing(format!("snapshot {id}"));
    let row = by_id(&mut transaction.connection, &id).await?.ok_or_else(missing)?;
    if row.hidden {
        sqlx::query("DELETE FROM snapshots WHERE id = $1")
            .bind(id.as_str())
            .execute(&mut transaction.connection)
            .await?;
        return Ok(());
    }
    if row.deleted {
        return Err(missing());
    }
    sqlx::query("UPDATE snapshots SET deleted_at = $2 WHERE id = $1")
        .bind(id.as_str())
        .bind(transaction.now.timestamp_micros())
        .execute(&mut transaction.connection)
        .await?;
    let mut data = told(&row.snapshot);
    data["reason"] = json!({ "code": why.code, "detail": why.detail });
    tell(transaction, "snapshot.deleted", &row.snapshot, data).await
}

fn told(snapshot: &Snapshot) -> Value {
    json!({
        "snapshot": snapshot.id.as_str(),
        "name": snapshot.name,
        "template": snapshot.template,
        "size": snapshot.size,
    })
}

async fn tell(transaction: &mut Transaction, kind: &str, snapshot: &Snapshot, data: Value) -> Result<()> {
    transaction.append(NewEvent { kind, sandbox: Some(snapshot.sandbox.as_str()), process: None, data }).await
}

pub(super) async fn prune(transaction: &mut Transaction, before: DateTime<Utc>) -> Result<()> {
    sqlx::query("DELETE FROM snapshots WHERE deleted_at < $1")
        .bind(before.timestamp_micros())
        .execute(&mut transaction.connection)
        .await?;
    Ok(())
}

pub(super) async fn by_id(executor: impl Executor<'_>, id: &SnapshotId) -> Result<Option<SnapshotRow>> {
    let row =
        sqlx::query::<Db>("SELECT * FROM snapshots WHERE id = $1").bind(id.as_str()).fetch_optional(executor).await?;
    row.as_ref().map(decode).transpose()
}

pub(super) async fn by_name(readers: &Pool, name: &str) -> Result<Option<SnapshotRow>> {
    let row = sqlx::query(
        "SELECT * FROM snapshots WHERE name = $1 ORDER BY deleted_at IS NULL DESC, deleted_at DESC, id DESC LIMIT 1",
    )
    .bind(text(name))
    .fetch_optional(readers)
    .await?;
    row.as_ref().map(decode).transpose()
}

pub(super) async fn all(readers: &Pool) -> Result<Vec<SnapshotRow>> {
    let rows = sqlx::query("SELECT * FROM snapshots WHERE deleted_at IS NULL ORDER BY id").fetch_all(readers).await?;
    rows.iter().map(decode).collect()
}

fn decode(row: &DbRow) -> Result<SnapshotRow> {
    let snapshot = Snapshot {
        id: parse(row.try_get("id")?)?,
        name: row.try_get("name")?,
        sandbox: parse(row.try_get("sandbox")?)?,
        template: row.try_get("template_name")?,
        provider: row.try_get("provider")?,
        created_at: time(row.try_get("created_at")?)?,
        size: unsigned(row.try_get("size")?)?,
    };
    Ok(SnapshotRow {
        snapshot,
        template: from_json(row.try_get("template")?)?,
        hidden: flag(row.try_get("hidden")?),
        deleted: row.try_get::<Option<i64>, _>("deleted_at")?.is_some(),
    })
}
