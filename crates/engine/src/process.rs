//! Processes: starting them, and acting on those that live.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use sandbar_api::{
    Code, Exit, HumanDuration, OutputRange, Problem, Process, ProcessId, ProcessState, StartProcess, TerminalSize,
    check,
};
use sandbar_guest::protocol::{self, CHUNK, ResizeRequest, SignalRequest, StartRequest, WriteInputRequest};
use sandbar_provider::Guest;
use tokio::sync::{oneshot, watch};
use tokio_util::{sync::CancellationToken, task::task_tracker::TaskTrackerToken};

use crate::{
    Engine, Inner, clock, create,
    exec::Collector,
    gate,
    handle::{Handle, Inside},
    ids, problem,
    pump::{self, Pump},
    signals,
    store::SizeChange,
    terminals,
};

const WORKSPACE: &str = "/workspace";

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
}

impl Live {
    pub(crate) fn new(end: u64, outcome: Option<Outcome>, collector: Option<Collector>) -> Arc<Self> {
        Arc::new(Self {
            progress: watch::Sender::new(Progress { end, outcome, disk_full: false }),
            kill: CancellationToken::new(),
            collector: collector.map(Mutex::new),
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
        let (mut inside, id) = self.live_process(sandbox, process).await?;
        write_input(&mut inside.guest, &id, offset, data, eof).await
    }

    pub async fn signal(&self, sandbox: &str, process: &str, signal: &str) -> Result<(), Problem> {
        let signal = signals::number(signal)?;
        let (mut inside, id) = match signal {
            signals::KILL => self.killable_process(sandbox, process).await?,
            _ => self.live_process(sandbox, process).await?,
        };
        let request = SignalRequest { process_id: id.to_string(), signal };
        inside.guest.signal(request).await.map_err(|status| of_live(&status, &id))?;
        Ok(())
    }

    pub async fn resize(&self, sandbox: &str, process: &str, size: TerminalSize) -> Result<(), Problem> {
        let request = terminal(size)?;
        let handle = self.inner.handle(sandbox).await?;
        let (mut inside, id) = self.live_process(sandbox, process).await?;
        // As it is before: what the program then paints for the new size must not be taken for the old one's.
        let offset = self.inner.store.output_range(&id).await?.end;
        let request = ResizeRequest { process_id: id.to_string(), size: Some(request) };
        inside.guest.resize(request).await.map_err(|status| of_live(&status, &id))?;
        let change = SizeChange { offset, at: clock::now(), size };
        self.inner.store.resize_terminal(&handle.id, &id, change).await.map_err(|error| {
            let mut problem = Problem::from(error);
            problem.detail =
                "The terminal has its new size, but the store did not take it: looks show the old one.".into();
            problem
        })
    }

    async fn live_process(&self, sandbox: &str, process: &str) -> Result<(Inside, ProcessId), Problem> {
        let handle = self.inner.handle(sandbox).await?;
        match process.parse().ok().filter(|id| handle.live(id).is_some()) {
            Some(id) => Ok((handle.enter().await?, id)),
            None => Err(problem::process_over(stored(&self.inner, &handle, process).await?.id.as_str())),
        }
    }

    /// Also one that has ended: what it started may live on, and only its guest knows.
    async fn killable_process(&self, sandbox: &str, process: &str) -> Result<(Inside, ProcessId), Problem> {
        let handle = self.inner.handle(sandbox).await?;
        let id = match process.parse().ok().filter(|id| handle.live(id).is_some()) {
            Some(id) => id,
            None => stored(&self.inner, &handle, process).await?.id,
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

/// Checks the request and hands it to a task of its own, which a caller who goes away does not stop halfway.
pub(crate) async fn launch(
    inner: &Arc<Inner>,
    handle: &Arc<Handle>,
    request: StartProcess,
    collector: Option<Collector>,
) -> Result<Launch, Problem> {
    let size = request.terminal;
    let (process, mut start) = plan(handle, request)?;
    let live = Live::new(0, None, collector);
    let (Inside { guest, call }, token) = handle.admit(&process.id, &live).await?;
    // Only now: it may just have been woken, and its gate opened with it.
    for (name, value) in gate::environment(inner, handle) {
        start.env.entry(name).or_insert(value);
    }
    let (reply, started) = oneshot::channel();
    let pump = Pump::new(inner.clone(), handle.clone(), live.clone(), guest.clone(), process.id.clone());
    inner.tasks.spawn(begin(pump, process, size, start, reply, call, token));
    Ok(Launch { live, guest, started })
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
    inner.tasks.spawn(async move {
        pump.run().await;
        drop(token);
    });
    Ok(())
}

fn plan(handle: &Handle, request: StartProcess) -> Result<(Process, StartRequest), Problem> {
    check::argv(&request.argv)?;
    check::env(&request.env)?;
    let cwd = request.cwd.as_deref().map_or_else(|| Ok(WORKSPACE.to_owned()), check::path)?;
    let size = request.terminal.map(terminal).transpose()?;
    let millis = |time: HumanDuration| u64::try_from(time.0.as_millis()).unwrap_or(u64::MAX);
    let limits = &handle.template.limits;
    if request.timeout.map(millis) == Some(0) {
        return Err(Problem::new(
            Code::BadDuration,
            "A timeout of zero leaves no time to run.",
            "Give a longer one, or none.",
        ));
    }
    // Zero means no limit to the guest, so what is stated is never less than one.
    let timeout_ms = request.timeout.into_iter().chain(limits.wall_time).map(|time| millis(time).max(1)).min();
    let env = create::merge([&handle.template.env, &handle.record.borrow().env, &request.env]);
    check::env(&env)?;
    let now = clock::now();
    let process = Process {
        id: ids::process(now)?,
        sandbox: handle.id.clone(),
        argv: request.argv.clone(),
        cwd: cwd.clone(),
        terminal: size.is_some(),
        state: ProcessState::Running,
        exit: None,
        started_at: now,
        exited_at: None,
        output: OutputRange { start: 0, end: 0 },
    };
    let start = StartRequest {
        process_id: process.id.to_string(),
        argv: request.argv,
        env: env.into_iter().collect(),
        cwd,
        stdin: request.stdin || size.is_some(),
        terminal: size,
        timeout_ms: timeout_ms.unwrap_or(0),
        max_output: limits.output.map_or(0, |size| size.0.max(1)),
    };
    Ok((process, start))
}

/// Records and starts the process at once, answers when both are done, then pumps.
async fn begin(
    mut pump: Pump,
    process: Process,
    size: Option<TerminalSize>,
    start: StartRequest,
    reply: oneshot::Sender<Result<Process, Problem>>,
    call: TaskTrackerToken,
    // Held to the end: the sandbox's owner waits for it.
    _token: TaskTrackerToken,
) {
    let (inner, mut guest) = (pump.inner.clone(), pump.guest.clone());
    if let Some(size) = size
        && let Err(error) = inner.store.start_terminal(&process.id, size, process.started_at).await
    {
        pump.dismiss();
        return drop(reply.send(Err(error.into())));
    }
    let (recorded, started) = tokio::join!(inner.store.create_process(&process), async {
        pump.look().await;
        guest.start(start).await
    });
    drop(call);
    let refused = match (recorded, started) {
        (Ok(()), Ok(_)) => {
            inner.metrics.processes_started.inc();
            if process.terminal {
                pump.show();
            }
            // A caller that went away: `start_process` leaves the process running, `exec` cancelled `kill`.
            drop(reply.send(Ok(process)));
            return pump.run().await;
        }
        (Ok(()), Err(status)) => {
            let problem = problem::from_status(&status);
            if problem::guest_code(&status).is_none() {
                // Nobody knows whether it was started; nobody will be told of it, so it must not live.
                pump::discard(&inner, guest, process.id.clone(), 0).await;
            }
            if let Err(error) = inner.store.refuse_process(&process.id, &problem.detail).await {
                tracing::error!(process = %process.id, %error, "a process that never came to be is still recorded");
            }
            problem
        }
        (Err(error), Ok(_)) => {
            pump::discard(&inner, guest, process.id.clone(), 0).await;
            error.into()
        }
        (Err(error), Err(_)) => error.into(),
    };
    pump.dismiss();
    drop(reply.send(Err(refused)));
}
