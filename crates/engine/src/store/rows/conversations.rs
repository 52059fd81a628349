//! Sessions that come to be without a sandbox: begun, found by their user's id, forgotten.

use chrono::{DateTime, SubsecRound as _, Utc};
use sandbar_api::SessionId;
use serde_json::{Value, json};
use sqlx::Row as _;

use super::{
    Db, DbRow, Executor, Pool,
    columns::{self, parse, text, time},
    events::NewEvent,
    fault, sessions,
    writer::Transaction,
};
use crate::store::{
    Error, Result,
    sessions::{Begun, Conversation, External, NewSession, SessionRow},
};

const INSERT: &str = "
    INSERT INTO sessions (id, owner, created_at, name, labels, agent, \"user\", external, used_at, budget)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $3, $9)";

pub(super) async fn create(transaction: &mut Transaction, new: NewSession) -> Result<Begun> {
    if let Some(external) = &new.external
        && let Some(known) = by_external(&mut transaction.connection, external).await?
        && known.deleted_at.is_none()
    {
        return Ok(Begun::Known(known));
    }
    // As it will be read back.
    let created_at = new.created_at.trunc_subsecs(6);
    let external = new.external.as_ref();
    let inserted = sqlx::query(INSERT)
        .bind(new.id.as_str())
        .bind(text(&new.owner))
        .bind(created_at.timestamp_micros())
        .bind(new.marks.name.as_deref().map(text))
        .bind(columns::labels(&new.marks.labels)?)
        .bind(text(&new.agent))
        .bind(external.map(|external| text(&external.user)))
        .bind(external.map(|external| text(&external.id)))
        .bind((!new.limits.is_empty()).then(|| columns::json(&new.limits)).transpose()?)
        .execute(&mut transaction.connection)
        .await;
    inserted.map_err(|error| match fault::not_unique(&error, "sessions.name") {
        true => Error::SessionNameTaken(new.marks.name.clone().unwrap_or_default()),
        false => error.into(),
    })?;
    let conversation = Conversation { agent: new.agent, external: new.external, used_at: created_at };
    let row = SessionRow {
        id: new.id,
        owner: new.owner,
        marks: new.marks,
        parent: None,
        limits: new.limits,
        model: None,
        conversation: Some(conversation),
        created_at,
        deleted_at: None,
    };
    let mut data = sessions::told(&row.id, &row.owner, &row.marks, None);
    tell(&mut data, row.conversation.as_ref());
    if !row.limits.is_empty() {
        data["limits"] = json!(row.limits);
    }
    transaction.append(NewEvent { kind: "session.created", sandbox: None, process: None, data }).await?;
    Ok(Begun::New(row))
}

pub(super) async fn by_external(executor: impl Executor<'_>, external: &External) -> Result<Option<SessionRow>> {
    let row = sqlx::query::<Db>(
        "SELECT * FROM sessions WHERE \"user\" = $1 AND external = $2
         ORDER BY deleted_at IS NULL DESC, deleted_at DESC, id DESC LIMIT 1",
    )
    .bind(text(&external.user))
    .bind(text(&external.id))
    .fetch_optional(executor)
    .await?;
    row.as_ref().map(sessions::decode).transpose()
}

pub(super) async fn touch(transaction: &mut Transaction, session: SessionId, at: DateTime<Utc>) -> Result<()> {
    sqlx::query("UPDATE sessions SET used_at = $2 WHERE id = $1 AND agent IS NOT NULL")
        .bind(session.as_str())
        .bind(at.timestamp_micros())
        .execute(&mut transaction.connection)
        .await?;
    Ok(())
}

const FORGOTTEN: &str = "
    SELECT id FROM sessions AS s
    WHERE agent IS NOT NULL AND deleted_at IS NULL AND used_at < $1 AND ($2 IS NULL OR id = $2)
      AND NOT EXISTS (SELECT 1 FROM sandboxes AS b WHERE b.session = s.id) ORDER BY id";

pub(super) async fn forgotten(readers: &Pool, before: DateTime<Utc>) -> Result<Vec<SessionId>> {
    let query = sqlx::query_scalar(FORGOTTEN).bind(before.timestamp_micros()).bind(None::<&str>);
    let ids: Vec<String> = query.fetch_all(readers).await?;
    ids.iter().map(|id| parse(id)).collect()
}

pub(super) async fn is_forgotten(
    executor: impl Executor<'_>,
    session: &SessionId,
    before: DateTime<Utc>,
) -> Result<bool> {
    let query = sqlx::query(FORGOTTEN).bind(before.timestamp_micros()).bind(session.as_str());
    Ok(query.fetch_optional(executor).await?.is_some())
}

pub(super) fn decode(row: &DbRow) -> Result<Option<Conversation>> {
    let (agent, used_at): (Option<String>, Option<i64>) = (row.try_get("agent")?, row.try_get("used_at")?);
    let (Some(agent), Some(used_at)) = (agent, used_at) else { return Ok(None) };
    let (user, id): (Option<String>, Option<String>) = (row.try_get("user")?, row.try_get("external")?);
    let external = user.zip(id).map(|(user, id)| External { user, id });
    Ok(Some(Conversation { agent, external, used_at: time(used_at)? }))
}

/// What is told of a conversation beside what is told of every session.
pub(super) fn tell(data: &mut Value, conversation: Option<&Conversation>) {
    let Some(conversation) = conversation else { return };
    data["agent"] = conversation.agent.as_str().into();
    if let Some(external) = &conversation.external {
        data["user"] = external.user.as_str().into();
        data["external_id"] = external.id.as_str().into();
    }
}
