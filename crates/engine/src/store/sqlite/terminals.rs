//! Terminals: their sizes and checkpoints are files, only the event of a new size is in the database.

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use sandbar_api::{ProcessId, SandboxId, TerminalSize};
use serde_json::json;

use super::{SqliteStore, events::NewEvent, writer::Need::Ordinary};
use crate::store::{
    Chunk, Result,
    terminal::{SizeChange, TerminalStore},
};

#[async_trait]
impl TerminalStore for SqliteStore {
    async fn start_terminal(&self, process: &ProcessId, size: TerminalSize, at: DateTime<Utc>) -> Result<()> {
        self.output.0.record_size(process, &SizeChange { offset: 0, at, size }).map(drop)
    }

    async fn resize_terminal(&self, sandbox: &SandboxId, process: &ProcessId, change: SizeChange) -> Result<()> {
        if !self.output.0.record_size(process, &change)? {
            return Ok(());
        }
        let (sandbox, process) = (sandbox.to_string(), process.to_string());
        let SizeChange { offset, size, .. } = change;
        self.writer
            .write(Ordinary, move |transaction| {
                let (sandbox, process) = (sandbox.clone(), process.clone());
                Box::pin(async move {
                    let data = json!({ "cols": size.cols, "rows": size.rows, "offset": offset });
                    let (sandbox, process) = (Some(sandbox.as_str()), Some(process.as_str()));
                    transaction.append(NewEvent { kind: "process.resized", sandbox, process, data }).await
                })
            })
            .await
    }

    async fn terminal_sizes(&self, process: &ProcessId) -> Result<Vec<SizeChange>> {
        self.output.0.sizes(process)
    }

    async fn keep_screen(&self, process: &ProcessId, checkpoint: &[u8]) -> Result<()> {
        self.output.0.keep_screen(process, checkpoint)
    }

    async fn kept_screen(&self, process: &ProcessId) -> Result<Option<Vec<u8>>> {
        self.output.0.kept_screen(process)
    }

    async fn read_moment(&self, process: &ProcessId, from: u64, limit: usize) -> Result<Option<Chunk>> {
        self.output.0.read_moment(process, from, limit)
    }
}
