//! The pump of a process: takes its output from the guest into the store, acknowledges what is safe there, and writes
//! down how it ended. One task a process; it survives broken connections and a full disk by trying again, so that no
//! byte is lost or stored twice.

use std::{future::Future, sync::Arc, time::Duration};

use chrono::{DateTime, Utc};
use futures_util::{FutureExt as _, Stream, StreamExt as _, stream};
use sandbar_api::{Code, Exit, ExitReason, ProcessId, ProcessState, Stream as OutputStream};
use sandbar_guest::protocol::{
    self, FollowEvent, FollowFrom, FollowRequest, ForgetRequest, SignalRequest, follow_event, follow_request,
};
use sandbar_provider::{Counters, Guest};
use tokio::{sync::watch, time};
use tonic::Status;

use crate::{
    Inner, clock,
    handle::{Fate, Handle},
    limits, problem,
    process::{Live, Outcome},
    signals,
    store::{self, Chunk},
    terminals,
};

const FIRST_RETRY: Duration = Duration::from_millis(50);
const LONGEST_RETRY: Duration = Duration::from_secs(2);
/// How long whoever waits for a process waits for room on a full disk; the pump itself goes on trying.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long output of a dead guest may linger in the connection.
const DRAIN: Duration = Duration::from_millis(500);

pub(crate) struct Pump {
    pub(crate) inner: Arc<Inner>,
    pub(crate) guest: Guest,
    handle: Arc<Handle>,
    live: Arc<Live>,
    process: ProcessId,
    killed: bool,
    /// Others may follow it when it ends.
    pub(crate) kept: bool,
    /// What the sandbox had run into when the process started.
    start: Option<Counters>,
}

/// Why following came to an end.
enum Over {
    /// The process exited and nobody can write its output any more.
    Complete,
    Broken(Status),
    /// The engine is shutting down; the next one goes on.
    Halted,
}

/// What ends the repetition of a write, besides the end of the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Heed {
    /// Output of a sandbox that is over, and for which there is no room, goes with it.
    Fate,
    Nothing,
}

impl Pump {
    pub(crate) fn new(
        inner: Arc<Inner>,
        handle: Arc<Handle>,
        live: Arc<Live>,
        guest: Guest,
        process: ProcessId,
    ) -> Self {
        Self { inner, guest, handle, live, process, killed: false, kept: false, start: None }
    }

    /// Just before the process starts.
    pub(crate) async fn look(&mut self) {
        self.start = limits::counters(&self.handle).await;
    }

    /// Of a terminal that has just started.
    pub(crate) fn show(&self) {
        terminals::follow(&self.inner, &self.handle, &self.process, self.live.progress.subscribe());
    }

    pub(crate) fn dismiss(&self) {
        self.handle.dismiss(&self.process);
    }

    pub(crate) async fn run(&mut self) {
        let mut fate = self.handle.fate.subscribe();
        let mut retry = FIRST_RETRY;
        loop {
            let before = self.end();
            let status = match self.follow(&mut fate).await {
                Over::Complete => {
                    self.forget().await;
                    break;
                }
                Over::Halted => break,
                Over::Broken(status) => status,
            };
            let unknown = problem::guest_code(&status) == Some(Code::UnknownProcess);
            if !unknown && !fate.borrow().is_over() {
                match problem::guest_code(&status) {
                    None => {
                        tracing::debug!(process = %self.process, message = status.message(), "output is followed again")
                    }
                    Some(code) => {
                        tracing::warn!(process = %self.process, ?code, message = status.message(), "output cannot be followed");
                    }
                }
                if self.end() > before {
                    retry = FIRST_RETRY;
                }
                tokio::select! {
                    () = self.inner.halt.cancelled() => break,
                    () = over(&mut fate) => {}
                    () = time::sleep(retry) => retry = (retry * 2).min(LONGEST_RETRY),
                }
            }
            let fate = *fate.borrow();
            if unknown || fate.is_over() {
                self.conclude(fate).await;
                break;
            }
        }
        self.dismiss();
    }

    fn end(&self) -> u64 {
        self.live.progress.borrow().end
    }

    fn has_ended(&self) -> bool {
        self.live.progress.borrow().outcome.is_some()
    }

