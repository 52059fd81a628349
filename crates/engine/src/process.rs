//! Processes: acting on those that live. How they come to be is in `birth`.

mod birth;

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use sandbar_api::{Code, Exit, Problem, Process, ProcessId, ProcessState, StartProcess, TerminalSize};
use sandbar_guest::protocol::{self, CHUNK, ResizeRequest, SignalRequest, WriteInputRequest};
use sandbar_provider::Guest;
use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;

use crate::{
    Engine, Inner, clock,
    exec::Collector,
    handle::{Handle, Inside},
    problem,
    pump::Pump,
    signals,
    store::SizeChange,
    terminals,
};

pub(crate) use birth::{Next, launch, launch_next};

/// How far a live process has come, as committed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Progress {
    pub(crate) end: u64,
    pub(crate) outcome: Option<Outcome>,
    /// What comes next has waited for room on the disk for so long that nobody else should wait.
    pub(crate) disk_full: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    Exited(Exit),
    Lost,
}

/// A process whose output may still grow.
pub(crate) struct Live {
    pub(crate) progress: watch::Sender<Progress>,
    /// Cancelled when whoever waits for the process gave up: its pump kills the tree.
    pub(crate) kill: CancellationToken,
    pub(crate) collector: Option<Mutex<Collector>>,
    /// Held while the terminal is given a size, so that sizes are recorded in the order in which they came to hold.
    sizing: tokio::sync::Mutex<()>,
}

impl Live {
    pub(crate) fn new(end: u64, outcome: Option<Outcome>, collector: Option<Collector>) -> Arc<Self> {
        Arc::new(Self {
            progress: watch::Sender::new(Progress { end, outcome, disk_full: false }),
            kill: CancellationToken::new(),
            collector: collector.map(Mutex::new),
            sizing: tokio::sync::Mutex::default(),
        })
    }
}

/// A process on its way: `started` tells when it runs, or why not.
pub(crate) struct Launch {
    pub(crate) live: Arc<Live>,
    pub(crate) guest: Guest,
    pub(crate) started: oneshot::Receiver<Result<Process, Problem>>,
}

impl Engine {
    pub async fn start_process(&self, sandbox: &str, request: StartProcess) -> Result<Process, Problem> {
        let handle = self.inner.handle(sandbox).await?;
        let launch = launch(&self.inner, &handle, request, None).await?;
        launch.started.await.unwrap_or_else(|_| Err(problem::shutting_down()))
    }

    pub async fn processes(&self, sandbox: &str) -> Result<Vec<Process>, Problem> {
        let handle = self.inner.handle(sandbox).await?;
        Ok(self.inner.store.processes(&handle.id).await?)
    }

    pub async fn process(&self, sandbox: &str, process: &str) -> Result<Process, Problem> {
        let handle = self.inner.handle(sandbox).await?;
        stored(&self.inner, &handle, process).await
    }

    pub async fn write_input(
        &self,
        sandbox: &str,
        process: &str,
        offset: Option<u64>,
        data: Bytes,
        eof: bool,
    ) -> Result<u64, Problem> {
        let (mut inside, id) = self.inner.live_process(sandbox, process).await?;
        let taken = write_input(&mut inside.guest, &id, offset, data, eof).await;
        self.inner.terminals.watchers.nudge(&id);
        taken
    }

    pub async fn signal(&self, sandbox: &str, process: &str, signal: &str) -> Result<(), Problem> {
        let signal = signals::number(signal)?;
        let (inner, sandbox, process) = (self.inner.clone(), sandbox.to_owned(), process.to_owned());
        // To its end, whoever still waits: a restart policy goes with its process or not at all.
        self.inner.finish(async move { inner.send(&sandbox, &process, signal).await }).await
    }

    pub async fn resize(&self, sandbox: &str, process: &str, size: TerminalSize) -> Result<(), Problem> {
        let request = terminal(size)?;
        let handle = self.inner.handle(sandbox).await?;
        let (mut inside, id) = self.inner.live_process(sandbox, process).await?;
        let (inner, halt) = (self.inner.clone(), self.inner.halt.clone());
        let sized = async move {
            let live = handle.live(&id).ok_or_else(|| problem::process_over(id.as_str()))?;
            let _in_order = live.sizing.lock().await;
            // As it is before: what the program then paints for the new size must not be taken for the old one's.
            let before = inner.store.output_range(&id).await?.end;
            let request = ResizeRequest { process_id: id.to_string(), size: Some(request) };
            let resized = inside.guest.resize(request).await.map_err(|status| of_live(&status, &id))?.into_inner();
            let change = SizeChange { offset: resized.offset.unwrap_or(before), at: clock::now(), size };
            let stored = inner.store.resize_terminal(&handle.id, &id, change).await;
            inner.terminals.resized(&id);
            stored.map_err(|error| {
                let mut problem = Problem::from(error);
                problem.detail =
                    "The terminal has its new size, but the store did not take it: looks show the old one.".into();
                problem
            })
        };
        // Carried out also when the caller goes away: a size that holds is recorded.
        let resizing = self.inner.tasks.spawn(async move { halt.run_until_cancelled(sized).await });
        resizing.await.ok().flatten().unwrap_or_else(|| Err(problem::shutting_down()))
    }
}

