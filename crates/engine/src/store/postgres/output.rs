//! Process output as rows: of each process those that follow each other without a gap, the oldest going first.
//!
//! One task writes (`write`): it knows where each process's output ends and writes what came for many of them in one
//! transaction. Reading (`read`) goes to the table.

mod read;
mod remove;
mod tail;
mod write;

use sandbar_api::{OutputRange, ProcessId};
use sandbar_provider::Quarantine;
use tokio::sync::{mpsc, oneshot};

use self::write::{Append, Order, Task};
use super::{Pool, turns::Turns};
use crate::store::{Chunk, Error, Result};

/// Callers beyond this wait to hand over their bytes.
const QUEUE: usize = 256;

pub(super) struct Rows {
    orders: mpsc::Sender<Order>,
    readers: Pool,
}

impl Rows {
    pub(super) fn start(turns: Turns, readers: Pool) -> Self {
        let (orders, inbox) = mpsc::channel(QUEUE);
        tokio::spawn(Task::new(turns).run(inbox));
        Self { orders, readers }
    }

    pub(super) async fn append(&self, process: &ProcessId, chunk: &Chunk, keep: u64) -> Result<OutputRange> {
        let (reply, answer) = oneshot::channel();
        let append = Append { process: process.clone(), chunk: chunk.clone(), keep, reply };
        self.orders.send(Order::Append(append)).await.map_err(|_| closed())?;
        answer.await.map_err(|_| closed())?
    }

    /// All of their output, with what is kept of their terminals. Fine if there is none.
    pub(super) async fn remove(&self, processes: Vec<ProcessId>) -> Result<()> {
        if processes.is_empty() {
            return Ok(());
        }
        let (reply, answer) = oneshot::channel();
        self.orders.send(Order::Remove(processes, reply)).await.map_err(|_| closed())?;
        answer.await.map_err(|_| closed())?
    }

    /// Output is in the database that knows its processes: what has none was pruned, and none is anybody's.
    pub(super) async fn quarantined(&self) -> Result<Vec<(ProcessId, Quarantine)>> {
        Ok(Vec::new())
    }

    pub(super) async fn remove_quarantined(&self, _: &ProcessId) -> Result<()> {
        Ok(())
    }

    pub(super) async fn close(&self) {
        let (reply, answer) = oneshot::channel();
        if self.orders.send(Order::Close(reply)).await.is_ok() {
            // An error means that the task is gone, and the connection with it.
            answer.await.ok();
        }
    }
}

fn closed() -> Error {
    Error::Database("the store is closed".into())
}