    async fn follow(&mut self, fate: &mut watch::Receiver<Fate>) -> Over {
        let halt = self.inner.halt.clone();
        let (safe, requests) = acknowledgements(&self.process, self.end());
        let mut guest = self.guest.clone();
        let mut events = tokio::select! {
            () = halt.cancelled() => return Over::Halted,
            () = drained(fate) => return Over::Broken(Status::unavailable("the sandbox ended")),
            opened = guest.follow(requests) => match opened {
                Ok(opened) => opened.into_inner(),
                Err(status) => return Over::Broken(status),
            },
        };
        loop {
            let event = tokio::select! {
                biased;
                () = halt.cancelled() => return Over::Halted,
                () = self.live.kill.cancelled(), if !self.killed => {
                    match self.kill().await {
                        Ok(()) => continue,
                        Err(status) => return Over::Broken(status),
                    }
                }
                event = events.message() => event,
                () = drained(fate) => return Over::Broken(Status::unavailable("the sandbox ended")),
            };
            let written = match event {
                Ok(Some(FollowEvent { event: Some(follow_event::Event::Output(output)) })) => {
                    self.take(output).await.map(|end| {
                        safe.send_replace(end);
                    })
                }
                Ok(Some(FollowEvent { event: Some(follow_event::Event::Exit(exit)) })) => self.exited(&exit).await,
                // An event of a newer guest.
                Ok(Some(FollowEvent { event: None })) => Ok(()),
                Ok(None) if self.has_ended() => return Over::Complete,
                Ok(None) => return Over::Broken(Status::unavailable("the output ended before the process")),
                Err(status) => return Over::Broken(status),
            };
            if let Err(over) = written {
                return over;
            }
        }
    }

    async fn take(&mut self, output: protocol::Output) -> Result<u64, Over> {
        let before = self.end();
        if output.offset > before {
            return Err(Over::Broken(Status::internal("the guest left out some output")));
        }
        let stream = match output.stream() {
            protocol::Stream::Stdout => OutputStream::Stdout,
            protocol::Stream::Stderr => OutputStream::Stderr,
        };
        let chunk = Chunk { offset: output.offset, stream, at: time_of(output.at_ms), data: output.data };
        let keep = self.handle.template.output_retention;
        let (inner, process) = (self.inner.clone(), self.process.clone());
        let range = self.until_written(Heed::Fate, || inner.store.append_output(&process, &chunk, keep)).await?;
        self.handle.activity.touch();
        let new = range.end.saturating_sub(before);
        self.inner.metrics.output_bytes.inc_by(new);
        if let Some(collector) = &self.live.collector {
            let skip = usize::try_from(before.saturating_sub(chunk.offset)).unwrap_or(usize::MAX);
            let mut collector = collector.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            collector.push(stream, chunk.data.get(skip..).unwrap_or_default());
        }
        self.live.progress.send_modify(|progress| progress.end = range.end);
        Ok(range.end)
    }

    async fn exited(&mut self, exit: &protocol::Exit) -> Result<(), Over> {
        if self.has_ended() {
            return Ok(());
        }
        let stopping = *self.handle.fate.borrow() != Fate::Alive;
        let reason = match exit.reason() {
            protocol::ExitReason::Timeout => ExitReason::Timeout,
            protocol::ExitReason::PidsLimit => ExitReason::PidsLimit,
            protocol::ExitReason::OutputLimit => ExitReason::OutputLimit,
            _ if stopping => ExitReason::Stopped,
            protocol::ExitReason::Killed => ExitReason::Killed,
            protocol::ExitReason::ByItself => {
                let cause = limits::cause(&self.handle, self.start, exit.code, exit.signal).await;
                cause.unwrap_or(ExitReason::Exited)
            }
        };
        let signal = Some(exit.signal).filter(|signal| *signal != 0);
        self.end_as(Outcome::Exited(Exit { code: exit.code, signal, reason }), time_of(exit.at_ms)).await
    }

    /// Writes down the end of a process that died with its sandbox.
    async fn conclude(&mut self, fate: Fate) {
        if self.has_ended() {
            return;
        }
        let outcome = match fate {
            Fate::Stopped => Outcome::Exited(killed_with_sandbox()),
            Fate::Alive | Fate::Stopping | Fate::Gone => Outcome::Lost,
        };
        if outcome == Outcome::Lost {
            self.inner.metrics.lost.inc();
        }
        if let Err(Over::Broken(status)) = self.end_as(outcome, clock::now()).await {
            tracing::error!(process = %self.process, message = status.message(), "the end of a process is not recorded");
        }
    }

