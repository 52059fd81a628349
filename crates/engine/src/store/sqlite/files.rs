//! Process output beside SQLite: the files, for the rooms that ask for it.
//!
//! It is written and read on the calling thread: a few microseconds each, to and from the page cache; handing it to another
//! thread and back would cost more than the call. What may be thousands of directories long is handed over.

use std::sync::Arc;

use sandbar_api::{OutputRange, Process, ProcessId};
use sandbar_provider::Quarantine;

use crate::store::{Chunk, Error, Result, output::Output};

pub(super) struct Files(pub(super) Arc<Output>);

impl Files {
    pub(super) async fn append(&self, process: &ProcessId, chunk: &Chunk, keep: u64) -> Result<OutputRange> {
        let range = self.0.append(process, chunk, keep)?;
        if self.0.wants_spares() {
            let output = Arc::clone(&self.0);
            tokio::task::spawn_blocking(move || output.make_spares());
        }
        Ok(range)
    }

    pub(super) async fn range(&self, process: &ProcessId) -> Result<OutputRange> {
        self.0.range(process)
    }

    /// Fills in what is kept of their output.
    pub(super) async fn ranges(&self, mut processes: Vec<Process>) -> Result<Vec<Process>> {
        self.elsewhere(move |output| {
            for process in &mut processes {
                process.output = output.range(&process.id)?;
            }
            Ok(processes)
        })
        .await
    }

    pub(super) async fn read(&self, process: &ProcessId, from: u64, limit: usize) -> Result<Option<Chunk>> {
        self.0.read(process, from, limit)
    }

    pub(super) async fn remove(&self, processes: Vec<ProcessId>) -> Result<()> {
        self.elsewhere(move |output| processes.iter().try_for_each(|id| output.remove(id))).await
    }

    pub(super) async fn quarantined(&self) -> Result<Vec<(ProcessId, Quarantine)>> {
        self.elsewhere(Output::quarantined).await
    }

    pub(super) async fn remove_quarantined(&self, process: &ProcessId) -> Result<()> {
        let process = process.clone();
        self.elsewhere(move |output| output.remove_quarantined(&process)).await
    }

    pub(super) async fn close(&self) {
        let output = Arc::clone(&self.0);
        if let Err(error) = tokio::task::spawn_blocking(move || output.close()).await {
            tracing::warn!(%error, "failed to close the output");
        }
    }

    pub(super) async fn elsewhere<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Output) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let output = Arc::clone(&self.0);
        let done = tokio::task::spawn_blocking(move || work(&output)).await;
        done.map_err(|error| Error::Output(std::io::Error::other(error)))?
    }
}
