//! Commands that are started again when they end: at their time, by one task for all; by a person who asks; and not any
//! more after a person ended them, their sandbox went, or they kept dying. What is decided stands in the store
//! (`store::restart`), so that a server that dies leaves the next one exactly what is left to do.

use std::{sync::Arc, time::Duration};

use chrono::{DateTime, Utc};
use futures_util::{StreamExt as _, stream};
use sandbar_api::{
    Code, CrashLoop, Exit, Problem, Process, ProcessId, ProcessState, Restart, Restarting, SessionId, StartProcess,
};
use tokio::time;

use crate::{
    Engine, Inner,
    handle::Handle,
    problem, process,
    store::{
        self,
        restart::{By, LineRow, LineState},
    },
};

/// The clock that timers use stands still while a laptop sleeps, so the wall clock is asked at least this often.
const LONGEST_SLEEP: Duration = Duration::from_secs(60);
/// What is due and cannot be started, such as in a paused sandbox, is tried again after this.
const RETRY: Duration = Duration::from_secs(1);
/// Commands started at once.
const AT_ONCE: usize = 16;
/// For one of them, so that a sandbox that does not answer holds up none of the others.
const PATIENCE: Duration = Duration::from_secs(5);

/// Whether a process is to be followed by others; most are not.
pub(crate) fn is_kept(request: &StartProcess) -> bool {
    request.restart.is_some_and(|restart| restart != Restart::Never)
}

pub(crate) async fn watch(inner: Arc<Inner>) {
    while !inner.closing.is_cancelled() {
        let wait = round(&inner).await.unwrap_or_else(|error| {
            tracing::error!(error = &error as &dyn std::error::Error, "what is to be started again cannot be found");
            RETRY
        });
        tokio::select! {
            () = inner.closing.cancelled() => return,
            () = inner.restarts.notified() => {}
            () = time::sleep(wait) => {}
        }
    }
}

/// Starts what is due and returns how long to wait.
pub(crate) async fn round(inner: &Arc<Inner>) -> store::Result<Duration> {
    let due = inner.store.due_lines(Utc::now()).await?;
    let mut started = stream::iter(due.into_iter().map(|line| start_due(inner, line))).buffer_unordered(AT_ONCE);
    let mut left = false;
    while let Some(done) = started.next().await {
        left |= !done;
    }
    if left {
        return Ok(RETRY);
    }
    let next = inner.store.next_due().await?;
    let until = |at: DateTime<Utc>| (at - Utc::now()).to_std().unwrap_or(Duration::ZERO);
    Ok(next.map_or(LONGEST_SLEEP, until).min(LONGEST_SLEEP))
}

/// Whether nothing is left to do about it for now.
async fn start_due(inner: &Arc<Inner>, line: LineRow) -> bool {
    let id = line.line.clone();
    // A sandbox that goes takes its lines along, in a moment.
    let Some(handle) = inner.registry.by_id(&line.sandbox) else { return false };
    // What a person paused stays so, and asking it would count as using it.
    if !handle.is_within_reach() {
        return false;
    }
    // Whoever gives up waiting for it does not stop it.
    match time::timeout(PATIENCE, start(inner, &handle, line, By::Time)).await {
        Ok(Ok(_)) => true,
        // Somebody else was first, or somebody wants it no more.
        Ok(Err(problem)) if problem.code == Code::AlreadyRunning => true,
        // It counts as one that failed, and the store knows when it is tried again.
        Ok(Err(problem)) if [Code::CommandNotFound, Code::CommandNotExecutable].contains(&problem.code) => true,
        Err(_) => {
            tracing::warn!(line = %id, "a command that is due is being started for long");
            false
        }
        Ok(Err(problem)) => {
            tracing::debug!(line = %id, %problem, "a command that is due is not started yet");
            false
        }
    }
}

async fn start(inner: &Arc<Inner>, handle: &Arc<Handle>, line: LineRow, by: By) -> Result<Process, Problem> {
    let mut request = line.request;
    if request.terminal.is_some() {
        // As whoever looked at it last had it.
        let sizes = inner.store.terminal_sizes(&line.process).await?;
        request.terminal = sizes.last().map(|change| change.size).or(request.terminal);
    }
    let next = process::Next { of: line.line, restarts: line.restarts + 1, by };
    let launch = process::launch_next(inner, handle, request, next).await?;
    launch.started.await.unwrap_or_else(|_| Err(problem::shutting_down()))
}

