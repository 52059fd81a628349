//! Reading a process's output: from the store, a chunk at a time, waiting for more if asked to.

use std::sync::Arc;

use sandbar_api::{OutputChunk, Problem, Process, ProcessId, ProcessState, SandboxId};
use sandbar_guest::protocol::CHUNK;
use tokio::sync::watch;
use tokio_util::task::TaskTracker;

use crate::{Engine, Inner, problem, process, process::Progress, store};

#[derive(Debug)]
pub enum OutputItem {
    Chunk(OutputChunk),
    /// Comes once, after everything the process itself wrote; what it left running may add more.
    Exit(Process),
}

/// A place in a process's output. Never holds more than a chunk.
pub struct OutputReader {
    inner: Arc<Inner>,
    sandbox: SandboxId,
    process: ProcessId,
    offset: u64,
    source: Source,
    told_exit: bool,
    /// Where its waiting counts, so that idleness does not freeze what it waits for.
    waiting: Option<TaskTracker>,
}

enum Source {
    /// Still pumped.
    Live(watch::Receiver<Progress>),
    /// Exited; what comes before the exit ends here.
    Ended { end: u64 },
}

impl Engine {
    /// From `from`, or from the first byte that is kept.
    pub async fn output(&self, sandbox: &str, process: &str, from: Option<u64>) -> Result<OutputReader, Problem> {
        let handle = self.inner.handle(sandbox).await?;
        let live = process.parse().ok().and_then(|id| Some((handle.live(&id)?, id)));
        let (id, source) = match live {
            Some((live, id)) => (id, Source::Live(live.progress.subscribe())),
            None => {
                let process = process::stored(&self.inner, &handle, process).await?;
                (process.id, Source::Ended { end: process.output.end })
            }
        };
        let range = self.inner.store.output_range(&id).await?;
        let offset = from.unwrap_or(range.start);
        if offset > range.end {
            return Err(problem::offset_beyond(offset, range.end));
        }
        if offset < range.start {
            return Err(store::Error::Dropped { from: offset, first_kept: range.start }.into());
        }
        let (inner, sandbox, waiting) = (self.inner.clone(), handle.id.clone(), Some(handle.waiting.clone()));
        Ok(OutputReader { inner, sandbox, process: id, offset, source, told_exit: false, waiting })
    }
}

impl OutputReader {
    /// Where the next byte will be.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// For who only looks on: what idleness put away wakes when something is typed.
    pub(crate) fn looking_on(self) -> Self {
        Self { waiting: None, ..self }
    }

    /// Goes on at another place.
    pub(crate) fn go_to(&mut self, offset: u64) {
        self.offset = offset;
    }

    /// The next piece. Without `follow`, None at the current end; with it, waits for more until the exit was told.
    pub async fn next(&mut self, follow: bool) -> Result<Option<OutputItem>, Problem> {
        if follow && self.told_exit {
            return Ok(None);
        }
        loop {
            let end = self.known_end();
            if self.offset < end || self.told_exit {
                if let Some(chunk) = self.read().await? {
                    return Ok(Some(OutputItem::Chunk(chunk)));
                }
                self.offset = self.offset.max(end);
            }
            if self.told_exit {
                return Ok(None);
            }
            if let Source::Ended { .. } = self.source {
                let process = self.exit().await?;
                // Only now: who is not told because it went away is told later.
                self.told_exit = true;
                return Ok(Some(OutputItem::Exit(process)));
            }
            if !follow {
                return Ok(None);
            }
            self.wait().await?;
        }
    }

    /// The end as far as it matters now. The first look after the exit fixes it, so that a chatty descendant cannot
    /// put the exit off for ever.
    fn known_end(&mut self) -> u64 {
        let end = match &mut self.source {
            Source::Ended { end } => return *end,
            Source::Live(progress) => {
                let progress = progress.borrow_and_update();
                if progress.outcome.is_none() {
                    return progress.end;
                }
                progress.end
            }
        };
        self.source = Source::Ended { end };
        end
    }

    async fn read(&mut self) -> Result<Option<OutputChunk>, Problem> {
        let chunk = match self.inner.store.read_output(&self.process, self.offset, CHUNK).await {
            Ok(Some(chunk)) => chunk,
            // What was there is not: it went with its sandbox.
            Ok(None) | Err(store::Error::Beyond { .. }) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        self.offset = chunk.offset + chunk.data.len() as u64;
        Ok(Some(OutputChunk { offset: chunk.offset, stream: chunk.stream, data: chunk.data.into() }))
    }

    async fn exit(&self) -> Result<Process, Problem> {
        let process = self.inner.store.process(&self.sandbox, &self.process).await?;
        process.ok_or_else(|| problem::unknown_process(self.sandbox.as_str(), self.process.as_str()))
    }

    async fn wait(&mut self) -> Result<(), Problem> {
        let Source::Live(progress) = &mut self.source else { return Ok(()) };
        if progress.borrow().disk_full {
            return Err(problem::no_room_for(&self.process));
        }
        let closing = self.inner.closing.clone();
        let _waiting = self.waiting.as_ref().map(TaskTracker::token);
        tokio::select! {
            changed = progress.changed() => if changed.is_ok() { return Ok(()) },
            () = closing.cancelled() => return Err(problem::shutting_down()),
        }
        // The pump is gone: either the process ended, or the engine is about to.
        let process = self.exit().await?;
        if process.state == ProcessState::Running {
            return Err(problem::shutting_down());
        }
        self.source = Source::Ended { end: process.output.end };
        Ok(())
    }
}
