//! The task that writes output: one transaction for all that came while the last one was under way.

use std::collections::{HashMap, VecDeque};

use sandbar_api::{OutputRange, ProcessId};
use sqlx::{Connection as _, Row as _};
use tokio::sync::{
    mpsc::{self, error::TryRecvError},
    oneshot,
};

use super::{
    super::{Connection, DbRow, columns, turns::Turns},
    read::{self, stream_number},
    remove::{self, Removal},
    tail::{Batch, Last, Tail},
};
use crate::store::{Chunk, Error, Result};

/// Bytes and chunks a transaction: more would keep those that wait for it waiting.
const MOST_BYTES: usize = 4 * 1024 * 1024;
const MOST_CHUNKS: usize = 256;
/// Processes whose end is known by heart.
const MOST_TAILS: usize = 4096;

pub(super) enum Order {
    Append(Append),
    Remove(Vec<ProcessId>, oneshot::Sender<Result<()>>),
    Close(oneshot::Sender<()>),
}

pub(super) struct Append {
    pub(super) process: ProcessId,
    pub(super) chunk: Chunk,
    pub(super) keep: u64,
    pub(super) reply: oneshot::Sender<Result<OutputRange>>,
}

pub(super) struct Task {
    turns: Turns,
    /// None before the first, and after a failure that left its state unknown.
    connection: Option<Connection>,
    /// As they are committed. Forgotten after a failure: the table knows.
    tails: HashMap<ProcessId, Tail>,
    /// Taken in steps, so that nobody's output waits for all of them.
    removals: VecDeque<Removal>,
}

impl Task {
    pub(super) fn new(turns: Turns) -> Self {
        Self { turns, connection: None, tails: HashMap::new(), removals: VecDeque::new() }
    }

    pub(super) async fn run(mut self, mut inbox: mpsc::Receiver<Order>) {
        let mut next = None;
        loop {
            let order = match next.take() {
                None if self.removals.is_empty() => inbox.recv().await.ok_or(TryRecvError::Disconnected),
                None => inbox.try_recv(),
                Some(order) => Ok(order),
            };
            match order {
                Ok(Order::Append(append)) => {
                    let mut appends = vec![append];
                    next = gather(&mut appends, &mut inbox);
                    self.append(appends).await;
                }
                Ok(Order::Remove(processes, reply)) => self.removals.push_back(Removal { processes, reply }),
                Ok(Order::Close(done)) => {
                    inbox.close();
                    if let Some(connection) = self.connection.take() {
                        // Nothing is under way on it.
                        connection.close().await.ok();
                    }
                    done.send(()).ok();
                    return;
                }
                Err(TryRecvError::Disconnected) if self.removals.is_empty() => return,
                Err(_) => {}
            }
            self.remove_some().await;
        }
    }

    async fn append(&mut self, appends: Vec<Append>) {
        match self.write(&appends).await {
            Ok(ranges) => {
                for (append, range) in appends.into_iter().zip(ranges) {
                    // Who sent it may have gone; it is written all the same.
                    append.reply.send(range).ok();
                }
            }
            Err(error) => {
                for append in appends {
                    append.reply.send(Err(again(&error))).ok();
                }
            }
        }
    }

    /// What each of them is told, or why none of them is written.
    async fn write(&mut self, appends: &[Append]) -> Result<Vec<Result<OutputRange>>> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.turns.connect().await?,
        };
        let written = self.write_with(&mut connection, appends).await;
        if written.is_ok() {
            self.connection = Some(connection);
        } else {
            self.tails.clear();
            self.connection = self.turns.roll_back(connection).await;
        }
        written
    }

    async fn write_with(
        &mut self,
        connection: &mut Connection,
        appends: &[Append],
    ) -> Result<Vec<Result<OutputRange>>> {
        if self.tails.len() > MOST_TAILS {
            self.tails.clear();
        }
        let unknown: Vec<&str> = appends
            .iter()
            .map(|append| &append.process)
            .filter(|id| !self.tails.contains_key(*id))
            .map(ProcessId::as_str)
            .collect();
        if !unknown.is_empty() {
            self.tails.extend(read_tails(connection, &unknown).await?);
        }
        let known = |append: &Append| Some((append.process.clone(), *self.tails.get(&append.process)?));
        let mut batch = Batch::new(appends.iter().filter_map(known).collect());
        let ends: Vec<_> =
            appends.iter().map(|append| batch.append(&append.process, &append.chunk, append.keep)).collect();
        if !batch.rows.is_empty() || !batch.old.is_empty() {
            let turn = self.turns.begin(connection, false).await?;
            insert(connection, &batch).await?;
            for (process, first_kept) in drop_old(connection, &batch).await? {
                let tail = batch.tails.entry(process).or_insert(Tail::NONE);
                tail.range.start = tail.range.start.max(first_kept);
            }
            self.turns.commit(connection, turn).await?;
        }
        self.tails.extend(batch.tails);
        let start = |append: &Append| self.tails.get(&append.process).map_or(0, |tail| tail.range.start);
        let told = appends.iter().zip(ends).map(|(append, end)| Ok(OutputRange { start: start(append), end: end? }));
        Ok(told.collect())
    }

    async fn remove_some(&mut self) {
        let Some(removal) = self.removals.front() else { return };
        for process in &removal.processes {
            self.tails.remove(process);
        }
        let step = async {
            let mut connection = match self.connection.take() {
                Some(connection) => connection,
                None => self.turns.connect().await?,
            };
            let step = remove::some(&self.turns, &mut connection, &removal.processes).await;
            self.connection = match &step {
                Ok(_) => Some(connection),
                Err(_) => self.turns.roll_back(connection).await,
            };
            step
        };
        let end = match step.await {
            Ok(false) => return,
            Ok(true) => Ok(()),
            Err(error) => Err(error),
        };
        if let Some(removal) = self.removals.pop_front() {
            removal.reply.send(end).ok();
        }
    }
}

