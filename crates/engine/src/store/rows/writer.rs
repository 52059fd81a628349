//! The one writer: a task that owns the writing connection and does one transaction after the other.
//!
//! Because the task and not the caller drives a transaction, a caller that goes away cannot separate the commit from its
//! announcement; and because announcing happens before the next transaction begins, the order is the log's.
//!
//! How a transaction begins and ends on this database is in `turns`.

use chrono::{DateTime, Utc};
use futures_util::future::BoxFuture;
use sqlx::Connection as _;
use tokio::sync::{mpsc, oneshot, watch};

use super::{Connection, columns, turns::Turns};
use crate::{
    clock,
    store::{Error, Result},
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
    pub(super) connection: Connection,
    /// When all of it happens, as precise as it is stored.
    pub(super) now: DateTime<Utc>,
    /// The newest event appended in it.
    pub(super) seq: Option<u64>,
}

impl Writer {
    pub(super) fn start(connection: Connection, turns: Turns, head: watch::Sender<u64>) -> Self {
        let (messages, inbox) = mpsc::channel(QUEUE);
        tokio::spawn(Task { connection: Some(connection), turns, head }.run(inbox));
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

    /// Like `write`, for work whose one statement after some reading is one of the `scripts` that are transactions of their
    /// own where the database has such.
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
    connection: Option<Connection>,
    turns: Turns,
    head: watch::Sender<u64>,
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
        if job.need() == Need::Ordinary && !self.turns.has_room() {
            return Err(Error::DiskFull);
        }
        let mut end = self.attempt(job).await;
        while matches!(end, Err(Error::DiskFull)) && job.need() == Need::Essential && self.turns.make_room() {
            end = self.attempt(job).await;
        }
        if job.need() == Need::Essential {
            // At once: what is left of a given piece is anybody's.
            self.turns.has_room();
        }
        end
    }

    async fn attempt(&mut self, job: &mut dyn Job) -> Result<()> {
        let connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.connect().await?,
        };
        let mut transaction = Transaction { connection, now: clock::now(), seq: None };
        let end = transaction.perform(job, &self.turns).await;
        if end.is_ok() {
            if let Some(seq) = transaction.seq {
                self.head.send_replace(seq);
            }
            self.connection = Some(transaction.connection);
        } else {
            self.connection = self.turns.roll_back(transaction.connection).await;
        }
        end
    }

    /// What was committed while nobody heard of it is announced too.
    async fn connect(&self) -> Result<Connection> {
        let mut connection = self.turns.connect().await?;
        let newest = newest(&mut connection).await?;
        self.head.send_if_modified(|head| std::mem::replace(head, newest.max(*head)) < newest);
        Ok(connection)
    }
}

/// The number of the newest event.
pub(super) async fn newest(connection: &mut Connection) -> Result<u64> {
    let newest = sqlx::query_scalar("SELECT seq FROM event_counter WHERE one = 1").fetch_one(connection);
    columns::unsigned(newest.await?)
}

impl Transaction {
    async fn perform(&mut self, job: &mut dyn Job, turns: &Turns) -> Result<()> {
        let turn = turns.begin(&mut self.connection, job.whole()).await?;
        job.run(self).await?;
        turns.commit(&mut self.connection, turn).await
    }
}
