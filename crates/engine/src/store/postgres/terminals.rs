//! Terminals: their sizes and the checkpoints of their screens.

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use sandbar_api::{ProcessId, SandboxId, TerminalSize};
use serde_json::json;
use sqlx::Row as _;

use super::{
    DbRow, This,
    columns::{signed, time, unsigned},
    events::NewEvent,
    writer::{Need::Ordinary, Transaction},
};
use crate::store::{
    Chunk, Error, Result,
    terminal::{SizeChange, TerminalStore},
};

/// Of very many the oldest go.
const SIZES_KEPT: i64 = 1000;

#[async_trait]
impl TerminalStore for This {
    async fn start_terminal(&self, process: &ProcessId, size: TerminalSize, at: DateTime<Utc>) -> Result<()> {
        let (process, change) = (process.clone(), SizeChange { offset: 0, at, size });
        self.writer
            .write(Ordinary, move |transaction| {
                let process = process.clone();
                Box::pin(async move { record(transaction, &process, change).await.map(drop) })
            })
            .await
    }

    async fn resize_terminal(&self, sandbox: &SandboxId, process: &ProcessId, change: SizeChange) -> Result<()> {
        let (sandbox, process) = (sandbox.clone(), process.clone());
        self.writer
            .write(Ordinary, move |transaction| {
                let (sandbox, process) = (sandbox.clone(), process.clone());
                Box::pin(async move {
                    if !record(transaction, &process, change).await? {
                        return Ok(());
                    }
                    let SizeChange { offset, size, .. } = change;
                    let data = json!({ "cols": size.cols, "rows": size.rows, "offset": offset });
                    let (sandbox, process) = (Some(sandbox.as_str()), Some(process.as_str()));
                    transaction.append(NewEvent { kind: "process.resized", sandbox, process, data }).await
                })
            })
            .await
    }

    async fn terminal_sizes(&self, process: &ProcessId) -> Result<Vec<SizeChange>> {
        let rows = sqlx::query("SELECT * FROM terminal_sizes WHERE process = $1 ORDER BY number")
            .bind(process.as_str())
            .fetch_all(&self.readers)
            .await?;
        rows.iter().map(decode).collect()
    }

    async fn keep_screen(&self, process: &ProcessId, checkpoint: &[u8]) -> Result<()> {
        let (process, checkpoint) = (process.clone(), checkpoint.to_vec());
        self.writer
            .write(Ordinary, move |transaction| Box::pin(keep_screen(transaction, process.clone(), checkpoint.clone())))
            .await
    }

    async fn kept_screen(&self, process: &ProcessId) -> Result<Option<Vec<u8>>> {
        let kept = sqlx::query_scalar("SELECT data FROM screens WHERE process = $1").bind(process.as_str());
        Ok(kept.fetch_optional(&self.readers).await?)
    }

    async fn read_moment(&self, process: &ProcessId, from: u64, limit: usize) -> Result<Option<Chunk>> {
        self.output.read_moment(process, from, limit).await
    }
}

/// False if it has that size already. A later change never comes before an earlier one.
async fn record(transaction: &mut Transaction, process: &ProcessId, change: SizeChange) -> Result<bool> {
    let last = sqlx::query("SELECT * FROM terminal_sizes WHERE process = $1 ORDER BY number DESC LIMIT 1")
        .bind(process.as_str())
        .fetch_optional(&mut transaction.connection)
        .await?;
    let (mut number, mut start) = (0, change.offset);
    if let Some(row) = last {
        let last = decode(&row)?;
        if last.size == change.size {
            return Ok(false);
        }
        number = row.try_get::<i64, _>("number")? + 1;
        start = start.max(last.offset);
    }
    sqlx::query("INSERT INTO terminal_sizes (process, number, start, at, cols, rows) VALUES ($1, $2, $3, $4, $5, $6)")
        .bind(process.as_str())
        .bind(number)
        .bind(signed(start))
        .bind(change.at.timestamp_micros())
        .bind(i64::from(change.size.cols))
        .bind(i64::from(change.size.rows))
        .execute(&mut transaction.connection)
        .await?;
    if number >= SIZES_KEPT {
        sqlx::query("DELETE FROM terminal_sizes WHERE process = $1 AND number <= $2")
            .bind(process.as_str())
            .bind(number - SIZES_KEPT)
            .execute(&mut transaction.connection)
            .await?;
    }
    Ok(true)
}

const KEEP: &str = "
    INSERT INTO screens (process, data)
    SELECT $1, $2 WHERE EXISTS (SELECT 1 FROM terminal_sizes WHERE process = $1)
        OR EXISTS (SELECT 1 FROM output WHERE process = $1)
    ON CONFLICT (process) DO UPDATE SET data = excluded.data";

/// Not of a process whose output is gone: nobody would remove it any more.
async fn keep_screen(transaction: &mut Transaction, process: ProcessId, checkpoint: Vec<u8>) -> Result<()> {
    let kept = sqlx::query(KEEP).bind(process.as_str()).bind(checkpoint).execute(&mut transaction.connection).await?;
    match kept.rows_affected() {
        0 => Err(Error::Output(std::io::ErrorKind::NotFound.into())),
        _ => Ok(()),
    }
}

fn decode(row: &DbRow) -> Result<SizeChange> {
    let side = |name: &str| {
        let side: i64 = row.try_get(name)?;
        u16::try_from(side).map_err(|_| Error::Unreadable(format!("the size {side} of a terminal")))
    };
    Ok(SizeChange {
        offset: unsigned(row.try_get("start")?)?,
        at: time(row.try_get("at")?)?,
        size: TerminalSize { cols: side("cols")?, rows: side("rows")? },
    })
}
