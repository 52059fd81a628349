//! The keeper of a terminal: owns its screen and follows what a running one prints, so that who comes sees it at once and
//! queries of programs are answered; saves a checkpoint now and then, so that a new start never reads more than a few
//! megabytes of output.

use std::{sync::Arc, time::Duration};

use chrono::{DateTime, Utc};
use sandbar_api::{Problem, ProcessId, TerminalSize};
use sandbar_terminal::Screen;
use tokio::{
    sync::{OwnedSemaphorePermit, mpsc, oneshot, watch},
    time::{self, Instant},
};

use super::{
    Look, MAILBOX,
    replies::{Replies, YOUNG},
    shown::Shown,
};
use crate::{
    Inner, clock,
    guard::guarded,
    handle::Handle,
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
/// After so much news that it may be heavy, more of it is let come together.
const BREATH: Duration = Duration::from_millis(5);
/// Worked at a time; whoever asks, and other screens that want room, are heard in between.
const SLICE: Duration = Duration::from_millis(10);
/// While its program prints faster than a screen can be drawn, a keeper rests so many times as long as it works: those who
/// carry the output need the processors, and what is behind is caught up with when the program pauses.
const REST: u32 = 3;
/// How long to wait for room before pressing for it again.
const PRESS: Duration = Duration::from_millis(50);

/// How long who comes waits for the newest output; the rest comes as output.
const GLANCE: Duration = Duration::from_millis(20);
/// How long who looks waits for it, and who judges; what they see says how much of the output it shows.
const LOOKING: Duration = Duration::from_secs(2);
const JUDGING: Duration = Duration::from_secs(1);

pub(super) type Reply<T> = oneshot::Sender<Result<T, Problem>>;

/// What is asked of a keeper: each is told as of all output that is stored by then or, of a program that prints faster than
/// a screen can be drawn, of less, with its offset.
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

/// How far to catch up.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Until {
    /// The end, or this moment.
    Moment(Instant),
    /// The end, or this moment, or that somebody asks.
    Asked(Instant),
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
    /// Types the answers to queries; none when nobody asks any more.
    replies: Option<Replies>,
    /// Queries before this offset were answered, or are not ours to answer.
    answered: u64,
    /// Catching up was left off.
    behind: bool,
}

impl Keeper {
    pub(super) fn new(
        inner: Arc<Inner>,
        handle: Arc<Handle>,
        process: ProcessId,
        asks: mpsc::Receiver<Ask>,
        progress: Option<watch::Receiver<Progress>>,
        interval: u64,
    ) -> Self {
        // What is stored already was asked of a server before, if of any.
        let answered = progress.as_ref().map_or(0, |progress| progress.borrow().end);
        let replies = progress.is_some().then(|| Replies::new(&inner, handle, process.clone()));
        Self { inner, process, asks, progress, interval, shown: None, saved: 0, replies, answered, behind: false }
    }

