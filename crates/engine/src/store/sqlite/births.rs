//! How a sandbox comes to be: made anew, or out of a pool's member. With session, labels, idempotency key and events it
//! is one script: each trip to the database's thread costs about as much as the statement it carries.

use chrono::SubsecRound as _;
use sandbar_api::{SandboxId, SandboxState};
use sqlx::Row as _;

use super::{columns, fault, found, sandboxes::told, sessions, writer::Transaction};
use crate::store::{Created, Error, IdempotencyKey, NewSandbox, Result, SandboxRow};

/// What a sandbox is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Of {
    Nothing,
    /// The pool's member of the same id, which is none afterwards.
    Member,
}

// The first statement breaks the rule that there is one counter, and with it the script, if there is no such member.
const CREATE: &str = "
    BEGIN IMMEDIATE;
    INSERT INTO event_counter (one, seq) SELECT 2, 0 WHERE $25 AND NOT EXISTS (SELECT 1 FROM pool_members WHERE id = $1);
    DELETE FROM pool_members WHERE $25 AND id = $1;

    INSERT INTO sessions (id, owner, created_at, parent, name, labels) SELECT $3, $16, $12, $27, $32, $33 WHERE $17;
    INSERT INTO sandboxes (id, name, session, state, reason, template_name, template, provider, labels, env,
                           workspace, created_at, changed_at, expires_at, from_snapshot, lease)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $34);
    INSERT INTO gates (sandbox, rules, secrets, certificate, key) VALUES ($1, $28, $29, $30, $31);
    INSERT INTO sandbox_labels (sandbox, key, value) SELECT $1, key, value FROM json_each($9);
    INSERT INTO idempotency_keys (owner, key, digest, sandbox, created_at)
    SELECT $26, $20, $21, $1, $18 WHERE $20 IS NOT NULL;

    UPDATE event_counter SET seq = seq + 1 WHERE $17;
    INSERT INTO events (seq, at, kind, sandbox, process, data)
    SELECT seq, $18, 'session.created', NULL, NULL, $19 FROM event_counter WHERE $17;
    UPDATE event_counter SET seq = seq + 1;
    INSERT INTO events (seq, at, kind, sandbox, process, data)
    SELECT seq, $18, 'sandbox.created', $1, NULL, $22 FROM event_counter;
    UPDATE event_counter SET seq = seq + 1 WHERE $23;
    INSERT INTO events (seq, at, kind, sandbox, process, data)
    SELECT seq, $18, 'sandbox.ready', $1, NULL, $24 FROM event_counter WHERE $23;
    SELECT seq FROM event_counter;
    COMMIT";

pub(super) async fn create(transaction: &mut Transaction, new: NewSandbox, of: Of) -> Result<Created> {
    // What is read here nobody can change before it is used: there is one writer.
    if let Some(key) = &new.key
        && let Some(row) = replay(transaction, key).await?
    {
        return Ok(Created::Replayed(row));
    }
    let NewSandbox { mut row, new_session, parent, marks, owner, gate, key } = new;
    let sandbox = &mut row.sandbox;
    // As it will be read back.
    sandbox.created_at = sandbox.created_at.trunc_subsecs(6);
    sandbox.changed_at = sandbox.changed_at.trunc_subsecs(6);
    sandbox.expires_at = sandbox.expires_at.map(|at| at.trunc_subsecs(6));
    let sandbox = &row.sandbox;
    let joined = if new_session { parent.as_ref() } else { Some(&sandbox.session) };
    if let Some(session) = joined {
        let joined = sessions::by_id(&mut transaction.connection, session).await?;
        if joined.ok_or_else(|| Error::Missing(format!("session {session}")))?.deleted_at.is_some() {
            return Err(Error::SessionEnded(session.clone()));
        }
    }
    let mut created = told(sandbox);
    if of == Of::Member {
        created["claimed"] = true.into();
    }
    let script = sqlx::query_scalar(CREATE)
        .bind(sandbox.id.as_str())
        .bind(&sandbox.name)
        .bind(sandbox.session.as_str())
        .bind(sandbox.state.as_str())
        .bind(sandbox.reason.as_ref().map(columns::json).transpose()?)
        .bind(&sandbox.template)
        .bind(columns::json(&row.template)?)
        .bind(&sandbox.provider)
        .bind(columns::json(&sandbox.labels)?)
        .bind(columns::json(&sandbox.env)?)
        .bind(columns::json(&sandbox.workspace)?)
        .bind(sandbox.created_at.timestamp_micros())
        .bind(sandbox.changed_at.timestamp_micros())
        .bind(sandbox.expires_at.map(|at| at.timestamp_micros()))
        .bind(sandbox.from.as_ref().map(|from| from.as_str()))
        .bind(&owner)
        .bind(new_session)
        .bind(transaction.now.timestamp_micros())
        .bind(columns::json(&sessions::told(&sandbox.session, &owner, &marks, parent.as_ref()))?)
        .bind(key.as_ref().map(|key| key.key.as_str()))
        .bind(key.as_ref().map(|key| key.digest.as_slice()))
        .bind(columns::json(&created)?)
        .bind(sandbox.state == SandboxState::Ready)
        .bind(columns::json(&told(sandbox))?)
        .bind(of == Of::Member)
        .bind(key.as_ref().map(|key| key.owner.as_str()))
        .bind(parent.as_ref().map(|parent| parent.as_str()))
        .bind(columns::json(&gate.rules)?)
        .bind(columns::json(&gate.secrets)?)
        .bind(&gate.certificate)
        .bind(gate.key.as_slice())
        .bind(&marks.name)
        .bind(columns::json(&marks.labels)?)
        .bind(row.lease.map(|lease| i64::try_from(lease.0.as_millis()).unwrap_or(i64::MAX)));
    // All rows rather than the first: the script has to run to its end.
    let seq = script.fetch_all(&mut transaction.connection).await.map_err(|error| {
        if fault::not_unique(&error, "sandboxes.name") {
            return Error::NameTaken(sandbox.name.clone());
        }
        if fault::not_unique(&error, "sessions.name") {
            return Error::SessionNameTaken(marks.name.clone().unwrap_or_default());
        }
        if fault::against_a_rule(&error, "one = 1") {
            return Error::Missing(format!("pool member {}", sandbox.id));
        }
        error.into()
    })?;
    if let Some(seq) = seq.last() {
        transaction.appended(*seq)?;
    }
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
