//! A command that a caller waits for: started, listened to, and killed with all it started when the caller goes away or its
//! time is over.

use std::{collections::HashMap, sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

use super::serving::{Common, Serving};
use crate::{
    error::{Code, Fault},
    process::{Next, Process},
    protocol::{Exit, ExitReason, StartRequest, Stream, TerminalSize},
};

/// How long what a command left running may still add to its output before the command counts as over. It goes on
/// afterwards, and nobody hears it.
const DRAIN: Duration = Duration::from_secs(5);

#[derive(Default)]
pub(super) struct Command {
    pub(super) argv: Vec<String>,
    /// Over that of every process.
    pub(super) env: HashMap<String, String>,
    pub(super) cwd: String,
    pub(super) terminal: Option<TerminalSize>,
    pub(super) stdin: bool,
    /// When it is killed.
    pub(super) by: Option<Instant>,
}

pub(super) enum Event {
    Output(Stream, Bytes),
    /// Once, and last.
    Exit(Exit),
}

pub(super) enum Broken {
    /// Its time is over.
    Late,
    Fault(Fault),
}

impl From<Fault> for Broken {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

pub(super) struct Run {
    serving: Arc<Serving>,
    process: Arc<Process>,
    pub(super) id: i32,
    changes: watch::Receiver<()>,
    offset: u64,
    acknowledged: u64,
    by: Option<Instant>,
    /// The exit, and until when more output is waited for.
    exit: Option<(Exit, Instant)>,
    over: bool,
}

impl Run {
    /// Returns when the program runs.
    pub(super) async fn start(serving: &Arc<Serving>, command: Command) -> Result<Self, Broken> {
        let Command { argv, env, cwd, terminal, stdin, by } = command;
        let id = serving.next_id()?;
        let Common { env: mut all, timeout_ms, max_output } = serving.common();
        all.extend(env);
        let process_id = id.to_string();
        let request = StartRequest { process_id, argv, env: all, cwd, terminal, stdin, timeout_ms, max_output };
        let process = serving.table.launch(request);
        let (changes, serving) = (process.changes(), Arc::clone(serving));
        // From here on whoever gives up ends it.
        let mut run = Self { serving, process, id, changes, offset: 0, acknowledged: 0, by, exit: None, over: false };
        let started = tokio::select! {
            started = run.process.started() => started,
            () = moment(by) => return Err(Broken::Late),
        };
        run.over = started.is_err();
        started?;
        Ok(run)
    }

    /// What was handed out before counts as taken: a caller that does not come for more makes the writer wait.
    pub(super) async fn next(&mut self) -> Result<Option<Event>, Broken> {
        if self.over {
            return Ok(None);
        }
        if self.acknowledged < self.offset {
            self.process.acknowledge(self.offset)?;
            self.acknowledged = self.offset;
        }
        loop {
            let now = Instant::now();
            if self.by.is_some_and(|by| by <= now) {
                return Err(Broken::Late);
            }
            if let Some((exit, until)) = self.exit
                && until <= now
            {
                return Ok(Some(self.end(exit)));
            }
            self.changes.borrow_and_update();
            match (self.process.next(self.offset, self.exit.is_some())?, self.exit) {
                (Next::Output(piece), _) => {
                    self.offset = piece.offset + piece.data.len() as u64;
                    return Ok(Some(Event::Output(piece.stream, piece.data)));
                }
                (Next::Exit(exit), _) => self.exit = Some((exit, now + DRAIN)),
                (Next::End, Some((exit, _))) => return Ok(Some(self.end(exit))),
                (Next::End, None) => {
                    return Err(Fault::new(Code::Internal, "The process was given up before it ended.").into());
                }
                (Next::Wait, exit) => tokio::select! {
                    // The sender lives in the process that we hold.
                    _ = self.changes.changed() => {}
                    () = moment(exit.map(|(_, until)| until)) => {}
                    () = moment(self.by) => {}
                },
            }
        }
    }

    fn end(&mut self, exit: Exit) -> Event {
        self.over = true;
        Event::Exit(exit)
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.serving.table.abandon(&self.process);
        if !self.over {
            let process = Arc::clone(&self.process);
            tokio::spawn(async move {
                // One that has ended meanwhile needs no killing.
                let _ended = process.kill(ExitReason::Killed).await;
            });
        }
    }
}

async fn moment(when: Option<Instant>) {
    match when {
        Some(when) => sleep_until(when).await,
        None => std::future::pending().await,
    }
}
