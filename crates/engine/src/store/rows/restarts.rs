//! Lines of processes that follow one another. Rarer than single processes, hence in steps.

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use sandbar_api::{Exit, Process, ProcessId, ProcessState, SandboxState, SessionId, StartProcess};
use serde_json::{Value, json};
use sqlx::Row as _;

use super::{
    Db, DbRow, Executor, This,
    columns::{self, from_json, parse, small, time},
    events::NewEvent,
    processes,
    writer::{
        Need::{Essential, Ordinary},
        Transaction,
    },
};
use crate::store::{
    Error, Result,
    restart::{By, End, KEPT, LineRow, LineState, RestartStore},
};

#[async_trait]
impl RestartStore for This {
    async fn begin_line(&self, process: &Process, request: &StartProcess) -> Result<()> {
        let (process, request) = (process.clone(), request.clone());
        self.writer
            .write(Ordinary, move |transaction| Box::pin(begin(transaction, process.clone(), request.clone())))
            .await
    }

    async fn next_run(&self, process: &Process, by: By) -> Result<bool> {
        let process = process.clone();
        let next = self.writer.write(Ordinary, move |transaction| Box::pin(next(transaction, process.clone(), by)));
        let Some(forgotten) = next.await? else { return Ok(false) };
        self.output.remove(forgotten).await?;
        Ok(true)
    }

    async fn end_run(&self, id: &ProcessId, state: ProcessState, exit: Option<Exit>, at: DateTime<Utc>) -> Result<()> {
        let ended = id.clone();
        let end = self
            .writer
            .write(Essential, move |transaction| Box::pin(end(transaction, ended.clone(), state, exit.clone(), at)));
        if end.await? || processes::exists(&self.readers, id).await? {
            return Ok(());
        }
        Err(Error::Missing(format!("process {id}")))
    }

    async fn give_up_line(&self, process: &ProcessId) -> Result<Option<LineRow>> {
        let process = process.clone();
        self.writer.write(Essential, move |transaction| Box::pin(give_up(transaction, process.clone()))).await
    }

    async fn take_up_line(&self, before: &LineRow) -> Result<()> {
        let before = before.clone();
        self.writer.write(Essential, move |transaction| Box::pin(take_up(transaction, before.clone()))).await
    }

    async fn line_of(&self, process: &ProcessId) -> Result<Option<LineRow>> {
        let row = sqlx::query(
            "SELECT * FROM restarts WHERE line = coalesce((SELECT restart_of FROM processes WHERE id = $1), $1)",
        )
        .bind(process.as_str())
        .fetch_optional(&self.readers)
        .await?;
        row.as_ref().map(decode).transpose()
    }

    async fn lines(&self, session: &SessionId) -> Result<Vec<LineRow>> {
        let rows = sqlx::query(
            "SELECT r.* FROM sandboxes AS s JOIN restarts AS r ON r.sandbox = s.id
             WHERE s.session = $1 AND s.state <> 'deleted' ORDER BY r.line",
        )
        .bind(session.as_str())
        .fetch_all(&self.readers)
        .await?;
        rows.iter().map(decode).collect()
    }

    async fn due_lines(&self, now: DateTime<Utc>) -> Result<Vec<LineRow>> {
        // Where the clock went back, what was decided later than now would wait for as long.
        let rows = sqlx::query(
            "SELECT * FROM restarts WHERE due <= $1 OR due IS NOT NULL AND changed_at > $1 ORDER BY due, line",
        )
        .bind(now.timestamp_micros())
        .fetch_all(&self.readers)
        .await?;
        rows.iter().map(decode).collect()
    }

    async fn next_due(&self) -> Result<Option<DateTime<Utc>>> {
        let due: Option<i64> = sqlx::query_scalar("SELECT min(due) FROM restarts").fetch_one(&self.readers).await?;
        due.map(time).transpose()
    }
}

async fn begin(transaction: &mut Transaction, process: Process, request: StartProcess) -> Result<()> {
    processes::insert(transaction, &process).await?;
    sqlx::query(
        "INSERT INTO restarts (line, sandbox, request, process, restarts, quick, since, state, changed_at)
         VALUES ($1, $2, $3, $1, 0, 0, $4, 'running', $4)",
    )
    .bind(process.id.as_str())
    .bind(process.sandbox.as_str())
    .bind(columns::json(&request)?)
    .bind(transaction.now.timestamp_micros())
    .execute(&mut transaction.connection)
    .await?;
    Ok(())
}

