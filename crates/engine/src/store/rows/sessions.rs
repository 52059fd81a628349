//! Sessions as they are found and deleted. They come to be with their first sandbox, in `births`, or as conversations.

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use sandbar_api::{Approval, SandboxId, SessionId, SessionTerminal, Token, TokenId};
use serde_json::{Value, json};
use sqlx::Row as _;

use super::{
    Db, DbRow, Executor, Pool, This, approvals,
    columns::{self, from_json, parse, text, time, unsigned},
    conversations,
    events::NewEvent,
    found, tokens,
    writer::{
        Need::{Essential, Ordinary},
        Transaction,
    },
};
use crate::store::{
    Error, Result, SandboxRow,
    sessions::{
        Begun, Belongings, Deletion, External, NewSession, SessionFilter, SessionMarks, SessionRow, SessionStore,
    },
};

#[async_trait]
impl SessionStore for This {
    async fn create_session(&self, new: NewSession) -> Result<Begun> {
        self.writer.write(Ordinary, move |transaction| Box::pin(conversations::create(transaction, new.clone()))).await
    }

    async fn conversation(&self, external: &External) -> Result<Option<SessionRow>> {
        conversations::by_external(&self.readers, external).await
    }

    async fn use_session(&self, session: &SessionId, at: DateTime<Utc>) -> Result<()> {
        let session = session.clone();
        self.writer
            .write(Ordinary, move |transaction| Box::pin(conversations::touch(transaction, session.clone(), at)))
            .await
    }

    async fn forgotten(&self, before: DateTime<Utc>) -> Result<Vec<SessionId>> {
        conversations::forgotten(&self.readers, before).await
    }

    async fn forget_session(&self, session: &SessionId, before: DateTime<Utc>) -> Result<Option<Vec<Approval>>> {
        let session = session.clone();
        self.writer.write(Essential, move |transaction| Box::pin(forget(transaction, session.clone(), before))).await
    }

    async fn last_sandbox(&self, session: &SessionId) -> Result<Option<SandboxRow>> {
        found::last_of(&self.readers, session).await
    }

    async fn workspace_token(&self, session: &SessionId) -> Result<Option<TokenId>> {
        tokens::of_workspace(&self.readers, session).await
    }

    async fn add_workspace_token(&self, token: &Token, digest: [u8; 32]) -> Result<TokenId> {
        let token = token.clone();
        self.writer
            .write(Ordinary, move |transaction| {
                Box::pin(tokens::create_of_workspace(transaction, token.clone(), digest))
            })
            .await
    }

    async fn session(&self, id: &SessionId) -> Result<Option<SessionRow>> {
        by_id(&self.readers, id).await
    }

    async fn session_named(&self, name: &str) -> Result<Option<SessionRow>> {
        let row = sqlx::query(
            "SELECT * FROM sessions WHERE name = $1 ORDER BY deleted_at IS NULL DESC, deleted_at DESC, id DESC LIMIT 1",
        )
        .bind(text(name))
        .fetch_optional(&self.readers)
        .await?;
        row.as_ref().map(decode).transpose()
    }

    async fn session_within(&self, root: &SessionId, below: bool, of: &str) -> Result<Option<SessionRow>> {
        let query = sqlx::query(WITHIN).bind(root.as_str()).bind(text(of)).bind(i64::from(below));
        let row = query.fetch_optional(&self.readers).await?;
        row.as_ref().map(decode).transpose()
    }

    async fn sessions(&self, filter: &SessionFilter) -> Result<Vec<SessionRow>> {
        let rows = sqlx::query(PAGE)
            .bind(filter.after.as_ref().map_or("", SessionId::as_str))
            .bind(filter.only.as_ref().map(SessionId::as_str))
            .bind(i64::from(filter.ended))
            .bind(columns::labels(&filter.labels)?)
            .bind(i64::from(filter.limit))
            .fetch_all(&self.readers)
            .await?;
        rows.iter().map(decode).collect()
    }

    async fn belongings(&self, session: &SessionId) -> Result<Belongings> {
        let open: i64 = sqlx::query_scalar("SELECT count(*) FROM approvals WHERE session = $1 AND state = 'open'")
            .bind(session.as_str())
            .fetch_one(&self.readers)
            .await?;
        let rows = sqlx::query(
            "SELECT id, state FROM sandboxes WHERE session = $1 AND state <> 'deleted' ORDER BY created_at, id",
        )
        .bind(session.as_str())
        .fetch_all(&self.readers)
        .await?;
        let sandbox = |row: &DbRow| Ok((parse(row.try_get("id")?)?, parse(row.try_get("state")?)?));
        Ok(Belongings {
            sandboxes: rows.iter().map(sandbox).collect::<Result<_>>()?,
            open_approvals: unsigned(open)?,
            terminals: terminals(&self.readers, session).await?,
        })
    }

    async fn delete_session(&self, session: &SessionId) -> Result<Deletion> {
        let session = session.clone();
        self.writer.write(Essential, move |transaction| Box::pin(delete(transaction, session.clone()))).await
    }
}

/// What has a name goes before what had it, as everywhere.
pub(super) const WITHIN: &str = "
    WITH RECURSIVE tree (id) AS (
        SELECT id FROM sessions WHERE id = $1
        UNION SELECT s.id FROM tree JOIN sessions AS s ON s.parent = tree.id WHERE $3 = 1)
    SELECT s.* FROM tree JOIN sessions AS s ON s.id = tree.id
    LEFT JOIN sandboxes AS b ON b.session = s.id AND (b.id = $2 OR b.name = $2)
    WHERE s.id = $2 OR s.name = $2 OR b.id IS NOT NULL
    ORDER BY
        CASE
            WHEN s.id = $2 THEN 0
            WHEN s.name = $2 AND s.deleted_at IS NULL THEN 1
            WHEN b.state <> 'deleted' THEN 2
            WHEN s.name = $2 THEN 3
            ELSE 4
        END,
        COALESCE(s.deleted_at, 0) DESC, COALESCE(b.id, '') DESC, s.id DESC
    LIMIT 1";

