//! A sandbox in memory: its record as last committed, the way to its owner, its guest while it runs, and its live
//! processes. What an exec needs is here, so that it reads nothing from the store.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use sandbar_api::{
    Code, Enforcement, HumanDuration, Problem, ProcessId, Sandbox, SandboxId, SandboxState, SessionId, Template,
};
use sandbar_gateway::Authority;
use sandbar_provider::{Guest, Provider, Spec};
use tokio::{
    sync::{Semaphore, mpsc, oneshot, watch},
    time,
};
use tokio_util::task::{TaskTracker, task_tracker::TaskTrackerToken};

use crate::{
    activity::Activity,
    create,
    gate::{Door, Furnished, Rules},
    limits::Reached,
    owner::{self, Reply, Verb},
    ports, problem,
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
    /// How long each use as a workspace puts its expiry off.
    pub(crate) lease: Option<HumanDuration>,
    pub(crate) provider: Arc<dyn Provider>,
    pub(crate) record: watch::Sender<Sandbox>,
    pub(crate) fate: watch::Sender<Fate>,
    /// Counts the tasks of live processes, so that the owner can wait for the last.
    pub(crate) pumps: TaskTracker,
    pub(crate) activity: Activity,
    /// Where it may talk to.
    pub(crate) rules: Rules,
    /// Signs the certificates its gate shows.
    pub(crate) authority: Arc<Authority>,
    pub(crate) reached: Mutex<Reached>,
    /// What the last probe inside saw.
    pub(crate) enforcement: Mutex<Option<Enforcement>>,
    /// Counts callers who wait for a process, its end or its next word: to pause it would be to keep them waiting for ever.
    pub(crate) waiting: TaskTracker,
    /// Connections from outside to its ports.
    pub(crate) dials: Arc<Semaphore>,
    /// It is about to be called ready, and can be worked in when this turns false.
    opening: watch::Sender<bool>,
    /// Counts calls on their way through the guest, so that a pause need not catch them halfway.
    calls: TaskTracker,
    /// Counts calls that change files: their workers go on while the workload stands still.
    changes: TaskTracker,
    mailbox: mpsc::Sender<Verb>,
    running: Mutex<Running>,
}

#[derive(Default)]
struct Running {
    /// None: no process can be started.
    guest: Option<Guest>,
    /// Paused, or about to be: no work is let in, though the guest and its processes stay.
    held: bool,
    /// Its gate, while it runs.
    door: Option<Door>,
    live: HashMap<ProcessId, Arc<Live>>,
}

/// What becomes of a call to a sandbox that idleness put away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IfAsleep {
    /// The sandbox comes back first.
    Wake,
    /// The call is refused, and the sandbox stays as it is.
    Refuse,
}

/// A call that was let in.
pub(crate) struct Inside {
    pub(crate) guest: Guest,
    /// Held while the guest works on the call.
    pub(crate) call: TaskTrackerToken,
}