    pub(super) async fn run(mut self) {
        let halt = self.inner.halt.clone();
        let inner = self.inner.clone();
        let mut idle = Instant::now() + IDLE;
        let mut rested = Instant::now();
        loop {
            tokio::select! {
                biased;
                () = halt.cancelled() => return,
                ask = self.asks.recv() => {
                    let Some(ask) = ask else { return };
                    self.answer_all(ask).await;
                    idle = Instant::now() + IDLE;
                }
                more = news(&mut self.progress, rested, self.behind) => {
                    if !more {
                        self.progress = None;
                        self.replies = None;
                    }
                    rested = Instant::now() + self.follow().await;
                    idle = Instant::now() + IDLE;
                }
                () = inner.terminals.pressed.notified(), if self.shown.is_some() => self.give_up().await,
                () = time::sleep_until(idle), if self.shown.is_some() || self.progress.is_none() => {
                    self.give_up().await;
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

    /// Whoever asked while one was answered has waited with it, and not once more.
    async fn answer_all(&mut self, ask: Ask) {
        let asked_at = Instant::now();
        self.answer(ask, asked_at).await;
        for _ in 0..MAILBOX {
            let Ok(ask) = self.asks.try_recv() else { return };
            self.answer(ask, asked_at).await;
        }
    }

    async fn answer(&mut self, ask: Ask, asked_at: Instant) {
        let process = self.process.clone();
        // Whoever asked may have gone.
        match ask {
            Ask::Look(reply) => drop(reply.send(self.see(asked_at + LOOKING, |shown| shown.look(&process)).await)),
            Ask::Paint(reply) => drop(reply.send(self.see(asked_at + GLANCE, Shown::paint).await)),
            Ask::Scene(reply) => drop(reply.send(self.see(asked_at + JUDGING, Shown::scene).await)),
        }
    }

    async fn see<T>(&mut self, until: Instant, seen: impl FnOnce(&mut Shown) -> T) -> Result<T, Problem> {
        let mut shown = self.caught_up(Until::Moment(until)).await?;
        let seen = seen(&mut shown);
        self.shown = Some(shown);
        Ok(seen)
    }

    /// Takes in some of what was printed. How long to rest then.
    async fn follow(&mut self) -> Duration {
        let began = Instant::now();
        let before = self.shown.as_ref().map(Shown::offset);
        if let Some(progress) = &mut self.progress {
            progress.mark_unchanged();
        }
        match self.caught_up(Until::Asked(began + SLICE)).await {
            Ok(mut shown) => {
                // At the end of its process it stays as it is.
                if self.progress.is_none() && !self.behind {
                    self.keep(&mut shown).await;
                }
                let heavy = before.is_none_or(|before| shown.offset() - before >= PIECE as u64);
                self.shown = Some(shown);
                let prints = self.progress.as_ref().is_some_and(|progress| progress.has_changed().unwrap_or(false));
                match (heavy || self.behind, prints) {
                    (true, true) => BREATH.max(began.elapsed() * REST),
                    (true, false) if !self.behind => BREATH,
                    _ => Duration::ZERO,
                }
            }
            // The next look says it to whoever looks.
            Err(problem) => {
                self.behind = false;
                tracing::debug!(process = %self.process, %problem, "a terminal cannot be followed");
                BREATH
            }
        }
    }

    /// Lets the screen go; to make it again costs no more than to read its checkpoint.
    async fn give_up(&mut self) {
        if let Some(mut shown) = self.shown.take()
            && shown.offset() != self.saved
        {
            self.keep(&mut shown).await;
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

    /// The screen at what was the end of the output when this was called, or before, if it was left off. Taken out, so
    /// that a failure leaves none.
    async fn caught_up(&mut self, until: Until) -> Result<Shown, Problem> {
        self.behind = false;
        let range = self.inner.store.output_range(&self.process).await?;
        let sizes = self.inner.store.terminal_sizes(&self.process).await?;
        let mut shown = match self.shown.take().filter(|shown| !shown.is_misdrawn(&sizes)) {
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
            self.behind = match until {
                // Not where output could not go on.
                Until::Moment(moment) => Instant::now() >= moment && shown.offset() >= range.start,
                Until::Asked(moment) => Instant::now() >= moment || !self.asks.is_empty(),
            };
            if self.behind {
                break;
            }
            // Fed once with an ear for queries, and piece by piece, so that an answer says what it answers.
            let fresh = self.replies.is_some() && shown.offset() >= self.answered;
            let read = if fresh {
                self.inner.store.read_moment(&self.process, shown.offset(), PIECE).await
            } else {
                let old = usize::try_from(self.answered.saturating_sub(shown.offset())).unwrap_or(usize::MAX);
                let limit = if self.replies.is_some() { PIECE.min(old) } else { PIECE };
                self.inner.store.read_output(&self.process, shown.offset(), limit).await
            };
            match read {
                Ok(Some(chunk)) => {
                    let asked = shown.feed(&chunk.data);
                    if fresh {
                        self.answered = shown.offset();
                        self.reply(asked, chunk.at);
                    }
                }
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

    fn reply(&self, data: Vec<u8>, asked_at: DateTime<Utc>) {
        let young = clock::now().signed_duration_since(asked_at).to_std().is_ok_and(|age| age < YOUNG);
        if let Some(replies) = &self.replies
            && !data.is_empty()
            && young
        {
            replies.give(self.answered, data);
        }
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
            // Who has waited longest has nothing to do.
            terminals.pressed.notify_one();
            tokio::select! {
                () = self.inner.halt.cancelled() => return Err(problem::shutting_down()),
                room = terminals.room.clone().acquire_owned() => return room.map_err(|_| problem::shutting_down()),
                () = time::sleep(PRESS) => {}
            }
        }
    }
}

/// Whether there is something to take in, or nothing more will come, but not before `rested`. Waits for ever without a source.
async fn news(progress: &mut Option<watch::Receiver<Progress>>, rested: Instant, behind: bool) -> bool {
    time::sleep_until(rested).await;
    match progress {
        _ if behind => true,
        Some(progress) => progress.changed().await.is_ok(),
        None => std::future::pending().await,
    }
}