    async fn end_as(&mut self, outcome: Outcome, at: DateTime<Utc>) -> Result<(), Over> {
        let (state, exit) = match &outcome {
            Outcome::Exited(exit) => (ProcessState::Exited, Some(exit.clone())),
            Outcome::Lost => (ProcessState::Lost, None),
        };
        let (inner, process, kept) = (self.inner.clone(), self.process.clone(), self.kept);
        self.until_written(Heed::Nothing, || inner.record_end(kept, &process, state, exit.clone(), at)).await?;
        self.live.progress.send_modify(|progress| progress.outcome = Some(outcome));
        Ok(())
    }

    /// Repeats a write until the store takes it. Meanwhile nothing is acknowledged, so the guest pauses the writer.
    async fn until_written<T, F>(&mut self, heed: Heed, mut write: impl FnMut() -> F) -> Result<T, Over>
    where
        F: Future<Output = store::Result<T>>,
    {
        let mut fate = self.handle.fate.subscribe();
        let mut retry = FIRST_RETRY;
        let mut first_failure = None;
        loop {
            let full = match write().await {
                Ok(written) => {
                    self.tell_full(false);
                    return Ok(written);
                }
                // The same again would be refused again: the guest's and the store's view differ, so compare anew.
                Err(
                    error @ (store::Error::Beyond { .. } | store::Error::Missing(_) | store::Error::Illegal { .. }),
                ) => {
                    return Err(Over::Broken(Status::internal(error.to_string())));
                }
                Err(error) => {
                    self.inner.metrics.writes_retried.inc();
                    if first_failure.is_none() {
                        let error = &error as &dyn std::error::Error;
                        tracing::error!(process = %self.process, error, "output waits: the store does not take it");
                    }
                    matches!(error, store::Error::DiskFull)
                }
            };
            let since = *first_failure.get_or_insert_with(time::Instant::now);
            self.tell_full(full && since.elapsed() >= PATIENCE);
            let again = time::Instant::now() + retry;
            retry = (retry * 2).min(LONGEST_RETRY);
            let mut asked = self.killed;
            loop {
                tokio::select! {
                    () = self.inner.halt.cancelled() => return Err(Over::Halted),
                    () = self.live.kill.cancelled(), if !asked => {
                        asked = true;
                        if let Err(status) = self.kill().await {
                            // The next round asks again, unless all of the sandbox is dead by then.
                            tracing::debug!(process = %self.process, message = status.message(), "it is not killed yet");
                        }
                    }
                    () = drained(&mut fate), if heed == Heed::Fate => {
                        return Err(Over::Broken(Status::unavailable("the sandbox ended")));
                    }
                    () = time::sleep_until(again) => break,
                }
            }
        }
    }

    fn tell_full(&self, full: bool) {
        self.live.progress.send_if_modified(|progress| std::mem::replace(&mut progress.disk_full, full) != full);
    }

    /// Lets the guest forget a process that is over, once nothing is left to ask it: an answer may have been typed without
    /// anybody having heard so, and the guest alone knows.
    async fn forget(&mut self) {
        let (inner, process) = (self.inner.clone(), self.process.clone());
        let settled = async move { inner.gates.approvals.pending.settled(&process).await };
        let mut settled = Box::pin(settled);
        if settled.as_mut().now_or_never().is_some() {
            return forget(&mut self.guest, &self.process).await;
        }
        let (mut guest, process, mut fate) = (self.guest.clone(), self.process.clone(), self.handle.fate.subscribe());
        let halt = self.inner.halt.clone();
        self.inner.tasks.spawn(async move {
            tokio::select! {
                // The next server asks.
                () = halt.cancelled() => {}
                () = over(&mut fate) => {}
                () = settled => forget(&mut guest, &process).await,
            }
        });
    }

    /// Ends a process that is about to be denied.
    pub(crate) async fn discard(&self) {
        discard(&self.inner, &self.handle, self.guest.clone(), self.process.clone(), 0).await;
    }

