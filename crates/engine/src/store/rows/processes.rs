//! Processes: two transactions in the life of each. Every exec pays for both, so each is one script.

use chrono::{DateTime, Utc};
use sandbar_api::{Exit, ExitReason, OutputRange, Process, ProcessId, ProcessState, SandboxId};
use serde_json::{Value, json};
use sqlx::Row as _;

use super::{
    DbRow, Pool,
    columns::{self, flag, from_json, parse, small, text, time},
    events::NewEvent,
    restarts, scripts,
    writer::Transaction,
};
use crate::store::{Error, Result};

/// A script passed as an argument can be a mebibyte; the event tells which command it was, the row has all of it.
const ARGV_TOLD: usize = 4096;

pub(super) async fn create(transaction: &mut Transaction, process: Process) -> Result<()> {
    let query = sqlx::query_scalar(scripts::PROCESS_START)
        .bind(process.id.as_str())
        .bind(process.sandbox.as_str())
        .bind(columns::json(&process.argv)?)
        .bind(text(&process.cwd))
        .bind(i64::from(process.terminal))
        .bind(state_text(process.state))
        .bind(process.exit.as_ref().map(columns::json).transpose()?)
        .bind(process.started_at.timestamp_micros())
        .bind(process.exited_at.map(|at| at.timestamp_micros()))
        .bind(transaction.now.timestamp_micros())
        .bind(columns::json(&told(&process.argv))?);
    // All rows rather than the first: the script has to run to its end.
    match query.fetch_all(&mut transaction.connection).await?[..] {
        [seq] => transaction.appended(seq),
        _ => Err(Error::Missing(format!("sandbox {}", process.sandbox))),
    }
}

/// Like `create`, in a transaction that has more to do.
pub(super) async fn insert(transaction: &mut Transaction, process: &Process) -> Result<()> {
    let inserted = sqlx::query(
        "INSERT INTO processes (id, sandbox, argv, cwd, terminal, state, started_at, restart, restart_of, restarts)
         SELECT $1, id, $3, $4, $5, $6, $7, $8, $9, $10 FROM sandboxes WHERE id = $2 AND state <> 'deleted'",
    )
    .bind(process.id.as_str())
    .bind(process.sandbox.as_str())
    .bind(columns::json(&process.argv)?)
    .bind(text(&process.cwd))
    .bind(i64::from(process.terminal))
    .bind(state_text(process.state))
    .bind(process.started_at.timestamp_micros())
    .bind(process.restart.as_ref().map(columns::json).transpose()?)
    .bind(process.restart_of.as_ref().map(ProcessId::as_str))
    .bind(i64::from(process.restarts))
    .execute(&mut transaction.connection)
    .await?;
    if inserted.rows_affected() == 0 {
        return Err(Error::Missing(format!("sandbox {}", process.sandbox)));
    }
    let mut data = told(&process.argv);
    if let Some(first) = &process.restart_of {
        data["restart_of"] = first.as_str().into();
        data["restarts"] = process.restarts.into();
    }
    let (sandbox, id) = (Some(process.sandbox.as_str()), Some(process.id.as_str()));
    transaction.append(NewEvent { kind: "process.started", sandbox, process: id, data }).await
}

/// Whether it was running until now.
pub(super) async fn end(
    transaction: &mut Transaction,
    id: ProcessId,
    state: ProcessState,
    exit: Option<Exit>,
    at: DateTime<Utc>,
) -> Result<bool> {
    let kind = end_kind(state)?;
    let data = end_data(exit.as_ref());
    let query = sqlx::query_scalar(scripts::PROCESS_END)
        .bind(id.as_str())
        .bind(state_text(state))
        .bind(exit.as_ref().map(columns::json).transpose()?)
        .bind(at.timestamp_micros())
        .bind(transaction.now.timestamp_micros())
        .bind(kind)
        .bind(columns::json(&data)?);
    match query.fetch_all(&mut transaction.connection).await?[..] {
        [seq] => transaction.appended(seq).map(|()| true),
        _ => Ok(false),
    }
}

/// The limit of the sandbox that a process ended at, as its event tells it.
pub(super) fn limit(reason: ExitReason) -> Option<&'static str> {
    match reason {
        ExitReason::Oom => Some("memory"),
        ExitReason::PidsLimit => Some("processes"),
        ExitReason::DiskLimit => Some("disk"),
        ExitReason::Exited
        | ExitReason::Timeout
        | ExitReason::Killed
        | ExitReason::Stopped
        | ExitReason::OutputLimit => None,
    }
}

