//! Sandboxes: what changes them. How they come to be is in `births`, reading in `found`.

use chrono::{DateTime, SubsecRound as _, Utc};
use sandbar_api::{Sandbox, SandboxId, SandboxState, StateReason};
use serde_json::json;

use super::{columns, events::NewEvent, found, scripts, writer::Transaction};
use crate::store::{Error, Result, SandboxRow};

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
    let query = sqlx::query_scalar(scripts::TRANSITION)
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

/// The state stays; why it is so changes.
pub(super) async fn restate(transaction: &mut Transaction, id: SandboxId, reason: StateReason) -> Result<SandboxRow> {
    let mut row =
        found::by_id(&mut transaction.connection, &id).await?.ok_or_else(|| Error::Missing(format!("sandbox {id}")))?;
    row.sandbox.reason = Some(reason);
    sqlx::query("UPDATE sandboxes SET reason = $2 WHERE id = $1")
        .bind(id.as_str())
        .bind(row.sandbox.reason.as_ref().map(columns::json).transpose()?)
        .execute(&mut transaction.connection)
        .await?;
    let kind = format!("sandbox.{}", row.sandbox.state.as_str());
    tell(transaction, &kind, &row.sandbox).await?;
    Ok(row)
}

/// Told with the new time.
pub(super) async fn renew(
    transaction: &mut Transaction,
    id: SandboxId,
    expires_at: DateTime<Utc>,
) -> Result<SandboxRow> {
    let row = found::by_id(&mut transaction.connection, &id).await?;
    let row = row.filter(|row| row.sandbox.state != SandboxState::Deleted);
    let mut row = row.ok_or_else(|| Error::Missing(format!("sandbox {id}")))?;
    let expires_at = expires_at.trunc_subsecs(6);
    sqlx::query("UPDATE sandboxes SET expires_at = $2 WHERE id = $1")
        .bind(id.as_str())
        .bind(expires_at.timestamp_micros())
        .execute(&mut transaction.connection)
        .await?;
    row.sandbox.expires_at = Some(expires_at);
    let mut data = told(&row.sandbox);
    data["expires_at"] = json!(expires_at);
    let sandbox = Some(id.as_str());
    transaction.append(NewEvent { kind: "sandbox.renewed", sandbox, process: None, data }).await?;
    Ok(row)
}

async fn tell(transaction: &mut Transaction, kind: &str, sandbox: &Sandbox) -> Result<()> {
    let data = told(sandbox);
    transaction.append(NewEvent { kind, sandbox: Some(sandbox.id.as_str()), process: None, data }).await
}

pub(super) fn told(sandbox: &Sandbox) -> serde_json::Value {
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
