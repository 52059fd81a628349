//! A sandbox in memory: its record as last committed, the way to its owner, its guest while it runs, and its live
//! processes. What an exec needs is here, so that it reads nothing from the store.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use sandbar_api::{Code, Problem, ProcessId, Sandbox, SandboxId, SandboxState, Template};
use sandbar_provider::{Guest, Provider, Spec};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::task::{TaskTracker, task_tracker::TaskTrackerToken};

use crate::{
    create,
    owner::{Reply, Verb},
    problem,
    process::Live,
    store::SandboxRow,
};

/// Verbs that may wait for a sandbox's owner; more callers wait to be let in.
const MAILBOX: usize = 16;

/// What is happening to all processes of a sandbox at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    Alive,
    /// They are asked to end, or are being killed.
    Stopping,
    /// They were killed with the sandbox, by us.
    Stopped,
    /// They died with the sandbox, by themselves.
    Gone,
}

impl Fate {
    pub(crate) fn is_over(self) -> bool {
        matches!(self, Fate::Stopped | Fate::Gone)
    }
}

pub(crate) struct Handle {
    pub(crate) id: SandboxId,
    pub(crate) template: Template,
    pub(crate) provider: Arc<dyn Provider>,
    pub(crate) record: watch::Sender<Sandbox>,
    pub(crate) fate: watch::Sender<Fate>,
    /// Counts the tasks of live processes, so that the owner can wait for the last.
    pub(crate) pumps: TaskTracker,
    mailbox: mpsc::Sender<Verb>,
    running: Mutex<Running>,
}

#[derive(Default)]
struct Running {
    /// None: no process can be started.
    guest: Option<Guest>,
    live: HashMap<ProcessId, Arc<Live>>,
}

impl Handle {
    pub(crate) fn new(row: SandboxRow, provider: Arc<dyn Provider>) -> (Arc<Self>, mpsc::Receiver<Verb>) {
        let (mailbox, verbs) = mpsc::channel(MAILBOX);
        let handle = Self {
            id: row.sandbox.id.clone(),
            template: row.template,
            provider,
            record: watch::Sender::new(row.sandbox),
            fate: watch::Sender::new(Fate::Alive),
            pumps: TaskTracker::new(),
            mailbox,
            running: Mutex::default(),
        };
        (Arc::new(handle), verbs)
    }

    pub(crate) fn sandbox(&self) -> Sandbox {
        self.record.borrow().clone()
    }

    pub(crate) fn spec(&self) -> Spec {
        create::spec(&self.record.borrow(), &self.template)
    }

    pub(crate) fn state(&self) -> SandboxState {
        self.record.borrow().state
    }

    pub(crate) fn name(&self) -> String {
        self.record.borrow().name.clone()
    }

    fn running(&self) -> MutexGuard<'_, Running> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The guest, if the sandbox can be worked in now.
    pub(crate) fn guest(&self) -> Result<Guest, Problem> {
        let guest = self.running().guest.clone();
        guest.ok_or_else(|| self.closed())
    }

    fn closed(&self) -> Problem {
        let sandbox = self.record.borrow();
        match sandbox.state {
            SandboxState::Ready => Problem::new(
                Code::GuestUnreachable,
                format!("The sandbox `{}` has just ended.", sandbox.name),
                format!("`sandbar start {}` brings it back with its files.", sandbox.name),
            ),
            _ => problem::wrong_state(&sandbox),
        }
    }

    /// Lets work in. Processes of an earlier run are over by now.
    pub(crate) fn open(&self, guest: Guest) {
        self.pumps.reopen();
        self.fate.send_replace(Fate::Alive);
        self.running().guest = Some(guest);
    }

    /// Lets no more work in; what was let in before is counted in `pumps`.
    pub(crate) fn close(&self) -> Option<Guest> {
        self.pumps.close();
        self.running().guest.take()
    }

    /// Takes a process in, unless the sandbox is closed. The token counts it from this very moment, so that an owner
    /// who closes the sandbox afterwards waits for it.
    pub(crate) fn admit(&self, id: ProcessId, live: Arc<Live>) -> Result<(Guest, TaskTrackerToken), Problem> {
        let admitted = {
            let mut running = self.running();
            running.guest.clone().map(|guest| {
                running.live.insert(id, live);
                (guest, self.pumps.token())
            })
        };
        admitted.ok_or_else(|| self.closed())
    }

    pub(crate) fn dismiss(&self, id: &ProcessId) {
        self.running().live.remove(id);
    }

    pub(crate) fn live(&self, id: &ProcessId) -> Option<Arc<Live>> {
        self.running().live.get(id).cloned()
    }

    pub(crate) fn live_ids(&self) -> Vec<ProcessId> {
        self.running().live.keys().cloned().collect()
    }

    /// Asks the owner and waits for its answer. The verb is carried out even if the caller goes away.
    pub(crate) async fn ask<T>(&self, verb: impl FnOnce(Reply<T>) -> Verb) -> Result<T, Problem> {
        let (reply, answer) = oneshot::channel();
        if self.mailbox.send(verb(reply)).await.is_ok()
            && let Ok(answer) = answer.await
        {
            return answer;
        }
        Err(match self.state() {
            SandboxState::Deleted => problem::gone(&self.name()),
            _ => problem::shutting_down(),
        })
    }
}