impl Inner {
    /// Writes down the end of a process, and what follows it if it is `kept`.
    pub(crate) async fn record_end(
        &self,
        kept: bool,
        id: &ProcessId,
        state: ProcessState,
        exit: Option<Exit>,
        at: DateTime<Utc>,
    ) -> store::Result<()> {
        if !kept {
            return self.store.end_process(id, state, exit, at).await;
        }
        self.store.end_run(id, state, exit, at).await?;
        self.restarts.notify_one();
        Ok(())
    }

    /// A person ends a process: nothing is to follow it. The line as it was, if something would have.
    pub(crate) async fn let_go(&self, sandbox: &str, process: &ProcessId) -> Result<Option<LineRow>, Problem> {
        let handle = self.handle(sandbox).await?;
        // Nearly all processes are of no line, and reading is cheaper than writing.
        if self.store.line_of(process).await?.is_none_or(|line| line.sandbox != handle.id) {
            return Ok(None);
        }
        let before = self.store.give_up_line(process).await?;
        Ok(before.filter(|line| matches!(line.state, LineState::Running | LineState::Waiting(_))))
    }

    /// The process could not be ended after all: what was to follow it still is.
    pub(crate) async fn take_up(&self, before: &LineRow) {
        if let Err(error) = self.store.take_up_line(before).await {
            let error = &error as &dyn std::error::Error;
            tracing::error!(line = %before.line, error, "a restart policy is lost though its process was not ended");
        }
        self.restarts.notify_one();
    }

    /// What of a session's commands is to be started again, and what was given up.
    pub(crate) async fn dying(&self, session: &SessionId) -> Result<(Vec<Restarting>, Vec<CrashLoop>), Problem> {
        let (mut restarting, mut crash_loops) = (Vec::new(), Vec::new());
        for line in self.store.lines(session).await? {
            let LineRow { sandbox, request, process, quick: runs, .. } = line;
            match line.state {
                LineState::Waiting(due) => {
                    let exit = self.store.process(&sandbox, &process).await?.and_then(|process| process.exit);
                    restarting.push(Restarting { process, sandbox, argv: request.argv, exit, runs, due });
                }
                LineState::CrashLoop => crash_loops.push(CrashLoop {
                    exit: self.store.process(&sandbox, &process).await?.and_then(|process| process.exit),
                    process,
                    restart_of: line.line,
                    sandbox,
                    terminal: request.terminal.is_some(),
                    argv: request.argv,
                    runs,
                    since: line.since,
                    at: line.changed_at,
                }),
                LineState::Running | LineState::Leaving | LineState::Ended => {}
            }
        }
        Ok((restarting, crash_loops))
    }
}

impl Engine {
    /// Starts a command of a session again that does not run; what went wrong before is forgiven. Without a process: the
    /// one that was given up, or else the one that waits, or else the one that has ended.
    pub async fn restart_session(&self, of: &str, process: Option<&ProcessId>) -> Result<Process, Problem> {
        let inner = &self.inner;
        let session = inner.session_of(of).await?;
        let lines = inner.store.lines(&session.id).await?;
        let line = match process {
            Some(process) => {
                let line = inner.store.line_of(process).await?;
                line.filter(|line| lines.iter().any(|one| one.line == line.line)).ok_or_else(|| {
                    Problem::new(
                        Code::UnknownProcess,
                        format!("{process} is no command of this session that was started with `restart`."),
                        format!("`sandbar session show {of}` shows what keeps dying in it."),
                    )
                })?
            }
            None => only(of, lines)?,
        };
        let handle = inner.handle(line.sandbox.as_str()).await?;
        start(inner, &handle, line, By::Person).await
    }
}

/// The one that is meant when nobody says which.
fn only(of: &str, lines: Vec<LineRow>) -> Result<LineRow, Problem> {
    let rank = |line: &LineRow| match line.state {
        LineState::CrashLoop => 0,
        LineState::Waiting(_) => 1,
        LineState::Ended => 2,
        LineState::Running | LineState::Leaving => 3,
    };
    let nearest = lines.iter().map(rank).min();
    let mut meant: Vec<_> = lines.into_iter().filter(|line| Some(rank(line)) == nearest).collect();
    match (meant.pop(), meant.is_empty()) {
        (Some(one), true) => Ok(one),
        (Some(one), false) => {
            meant.push(one);
            let ids: Vec<_> = meant.iter().map(|line| line.process.as_str()).collect();
            Err(Problem::new(
                Code::BadRequest,
                format!("Several commands of this session could be meant: {}.", ids.join(", ")),
                format!("Name one: `sandbar session restart {of} PROCESS`."),
            ))
        }
        (None, _) => Err(Problem::new(
            Code::UnknownProcess,
            "No command of this session was started with `restart`.",
            "Start one with `sandbar exec`, or a session with `sandbar session new --restart on-failure`.",
        )),
    }
}
