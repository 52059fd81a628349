//! The keeper of a terminal: owns its screen, answers who looks, and saves a checkpoint now and then, so that a look never
//! reads more than a few megabytes of output.

use std::{sync::Arc, time::Duration};

use sandbar_api::{Problem, ProcessId, TerminalSize};
use sandbar_terminal::Screen;
use tokio::{
    sync::{OwnedSemaphorePermit, mpsc, oneshot, watch},
    time::{self, Instant},
};

use super::{Look, shown::Shown};
use crate::{
    Inner,
    guard::guarded,
    problem,
    process::Progress,
    store::{self, Error},
};

/// As much output as a look may have to read.
const INTERVAL: u64 = 4 << 20;
/// Read at a time, so that a long catching up lets others in between.
const PIECE: usize = 64 << 10;
/// How long a screen that nobody looks at stays in memory.
const IDLE: Duration = Duration::from_secs(60);
/// How long to wait for room before pressing for it again.
const PRESS: Duration = Duration::from_millis(50);

pub(super) type Reply<T> = oneshot::Sender<Result<T, Problem>>;

/// What is asked of a keeper: each is told as of all output that is stored by then.
pub(super) enum Ask {
    Look(Reply<Look>),
    /// For a viewer who comes now.
    Paint(Reply<Painting>),
    /// For whoever judges whether it waits for a person.
    Scene(Reply<Scene>),
}

/// What draws a screen on an empty terminal of its size, lines above it first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Painting {
    pub(super) data: String,
    pub(super) offset: u64,
    pub(super) size: TerminalSize,
}

/// What is seen, where a moment's facts about the terminal are still missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Scene {
    pub(super) offset: u64,
    pub(super) seen: sandbar_terminal::Look,
}

/// Often enough that retention never takes what came after the last checkpoint.
pub(super) fn interval(retention: u64) -> u64 {
    INTERVAL.min(retention / 2).max(PIECE as u64)
}

pub(super) struct Keeper {
    inner: Arc<Inner>,
    process: ProcessId,
    asks: mpsc::Receiver<Ask>,
    /// None when no more output will come.
    progress: Option<watch::Receiver<Progress>>,
    interval: u64,
    shown: Option<Shown>,
    /// The offset of the last checkpoint, if one is known.
    saved: u64,
}

impl Keeper {
    pub(super) fn new(
        inner: Arc<Inner>,
        process: ProcessId,
        asks: mpsc::Receiver<Ask>,
        progress: Option<watch::Receiver<Progress>>,
        interval: u64,
    ) -> Self {
        // What is stored already may be long; the first news, or the first look, finds out.
        Self { inner, process, asks, progress, interval, shown: None, saved: 0 }
    }

    pub(super) async fn run(mut self) {
        let halt = self.inner.halt.clone();
        let inner = self.inner.clone();
        let mut idle = Instant::now() + IDLE;
        loop {
            tokio::select! {
                biased;
                () = halt.cancelled() => return,
                ask = self.asks.recv() => {
                    let Some(ask) = ask else { return };
                    self.answer(ask).await;
                    idle = Instant::now() + IDLE;
                }
                more = news(&mut self.progress) => match more {
                    Some(end) if end.saturating_sub(self.saved) >= self.interval => self.save().await,
                    Some(_) => {}
                    None => {
                        self.progress = None;
                        self.save().await;
                    }
                },
                () = inner.terminals.pressed.notified(), if self.shown.is_some() => self.shown = None,
                () = time::sleep_until(idle), if self.shown.is_some() || self.progress.is_none() => {
                    self.shown = None;
                    if self.progress.is_none() {
                        inner.terminals.keepers().remove(&self.process);
                        // Those who asked just before are answered still.
                        self.asks.close();
                    }
                    idle = Instant::now() + IDLE;
                }
            }
        }
    }

    async fn answer(&mut self, ask: Ask) {
        let process = self.process.clone();
        // Whoever asked may have gone.
        match ask {
            Ask::Look(reply) => drop(reply.send(self.see(|shown| shown.look(&process)).await)),
            Ask::Paint(reply) => drop(reply.send(self.see(Shown::paint).await)),
            Ask::Scene(reply) => drop(reply.send(self.see(Shown::scene).await)),
        }
    }

