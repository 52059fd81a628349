//! Sandboxes with their sessions, labels and idempotency keys: what changes them. Reading is in `found`.

use chrono::SubsecRound as _;
use sandbar_api::{Sandbox, SandboxId, SandboxState, StateReason};
use serde_json::json;
use sqlx::Row as _;

use super::{columns, events::NewEvent, fault, found, writer::Transaction};
use crate::store::{Created, Error, IdempotencyKey, NewSandbox, Result, SandboxRow};

pub(super) async fn create(transaction: &mut Transaction, new: NewSandbox) -> Result<Created> {
    if let Some(key) = &new.key
        && let Some(row) = replay(transaction, key).await?
    {
        return Ok(Created::Replayed(row));
    }
    let mut row = new.row;
    let sandbox = &mut row.sandbox;
    // As it will be read back.
    sandbox.created_at = sandbox.created_at.trunc_subsecs(6);
    sandbox.changed_at = sandbox.changed_at.trunc_subsecs(6);
    sandbox.expires_at = sandbox.expires_at.map(|at| at.trunc_subsecs(6));
    if new.new_session {
        create_session(transaction, sandbox, &new.owner).await?;
    } else {
        sqlx::query("SELECT 1 FROM sessions WHERE id = $1")
            .bind(sandbox.session.as_str())
            .fetch_optional(&mut transaction.connection)
            .await?
            .ok_or_else(|| Error::Missing(format!("session {}", sandbox.session)))?;
    }
    insert(transaction, &row).await?;
    if let Some(key) = &new.key {
        sqlx::query(
            "INSERT INTO idempotency_keys (owner, key, digest, sandbox, created_at) VALUES ($1, $2, $3, $4, $5)",
        )
        .bind(&key.owner)
        .bind(&key.key)
        .bind(key.digest.as_slice())
        .bind(row.sandbox.id.as_str())
        .bind(transaction.now.timestamp_micros())
        .execute(&mut transaction.connection)
        .await?;
    }
    tell(transaction, "sandbox.created", &row.sandbox).await?;
    Ok(Created::New(row))
}

async fn replay(transaction: &mut Transaction, key: &IdempotencyKey) -> Result<Option<SandboxRow>> {
    let used = sqlx::query("SELECT digest, sandbox FROM idempotency_keys WHERE owner = $1 AND key = $2")
        .bind(&key.owner)
        .bind(&key.key)
        .fetch_optional(&mut transaction.connection)
        .await?;
    let Some(used) = used else { return Ok(None) };
    if used.try_get::<&[u8], _>("digest")? != key.digest {
        return Err(Error::KeyReused);
    }
    let id: SandboxId = columns::parse(used.try_get("sandbox")?)?;
    found::by_id(&mut transaction.connection, &id).await
}

async fn create_session(transaction: &mut Transaction, sandbox: &Sandbox, owner: &str) -> Result<()> {
    sqlx::query("INSERT INTO sessions (id, owner, created_at) VALUES ($1, $2, $3)")
        .bind(sandbox.session.as_str())
        .bind(owner)
        .bind(sandbox.created_at.timestamp_micros())
        .execute(&mut transaction.connection)
        .await?;
    let data = json!({ "session": sandbox.session.as_str(), "owner": owner });
    transaction.append(NewEvent { kind: "session.created", sandbox: None, process: None, data }).await
}

async fn insert(transaction: &mut Transaction, row: &SandboxRow) -> Result<()> {
    let sandbox = &row.sandbox;
    let labels = columns::json(&sandbox.labels)?;
    sqlx::query(
        "INSERT INTO sandboxes (id, name, session, state, reason, template_name, template, provider, labels, env,
                                workspace, created_at, changed_at, expires_at, from_snapshot)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)",
    )
    .bind(sandbox.id.as_str())
    .bind(&sandbox.name)
    .bind(sandbox.session.as_str())
    .bind(sandbox.state.as_str())
    .bind(sandbox.reason.as_ref().map(columns::json).transpose()?)
    .bind(&sandbox.template)
    .bind(columns::json(&row.template)?)
    .bind(&sandbox.provider)
    .bind(&labels)
    .bind(columns::json(&sandbox.env)?)
    .bind(columns::json(&sandbox.workspace)?)
    .bind(sandbox.created_at.timestamp_micros())
    .bind(sandbox.changed_at.timestamp_micros())
    .bind(sandbox.expires_at.map(|at| at.timestamp_micros()))
    .bind(sandbox.from.as_ref().map(|from| from.as_str()))
    .execute(&mut transaction.connection)
    .await
    .map_err(|error| {
        if fault::not_unique(&error, "sandboxes.name") {
            return Error::NameTaken(sandbox.name.clone());
        }
        error.into()
    })?;
    if !sandbox.labels.is_empty() {
        sqlx::query("INSERT INTO sandbox_labels (sandbox, key, value) SELECT $1, key, value FROM json_each($2)")
            .bind(sandbox.id.as_str())
            .bind(&labels)
            .execute(&mut transaction.connection)
            .await?;
    }
    Ok(())
}

// The state that was read is asked for once more inside the transaction, so that nothing can come between.
const TRANSITION: &str = "
    BEGIN IMMEDIATE;
    UPDATE sandboxes SET state = $3, reason = $4, changed_at = $5 WHERE id = $1 AND state = $2;
    UPDATE event_counter SET seq = seq + 1 WHERE changes() = 1;
    INSERT INTO events (seq, at, kind, sandbox, process, data)
    SELECT seq, $5, 'sandbox.' || $3, $1, NULL, $6 FROM event_counter WHERE changes() = 1
    RETURNING seq;
    COMMIT";

/// A read and one script: every sandbox pays for three of these.
pub(super) async fn transition(
    transaction: &mut Transaction,
    id: SandboxId,
    to: SandboxState,
    reason: Option<StateReason>,
) -> Result<SandboxRow> {
    let mut row =
        found::by_id(&mut transaction.connection, &id).await?.ok_or_else(|| Error::Missing(format!("sandbox {id}")))?;
    let from = row.sandbox.state;
    if !from.may_become(to) {
        return Err(Error::Illegal { from, to });
    }
    row.sandbox.state = to;
    row.sandbox.reason = reason;
    row.sandbox.changed_at = transaction.now;
    let query = sqlx::query_scalar(TRANSITION)
        .bind(id.as_str())
        .bind(from.as_str())
        .bind(to.as_str())
        .bind(row.sandbox.reason.as_ref().map(columns::json).transpose()?)
        .bind(transaction.now.timestamp_micros())
        .bind(columns::json(&told(&row.sandbox))?);
    // All rows rather than the first: the script has to run to its end.
    match query.fetch_all(&mut transaction.connection).await?[..] {
        [seq] => transaction.appended(seq).map(|()| row),
        _ => Err(Error::Illegal { from, to }),
    }
}

async fn tell(transaction: &mut Transaction, kind: &str, sandbox: &Sandbox) -> Result<()> {
    let data = told(sandbox);
    transaction.append(NewEvent { kind, sandbox: Some(sandbox.id.as_str()), process: None, data }).await
}

fn told(sandbox: &Sandbox) -> serde_json::Value {
    let mut data = json!({
        "name": sandbox.name,
        "session": sandbox.session.as_str(),
        "template": sandbox.template,
        "state": sandbox.state.as_str(),
    });
    if let Some(reason) = &sandbox.reason {
        data["reason"] = json!({ "code": reason.code, "detail": reason.detail });
    }
    data
}
