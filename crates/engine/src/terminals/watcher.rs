//! The watcher of a terminal: notices that its program waits for a person, asks one question about it at a time, and takes
//! it back when the terminal has moved on. What it sees decides only what is asked; nothing printed is ever an answer.
//!
//! It sleeps while nothing is printed or typed. `patience` says when a terminal stands still.

mod patience;
mod restraint;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use sandbar_api::{Approval, ApprovalId, ApprovalState, Delivery, Process, ProcessId};
use sandbar_guest::protocol::{LookReply, LookRequest};
use sandbar_terminal::detect;
use tokio::{
    sync::{Notify, watch},
    time::{self, Instant, timeout},
};

use super::keeper::{Ask, Scene};
use crate::{
    Inner,
    approvals::terminal::{Asked, MOVED_ON, PROCESS_ENDED, Place, TYPED_OVER},
    guard::guarded,
    handle::Handle,
    owner,
    process::Progress,
};
use patience::Stood;
use restraint::Restraint;

/// While a question is open, somebody may type without anything being printed: first after, and at most after.
const FIRST_POLL: Duration = Duration::from_secs(1);
const LONGEST_POLL: Duration = Duration::from_secs(5);
/// What was asked before is read again after this, if it could not be read.
const RECALL: Duration = Duration::from_secs(10);
/// Of a guest, to a call that it answers from memory.
const PATIENCE: Duration = Duration::from_secs(5);

/// The ways to those who watch. In `Terminals`.
#[derive(Default)]
pub(crate) struct Watchers(Mutex<HashMap<ProcessId, Arc<Notify>>>);

impl Watchers {
    /// Something was typed, or an answer was given: the terminal is looked at again. Fine if nobody watches it.
    pub(crate) fn nudge(&self, process: &ProcessId) {
        if let Some(nudge) = self.all().get(process) {
            nudge.notify_one();
        }
    }

    fn all(&self) -> MutexGuard<'_, HashMap<ProcessId, Arc<Notify>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(super) struct Watcher {
    inner: Arc<Inner>,
    handle: Arc<Handle>,
    id: ProcessId,
    progress: watch::Receiver<Progress>,
    nudge: Arc<Notify>,
    /// As recorded when it was first asked about.
    process: Option<Process>,
    /// What it asks, as far as this task knows.
    open: Option<Approval>,
    /// Where somebody has dealt with what it asked: it is not asked again before more is printed.
    handled: Option<(Place, ApprovalId)>,
    /// It asks, and that is not recorded yet.
    unasked: bool,
    restraint: Restraint,
}

enum Looked {
    At(LookReply),
    /// The guest is of a time when there was nothing to look with.
    Unable,
    Silent,
}

/// Has a terminal that runs watched, where there is somebody to ask.
pub(super) fn watch(
    inner: &Arc<Inner>,
    handle: &Arc<Handle>,
    process: &ProcessId,
    progress: watch::Receiver<Progress>,
) {
    if !inner.gates.asks {
        return;
    }
    let nudge = Arc::new(Notify::new());
    inner.terminals.watchers.all().insert(process.clone(), nudge.clone());
    let watcher = Watcher {
        inner: inner.clone(),
        handle: handle.clone(),
        id: process.clone(),
        progress,
        nudge,
        process: None,
        open: None,
        handled: None,
        unasked: false,
        restraint: Restraint::default(),
    };
    inner.tasks.spawn(watcher.run());
}

impl Watcher {
    async fn run(mut self) {
        let halt = self.inner.halt.clone();
        tokio::select! {
            () = halt.cancelled() => {}
            () = self.watch() => {}
        }
        let mut watchers = self.inner.terminals.watchers.all();
        // Whoever watches it by now keeps their way.
        if watchers.get(&self.id).is_some_and(|nudge| Arc::ptr_eq(nudge, &self.nudge)) {
            watchers.remove(&self.id);
        }
    }

