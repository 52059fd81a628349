//! The one writer: a task that owns the writing connection and does one transaction after the other.
//!
//! Because the task and not the caller drives a transaction, a caller that goes away cannot separate the commit from its
//! announcement; and because announcing happens before the next transaction begins, the order is the log's.
//!
//! The task also owns the ballast: while that is not whole the disk counts as full, and only what is essential is done.

use chrono::{DateTime, Utc};
use futures_util::future::BoxFuture;
use sqlx::{ConnectOptions as _, Connection as _, SqliteConnection, sqlite::SqliteConnectOptions};
use tokio::sync::{mpsc, oneshot, watch};

use super::fault;
use crate::{
    clock,
    store::{Error, Result, ballast::Ballast},
};

/// Callers beyond this wait to hand over their work.
const QUEUE: usize = 64;

pub(super) struct Writer {
    messages: mpsc::Sender<Message>,
}

/// Whether a change may use the room that is kept for when there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Need {
    /// It begins something, and is refused on a full disk.
    Ordinary,
    /// It ends something: refused, a full disk could never be freed.
    Essential,
}

enum Message {
    Write(Box<dyn Job>),
    Close(oneshot::Sender<()>),
}

/// An open transaction. What is written in it counts when the work returns `Ok` and the commit succeeds.
pub(super) struct Transaction {
    pub(super) connection: SqliteConnection,
    /// When all of it happens, as precise as it is stored.
    pub(super) now: DateTime<Utc>,
    /// The newest event appended in it.
    pub(super) seq: Option<u64>,
}

impl Writer {
    pub(super) fn start(
        connection: SqliteConnection,
        options: SqliteConnectOptions,
        head: watch::Sender<u64>,
        ballast: Ballast,
    ) -> Self {
        let (messages, inbox) = mpsc::channel(QUEUE);
        tokio::spawn(Task { connection: Some(connection), options, head, ballast }.run(inbox));
        Self { messages }
    }

    /// Runs `work` in a transaction of its own. If the caller is dropped before its turn, nothing happens; afterwards
    /// the work is finished and announced without it. Essential work may be run again after it found the disk full.
    pub(super) async fn write<T, F>(&self, need: Need, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: for<'t> Fn(&'t mut Transaction) -> BoxFuture<'t, Result<T>> + Send + 'static,
    {
        self.hand_over(need, work, false).await
    }

    /// Like `write`, for work that is one script with its own `BEGIN IMMEDIATE` and `COMMIT`: each trip to the
    /// database's thread and back costs about as much as the statement it carries.
    pub(super) async fn write_whole<T, F>(&self, need: Need, work: F) -> Result<T>
    where
        T: Send + 'static,
        F: for<'t> Fn(&'t mut Transaction) -> BoxFuture<'t, Result<T>> + Send + 'static,
    {
        self.hand_over(need, work, true).await
    }

    async fn hand_over<T, F>(&self, need: Need, work: F, whole: bool) -> Result<T>
    where
        T: Send + 'static,
        F: for<'t> Fn(&'t mut Transaction) -> BoxFuture<'t, Result<T>> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let job = Box::new(Write { work, need, whole, made: None, reply });
        self.messages.send(Message::Write(job)).await.map_err(|_| closed())?;
        answer.await.map_err(|_| closed())?
    }

    pub(super) async fn close(&self) {
        let (done, closed) = oneshot::channel();
        if self.messages.send(Message::Close(done)).await.is_ok() {
            // An error means that the task is gone, and the connection with it.
            closed.await.ok();
        }
    }
}

fn closed() -> Error {
    Error::Database("the store is closed".into())
}

trait Job: Send {
    fn wanted(&self) -> bool;
    fn need(&self) -> Need;
    fn whole(&self) -> bool;
    fn run<'t>(&'t mut self, transaction: &'t mut Transaction) -> BoxFuture<'t, Result<()>>;
    fn reply(self: Box<Self>, end: Result<()>);
}

