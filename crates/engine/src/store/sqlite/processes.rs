//! Processes: two short transactions in the life of each, because every exec pays for both.

use chrono::{DateTime, Utc};
use sandbar_api::{Exit, OutputRange, Process, ProcessId, ProcessState, SandboxId};
use serde_json::{Value, json};
use sqlx::{Row as _, SqlitePool, sqlite::SqliteRow};

use super::{
    columns::{self, from_json, parse, time},
    events::NewEvent,
    writer::Transaction,
};
use crate::store::{Error, Result};

/// A script passed as an argument can be a mebibyte; the event tells which command it was, the row has all of it.
const ARGV_TOLD: usize = 4096;

// Selecting from the sandbox makes a process of one that is deleted impossible, without a statement of its own.
const INSERT: &str = "
    INSERT INTO processes (id, sandbox, argv, cwd, terminal, state, exit, started_at, exited_at)
    SELECT $1, id, $3, $4, $5, $6, $7, $8, $9 FROM sandboxes WHERE id = $2 AND state <> 'deleted'";

pub(super) async fn create(transaction: &mut Transaction, process: Process) -> Result<()> {
    let made = sqlx::query(INSERT)
        .bind(process.id.as_str())
        .bind(process.sandbox.as_str())
        .bind(columns::json(&process.argv)?)
        .bind(&process.cwd)
        .bind(process.terminal)
        .bind(state_text(process.state))
        .bind(process.exit.as_ref().map(columns::json).transpose()?)
        .bind(process.started_at.timestamp_micros())
        .bind(process.exited_at.map(|at| at.timestamp_micros()))
        .execute(&mut transaction.connection)
        .await?;
    if made.rows_affected() == 0 {
        return Err(Error::Missing(format!("sandbox {}", process.sandbox)));
    }
    let data = told(&process.argv);
    tell(transaction, "process.started", process.sandbox.as_str(), &process.id, data).await
}

pub(super) async fn end(
    transaction: &mut Transaction,
    id: ProcessId,
    state: ProcessState,
    exit: Option<Exit>,
    at: DateTime<Utc>,
) -> Result<()> {
    let kind = match state {
        ProcessState::Exited => "process.exited",
        ProcessState::Lost => "process.lost",
        ProcessState::Running => return Err(Error::Database("a process cannot end by running".into())),
    };
    let sandbox: Option<String> = sqlx::query_scalar(
        "UPDATE processes SET state = $2, exit = $3, exited_at = $4 WHERE id = $1 AND state = 'running'
         RETURNING sandbox",
    )
    .bind(id.as_str())
    .bind(state_text(state))
    .bind(exit.as_ref().map(columns::json).transpose()?)
    .bind(at.timestamp_micros())
    .fetch_optional(&mut transaction.connection)
    .await?;
    let Some(sandbox) = sandbox else {
        let known = sqlx::query("SELECT 1 FROM processes WHERE id = $1")
            .bind(id.as_str())
            .fetch_optional(&mut transaction.connection)
            .await?;
        return known.map(|_| ()).ok_or_else(|| Error::Missing(format!("process {id}")));
    };
    let data = exit.map_or_else(|| json!({}), |exit| json!({ "exit": exit }));
    tell(transaction, kind, &sandbox, &id, data).await
}

pub(super) async fn refuse(transaction: &mut Transaction, id: ProcessId, reason: String) -> Result<()> {
    let row = sqlx::query("DELETE FROM processes WHERE id = $1 RETURNING sandbox, argv")
        .bind(id.as_str())
        .fetch_optional(&mut transaction.connection)
        .await?
        .ok_or_else(|| Error::Missing(format!("process {id}")))?;
    let mut data = told(&from_json::<Vec<String>>(row.try_get("argv")?)?);
    data["reason"] = Value::String(reason);
    tell(transaction, "process.refused", row.try_get("sandbox")?, &id, data).await
}

