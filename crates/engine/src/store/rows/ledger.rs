//! The ledger: sessions' budgets, and every LLM call from its reservation to its end. Sums are in `usage`.

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use sandbar_api::{SessionId, SetBudget, UsageRow};
use sandbar_policy::Amount;
use serde_json::json;
use sqlx::Row as _;

use super::{
    DbRow, This,
    columns::{json as to_json, parse, text, time, unsigned},
    events::NewEvent,
    scripts, usage,
    writer::{
        Need::{Essential, Ordinary},
        Transaction,
    },
};
use crate::{
    budget::usd,
    store::{
        Error, Result,
        gate::{CallEnd, CallRow, LedgerEntry, LedgerStore, Reservations, UsageQuery},
    },
};

/// No call is this large. What a vendor makes up beyond it must not overflow the sums of those that are real.
const MOST: i64 = 1 << 42;

#[async_trait]
impl LedgerStore for This {
    fn reservations(&self) -> Reservations {
        self.keeps_reservations()
    }

    async fn set_budget(&self, session: &SessionId, limits: &SetBudget) -> Result<()> {
        let (session, limits) = (session.clone(), limits.clone());
        self.writer
            .write(Ordinary, move |transaction| Box::pin(set_budget(transaction, session.clone(), limits.clone())))
            .await
    }

    async fn set_model(&self, session: &SessionId, model: Option<&str>) -> Result<()> {
        let (session, model) = (session.clone(), model.map(str::to_owned));
        self.writer
            .write(Ordinary, move |transaction| Box::pin(set_model(transaction, session.clone(), model.clone())))
            .await
    }

    async fn write_ledger(&self, entries: Vec<LedgerEntry>) -> Result<()> {
        if entries.is_empty() {
            return Ok(());
        }
        let begins = entries.iter().any(|entry| matches!(entry, LedgerEntry::Begin(_)));
        let need = if begins { Ordinary } else { Essential };
        let entries: std::sync::Arc<[LedgerEntry]> = entries.into();
        self.writer.write(need, move |transaction| Box::pin(write(transaction, entries.clone()))).await
    }

    async fn write_promised(&self, entries: Vec<LedgerEntry>) -> Result<()> {
        if entries.is_empty() {
            return Ok(());
        }
        let entries: std::sync::Arc<[LedgerEntry]> = entries.into();
        self.writer.write(Essential, move |transaction| Box::pin(write(transaction, entries.clone()))).await
    }

    async fn held_calls(&self) -> Result<Vec<CallRow>> {
        let rows = sqlx::query("SELECT * FROM llm_calls WHERE ended_at IS NULL ORDER BY id").fetch_all(&self.readers);
        rows.await?.iter().map(call).collect()
    }

    async fn used(&self, session: &SessionId) -> Result<(u64, u64)> {
        usage::used(&self.readers, session).await
    }

    async fn settled_since(&self, session: &SessionId, since: DateTime<Utc>) -> Result<Vec<(DateTime<Utc>, u64)>> {
        usage::settled_since(&self.readers, session, since).await
    }

    async fn usage(&self, query: &UsageQuery) -> Result<Vec<UsageRow>> {
        usage::sums(&self.readers, query).await
    }
}

async fn set_budget(transaction: &mut Transaction, session: SessionId, limits: SetBudget) -> Result<()> {
    let budget = (limits != SetBudget::default()).then(|| to_json(&limits)).transpose()?;
    let changed = sqlx::query("UPDATE sessions SET budget = $2 WHERE id = $1")
        .bind(session.as_str())
        .bind(budget)
        .execute(&mut transaction.connection)
        .await?;
    let data = json!({ "session": session.as_str(), "limits": limits });
    tell(transaction, "budget.set", &session, changed.rows_affected(), data).await
}

async fn set_model(transaction: &mut Transaction, session: SessionId, model: Option<String>) -> Result<()> {
    let changed = sqlx::query("UPDATE sessions SET model = $2 WHERE id = $1")
        .bind(session.as_str())
        .bind(model.as_deref().map(text))
        .execute(&mut transaction.connection)
        .await?;
    let data = json!({ "session": session.as_str(), "model": model });
    tell(transaction, "model.switched", &session, changed.rows_affected(), data).await
}