    async fn see<T>(&mut self, seen: impl FnOnce(&mut Shown) -> T) -> Result<T, Problem> {
        let mut shown = self.caught_up().await?;
        let seen = seen(&mut shown);
        self.shown = Some(shown);
        Ok(seen)
    }

    /// Catches up and leaves a checkpoint there.
    async fn save(&mut self) {
        match self.caught_up().await {
            Ok(mut shown) => {
                self.keep(&mut shown).await;
                self.shown = Some(shown);
            }
            // The next look says it to whoever looks.
            Err(problem) => tracing::debug!(process = %self.process, %problem, "a terminal cannot be followed"),
        }
    }

    async fn keep(&mut self, shown: &mut Shown) {
        let kept = match shown.checkpoint() {
            Some(checkpoint) => self.inner.store.keep_screen(&self.process, &checkpoint).await,
            None => Err(Error::Unreadable("the screen cannot be told".into())),
        };
        if let Err(error) = kept {
            // Without it the next look reads more, or its sandbox was just deleted.
            tracing::debug!(process = %self.process, %error, "a checkpoint of a terminal was not written");
        }
        // Also when it failed: what cannot be written now is not tried again for every byte.
        self.saved = shown.offset();
    }

    /// The screen at what was the end of the output when this was called. Taken out, so that a failure leaves none.
    async fn caught_up(&mut self) -> Result<Shown, Problem> {
        let range = self.inner.store.output_range(&self.process).await?;
        let sizes = self.inner.store.terminal_sizes(&self.process).await?;
        let mut shown = match self.shown.take() {
            Some(mut shown) => {
                shown.learn(sizes);
                shown
            }
            None => self.rebuilt(range, sizes).await?,
        };
        while shown.offset() < range.end {
            if self.inner.halt.is_cancelled() {
                return Err(problem::shutting_down());
            }
            match self.inner.store.read_output(&self.process, shown.offset(), PIECE).await {
                Ok(Some(chunk)) => shown.feed(&chunk.data),
                Ok(None) => break,
                Err(Error::Dropped { first_kept, .. }) => shown.skip_to(first_kept),
                Err(error) => return Err(error.into()),
            }
            if shown.offset() - self.saved >= self.interval {
                self.keep(&mut shown).await;
            }
            tokio::task::yield_now().await;
        }
        Ok(shown)
    }

    async fn rebuilt(
        &mut self,
        range: sandbar_api::OutputRange,
        sizes: Vec<store::SizeChange>,
    ) -> Result<Shown, Problem> {
        let room = Some(self.room().await?);
        let kept = match self.inner.store.kept_screen(&self.process).await {
            Ok(kept) => kept,
            Err(error) => {
                tracing::warn!(process = %self.process, %error, "a checkpoint of a terminal cannot be read");
                None
            }
        };
        // What a checkpoint holds a sandbox has drawn.
        match kept.and_then(|bytes| guarded(|| Screen::restore(&bytes))) {
            Some(Ok((screen, offset))) if (range.start..=range.end).contains(&offset) => {
                self.saved = offset;
                return Ok(Shown::restored(screen, offset, sizes, room));
            }
            // Of output that is gone: after the death of a host, or retention was faster.
            Some(Ok(_)) | None => {}
            Some(Err(error)) => tracing::warn!(process = %self.process, %error, "output is read from the beginning"),
        }
        self.saved = range.start;
        Ok(Shown::blank(range.start, sizes, room))
    }

    async fn room(&self) -> Result<OwnedSemaphorePermit, Problem> {
        let terminals = &self.inner.terminals;
        loop {
            if let Ok(room) = terminals.room.clone().try_acquire_owned() {
                return Ok(room);
            }
            terminals.pressed.notify_waiters();
            tokio::select! {
                () = self.inner.halt.cancelled() => return Err(problem::shutting_down()),
                room = terminals.room.clone().acquire_owned() => return room.map_err(|_| problem::shutting_down()),
                () = time::sleep(PRESS) => {}
            }
        }
    }
}

/// Where the output ends by now, when that has changed; None when no more will come. Waits for ever without a source.
async fn news(progress: &mut Option<watch::Receiver<Progress>>) -> Option<u64> {
    let Some(progress) = progress else { return std::future::pending().await };
    progress.changed().await.ok()?;
    Some(progress.borrow_and_update().end)
}