// One statement whatever the filter, so that it is prepared once: lists come in as JSON.
const PAGE: &str = concat!(
    "SELECT * FROM sessions AS s
    WHERE s.id > $1
      AND ($2 IS NULL OR s.id = $2)
      AND ($3 = 1 OR s.deleted_at IS NULL
          AND (s.agent IS NOT NULL
            OR EXISTS (SELECT 1 FROM sandboxes AS b WHERE b.session = s.id AND b.state <> 'deleted')))
      AND NOT EXISTS (
          SELECT 1 FROM ",
    pairs!("$4"),
    " AS wanted WHERE NOT EXISTS (SELECT 1 FROM ",
    pairs!("s.labels"),
    " AS l WHERE l.key = wanted.key AND l.value = wanted.value))
    ORDER BY s.id LIMIT $5"
);

async fn terminals(readers: &Pool, session: &SessionId) -> Result<Vec<SessionTerminal>> {
    let rows = sqlx::query(
        "SELECT p.id, p.sandbox, p.argv, p.started_at FROM sandboxes AS s JOIN processes AS p ON p.sandbox = s.id
         WHERE s.session = $1 AND s.state <> 'deleted' AND p.terminal = 1 AND p.state = 'running' ORDER BY p.id",
    )
    .bind(session.as_str())
    .fetch_all(readers)
    .await?;
    let terminal = |row: &DbRow| {
        Ok(SessionTerminal {
            process: parse(row.try_get("id")?)?,
            sandbox: parse(row.try_get("sandbox")?)?,
            argv: from_json(row.try_get("argv")?)?,
            started_at: time(row.try_get("started_at")?)?,
        })
    };
    rows.iter().map(terminal).collect()
}

async fn forget(transaction: &mut Transaction, id: SessionId, before: DateTime<Utc>) -> Result<Option<Vec<Approval>>> {
    if !conversations::is_forgotten(&mut transaction.connection, &id, before).await? {
        return Ok(None);
    }
    match delete(transaction, id).await? {
        Deletion::Now(withdrawn) => Ok(Some(withdrawn)),
        Deletion::Inhabited(_) | Deletion::Before => Ok(None),
    }
}

async fn delete(transaction: &mut Transaction, id: SessionId) -> Result<Deletion> {
    let row = by_id(&mut transaction.connection, &id).await?;
    let row = row.ok_or_else(|| Error::Missing(format!("session {id}")))?;
    if row.deleted_at.is_some() {
        return Ok(Deletion::Before);
    }
    let sandboxes: Vec<String> =
        sqlx::query_scalar("SELECT id FROM sandboxes WHERE session = $1 AND state <> 'deleted' ORDER BY id")
            .bind(id.as_str())
            .fetch_all(&mut transaction.connection)
            .await?;
    if !sandboxes.is_empty() {
        let sandboxes = sandboxes.iter().map(|id| parse::<SandboxId>(id)).collect::<Result<_>>()?;
        return Ok(Deletion::Inhabited(sandboxes));
    }
    let withdrawn = approvals::withdraw_of_session(transaction, &id).await?;
    tokens::revoke_of_session(transaction, &id).await?;
    sqlx::query("UPDATE sessions SET deleted_at = $2 WHERE id = $1")
        .bind(id.as_str())
        .bind(transaction.now.timestamp_micros())
        .execute(&mut transaction.connection)
        .await?;
    let mut data = told(&id, &row.owner, &row.marks, row.parent.as_ref());
    conversations::tell(&mut data, row.conversation.as_ref());
    transaction.append(NewEvent { kind: "session.deleted", sandbox: None, process: None, data }).await?;
    Ok(Deletion::Now(withdrawn))
}

pub(super) fn told(session: &SessionId, owner: &str, marks: &SessionMarks, parent: Option<&SessionId>) -> Value {
    let mut told = json!({ "session": session.as_str(), "owner": owner });
    if let Some(name) = &marks.name {
        told["name"] = name.as_str().into();
    }
    if !marks.labels.is_empty() {
        told["labels"] = json!(marks.labels);
    }
    if let Some(parent) = parent {
        told["parent"] = parent.as_str().into();
    }
    told
}

pub(super) async fn by_id(executor: impl Executor<'_>, id: &SessionId) -> Result<Option<SessionRow>> {
    let row =
        sqlx::query::<Db>("SELECT * FROM sessions WHERE id = $1").bind(id.as_str()).fetch_optional(executor).await?;
    row.as_ref().map(decode).transpose()
}

pub(super) fn decode(row: &DbRow) -> Result<SessionRow> {
    let budget: Option<&str> = row.try_get("budget")?;
    Ok(SessionRow {
        id: parse(row.try_get("id")?)?,
        owner: row.try_get("owner")?,
        marks: SessionMarks { name: row.try_get("name")?, labels: from_json(row.try_get("labels")?)? },
        parent: row.try_get::<Option<&str>, _>("parent")?.map(parse).transpose()?,
        limits: budget.map(from_json).transpose()?.unwrap_or_default(),
        model: row.try_get("model")?,
        conversation: conversations::decode(row)?,
        created_at: time(row.try_get("created_at")?)?,
        deleted_at: row.try_get::<Option<i64>, _>("deleted_at")?.map(time).transpose()?,
    })
}