async fn tell(
    transaction: &mut Transaction,
    kind: &str,
    session: &SessionId,
    changed: u64,
    data: serde_json::Value,
) -> Result<()> {
    if changed == 0 {
        return Err(Error::Missing(format!("session {session}")));
    }
    transaction.append(NewEvent { kind, sandbox: None, process: None, data }).await
}

async fn write(transaction: &mut Transaction, entries: std::sync::Arc<[LedgerEntry]>) -> Result<()> {
    for entry in entries.iter() {
        match entry {
            LedgerEntry::Begin(call) => begin(transaction, call).await?,
            LedgerEntry::End(call) => end(transaction, call).await?,
            LedgerEntry::Strike(id) => strike(transaction, id).await?,
        }
    }
    Ok(())
}

// A batch may be written again when it is not known whether it was.
const BEGIN: &str = "
    INSERT INTO llm_calls (id, session, sandbox, model, upstream, began_at, held_tokens, held_micros)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT (id) DO NOTHING";

async fn begin(transaction: &mut Transaction, call: &CallRow) -> Result<()> {
    sqlx::query(BEGIN)
        .bind(call.id.as_str())
        .bind(call.session.as_str())
        .bind(call.sandbox.as_str())
        .bind(text(&call.model))
        .bind(text(&call.upstream))
        .bind(call.began_at.timestamp_micros())
        .bind(counted(call.held_tokens))
        .bind(counted(call.held_micros))
        .execute(&mut transaction.connection)
        .await?;
    Ok(())
}

async fn end(transaction: &mut Transaction, call: &CallEnd) -> Result<()> {
    let query = sqlx::query_scalar(scripts::CALL_END)
        .bind(call.id.as_str())
        .bind(call.ended_at.timestamp_micros())
        .bind(i64::from(call.estimated))
        .bind(counted(call.input))
        .bind(counted(call.cached_input))
        .bind(counted(call.cache_write))
        .bind(counted(call.output))
        .bind(counted(call.tokens))
        .bind(counted(call.micros))
        .bind(call.status.map(i64::from))
        .bind(counted(call.elapsed_ms))
        .bind(call.note.as_deref().map(text))
        .bind(transaction.now.timestamp_micros());
    let Some(seq) = query.fetch_all(&mut transaction.connection).await?.last().copied() else { return Ok(()) };
    transaction.appended(seq)?;
    match call.reported {
        Some(reported) => clamped(transaction, call, reported).await,
        None => Ok(()),
    }
}

/// In the transaction of the call's own event, and after it.
async fn clamped(transaction: &mut Transaction, end: &CallEnd, reported: Amount) -> Result<()> {
    let row = sqlx::query("SELECT * FROM llm_calls WHERE id = $1").bind(end.id.as_str());
    let begun = call(&row.fetch_one(&mut transaction.connection).await?)?;
    let data = json!({
        "call": end.id, "session": begun.session.as_str(), "model": begun.model, "upstream": begun.upstream,
        "reported_tokens": reported.tokens, "counted_tokens": end.tokens,
        "reported_usd": usd(reported.micros), "counted_usd": usd(end.micros),
    });
    let sandbox = Some(begun.sandbox.as_str());
    transaction.append(NewEvent { kind: "llm.usage_clamped", sandbox, process: None, data }).await
}

async fn strike(transaction: &mut Transaction, id: &str) -> Result<()> {
    sqlx::query("DELETE FROM llm_calls WHERE id = $1 AND ended_at IS NULL")
        .bind(id)
        .execute(&mut transaction.connection)
        .await?;
    Ok(())
}

fn counted(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(MOST).min(MOST)
}

fn call(row: &DbRow) -> Result<CallRow> {
    Ok(CallRow {
        id: row.try_get("id")?,
        session: parse(row.try_get("session")?)?,
        sandbox: parse(row.try_get("sandbox")?)?,
        model: row.try_get("model")?,
        upstream: row.try_get("upstream")?,
        began_at: time(row.try_get("began_at")?)?,
        held_tokens: unsigned(row.try_get("held_tokens")?)?,
        held_micros: unsigned(row.try_get("held_micros")?)?,
    })
}
