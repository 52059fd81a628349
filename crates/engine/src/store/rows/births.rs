//! How a sandbox comes to be: made anew, or out of a pool's member. With session, labels, idempotency key and events it
//! is one script: each trip to the database's thread costs about as much as the statement it carries.

use chrono::SubsecRound as _;
use sandbar_api::{SandboxId, SandboxState};
use serde_json::json;
use sqlx::Row as _;

use super::{
    columns::{self, text},
    fault, found,
    sandboxes::told,
    scripts, sessions,
    writer::Transaction,
};
use crate::store::{Created, Error, IdempotencyKey, NewSandbox, Result, SandboxRow};

/// What a sandbox is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Of {
    Nothing,
    /// The pool's member of the same id, which is none afterwards.
    Member,
}

pub(super) async fn create(transaction: &mut Transaction, new: NewSandbox, of: Of) -> Result<Created> {
    // What is read here nobody can change before it is used: there is one writer.
    if let Some(key) = &new.key
        && let Some(row) = replay(transaction, key).await?
    {
        return Ok(Created::Replayed(row));
    }
    let NewSandbox { mut row, new_session, parent, marks, budget, owner, gate, key } = new;
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
    let limits = (!budget.is_empty()).then(|| columns::json(&budget)).transpose()?;
    let mut begun = sessions::told(&sandbox.session, &owner, &marks, parent.as_ref());
    if !budget.is_empty() {
        begun["limits"] = json!(budget);
    }
    let mut created = told(sandbox);
    if of == Of::Member {
        created["claimed"] = true.into();
    }
    let script = sqlx::query_scalar(scripts::BIRTH)
        .bind(sandbox.id.as_str())
        .bind(text(&sandbox.name))
        .bind(sandbox.session.as_str())
        .bind(sandbox.state.as_str())
        .bind(sandbox.reason.as_ref().map(columns::json).transpose()?)
        .bind(text(&sandbox.template))
        .bind(columns::json(&row.template)?)
        .bind(text(&sandbox.provider))
        .bind(columns::labels(&sandbox.labels)?)
        .bind(columns::json(&sandbox.env)?)
        .bind(columns::json(&sandbox.workspace)?)
        .bind(sandbox.created_at.timestamp_micros())
        .bind(sandbox.changed_at.timestamp_micros())
        .bind(sandbox.expires_at.map(|at| at.timestamp_micros()))
        .bind(sandbox.from.as_ref().map(|from| from.as_str()))
        .bind(text(&owner))
        .bind(i64::from(new_session))
        .bind(transaction.now.timestamp_micros())
        .bind(columns::json(&begun)?)
        .bind(key.as_ref().map(|key| text(&key.key)))
        .bind(key.as_ref().map(|key| key.digest.as_slice()))
        .bind(columns::json(&created)?)
        .bind(i64::from(sandbox.state == SandboxState::Ready))
        .bind(columns::json(&told(sandbox))?)
        .bind(i64::from(of == Of::Member))
        .bind(key.as_ref().map(|key| text(&key.owner)))
        .bind(parent.as_ref().map(|parent| parent.as_str()))
        .bind(columns::json(&gate.rules)?)
        .bind(columns::json(&gate.secrets)?)
        .bind(text(&gate.certificate))
        .bind(gate.key.as_slice())
        .bind(marks.name.as_deref().map(text))
        .bind(columns::labels(&marks.labels)?)
        .bind(row.lease.map(|lease| i64::try_from(lease.0.as_millis()).unwrap_or(i64::MAX)))
        .bind(limits);
    // All rows rather than the first: the script has to run to its end.
    let seq = script.fetch_all(&mut transaction.connection).await.map_err(|error| {
        if fault::not_unique(&error, "sandboxes.name") {
            return Error::NameTaken(sandbox.name.clone());
        }
        if fault::not_unique(&error, "sessions.name") {
            return Error::SessionNameTaken(marks.name.clone().unwrap_or_default());
        }
        if fault::no_such_member(&error) {
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
        .bind(text(&key.owner))
        .bind(text(&key.key))
        .fetch_optional(&mut transaction.connection)
        .await?;
    let Some(used) = used else { return Ok(None) };
    if used.try_get::<&[u8], _>("digest")? != key.digest {
        return Err(Error::KeyReused);
    }
    let id: SandboxId = columns::parse(used.try_get("sandbox")?)?;
    found::by_id(&mut transaction.connection, &id).await
}