/// Takes what waits; returns what came in between and is something else.
fn gather(appends: &mut Vec<Append>, inbox: &mut mpsc::Receiver<Order>) -> Option<Order> {
    let mut bytes: usize = appends.iter().map(|append| append.chunk.data.len()).sum();
    while bytes < MOST_BYTES && appends.len() < MOST_CHUNKS {
        match inbox.try_recv() {
            Ok(Order::Append(append)) => {
                bytes += append.chunk.data.len();
                appends.push(append);
            }
            Ok(other) => return Some(other),
            Err(_) => return None,
        }
    }
    None
}

/// The same for everybody whose bytes were in that transaction.
fn again(error: &Error) -> Error {
    match error {
        Error::DiskFull => Error::DiskFull,
        error => {
            let cause = std::error::Error::source(error).map(|cause| format!(": {cause}"));
            Error::Database(format!("{error}{}", cause.unwrap_or_default()).into())
        }
    }
}

const TAILS: &str = "
    SELECT p.id, last.start, last.stop, last.stream, last.at,
           (SELECT start FROM output WHERE process = p.id ORDER BY start LIMIT 1) AS first
    FROM unnest($1) AS p (id) CROSS JOIN LATERAL (
        SELECT start, stop, stream, at FROM output WHERE process = p.id ORDER BY start DESC LIMIT 1) AS last";

async fn read_tails(connection: &mut Connection, processes: &[&str]) -> Result<Vec<(ProcessId, Tail)>> {
    let rows = sqlx::query(TAILS).bind(processes).fetch_all(connection).await?;
    let tail = |row: &DbRow| {
        let number = |name: &str| columns::unsigned(row.try_get(name)?);
        let last = Last {
            start: number("start")?,
            stream: read::stream(row.try_get("stream")?)?,
            at: columns::time(row.try_get("at")?)?,
        };
        let range = OutputRange { start: number("first")?, end: number("stop")? };
        Ok((columns::parse(row.try_get("id")?)?, Tail { range, last: Some(last) }))
    };
    rows.iter().map(tail).collect()
}

async fn insert(connection: &mut Connection, batch: &Batch) -> Result<()> {
    let rows = &batch.rows;
    sqlx::query(
        "INSERT INTO output (process, start, stop, stream, at, data) SELECT * FROM unnest($1, $2, $3, $4, $5, $6)",
    )
    .bind(rows.iter().map(|row| row.process.as_str()).collect::<Vec<_>>())
    .bind(rows.iter().map(|row| columns::signed(row.start)).collect::<Vec<_>>())
    .bind(rows.iter().map(|row| columns::signed(row.start + row.data.len() as u64)).collect::<Vec<_>>())
    .bind(rows.iter().map(|row| stream_number(row.stream)).collect::<Vec<_>>())
    .bind(rows.iter().map(|row| row.at.timestamp_micros()).collect::<Vec<_>>())
    .bind(rows.iter().map(|row| row.data.as_slice()).collect::<Vec<_>>())
    .execute(connection)
    .await?;
    Ok(())
}

/// Of each row that went, where the next one begins.
async fn drop_old(connection: &mut Connection, batch: &Batch) -> Result<Vec<(ProcessId, u64)>> {
    if batch.old.is_empty() {
        return Ok(Vec::new());
    }
    let gone: Vec<(String, i64)> = sqlx::query_as(
        "DELETE FROM output USING unnest($1, $2) AS old (process, below)
         WHERE output.process = old.process AND output.start < old.below RETURNING output.process, output.stop",
    )
    .bind(batch.old.keys().map(ProcessId::as_str).collect::<Vec<_>>())
    .bind(batch.old.values().map(|below| columns::signed(*below)).collect::<Vec<_>>())
    .fetch_all(connection)
    .await?;
    gone.iter().map(|(process, stop)| Ok((columns::parse(process)?, columns::unsigned(*stop)?))).collect()
}