struct Write<T, F> {
    work: F,
    need: Need,
    whole: bool,
    made: Option<T>,
    reply: oneshot::Sender<Result<T>>,
}

impl<T, F> Job for Write<T, F>
where
    T: Send,
    F: for<'t> Fn(&'t mut Transaction) -> BoxFuture<'t, Result<T>> + Send,
{
    fn wanted(&self) -> bool {
        !self.reply.is_closed()
    }

    fn need(&self) -> Need {
        self.need
    }

    fn whole(&self) -> bool {
        self.whole
    }

    fn run<'t>(&'t mut self, transaction: &'t mut Transaction) -> BoxFuture<'t, Result<()>> {
        let work = (self.work)(transaction);
        let made = &mut self.made;
        Box::pin(async move {
            *made = Some(work.await?);
            Ok(())
        })
    }

    fn reply(self: Box<Self>, end: Result<()>) {
        let Self { made, reply, .. } = *self;
        // Nobody may be waiting any more: what was committed is announced all the same.
        reply.send(end.and_then(|()| made.ok_or_else(closed))).ok();
    }
}

struct Task {
    /// None after a failure that left its state unknown; the next transaction opens another.
    connection: Option<SqliteConnection>,
    options: SqliteConnectOptions,
    head: watch::Sender<u64>,
    ballast: Ballast,
}

impl Task {
    async fn run(mut self, mut inbox: mpsc::Receiver<Message>) {
        while let Some(message) = inbox.recv().await {
            match message {
                Message::Write(mut job) => {
                    if job.wanted() {
                        let end = self.perform(&mut *job).await;
                        job.reply(end);
                    }
                }
                Message::Close(done) => {
                    inbox.close();
                    if let Some(connection) = self.connection.take()
                        && let Err(error) = connection.close().await
                    {
                        tracing::warn!(%error, "failed to close the database");
                    }
                    done.send(()).ok();
                    return;
                }
            }
        }
    }

    async fn perform(&mut self, job: &mut dyn Job) -> Result<()> {
        if job.need() == Need::Ordinary && !self.has_room() {
            return Err(Error::DiskFull);
        }
        let mut end = self.attempt(job).await;
        while matches!(end, Err(Error::DiskFull)) && job.need() == Need::Essential && self.ballast.give() {
            end = self.attempt(job).await;
        }
        if job.need() == Need::Essential {
            // At once: what is left of a given piece is anybody's.
            self.has_room();
        }
        end
    }

    fn has_room(&mut self) -> bool {
        self.ballast.refill().unwrap_or_else(|error| {
            // It is then a matter of luck whether a full disk can be freed, but this one is not known to be full.
            tracing::warn!(%error, "the ballast cannot be refilled");
            true
        })
    }

    async fn attempt(&mut self, job: &mut dyn Job) -> Result<()> {
        let connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.options.connect().await?,
        };
        let now = clock::now();
        let mut transaction = Transaction { connection, now, seq: None };
        let end = transaction.perform(job).await;
        if end.is_ok() {
            if let Some(seq) = transaction.seq {
                self.head.send_replace(seq);
            }
            self.connection = Some(transaction.connection);
        } else {
            self.connection = transaction.roll_back().await;
        }
        end
    }
}

impl Transaction {
    async fn perform(&mut self, job: &mut dyn Job) -> Result<()> {
        if job.whole() {
            return job.run(self).await;
        }
        // IMMEDIATE: a transaction that starts by reading could otherwise fail when it comes to writing.
        sqlx::query("BEGIN IMMEDIATE").execute(&mut self.connection).await?;
        job.run(self).await?;
        sqlx::query("COMMIT").execute(&mut self.connection).await?;
        Ok(())
    }

    async fn roll_back(mut self) -> Option<SqliteConnection> {
        match sqlx::query("ROLLBACK").execute(&mut self.connection).await {
            Ok(_) => Some(self.connection),
            Err(error) if fault::nothing_to_roll_back(&error) => Some(self.connection),
            Err(error) => {
                tracing::warn!(%error, "failed to roll back; opening the database again");
                None
            }
        }
    }
}
