//! Tokens, found by the digest of their secret.

use chrono::{DateTime, Utc};
use sandbar_api::{Role, SessionId, Token, TokenId};
use serde_json::json;
use sqlx::Row as _;

use super::{
    Db, DbRow, Executor, Pool,
    columns::{parse, text, time},
    events::NewEvent,
    sessions,
    writer::Transaction,
};
use crate::store::{Error, Result};

pub(super) async fn create(transaction: &mut Transaction, token: Token, digest: [u8; 32]) -> Result<()> {
    sqlx::query("INSERT INTO tokens (id, name, role, digest, created_at, expires_at, session) VALUES ($1, $2, $3, $4, $5, $6, $7)")
        .bind(token.id.as_str())
        .bind(text(&token.name))
        .bind(token.role.as_str())
        .bind(digest.as_slice())
        .bind(token.created_at.timestamp_micros())
        .bind(token.expires_at.map(|at| at.timestamp_micros()))
        .bind(token.session.as_ref().map(|session| session.as_str()))
        .execute(&mut transaction.connection)
        .await?;
    tell(transaction, "token.created", &token.id, &token.name, token.role.as_str()).await
}

/// The one its session's workspace has, which is this one if it had none.
pub(super) async fn create_of_workspace(
    transaction: &mut Transaction,
    token: Token,
    digest: [u8; 32],
) -> Result<TokenId> {
    let missing = |what: &str| Error::Missing(format!("session {what}"));
    let id = token.session.clone().ok_or_else(|| missing("of the token"))?;
    let session = sessions::by_id(&mut transaction.connection, &id).await?.ok_or_else(|| missing(id.as_str()))?;
    if session.deleted_at.is_some() {
        return Err(Error::SessionEnded(id));
    }
    if let Some(known) = of_workspace(&mut transaction.connection, &id).await? {
        return Ok(known);
    }
    sqlx::query("UPDATE sessions SET token = $2 WHERE id = $1")
        .bind(id.as_str())
        .bind(token.id.as_str())
        .execute(&mut transaction.connection)
        .await?;
    let made = token.id.clone();
    create(transaction, token, digest).await?;
    Ok(made)
}

pub(super) async fn of_workspace(executor: impl Executor<'_>, session: &SessionId) -> Result<Option<TokenId>> {
    let id: Option<String> = sqlx::query_scalar::<Db, _>(
        "SELECT t.id FROM sessions AS s JOIN tokens AS t ON t.id = s.token WHERE s.id = $1",
    )
    .bind(session.as_str())
    .fetch_optional(executor)
    .await?;
    id.as_deref().map(parse).transpose()
}

/// All that are bound to a session, which is being deleted.
pub(super) async fn revoke_of_session(transaction: &mut Transaction, session: &SessionId) -> Result<()> {
    let ids: Vec<String> = sqlx::query_scalar("SELECT id FROM tokens WHERE session = $1 ORDER BY id")
        .bind(session.as_str())
        .fetch_all(&mut transaction.connection)
        .await?;
    for id in ids {
        revoke(transaction, parse(&id)?).await?;
    }
    Ok(())
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

pub(super) async fn all(readers: &Pool) -> Result<Vec<Token>> {
    let rows = sqlx::query("SELECT id, name, role, created_at, expires_at, session FROM tokens ORDER BY id")
        .fetch_all(readers)
        .await?;
    rows.iter().map(decode).collect()
}

pub(super) async fn by_id(readers: &Pool, id: &str) -> Result<Option<Token>> {
    let row = sqlx::query("SELECT id, name, role, created_at, expires_at, session FROM tokens WHERE id = $1")
        .bind(text(id))
        .fetch_optional(readers)
        .await?;
    row.as_ref().map(decode).transpose()
}

// A token could be made while its session is deleted, so that is asked for too.
const BY_DIGEST: &str = "
    SELECT id, name, role, created_at, expires_at, session FROM tokens AS t
    WHERE digest = $1 AND (expires_at IS NULL OR expires_at > $2)
      AND (session IS NULL OR EXISTS (SELECT 1 FROM sessions AS s WHERE s.id = t.session AND s.deleted_at IS NULL))";

pub(super) async fn by_digest(readers: &Pool, digest: [u8; 32], now: DateTime<Utc>) -> Result<Option<Token>> {
    let row =
        sqlx::query(BY_DIGEST).bind(digest.as_slice()).bind(now.timestamp_micros()).fetch_optional(readers).await?;
    row.as_ref().map(decode).transpose()
}

fn decode(row: &DbRow) -> Result<Token> {
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
