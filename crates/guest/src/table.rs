//! The processes of the sandbox, by the ids their callers chose.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::{
    children::Forker,
    command::User,
    error::{Code, Fault},
    process::{Input, Process},
    protocol::{ExitReason, ProcessStatus, StartRequest},
    supervisor::Supervisor,
    tree,
};

pub(crate) struct Table {
    /// Those that were forgotten stay as long as something they started lives, so that it can be killed.
    processes: Mutex<BTreeMap<String, Arc<Process>>>,
    forker: Forker,
    user: Arc<User>,
}

impl Table {
    pub(crate) fn new(forker: Forker, user: Arc<User>) -> Self {
        Self { processes: Mutex::new(BTreeMap::new()), forker, user }
    }

    fn processes(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Process>>> {
        // One thread: see `Process::state`.
        self.processes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a process, or waits for the start of the one that already has the id.
    pub(crate) async fn start(self: &Arc<Self>, request: StartRequest) -> Result<(), Fault> {
        if request.process_id.is_empty() {
            return Err(Fault::new(Code::BadRequest, "The process has no id."));
        }
        let existing = self.processes().get(&request.process_id).cloned();
        let process = existing.unwrap_or_else(|| self.launch(request));
        process.started().await
    }

    /// In a task of its own: a caller that goes away neither stops a start nor loses it. The id must be new.
    pub(crate) fn launch(self: &Arc<Self>, request: StartRequest) -> Arc<Process> {
        let input = match (&request.terminal, request.stdin) {
            (Some(_), _) => Input::Terminal,
            (None, true) => Input::Pipe,
            (None, false) => Input::Closed,
        };
        let (process, channels) = Process::new(request.process_id.clone(), input);
        let process = Arc::new(process);
        self.processes().insert(process.id.clone(), Arc::clone(&process));
        let (table, own) = (Arc::clone(self), Arc::clone(&process));
        tokio::spawn(async move {
            let launched = Supervisor::launch(Arc::clone(&own), channels, request, &table.user, &table.forker).await;
            let outcome = match launched {
                Ok(supervisor) => supervisor.run().await,
                Err(fault) => Err(fault),
            };
            if let Err(fault) = outcome {
                // It leaves no record, and its input and followers end.
                own.change(|state| state.forgotten = true);
                own.settle_start(Err(fault));
            }
            if own.state().forgotten {
                table.processes().remove(&own.id);
            }
        });
        process
    }

    pub(crate) fn get(&self, id: &str) -> Result<Arc<Process>, Fault> {
        self.killable(id).and_then(|process| if process.state().forgotten { Err(unknown(id)) } else { Ok(process) })
    }

    /// Also one that was forgotten while what it started lives on.
    pub(crate) fn killable(&self, id: &str) -> Result<Arc<Process>, Fault> {
        self.processes().get(id).cloned().ok_or_else(|| unknown(id))
    }

    pub(crate) fn list(&self) -> Vec<ProcessStatus> {
        let processes = self.processes();
        processes.values().filter(|process| !process.state().forgotten).map(|process| process.status()).collect()
    }

    /// An empty one, for processes of the same user that this one is not to list.
    pub(crate) fn beside(&self) -> Self {
        Self::new(self.forker.clone(), Arc::clone(&self.user))
    }

    /// All that have something alive, with the pids of their minders.
    pub(crate) fn minded(&self) -> Vec<(i32, Arc<Process>)> {
        let processes = self.processes();
        processes.values().filter_map(|own| Some((own.state().minder?, Arc::clone(own)))).collect()
    }

    /// Also those that were forgotten and live.
    pub(crate) fn count(&self) -> usize {
        self.processes().len()
    }

    pub(crate) fn has(&self, id: &str) -> bool {
        self.processes().contains_key(id)
    }

    /// Takes away the record of a process that nobody asks for any more; see `Process::abandon`.
    pub(crate) fn abandon(&self, process: &Process) {
        process.abandon();
        if !process.is_supervised() {
            self.processes().remove(&process.id);
        }
    }

    /// Kills the one with the most descendants and returns its id, which is empty when nothing runs. Forks nothing, so
    /// that it works where nothing can be forked any more.
    pub(crate) async fn relieve(minded: Vec<(i32, Arc<Process>)>, reason: ExitReason) -> Result<String, Fault> {
        let minders: Vec<i32> = minded.iter().map(|(minder, _)| *minder).collect();
        let counts = tree::count_below(&minders).map_err(Fault::internal("look for what runs"))?;
        let mut candidates: Vec<_> = counts.into_iter().zip(minded).filter(|(count, _)| *count > 0).collect();
        candidates.sort_by_key(|(count, _)| std::cmp::Reverse(*count));
        for (_, (_, process)) in candidates {
            // One that has ended since it was counted has made room by itself, but perhaps not enough.
            if process.kill(reason).await.is_ok() {
                return Ok(process.id.clone());
            }
        }
        Ok(String::new())
    }

    /// Unknown ids are fine: the call may be a repeat.
    pub(crate) fn forget(&self, id: &str) -> Result<(), Fault> {
        let Some(process) = self.processes().get(id).cloned() else { return Ok(()) };
        process.forget()?;
        if !process.is_supervised() {
            self.processes().remove(id);
        }
        Ok(())
    }
}

fn unknown(id: &str) -> Fault {
    Fault::new(Code::UnknownProcess, format!("There is no process {id} in the sandbox."))
}