    async fn watch(&mut self) {
        self.recall().await;
        loop {
            match self.stand().await {
                Stood::Still(look, scene, quiet) => {
                    let asked = judge(&look, scene, quiet);
                    self.settle(place(&look), asked).await;
                }
                Stood::Busy(place) => self.settle(place, None).await,
                Stood::Over => break,
                Stood::Unable => {
                    tracing::debug!(process = %self.id, "an older guest cannot tell whether a terminal waits");
                    return;
                }
            }
            if !self.stir().await {
                break;
            }
        }
        self.end().await;
    }

    /// What an earlier server asked.
    async fn recall(&mut self) {
        let approval = loop {
            match self.inner.store.terminal_approval(&self.id).await {
                Ok(Some(approval)) => break approval,
                Ok(None) => return,
                // Not knowing it, the same would be asked twice.
                Err(error) => {
                    tracing::warn!(process = %self.id, %error, "what a terminal asked before is not known yet");
                    time::sleep(RECALL).await;
                    if self.is_over() {
                        return;
                    }
                }
            }
        };
        match approval.state {
            ApprovalState::Open => self.open = Some(approval),
            ApprovalState::Withdrawn if approval.reason.as_deref() != Some(TYPED_OVER) => {}
            _ => self.handled = Place::of(&approval).map(|place| (place, approval.id)),
        }
    }

    /// Waits until there may be something new to see. False if the process is over.
    async fn stir(&mut self) -> bool {
        let mut poll = FIRST_POLL;
        loop {
            tokio::select! {
                changed = self.progress.changed() => return changed.is_ok() && !self.is_over(),
                () = self.nudge.notified() => return true,
                () = time::sleep(poll), if self.open.is_some() || self.unasked => {
                    poll = (poll * 2).min(LONGEST_POLL);
                    if self.unasked || self.is_closed() || self.has_moved().await {
                        return true;
                    }
                }
            }
        }
    }

    fn is_over(&mut self) -> bool {
        self.progress.borrow_and_update().outcome.is_some()
    }

    /// Nobody answered in time, for example.
    fn is_closed(&self) -> bool {
        self.open.as_ref().is_some_and(|open| !self.inner.gates.approvals.is_open(&open.id))
    }

    async fn has_moved(&self) -> bool {
        // What is typed into one that stands still does nothing yet, and its guest may stand still too.
        if self.is_held() {
            return false;
        }
        let seen = self.open.as_ref().and_then(Place::of);
        match self.look().await {
            Looked::At(look) => Some(place(&look)) != seen,
            Looked::Unable | Looked::Silent => false,
        }
    }

    /// Asks the guest without waking it: one that stands still is not disturbed.
    async fn look(&self) -> Looked {
        let Some(mut guest) = self.handle.guest() else { return Looked::Silent };
        match timeout(PATIENCE, guest.look(LookRequest { process_id: self.id.to_string() })).await {
            Ok(Ok(look)) => Looked::At(look.into_inner()),
            Ok(Err(status)) if status.code() == tonic::Code::Unimplemented => Looked::Unable,
            // Its pump finds out what is wrong with it.
            Ok(Err(_)) | Err(_) => Looked::Silent,
        }
    }

    /// None if nothing is seen that is as new as what is asked.
    async fn scene(&self) -> Option<Scene> {
        let scene = super::ask(&self.inner, &self.handle, &self.id, Ask::Scene).await.ok()?;
        let asked = self.open.as_ref().and_then(Place::of).map_or(0, |place| place.output);
        (scene.offset >= asked).then_some(scene)
    }

    /// Makes what is asked agree with what is seen.
    async fn settle(&mut self, place: Place, asked: Option<Asked>) {
        self.unasked = false;
        if self.is_closed()
            && let Some(open) = self.open.take()
        {
            self.handled = Place::of(&open).map(|place| (place, open.id));
        }
        if let Some(open) = self.open.take() {
            let seen = Place::of(&open).unwrap_or(place);
            let typed = seen.input != place.input;
            if let Some(asked) = asked.as_ref().filter(|asked| !typed && asked.is(&open)) {
                return self.renew(open, asked, place).await;
            }
            if typed && seen.output == place.output {
                self.handled = Some((place, open.id.clone()));
            }
            self.withdraw(open, if typed { TYPED_OVER } else { MOVED_ON }).await;
        }
        if let Some(asked) = asked
            && !self.is_handled(place).await
        {
            self.ask(&asked, place).await;
        }
    }