fn told(argv: &[String]) -> Value {
    let mut room = ARGV_TOLD;
    let fits = |arg: &&String| {
        let fits = arg.len() <= room;
        room = room.saturating_sub(arg.len());
        fits
    };
    let some: Vec<&String> = argv.iter().take_while(fits).collect();
    if some.len() < argv.len() { json!({ "argv": some, "argv_cut": true }) } else { json!({ "argv": some }) }
}

async fn tell(
    transaction: &mut Transaction,
    kind: &str,
    sandbox: &str,
    process: &ProcessId,
    data: Value,
) -> Result<()> {
    let event = NewEvent { kind, sandbox: Some(sandbox), process: Some(process.as_str()), data };
    transaction.append(event).await
}

/// The output's range is not in the row: the segments have it.
pub(super) async fn by_id(readers: &SqlitePool, sandbox: &SandboxId, id: &ProcessId) -> Result<Option<Process>> {
    let row = sqlx::query("SELECT * FROM processes WHERE id = $1 AND sandbox = $2")
        .bind(id.as_str())
        .bind(sandbox.as_str())
        .fetch_optional(readers)
        .await?;
    row.as_ref().map(decode).transpose()
}

pub(super) async fn of_sandbox(readers: &SqlitePool, sandbox: &SandboxId) -> Result<Vec<Process>> {
    let rows = sqlx::query("SELECT * FROM processes WHERE sandbox = $1 ORDER BY started_at, id")
        .bind(sandbox.as_str())
        .fetch_all(readers)
        .await?;
    rows.iter().map(decode).collect()
}

pub(super) async fn running(readers: &SqlitePool) -> Result<Vec<Process>> {
    let rows = sqlx::query("SELECT * FROM processes WHERE state = 'running' ORDER BY id").fetch_all(readers).await?;
    rows.iter().map(decode).collect()
}

pub(super) async fn ids_of_sandbox(readers: &SqlitePool, sandbox: &SandboxId) -> Result<Vec<ProcessId>> {
    let ids: Vec<String> = sqlx::query_scalar("SELECT id FROM processes WHERE sandbox = $1")
        .bind(sandbox.as_str())
        .fetch_all(readers)
        .await?;
    ids.iter().map(|id| parse(id)).collect()
}

/// Those of `ids` whose output is to be kept.
pub(super) async fn living(readers: &SqlitePool, ids: &[ProcessId]) -> Result<Vec<ProcessId>> {
    let ids: Vec<String> = sqlx::query_scalar(
        "SELECT p.id FROM processes AS p JOIN sandboxes AS s ON s.id = p.sandbox
         WHERE p.id IN (SELECT value FROM json_each($1)) AND s.state <> 'deleted'",
    )
    .bind(columns::json(&ids)?)
    .fetch_all(readers)
    .await?;
    ids.iter().map(|id| parse(id)).collect()
}

fn decode(row: &SqliteRow) -> Result<Process> {
    Ok(Process {
        id: parse(row.try_get("id")?)?,
        sandbox: parse(row.try_get("sandbox")?)?,
        argv: from_json(row.try_get("argv")?)?,
        cwd: row.try_get("cwd")?,
        terminal: row.try_get("terminal")?,
        state: state(row.try_get("state")?)?,
        exit: row.try_get::<Option<&str>, _>("exit")?.map(from_json).transpose()?,
        started_at: time(row.try_get("started_at")?)?,
        exited_at: row.try_get::<Option<i64>, _>("exited_at")?.map(time).transpose()?,
        output: OutputRange { start: 0, end: 0 },
    })
}

fn state_text(state: ProcessState) -> &'static str {
    match state {
        ProcessState::Running => "running",
        ProcessState::Exited => "exited",
        ProcessState::Lost => "lost",
    }
}

fn state(text: &str) -> Result<ProcessState> {
    match text {
        "running" => Ok(ProcessState::Running),
        "exited" => Ok(ProcessState::Exited),
        "lost" => Ok(ProcessState::Lost),
        other => Err(Error::Unreadable(format!("the process state `{other}`"))),
    }
}
