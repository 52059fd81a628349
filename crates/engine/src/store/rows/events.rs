//! The event log: appended in the transaction of what it tells, numbered without gaps.

use sandbar_api::{Event, SandboxId};
use serde_json::Value;
use sqlx::Row as _;

use super::{
    DbRow, Pool,
    columns::{from_json, json, signed, text, time, unsigned},
    scripts,
    writer::Transaction,
};
use crate::store::{Error, Result};

pub(super) struct NewEvent<'e> {
    pub(super) kind: &'e str,
    pub(super) sandbox: Option<&'e str>,
    pub(super) process: Option<&'e str>,
    pub(super) data: Value,
}

impl Transaction {
    pub(super) async fn append(&mut self, event: NewEvent<'_>) -> Result<()> {
        let seq: i64 = sqlx::query_scalar(scripts::EVENT)
            .bind(self.now.timestamp_micros())
            .bind(event.kind)
            .bind(event.sandbox)
            .bind(event.process.map(text))
            .bind(json(&event.data)?)
            .fetch_one(&mut self.connection)
            .await?;
        self.appended(seq)
    }

    /// To be announced when this is committed.
    pub(super) fn appended(&mut self, seq: i64) -> Result<()> {
        self.seq = Some(unsigned(seq)?);
        Ok(())
    }
}

const PAGE: &str = "
    SELECT seq, at, kind, sandbox, process, data FROM events WHERE seq > $1 ORDER BY seq LIMIT $2";
const PAGE_OF_SANDBOX: &str = "
    SELECT seq, at, kind, sandbox, process, data FROM events
    WHERE sandbox = $3 AND seq > $1 ORDER BY seq LIMIT $2";
const FIRST_KEPT: &str = "
    SELECT coalesce((SELECT min(seq) FROM events), (SELECT seq + 1 FROM event_counter WHERE one = 1))";

pub(super) async fn page(readers: &Pool, after: u64, limit: u32, sandbox: Option<&SandboxId>) -> Result<Vec<Event>> {
    let sql = if sandbox.is_some() { PAGE_OF_SANDBOX } else { PAGE };
    let query = sqlx::query(sql).bind(signed(after)).bind(i64::from(limit)).bind(sandbox.map(SandboxId::as_str));
    let rows = query.fetch_all(readers).await?;
    let events = rows.iter().map(decode).collect::<Result<Vec<_>>>()?;
    let from = after.saturating_add(1);
    if sandbox.is_none() && events.first().is_some_and(|event| event.seq == from) {
        return Ok(events);
    }
    // Asked after the page was read: pruning only ever moves it forward, so what it permits the page cannot lack.
    let first_kept = unsigned(sqlx::query_scalar(FIRST_KEPT).fetch_one(readers).await?)?;
    if from < first_kept {
        return Err(Error::Dropped { from, first_kept });
    }
    Ok(events)
}

fn decode(row: &DbRow) -> Result<Event> {
    Ok(Event {
        seq: unsigned(row.try_get("seq")?)?,
        at: time(row.try_get("at")?)?,
        kind: row.try_get("kind")?,
        sandbox: row.try_get("sandbox")?,
        process: row.try_get("process")?,
        data: from_json(row.try_get("data")?)?,
    })
}
