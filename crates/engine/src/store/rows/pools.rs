//! Pools and their members. A member is no sandbox yet: it has no row among them until a claim gives it one (`births`).

use sandbar_api::SandboxId;
use serde_json::json;
use sqlx::Row as _;

use super::{
    DbRow, Pool,
    columns::{parse, small, text, time},
    events::NewEvent,
    writer::Transaction,
};
use crate::store::{Error, PoolMember, PoolRow, Result};

const RESIZE: &str = "
    INSERT INTO pools (template, size) VALUES ($1, $2)
    ON CONFLICT (template) DO UPDATE SET size = excluded.size WHERE pools.size <> excluded.size";

pub(super) async fn set(transaction: &mut Transaction, template: String, size: u32) -> Result<()> {
    let statement = if size == 0 { "DELETE FROM pools WHERE template = $1" } else { RESIZE };
    let changed = sqlx::query(statement)
        .bind(text(&template))
        .bind(i64::from(size))
        .execute(&mut transaction.connection)
        .await?
        .rows_affected();
    if changed == 0 {
        return Ok(());
    }
    let data = json!({ "template": template, "size": size });
    transaction.append(NewEvent { kind: "pool.set", sandbox: None, process: None, data }).await
}

pub(super) async fn all(readers: &Pool) -> Result<Vec<PoolRow>> {
    let rows: Vec<(String, i64)> =
        sqlx::query_as("SELECT template, size FROM pools ORDER BY template").fetch_all(readers).await?;
    rows.into_iter().map(|(template, size)| Ok(PoolRow { template, size: small(size)? })).collect()
}

pub(super) async fn add(transaction: &mut Transaction, member: PoolMember) -> Result<()> {
    sqlx::query("INSERT INTO pool_members (id, template, digest, provider, created_at) VALUES ($1, $2, $3, $4, $5)")
        .bind(member.id.as_str())
        .bind(text(&member.template))
        .bind(member.digest.as_slice())
        .bind(&member.provider)
        .bind(member.created_at.timestamp_micros())
        .execute(&mut transaction.connection)
        .await?;
    Ok(())
}

pub(super) async fn remove(transaction: &mut Transaction, id: SandboxId) -> Result<()> {
    sqlx::query("DELETE FROM pool_members WHERE id = $1")
        .bind(id.as_str())
        .execute(&mut transaction.connection)
        .await?;
    Ok(())
}

pub(super) async fn members(readers: &Pool) -> Result<Vec<PoolMember>> {
    let rows = sqlx::query("SELECT * FROM pool_members ORDER BY id").fetch_all(readers).await?;
    rows.iter().map(decode).collect()
}

fn decode(row: &DbRow) -> Result<PoolMember> {
    let digest: &[u8] = row.try_get("digest")?;
    Ok(PoolMember {
        id: parse(row.try_get("id")?)?,
        template: row.try_get("template")?,
        digest: digest.try_into().map_err(|_| Error::Unreadable("the digest of a pool member".into()))?,
        provider: row.try_get("provider")?,
        created_at: time(row.try_get("created_at")?)?,
    })
}