    /// Whoever waited for the process gave up.
    async fn kill(&mut self) -> Result<(), Status> {
        kill(&mut self.guest, &self.process).await?;
        self.killed = true;
        Ok(())
    }
}

/// The exit of a process that was killed by stopping or deleting its sandbox.
pub(crate) fn killed_with_sandbox() -> Exit {
    Exit { code: 128 + signals::KILL, signal: Some(signals::KILL), reason: ExitReason::Stopped }
}

fn time_of(millis: i64) -> DateTime<Utc> {
    DateTime::from_timestamp_millis(millis).unwrap_or_else(clock::now)
}

async fn over(fate: &mut watch::Receiver<Fate>) {
    // An error would mean that the handle is gone, and the sandbox with it.
    drop(fate.wait_for(|fate| fate.is_over()).await);
}

/// Returns when the sandbox is over and nothing has come from it for a while.
async fn drained(fate: &mut watch::Receiver<Fate>) {
    over(fate).await;
    time::sleep(DRAIN).await;
}

/// The requests of one `Follow`: where to start, then the newest safe offset whenever the guest is ready to read it.
fn acknowledgements(
    process: &ProcessId,
    offset: u64,
) -> (watch::Sender<u64>, impl Stream<Item = FollowRequest> + Send + 'static) {
    let from = FollowFrom { process_id: process.to_string(), offset };
    let first = FollowRequest { message: Some(follow_request::Message::From(from)) };
    let (safe, offsets) = watch::channel(offset);
    let acknowledged = stream::unfold(offsets, |mut offsets| async move {
        offsets.changed().await.ok()?;
        let offset = *offsets.borrow_and_update();
        Some((FollowRequest { message: Some(follow_request::Message::Acknowledge(offset)) }, offsets))
    });
    (safe, stream::iter([first]).chain(acknowledged))
}

async fn kill(guest: &mut Guest, process: &ProcessId) -> Result<(), Status> {
    let request = SignalRequest { process_id: process.to_string(), signal: signals::KILL };
    match guest.signal(request).await {
        Ok(_) => Ok(()),
        Err(status) => match problem::guest_code(&status) {
            Some(Code::ProcessOver | Code::UnknownProcess) => Ok(()),
            _ => Err(status),
        },
    }
}

async fn forget(guest: &mut Guest, process: &ProcessId) {
    if let Err(status) = guest.forget(ForgetRequest { process_id: process.to_string() }).await {
        // Its record in the guest is small, and the next start of the server tries again.
        tracing::debug!(%process, message = status.message(), "a guest could not forget a process");
    }
}

/// Ends a process that nobody was told of, and lets its output go. A guest that does not answer is asked again until it
/// does, or its sandbox is over.
pub(crate) async fn discard(inner: &Inner, handle: &Handle, mut guest: Guest, process: ProcessId, output_start: u64) {
    let killed = kill(&mut guest, &process).await;
    let (halt, mut fate) = (inner.halt.clone(), handle.fate.subscribe());
    inner.tasks.spawn(async move {
        let gone = async {
            if let Err(status) = killed {
                tracing::warn!(%process, message = status.message(), "a process that nobody knows of is not killed yet");
                kill_at_last(&mut guest, &process).await;
            }
            if let Err(status) = swallow(&mut guest, &process, output_start).await {
                tracing::debug!(%process, message = status.message(), "output of a process that nobody knows of");
            }
            forget(&mut guest, &process).await;
        };
        tokio::select! {
            // The next server finds it, and does the same.
            () = halt.cancelled() => {}
            () = over(&mut fate) => {}
            () = gone => {}
        }
    });
}

async fn kill_at_last(guest: &mut Guest, process: &ProcessId) {
    let mut retry = FIRST_RETRY;
    loop {
        time::sleep(retry).await;
        if kill(guest, process).await.is_ok() {
            return;
        }
        retry = (retry * 2).min(LONGEST_RETRY);
    }
}

async fn swallow(guest: &mut Guest, process: &ProcessId, start: u64) -> Result<(), Status> {
    let (safe, requests) = acknowledgements(process, start);
    let mut events = guest.follow(requests).await?.into_inner();
    while let Some(event) = events.message().await? {
        if let Some(follow_event::Event::Output(output)) = event.event {
            safe.send_replace(output.offset + output.data.len() as u64);
        }
    }
    Ok(())
}