// The number of restarts only grows, so whoever read an older one comes too late.
const NEXT: &str = "
    UPDATE restarts
    SET process = $2, restarts = $3, state = 'running', due = NULL, quick = CASE WHEN $4 = 1 THEN 0 ELSE quick END, changed_at = $5
    WHERE line = $1 AND restarts = $3 - 1 AND (state = 'waiting' OR $4 = 1 AND state IN ('crash_loop', 'ended'))";

/// Those that are forgotten for it, or None if it is not recorded.
async fn next(transaction: &mut Transaction, process: Process, by: By) -> Result<Option<Vec<ProcessId>>> {
    let taken = sqlx::query(NEXT)
        .bind(process.restart_of.as_ref().map(ProcessId::as_str))
        .bind(process.id.as_str())
        .bind(i64::from(process.restarts))
        .bind(i64::from(by == By::Person))
        .bind(transaction.now.timestamp_micros())
        .execute(&mut transaction.connection)
        .await?;
    if taken.rows_affected() == 0 {
        return Ok(None);
    }
    processes::insert(transaction, &process).await?;
    let forgotten: Vec<String> = sqlx::query_scalar(
        "DELETE FROM processes WHERE sandbox = $1 AND restart_of = $2 AND restarts <= $3 - $4 AND state <> 'running'
         RETURNING id",
    )
    .bind(process.sandbox.as_str())
    .bind(process.restart_of.as_ref().map(ProcessId::as_str))
    .bind(i64::from(process.restarts))
    .bind(i64::from(KEPT))
    .fetch_all(&mut transaction.connection)
    .await?;
    forgotten.iter().map(|id| parse(id)).collect::<Result<_>>().map(Some)
}

/// Whether it was running until now.
async fn end(
    transaction: &mut Transaction,
    id: ProcessId,
    state: ProcessState,
    exit: Option<Exit>,
    at: DateTime<Utc>,
) -> Result<bool> {
    let Some(started_at) = processes::end_in_steps(transaction, &id, state, exit.as_ref(), at).await? else {
        return Ok(false);
    };
    if let Some(line) = by_process(&mut transaction.connection, &id).await? {
        decide(transaction, line, exit.as_ref(), started_at, at).await?;
    }
    Ok(true)
}

/// A process that never came to be: the first of a line takes the line along, another one counts as one that failed.
pub(super) async fn refused(transaction: &mut Transaction, id: &ProcessId) -> Result<()> {
    let Some(mut line) = by_process(&mut transaction.connection, id).await? else { return Ok(()) };
    if line.line == *id {
        sqlx::query("DELETE FROM restarts WHERE line = $1")
            .bind(id.as_str())
            .execute(&mut transaction.connection)
            .await?;
        return Ok(());
    }
    let last: String = sqlx::query_scalar(
        "SELECT id FROM processes WHERE sandbox = $1 AND (id = $2 OR restart_of = $2) ORDER BY restarts DESC LIMIT 1",
    )
    .bind(line.sandbox.as_str())
    .bind(line.line.as_str())
    .fetch_one(&mut transaction.connection)
    .await?;
    line.process = parse(&last)?;
    let now = transaction.now;
    decide(transaction, line, None, now, now).await
}

async fn decide(
    transaction: &mut Transaction,
    mut line: LineRow,
    exit: Option<&Exit>,
    started_at: DateTime<Utc>,
    at: DateTime<Utc>,
) -> Result<()> {
    let sandbox_stays = sandbox_stays(transaction, &line).await?;
    line.ended(&End { exit, started_at, at, sandbox_stays }, transaction.now);
    keep(transaction, &line).await?;
    let (kind, data) = match line.state {
        LineState::Waiting(due) => ("process.restart_due", json!({ "runs": line.quick, "due": due })),
        LineState::CrashLoop => {
            let mut data = processes::told(&line.request.argv);
            data["runs"] = line.quick.into();
            data["since"] = json!(line.since);
            data["exit"] = json!(exit);
            ("process.crash_loop", data)
        }
        LineState::Running | LineState::Leaving | LineState::Ended => return Ok(()),
    };
    tell(transaction, &line, kind, data).await
}

async fn sandbox_stays(transaction: &mut Transaction, line: &LineRow) -> Result<bool> {
    let sandbox: String = sqlx::query_scalar("SELECT state FROM sandboxes WHERE id = $1")
        .bind(line.sandbox.as_str())
        .fetch_one(&mut transaction.connection)
        .await?;
    Ok(matches!(parse(&sandbox)?, SandboxState::Creating | SandboxState::Ready | SandboxState::Paused))
}

