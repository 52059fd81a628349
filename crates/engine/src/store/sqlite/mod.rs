//! The store on SQLite: one file for state and events, segments beside it for process output.
//!
//! One connection writes (`writer`), up to three read; each room below holds the statements of one kind of row.

mod approvals;
mod births;
mod columns;
mod conversations;
mod events;
mod fault;
mod found;
mod gates;
mod ledger;
mod open;
mod pools;
mod processes;
mod prune;
mod restarts;
mod sandboxes;
mod secrets;
mod sessions;
mod snapshots;
mod store;
mod terminals;
#[cfg(test)]
mod tests;
mod tokens;
mod usage;
mod webhooks;
mod writer;

use std::sync::Arc;

use sandbar_api::{Process, ProcessId};
use sqlx::SqlitePool;
use tokio::sync::watch;

use self::writer::Writer;
use super::{Error, Result, output::Output};

pub struct SqliteStore {
    writer: Writer,
    readers: SqlitePool,
    head: watch::Receiver<u64>,
    output: Arc<Output>,
}

impl SqliteStore {
    /// Fills in what is kept of their output. A list may be thousands of directories long, hence off the async threads.
    async fn with_output(&self, mut processes: Vec<Process>) -> Result<Vec<Process>> {
        self.on_files(move |output| {
            for process in &mut processes {
                process.output = output.range(&process.id)?;
            }
            Ok(processes)
        })
        .await
    }

    async fn remove_output(&self, processes: Vec<ProcessId>) -> Result<()> {
        self.on_files(move |output| processes.iter().try_for_each(|id| output.remove(id))).await
    }

    async fn on_files<T: Send + 'static>(&self, work: impl FnOnce(&Output) -> Result<T> + Send + 'static) -> Result<T> {
        let output = Arc::clone(&self.output);
        let done = tokio::task::spawn_blocking(move || work(&output)).await;
        done.map_err(|error| Error::Output(std::io::Error::other(error)))?
    }
}