    /// The same question stands, perhaps drawn again.
    async fn renew(&mut self, mut open: Approval, asked: &Asked, place: Place) {
        let Some(process) = self.process().await.filter(|_| Place::of(&open) != Some(place)) else {
            self.open = Some(open);
            return;
        };
        let context = asked.context(&process, place);
        match self.inner.store.renew_approval(&open.id, &context).await {
            Ok(true) => {
                open.context = context;
                self.open = Some(open);
            }
            Ok(false) => self.handled = Place::of(&open).map(|place| (place, open.id)),
            Err(error) => {
                tracing::warn!(approval = %open.id, %error, "where a terminal asks is not recorded");
                self.open = Some(open);
                self.unasked = true;
            }
        }
    }

    /// Of an answer that was refused, what it was given for stands as before.
    async fn is_handled(&self, place: Place) -> bool {
        let Some((handled, id)) = self.handled.as_ref().filter(|(handled, _)| handled.output == place.output) else {
            return false;
        };
        let approval = self.inner.store.approval(id).await.ok().flatten();
        let refused = approval.is_some_and(|approval| approval.delivery == Some(Delivery::Refused));
        !refused || handled.input != place.input
    }

    async fn ask(&mut self, asked: &Asked, place: Place) {
        let restrained = self.restraint.holds(Instant::now());
        let Some(process) = self.process().await.filter(|_| !restrained) else {
            self.unasked = true;
            return;
        };
        let (sandbox, session) = (self.handle.id.clone(), self.handle.session());
        let approval = match asked.approval(sandbox, session, &process, place) {
            Ok(approval) => approval,
            Err(problem) => {
                tracing::error!(process = %self.id, %problem, "nobody can be asked what a terminal asks");
                return;
            }
        };
        match self.inner.gates.approvals.open(&*self.inner.store, &approval).await {
            Ok(()) => self.open = Some(approval),
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(process = %self.id, error, "what a terminal asks is not recorded yet");
                self.unasked = true;
            }
        }
    }

    async fn process(&mut self) -> Option<Process> {
        if self.process.is_none() {
            self.process = self.inner.store.process(&self.handle.id, &self.id).await.ok().flatten();
        }
        self.process.clone()
    }

    async fn withdraw(&mut self, open: Approval, reason: &str) {
        match self.inner.store.withdraw_approval(&open.id, reason).await {
            Ok(Some(withdrawn)) => {
                if reason == MOVED_ON {
                    self.restraint.count(Instant::now());
                }
                self.inner.gates.approvals.ended(&withdrawn);
            }
            // Somebody was faster.
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(approval = %open.id, %error, "what a terminal no longer asks stays open for now");
                self.open = Some(open);
                self.unasked = true;
            }
        }
    }

    async fn end(&mut self) {
        // With its sandbox, whose owner withdraws all that it asks.
        if self.handle.record.borrow().reason.as_ref().is_some_and(owner::is_deleting) {
            return;
        }
        while let Some(open) = self.open.take() {
            self.withdraw(open, PROCESS_ENDED).await;
            if self.open.is_some() {
                time::sleep(LONGEST_POLL).await;
            }
        }
    }
}

fn place(look: &LookReply) -> Place {
    Place { output: look.output_end, input: look.input_offset }
}

/// What is asked, by all that is known of the terminal.
fn judge(look: &LookReply, scene: Scene, quiet: Duration) -> Option<Asked> {
    let seen = sandbar_terminal::Look {
        echo: look.echo,
        canonical: look.canonical,
        quiet_ms: u64::try_from(quiet.as_millis()).unwrap_or(u64::MAX),
        blocked_read: look.reading,
        ..scene.seen
    };
    // What a sandbox draws must not end the server.
    let found = guarded(|| detect(&seen)).flatten()?;
    if found.asks() { Asked::new(found) } else { None }
}