async fn give_up(transaction: &mut Transaction, process: ProcessId) -> Result<Option<LineRow>> {
    let Some(before) = by_process(&mut transaction.connection, &process).await? else { return Ok(None) };
    let state = match before.state {
        LineState::Running => LineState::Leaving,
        LineState::Waiting(_) => LineState::Ended,
        LineState::Leaving | LineState::CrashLoop | LineState::Ended => return Ok(Some(before)),
    };
    let after = LineRow { state, changed_at: transaction.now, ..before.clone() };
    keep(transaction, &after).await?;
    if state == LineState::Ended {
        tell(transaction, &after, "process.restart_cancelled", json!({})).await?;
    }
    Ok(Some(before))
}

async fn take_up(transaction: &mut Transaction, before: LineRow) -> Result<()> {
    let given_up = match before.state {
        LineState::Running => LineState::Leaving,
        LineState::Waiting(_) => LineState::Ended,
        LineState::Leaving | LineState::CrashLoop | LineState::Ended => return Ok(()),
    };
    let found = by_process(&mut transaction.connection, &before.process).await?;
    let untouched = found.is_some_and(|line| (line.state, line.restarts) == (given_up, before.restarts));
    if !untouched || !sandbox_stays(transaction, &before).await? {
        return Ok(());
    }
    keep(transaction, &before).await?;
    match before.state {
        LineState::Waiting(due) => {
            tell(transaction, &before, "process.restart_due", json!({ "runs": before.quick, "due": due })).await
        }
        _ => Ok(()),
    }
}

async fn tell(transaction: &mut Transaction, line: &LineRow, kind: &str, mut data: Value) -> Result<()> {
    data["restart_of"] = line.line.as_str().into();
    let (sandbox, process) = (Some(line.sandbox.as_str()), Some(line.process.as_str()));
    transaction.append(NewEvent { kind, sandbox, process, data }).await
}

async fn keep(transaction: &mut Transaction, line: &LineRow) -> Result<()> {
    let (state, due) = match line.state {
        LineState::Running => ("running", None),
        LineState::Leaving => ("leaving", None),
        LineState::Waiting(due) => ("waiting", Some(due.timestamp_micros())),
        LineState::CrashLoop => ("crash_loop", None),
        LineState::Ended => ("ended", None),
    };
    sqlx::query(
        "UPDATE restarts SET process = $2, quick = $3, since = $4, state = $5, due = $6, changed_at = $7 WHERE line = $1",
    )
    .bind(line.line.as_str())
    .bind(line.process.as_str())
    .bind(i64::from(line.quick))
    .bind(line.since.timestamp_micros())
    .bind(state)
    .bind(due)
    .bind(line.changed_at.timestamp_micros())
    .execute(&mut transaction.connection)
    .await?;
    Ok(())
}

async fn by_process(executor: impl Executor<'_>, process: &ProcessId) -> Result<Option<LineRow>> {
    let row = sqlx::query::<Db>("SELECT * FROM restarts WHERE process = $1")
        .bind(process.as_str())
        .fetch_optional(executor)
        .await?;
    row.as_ref().map(decode).transpose()
}

fn decode(row: &DbRow) -> Result<LineRow> {
    let due = || match row.try_get::<Option<i64>, _>("due")? {
        Some(due) => Ok(LineState::Waiting(time(due)?)),
        None => Err(Error::Unreadable("a line that waits for no time".into())),
    };
    Ok(LineRow {
        line: parse(row.try_get("line")?)?,
        sandbox: parse(row.try_get("sandbox")?)?,
        request: from_json(row.try_get("request")?)?,
        process: parse(row.try_get("process")?)?,
        restarts: small(row.try_get("restarts")?)?,
        quick: small(row.try_get("quick")?)?,
        since: time(row.try_get("since")?)?,
        state: match row.try_get("state")? {
            "running" => LineState::Running,
            "leaving" => LineState::Leaving,
            "waiting" => due()?,
            "crash_loop" => LineState::CrashLoop,
            "ended" => LineState::Ended,
            other => return Err(Error::Unreadable(format!("the state `{other}` of a line of processes"))),
        },
        changed_at: time(row.try_get("changed_at")?)?,
    })
}
