//! What the store keeps of terminals beside their output: the sizes they had, and a checkpoint of their screen.

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use sandbar_api::{ProcessId, SandboxId, TerminalSize};

use super::{Chunk, Result};

/// From which byte of the output on a terminal had which size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SizeChange {
    pub offset: u64,
    pub at: DateTime<Utc>,
    pub size: TerminalSize,
}

#[async_trait]
pub trait TerminalStore {
    /// The size a terminal starts with, before there is any output.
    async fn start_terminal(&self, process: &ProcessId, size: TerminalSize, at: DateTime<Utc>) -> Result<()>;
    /// Event `process.resized`; neither record nor event if the terminal has that size already.
    async fn resize_terminal(&self, sandbox: &SandboxId, process: &ProcessId, change: SizeChange) -> Result<()>;
    /// In the order of their offsets. Of very many the oldest are gone.
    async fn terminal_sizes(&self, process: &ProcessId) -> Result<Vec<SizeChange>>;

    /// Replaces the checkpoint as a whole. It is a matter of speed: losing it loses nothing.
    async fn keep_screen(&self, process: &ProcessId, checkpoint: &[u8]) -> Result<()>;
    async fn kept_screen(&self, process: &ProcessId) -> Result<Option<Vec<u8>>>;

    /// Like `read_output`, and only bytes that came at the same time, to a tenth of a second.
    async fn read_moment(&self, process: &ProcessId, from: u64, limit: usize) -> Result<Option<Chunk>>;
}