impl Handle {
    pub(crate) fn new(
        row: SandboxRow,
        provider: Arc<dyn Provider>,
        gate: Furnished,
    ) -> (Arc<Self>, mpsc::Receiver<Verb>) {
        let (mailbox, verbs) = mpsc::channel(MAILBOX);
        let handle = Self {
            id: row.sandbox.id.clone(),
            template: row.template,
            lease: row.lease,
            provider,
            record: watch::Sender::new(row.sandbox),
            fate: watch::Sender::new(Fate::Alive),
            pumps: TaskTracker::new(),
            activity: Activity::default(),
            rules: gate.rules,
            authority: gate.authority,
            reached: Mutex::default(),
            enforcement: Mutex::default(),
            waiting: TaskTracker::new(),
            dials: Arc::new(Semaphore::new(ports::MOST)),
            opening: watch::Sender::new(false),
            calls: TaskTracker::new(),
            changes: TaskTracker::new(),
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

    pub(crate) fn session(&self) -> SessionId {
        self.record.borrow().session.clone()
    }

    pub(crate) fn is_of(&self, session: &SessionId) -> bool {
        self.record.borrow().session == *session
    }

    /// Where programs inside find the gate.
    pub(crate) fn gate_port(&self) -> Option<u16> {
        self.running().door.as_ref().map(|door| door.port)
    }

    pub(crate) fn state(&self) -> SandboxState {
        self.record.borrow().state
    }

    /// Whether whoever wants to work in it is let in, perhaps after it was woken.
    pub(crate) fn is_within_reach(&self) -> bool {
        let sandbox = self.record.borrow();
        sandbox.state == SandboxState::Ready || owner::is_put_away(&sandbox)
    }

    pub(crate) fn name(&self) -> String {
        self.record.borrow().name.clone()
    }

    fn running(&self) -> MutexGuard<'_, Running> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The guest while the sandbox runs, also while it is paused.
    pub(crate) fn guest(&self) -> Option<Guest> {
        self.running().guest.clone()
    }

    /// Lets a call in that works in the sandbox. What idleness put away comes back first.
    pub(crate) async fn enter(&self) -> Result<Inside, Problem> {
        self.enter_if(IfAsleep::Wake).await
    }

    /// Lets a call in that only looks.
    pub(crate) async fn enter_if(&self, asleep: IfAsleep) -> Result<Inside, Problem> {
        let enter = |running: &mut Running| Some(Inside { guest: running.guest.clone()?, call: self.calls.token() });
        self.admitted(asleep, enter).await
    }

    /// Lets a call in that changes files. The token is held until the guest has answered, whoever still waits for that.
    pub(crate) async fn enter_to_change(&self) -> Result<(Inside, TaskTrackerToken), Problem> {
        let change = |running: &mut Running| {
            let guest = running.guest.clone()?;
            Some((Inside { guest, call: self.calls.token() }, self.changes.token()))
        };
        self.admitted(IfAsleep::Wake, change).await
    }

    /// Takes a process in. The token counts it from this very moment, so that an owner who closes the sandbox
    /// afterwards waits for it.
    pub(crate) async fn admit(&self, id: &ProcessId, live: &Arc<Live>) -> Result<(Inside, TaskTrackerToken), Problem> {
        self.admitted(IfAsleep::Wake, |running| self.take_in(running, id, live)).await
    }

    /// Takes in a process that was found running.
    pub(crate) fn readmit(&self, id: &ProcessId, live: &Arc<Live>) -> Option<(Inside, TaskTrackerToken)> {
        self.take_in(&mut self.running(), id, live)
    }

    fn take_in(&self, running: &mut Running, id: &ProcessId, live: &Arc<Live>) -> Option<(Inside, TaskTrackerToken)> {
        let guest = running.guest.clone()?;
        running.live.insert(id.clone(), live.clone());
        Some((Inside { guest, call: self.calls.token() }, self.pumps.token()))
    }

    async fn admitted<T>(
        &self,
        asleep: IfAsleep,
        mut admit: impl FnMut(&mut Running) -> Option<T>,
    ) -> Result<T, Problem> {
        loop {
            // Who does not wake it does not put off either what comes next for it.
            if asleep == IfAsleep::Refuse && owner::is_put_away(&self.record.borrow()) {
                return Err(problem::asleep(&self.record.borrow()));
            }
            // Before it is let in: an owner that lets nobody in any more looks at this afterwards.
            self.activity.touch();
            // Who read `ready` in the store a moment before it is so here waits for that moment.
            if *self.opening.borrow() {
                drop(self.opening.subscribe().wait_for(|opening| !*opening).await);
            }
            let held = {
                let mut running = self.running();
                if !running.held
                    && let Some(admitted) = admit(&mut running)
                {
                    return Ok(admitted);
                }
                running.held
            };
            let wakes = {
                let sandbox = self.record.borrow();
                // Held and not yet called paused: the owner is at it, and knows better when it is done.
                (held && sandbox.state == SandboxState::Ready) || owner::is_put_away(&sandbox)
            };
            if !wakes {
                return Err(self.closed());
            }
            if asleep == IfAsleep::Refuse {
                return Err(problem::asleep(&self.record.borrow()));
            }
            self.ask(Verb::Wake).await?;
        }
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

    /// From here until it is opened, or closed again, whoever wants to work in it waits.
    pub(crate) fn announce(&self) {
        self.opening.send_replace(true);
    }

    /// Lets work in. Processes of an earlier run are over by now.
    pub(crate) fn open(&self, guest: Guest, door: Option<Door>) {
        self.pumps.reopen();
        self.fate.send_replace(Fate::Alive);
        self.activity.begin(Duration::ZERO);
        *self.reached.lock().unwrap_or_else(PoisonError::into_inner) = Reached::default();
        *self.enforcement.lock().unwrap_or_else(PoisonError::into_inner) = None;
        {
            let mut running = self.running();
            running.held = false;
            running.guest = Some(guest);
            running.door = door;
        }
        self.opening.send_replace(false);
    }

    /// Lets no more work in; what was let in before is counted in `pumps`.
    pub(crate) fn close(&self) -> Option<Guest> {
        self.pumps.close();
        self.opening.send_replace(false);
        let mut running = self.running();
        running.door = None;
        running.guest.take()
    }

    /// Lets no work in until it is released.
    pub(crate) fn hold(&self) {
        self.running().held = true;
    }

    pub(crate) fn is_held(&self) -> bool {
        self.running().held
    }

    pub(crate) fn release(&self) {
        self.running().held = false;
    }

    /// Waits for calls that were let in, but not for ever: an upload may take its time.
    pub(crate) async fn settle(&self, patience: Duration) {
        self.calls.close();
        let _in_time = time::timeout(patience, self.calls.wait()).await;
        self.calls.reopen();
    }

    /// Waits for the calls that change files. Whether they have ended in time.
    pub(crate) async fn settle_files(&self, patience: Duration) -> bool {
        self.changes.close();
        let settled = time::timeout(patience, self.changes.wait()).await.is_ok();
        self.changes.reopen();
        settled
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

    /// Whether a process runs whose end is not known yet.
    pub(crate) fn is_running_something(&self) -> bool {
        self.running().live.values().any(|live| live.progress.borrow().outcome.is_none())
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
