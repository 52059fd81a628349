//! Tokens, found by the digest of their secret.

use chrono::{DateTime, Utc};
use sandbar_api::{Role, Token, TokenId};
use serde_json::json;
use sqlx::{Row as _, SqlitePool, sqlite::SqliteRow};

use super::{
    columns::{parse, time},
    events::NewEvent,
    writer::Transaction,
};
use crate::store::{Error, Result};

pub(super) async fn create(transaction: &mut Transaction, token: Token, digest: [u8; 32]) -> Result<()> {
    sqlx::query("INSERT INTO tokens (id, name, role, digest, created_at, expires_at, session) VALUES ($1, $2, $3, $4, $5, $6, $7)")
        .bind(token.id.as_str())
        .bind(&token.name)
        .bind(token.role.as_str())
        .bind(digest.as_slice())
        .bind(token.created_at.timestamp_micros())
        .bind(token.expires_at.map(|at| at.timestamp_micros()))
        .bind(token.session.as_ref().map(|session| session.as_str()))
        .execute(&mut transaction.connection)
        .await?;
    tell(transaction, "token.created", &token.id, &token.name, token.role.as_str()).await
}

pub(super) async fn revoke(transaction: &mut Transaction, id: TokenId) -> Result<()> {
    let row = sqlx::query("DELETE FROM tokens WHERE id = $1 RETURNING name, role")
        .bind(id.as_str())
        .fetch_optional(&mut transaction.connection)
        .await?
        .ok_or_else(|| Error::Missing(format!("token {id}")))?;
    tell(transaction, "token.revoked", &id, row.try_get("name")?, row.try_get("role")?).await
}

async fn tell(transaction: &mut Transaction, kind: &str, id: &TokenId, name: &str, role: &str) -> Result<()> {
    let data = json!({ "token": id.as_str(), "name": name, "role": role });
    transaction.append(NewEvent { kind, sandbox: None, process: None, data }).await
}

pub(super) async fn all(readers: &SqlitePool) -> Result<Vec<Token>> {
    let rows = sqlx::query("SELECT id, name, role, created_at, expires_at, session FROM tokens ORDER BY id")
        .fetch_all(readers)
        .await?;
    rows.iter().map(decode).collect()
}

pub(super) async fn by_digest(readers: &SqlitePool, digest: [u8; 32], now: DateTime<Utc>) -> Result<Option<Token>> {
    let row = sqlx::query("SELECT id, name, role, created_at, expires_at, session FROM tokens WHERE digest = $1 AND (expires_at IS NULL OR expires_at > $2)")
        .bind(digest.as_slice())
        .bind(now.timestamp_micros())
        .fetch_optional(readers)
        .await?;
    row.as_ref().map(decode).transpose()
}

fn decode(row: &SqliteRow) -> Result<Token> {
    Ok(Token {
        id: parse(row.try_get("id")?)?,
        name: row.try_get("name")?,
        role: role(row.try_get("role")?)?,
        session: row.try_get::<Option<&str>, _>("session")?.map(parse).transpose()?,
        created_at: time(row.try_get("created_at")?)?,
        expires_at: row.try_get::<Option<i64>, _>("expires_at")?.map(time).transpose()?,
    })
}

pub(super) fn role(text: &str) -> Result<Role> {
    let found = Role::ALL.into_iter().find(|role| role.as_str() == text);
    found.ok_or_else(|| Error::Unreadable(format!("the role `{text}`")))
}