impl Inner {
    async fn send(&self, sandbox: &str, process: &str, signal: i32) -> Result<(), Problem> {
        let ends = [signals::TERM, signals::KILL].contains(&signal);
        let let_in = match signal {
            signals::KILL => self.killable_process(sandbox, process).await,
            _ => self.live_process(sandbox, process).await,
        };
        let (mut inside, id) = match (let_in, process.parse()) {
            // It has ended already. If it was about to be started again, that is what there is to end.
            (Err(problem), Ok(id)) if ends && problem.code == Code::ProcessOver => {
                let given_up = self.let_go(sandbox, &id).await?;
                return given_up.map(drop).ok_or(problem);
            }
            (let_in, _) => let_in?,
        };
        // Before it ends, so that nothing follows it; but only once nothing refuses the signal.
        let given_up = if ends { self.let_go(sandbox, &id).await? } else { None };
        let request = SignalRequest { process_id: id.to_string(), signal };
        let sent = tokio::select! {
            () = self.halt.cancelled() => Err(problem::shutting_down()),
            sent = inside.guest.signal(request) => sent.map(drop).map_err(|status| of_live(&status, &id)),
        };
        match (sent, given_up) {
            (Err(problem), Some(_)) if problem.code == Code::ProcessOver => Ok(()),
            (Err(problem), Some(before)) => {
                self.take_up(&before).await;
                Err(problem)
            }
            (sent, _) => sent,
        }
    }

    async fn live_process(&self, sandbox: &str, process: &str) -> Result<(Inside, ProcessId), Problem> {
        let handle = self.handle(sandbox).await?;
        match process.parse().ok().filter(|id| handle.live(id).is_some()) {
            Some(id) => Ok((handle.enter().await?, id)),
            None => Err(problem::process_over(stored(self, &handle, process).await?.id.as_str())),
        }
    }

    /// Also one that has ended: what it started may live on, and only its guest knows.
    async fn killable_process(&self, sandbox: &str, process: &str) -> Result<(Inside, ProcessId), Problem> {
        let handle = self.handle(sandbox).await?;
        let id = match process.parse().ok().filter(|id| handle.live(id).is_some()) {
            Some(id) => id,
            None => stored(self, &handle, process).await?.id,
        };
        // Without a guest nothing of it lives, and nothing is brought back to kill it.
        if handle.guest().is_none() && handle.live(&id).is_none() {
            return Err(problem::process_over(id.as_str()));
        }
        Ok((handle.enter().await?, id))
    }
}

/// A process of the sandbox, as recorded.
pub(crate) async fn stored(inner: &Inner, handle: &Handle, process: &str) -> Result<Process, Problem> {
    let unknown = || problem::unknown_process(&handle.name(), process);
    let id = process.parse().map_err(|_| unknown())?;
    inner.store.process(&handle.id, &id).await?.ok_or_else(unknown)
}

pub(crate) fn terminal(size: TerminalSize) -> Result<protocol::TerminalSize, Problem> {
    if size.is_usable() {
        return Ok(protocol::TerminalSize { cols: size.cols.into(), rows: size.rows.into() });
    }
    Err(Problem::new(
        Code::BadRequest,
        format!("A terminal cannot have {} columns and {} rows.", size.cols, size.rows),
        "Use 1 to 9999 of each.",
    ))
}

/// We know the process, so a guest that does not has just forgotten it: it ended a moment ago.
fn of_live(status: &tonic::Status, id: &ProcessId) -> Problem {
    match problem::from_status(status) {
        problem if problem.code == Code::UnknownProcess => problem::process_over(id.as_str()),
        problem => problem,
    }
}

/// Types as one of several writers, whose bytes alone the offsets count; nothing is typed twice. Returns how many of
/// them were taken.
pub(crate) async fn type_as(
    guest: &mut Guest,
    id: &ProcessId,
    writer: &str,
    offset: Option<u64>,
    data: Bytes,
) -> Result<u64, Problem> {
    let request = WriteInputRequest {
        process_id: id.to_string(),
        offset,
        data,
        writer: writer.to_owned(),
        ..WriteInputRequest::default()
    };
    let reply = guest.write_input(request).await.map_err(|status| of_live(&status, id))?;
    Ok(reply.into_inner().offset)
}

/// In pieces that a message holds; each says where it starts, so that none is typed twice.
pub(crate) async fn write_input(
    guest: &mut Guest,
    id: &ProcessId,
    mut offset: Option<u64>,
    mut data: Bytes,
    eof: bool,
) -> Result<u64, Problem> {
    loop {
        let piece = data.split_to(data.len().min(CHUNK));
        let (last, length) = (data.is_empty(), piece.len() as u64);
        let request = WriteInputRequest {
            process_id: id.to_string(),
            offset,
            data: piece,
            eof: eof && last,
            ..WriteInputRequest::default()
        };
        let reply = guest.write_input(request).await.map_err(|status| of_live(&status, id))?;
        let taken = reply.into_inner().offset;
        if last {
            return Ok(taken);
        }
        // Not where the guest is: it may have had more of a repeated input than this piece.
        offset = Some(offset.map_or(taken, |from| from + length));
    }
}

/// Goes on with a process that the guest still knows, from where the store's output ends.
pub(crate) async fn resume(inner: &Arc<Inner>, handle: &Arc<Handle>, process: Process) -> crate::store::Result<()> {
    let range = inner.store.output_range(&process.id).await?;
    let outcome = match (process.state, process.exit) {
        (ProcessState::Running, _) => None,
        (ProcessState::Exited, Some(exit)) => Some(Outcome::Exited(exit)),
        (ProcessState::Exited, None) | (ProcessState::Lost, _) => Some(Outcome::Lost),
    };
    let live = Live::new(range.end, outcome, None);
    // The guest is gone again already: the next look at it settles this process too.
    let Some((inside, token)) = handle.readmit(&process.id, &live) else { return Ok(()) };
    if process.terminal {
        terminals::follow(inner, handle, &process.id, live.progress.subscribe());
    }
    let mut pump = Pump::new(inner.clone(), handle.clone(), live, inside.guest, process.id);
    pump.kept = process.restart.is_some();
    inner.tasks.spawn(async move {
        pump.run().await;
        drop(token);
    });
    Ok(())
}
