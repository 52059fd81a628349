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
    sqlx::query("INSERT INTO tokens (id, name, role, digest, created_at, expires_at) VALUES ($1, $2, $3, $4, $5, $6)")
        .bind(token.id.as_str())
        .bind(&token.name)
        .bind(role_text(token.role))
        .bind(digest.as_slice())
        .bind(token.created_at.timestamp_micros())
        .bind(token.expires_at.map(|at| at.timestamp_micros()))
        .execute(&mut transaction.connection)
        .await?;
    tell(transaction, "token.created", &token.id, &token.name, role_text(token.role)).await
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
    let rows =
        sqlx::query("SELECT id, name, role, created_at, expires_at FROM tokens ORDER BY id").fetch_all(readers).await?;
    rows.iter().map(decode).collect()
}

pub(super) async fn by_digest(
    readers: &SqlitePool,
    digest: [u8; 32],
    now: DateTime<Utc>,
) -> Result<Option<(TokenId, Role)>> {
    let row = sqlx::query("SELECT id, role FROM tokens WHERE digest = $1 AND (expires_at IS NULL OR expires_at > $2)")
        .bind(digest.as_slice())
        .bind(now.timestamp_micros())
        .fetch_optional(readers)
        .await?;
    row.map(|row| Ok((parse(row.try_get("id")?)?, role(row.try_get("role")?)?))).transpose()
}

fn decode(row: &SqliteRow) -> Result<Token> {
    Ok(Token {
        id: parse(row.try_get("id")?)?,
        name: row.try_get("name")?,
        role: role(row.try_get("role")?)?,
        created_at: time(row.try_get("created_at")?)?,
        expires_at: row.try_get::<Option<i64>, _>("expires_at")?.map(time).transpose()?,
    })
}

fn role_text(role: Role) -> &'static str {
    match role {
        Role::Viewer => "viewer",
        Role::Operator => "operator",
        Role::Admin => "admin",
    }
}

fn role(text: &str) -> Result<Role> {
    match text {
        "viewer" => Ok(Role::Viewer),
        "operator" => Ok(Role::Operator),
        "admin" => Ok(Role::Admin),
        other => Err(Error::Unreadable(format!("the role `{other}`"))),
    }
}