/// Like `end`, in a transaction that has more to do: tells first which limit of its sandbox was reached. When it was
/// started, if it was running until now.
pub(super) async fn end_in_steps(
    transaction: &mut Transaction,
    id: &ProcessId,
    state: ProcessState,
    exit: Option<&Exit>,
    at: DateTime<Utc>,
) -> Result<Option<DateTime<Utc>>> {
    let kind = end_kind(state)?;
    let row: Option<(String, i64)> = sqlx::query_as(
        "UPDATE processes SET state = $2, exit = $3, exited_at = $4 WHERE id = $1 AND state = 'running'
         RETURNING sandbox, started_at",
    )
    .bind(id.as_str())
    .bind(state_text(state))
    .bind(exit.map(columns::json).transpose()?)
    .bind(at.timestamp_micros())
    .fetch_optional(&mut transaction.connection)
    .await?;
    let Some((sandbox, started_at)) = row else { return Ok(None) };
    let (sandbox, process) = (Some(sandbox.as_str()), Some(id.as_str()));
    if let Some(limit) = exit.and_then(|exit| limit(exit.reason)) {
        let data = json!({ "limit": limit, "process": id.as_str() });
        transaction.append(NewEvent { kind: "sandbox.limit", sandbox, process, data }).await?;
    }
    transaction.append(NewEvent { kind, sandbox, process, data: end_data(exit) }).await?;
    time(started_at).map(Some)
}

fn end_kind(state: ProcessState) -> Result<&'static str> {
    match state {
        ProcessState::Exited => Ok("process.exited"),
        ProcessState::Lost => Ok("process.lost"),
        ProcessState::Running => Err(Error::Database("a process cannot end by running".into())),
    }
}

fn end_data(exit: Option<&Exit>) -> Value {
    exit.map_or_else(|| json!({}), |exit| json!({ "exit": exit }))
}

pub(super) async fn exists(readers: &Pool, id: &ProcessId) -> Result<bool> {
    let row = sqlx::query("SELECT 1 FROM processes WHERE id = $1").bind(id.as_str()).fetch_optional(readers).await?;
    Ok(row.is_some())
}

pub(super) async fn refuse(transaction: &mut Transaction, id: ProcessId, reason: String) -> Result<()> {
    let row = sqlx::query("DELETE FROM processes WHERE id = $1 RETURNING sandbox, argv")
        .bind(id.as_str())
        .fetch_optional(&mut transaction.connection)
        .await?
        .ok_or_else(|| Error::Missing(format!("process {id}")))?;
    let mut data = told(&from_json::<Vec<String>>(row.try_get("argv")?)?);
    data["reason"] = Value::String(reason);
    let sandbox = Some(row.try_get("sandbox")?);
    transaction.append(NewEvent { kind: "process.refused", sandbox, process: Some(id.as_str()), data }).await?;
    restarts::refused(transaction, &id).await
}

pub(super) fn told(argv: &[String]) -> Value {
    let mut room = ARGV_TOLD;
    let fits = |arg: &&String| {
        let fits = arg.len() <= room;
        room = room.saturating_sub(arg.len());
        fits
    };
    let some: Vec<&String> = argv.iter().take_while(fits).collect();
    if some.len() < argv.len() { json!({ "argv": some, "argv_cut": true }) } else { json!({ "argv": some }) }
}

/// The output's range is not in the row: the segments have it.
pub(super) async fn by_id(readers: &Pool, sandbox: &SandboxId, id: &ProcessId) -> Result<Option<Process>> {
    let row = sqlx::query("SELECT * FROM processes WHERE id = $1 AND sandbox = $2")
        .bind(id.as_str())
        .bind(sandbox.as_str())
        .fetch_optional(readers)
        .await?;
    row.as_ref().map(decode).transpose()
}

pub(super) async fn of_sandbox(readers: &Pool, sandbox: &SandboxId) -> Result<Vec<Process>> {
    let rows = sqlx::query("SELECT * FROM processes WHERE sandbox = $1 ORDER BY started_at, id")
        .bind(sandbox.as_str())
        .fetch_all(readers)
        .await?;
    rows.iter().map(decode).collect()
}

pub(super) async fn running(readers: &Pool) -> Result<Vec<Process>> {
    let rows = sqlx::query("SELECT * FROM processes WHERE state = 'running' ORDER BY id").fetch_all(readers).await?;
    rows.iter().map(decode).collect()
}

pub(super) async fn ids_of_sandbox(readers: &Pool, sandbox: &SandboxId) -> Result<Vec<ProcessId>> {
    let ids: Vec<String> = sqlx::query_scalar("SELECT id FROM processes WHERE sandbox = $1")
        .bind(sandbox.as_str())
        .fetch_all(readers)
        .await?;
    ids.iter().map(|id| parse(id)).collect()
}

fn decode(row: &DbRow) -> Result<Process> {
    Ok(Process {
        id: parse(row.try_get("id")?)?,
        sandbox: parse(row.try_get("sandbox")?)?,
        argv: from_json(row.try_get("argv")?)?,
        cwd: row.try_get("cwd")?,
        terminal: flag(row.try_get("terminal")?),
        state: state(row.try_get("state")?)?,
        exit: row.try_get::<Option<&str>, _>("exit")?.map(from_json).transpose()?,
        started_at: time(row.try_get("started_at")?)?,
        exited_at: row.try_get::<Option<i64>, _>("exited_at")?.map(time).transpose()?,
        output: OutputRange { start: 0, end: 0 },
        restart: row.try_get::<Option<&str>, _>("restart")?.map(from_json).transpose()?,
        restart_of: row.try_get::<Option<&str>, _>("restart_of")?.map(parse).transpose()?,
        restarts: small(row.try_get("restarts")?)?,
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
