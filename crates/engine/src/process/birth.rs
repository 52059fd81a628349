//! How a process comes to be: checked, let in, recorded and started, by a task that a caller who goes away does not stop.

use std::{sync::Arc, time::Duration};

use sandbar_api::{
    Code, HumanDuration, OutputRange, Problem, Process, ProcessId, ProcessState, StartProcess, TerminalSize, check,
};
use sandbar_guest::protocol::StartRequest;
use tokio::{sync::oneshot, time};
use tokio_util::task::task_tracker::TaskTrackerToken;
use tonic::Status;

use super::{Launch, Live, terminal};
use crate::{
    Inner, clock, create,
    exec::Collector,
    gate,
    handle::{Handle, Inside},
    ids, problem,
    pump::Pump,
    restarts,
    store::{self, restart::By},
};

const WORKSPACE: &str = "/workspace";
/// Between tries to remove a record that may be there.
const UNRECORD: Duration = Duration::from_secs(2);

/// One that follows others.
pub(crate) struct Next {
    /// The first of them.
    pub(crate) of: ProcessId,
    pub(crate) restarts: u32,
    pub(crate) by: By,
}

/// How the store is told of a process.
enum Record {
    Single,
    /// Others like it may follow.
    First(StartProcess),
    Next(By),
}

/// A process that is about to be.
struct Birth {
    process: Process,
    size: Option<TerminalSize>,
    start: StartRequest,
    record: Record,
}

/// Checks the request and hands it to a task of its own, which a caller who goes away does not stop halfway.
pub(crate) async fn launch(
    inner: &Arc<Inner>,
    handle: &Arc<Handle>,
    request: StartProcess,
    collector: Option<Collector>,
) -> Result<Launch, Problem> {
    let record = if restarts::is_kept(&request) { Record::First(request.clone()) } else { Record::Single };
    let birth = plan(handle, request, record)?;
    deliver(inner, handle, birth, collector).await
}

/// The next of those that follow one another.
pub(crate) async fn launch_next(
    inner: &Arc<Inner>,
    handle: &Arc<Handle>,
    request: StartProcess,
    next: Next,
) -> Result<Launch, Problem> {
    let mut birth = plan(handle, request, Record::Next(next.by))?;
    (birth.process.restart_of, birth.process.restarts) = (Some(next.of), next.restarts);
    deliver(inner, handle, birth, None).await
}

async fn deliver(
    inner: &Arc<Inner>,
    handle: &Arc<Handle>,
    mut birth: Birth,
    collector: Option<Collector>,
) -> Result<Launch, Problem> {
    let live = Live::new(0, None, collector);
    let id = birth.process.id.clone();
    let (Inside { guest, call }, token) = handle.admit(&id, &live).await?;
    // Only now: it may just have been woken, and its gate opened with it.
    for (name, value) in gate::environment(inner, handle) {
        birth.start.env.entry(name).or_insert(value);
    }
    let (reply, started) = oneshot::channel();
    let mut pump = Pump::new(inner.clone(), handle.clone(), live.clone(), guest.clone(), id);
    pump.kept = birth.process.restart.is_some();
    inner.tasks.spawn(begin(pump, birth, reply, call, token));
    Ok(Launch { live, guest, started })
}

fn plan(handle: &Handle, request: StartProcess, record: Record) -> Result<Birth, Problem> {
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
        restart: request.restart.filter(|_| !matches!(record, Record::Single)),
        restart_of: None,
        restarts: 0,
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
    Ok(Birth { process, size: request.terminal, start, record })
}

/// Records and starts the process at once, answers when both are done, then pumps.
async fn begin(
    mut pump: Pump,
    birth: Birth,
    reply: oneshot::Sender<Result<Process, Problem>>,
    call: TaskTrackerToken,
    // Held to the end: the sandbox's owner waits for it.
    _token: TaskTrackerToken,
) {
    let (inner, mut guest) = (pump.inner.clone(), pump.guest.clone());
    let Birth { process, size, start, record } = birth;
    if let Some(size) = size
        && let Err(error) = inner.store.start_terminal(&process.id, size, process.started_at).await
    {
        pump.dismiss();
        return drop(reply.send(Err(error.into())));
    }
    // One that follows others is recorded before it starts: whoever comes second must not start anything.
    if let Record::Next(by) = record {
        let refused = match inner.store.next_run(&process, by).await {
            Ok(true) => None,
            Ok(false) => Some(problem::already_running()),
            Err(error) => Some(error.into()),
        };
        if let Some(refused) = refused {
            pump.dismiss();
            return drop(reply.send(Err(refused)));
        }
    }
    let recording = async {
        match &record {
            Record::Single => inner.store.create_process(&process).await,
            Record::First(request) => inner.store.begin_line(&process, request).await,
            Record::Next(_) => Ok(()),
        }
    };
    let (recorded, started) = tokio::join!(recording, async {
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
            unless_refused(&pump, &status).await;
            if let Err(error) = inner.store.refuse_process(&process.id, &problem.detail).await {
                tracing::error!(process = %process.id, %error, "a process that never came to be is still recorded");
            }
            inner.restarts.notify_one();
            problem
        }
        (Err(error), Ok(_)) => {
            pump.discard().await;
            unrecord(&inner, &process, &error);
            problem::unrecorded(error)
        }
        (Err(error), Err(status)) => {
            unless_refused(&pump, &status).await;
            unrecord(&inner, &process, &error);
            error.into()
        }
    };
    pump.dismiss();
    drop(reply.send(Err(refused)));
}

/// Where nobody knows whether it was started: nobody will be told of it, so it must not live.
async fn unless_refused(pump: &Pump, status: &Status) {
    if problem::guest_code(status).is_none() {
        pump.discard().await;
    }
}

/// Nobody heard whether it was recorded. The record of a process that nobody was told of goes, as soon as the store answers.
fn unrecord(inner: &Arc<Inner>, process: &Process, error: &store::Error) {
    if !error.leaves_open() {
        return;
    }
    let (inner, id) = (inner.clone(), process.id.clone());
    inner.tasks.clone().spawn(async move {
        loop {
            match inner.store.refuse_process(&id, "It could not be recorded in time.").await {
                Ok(()) | Err(store::Error::Missing(_)) => return inner.restarts.notify_one(),
                Err(error) => tracing::error!(process = %id, %error, "a process that never came to be may be recorded"),
            }
            tokio::select! {
                // The next server finds that its guest does not know it.
                () = inner.halt.cancelled() => return,
                () = time::sleep(UNRECORD) => {}
            }
        }
    });
}
