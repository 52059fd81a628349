//! The owner of a sandbox: the one task that changes its state, taking the verbs of its life one after the other.
//!
//! Every step can be repeated: after a failure the sandbox stays where the failed step left it, and the same verb
//! again, or the reconciliation of the next start, goes on from there.

mod keep;
mod pause;
mod recover;
mod relief;

use std::{sync::Arc, time::Duration};

use sandbar_api::{Code, Idle, Problem, ProcessId, Sandbox, SandboxId, SandboxState, StateReason};
use sandbar_guest::protocol::{HelloRequest, SignalRequest};
use sandbar_provider::{Gate, Guest, Provider};
use tokio::{
    sync::{mpsc, oneshot},
    time,
};

use crate::{
    Inner,
    gate::{self, Door, Furnished},
    handle::{Fate, Handle},
    idle::Rest,
    problem, runtimes, signals,
    store::{SandboxRow, SnapshotRow},
};

pub(crate) use keep::Keep;
pub(crate) use pause::requested_pause;
use recover::{NOT_RECOVERED, RECOVERING, Recoveries};
use relief::Refusals;

/// How long processes have to end after SIGTERM when their sandbox is stopped.
const GRACE: Duration = Duration::from_secs(2);
/// How long the ends of killed processes may take to be written down.
const SETTLE: Duration = Duration::from_secs(10);
/// How long a guest that was just started or found again may take to answer.
pub(crate) const HELLO: Duration = Duration::from_secs(10);
const RETRY: Duration = Duration::from_secs(1);
/// Between tries to remove what could not be made.
const REMOVE: Duration = if cfg!(test) { Duration::from_millis(50) } else { Duration::from_secs(5) };

/// Reasons that mark a deletion under way, so that a crash in the middle ends in a deletion.
const DELETING: &str = "deleting";
const DELETING_IDLE: &str = "deleting_idle";
const EXPIRED: &str = "expired";
/// Why a sandbox was put away, and why it comes back when it is needed.
const IDLE: &str = "idle";

pub(crate) fn is_deleting(reason: &StateReason) -> bool {
    [DELETING, DELETING_IDLE, EXPIRED].contains(&reason.code.as_str())
}

/// Whether idleness paused or stopped it, or is about to, or it is on its way back from there: whoever needs it waits
/// for it instead of being refused.
pub(crate) fn is_put_away(sandbox: &Sandbox) -> bool {
    use SandboxState::{Creating, Paused, Stopped, Stopping};
    matches!(sandbox.state, Creating | Paused | Stopping | Stopped)
        && sandbox.reason.as_ref().is_some_and(|reason| reason.code == IDLE)
}

/// Put away because nobody used it.
pub(crate) fn idle(detail: &str) -> StateReason {
    reason(IDLE, detail)
}

pub(crate) fn requested_delete() -> StateReason {
    reason("requested", "It was asked to be deleted.")
}

pub(crate) fn requested_stop() -> StateReason {
    reason("requested", "It was asked to stop.")
}

pub(crate) fn expired() -> StateReason {
    reason(EXPIRED, "Its time was over.")
}

pub(crate) type Reply<T> = oneshot::Sender<Result<T, Problem>>;

pub(crate) enum Verb {
    Start(Reply<Sandbox>),
    Stop(Reply<Sandbox>),
    Pause(Reply<Sandbox>),
    Resume(Reply<Sandbox>),
    Delete(StateReason, Reply<()>),
    Keep(Keep, Reply<SnapshotRow>),
    /// Somebody needs it: back from where idleness put it.
    Wake(Reply<()>),
    /// Nobody has used it since that mark of its activity.
    Rest(Rest, i64, Reply<()>),
}

pub(crate) struct Owner {
    pub(crate) inner: Arc<Inner>,
    pub(crate) handle: Arc<Handle>,
    verbs: mpsc::Receiver<Verb>,
    recoveries: Recoveries,
    /// It never came to be, and what there is of it could not be removed yet.
    unmade: Option<StateReason>,
}

pub(crate) fn reason(code: &str, detail: impl Into<String>) -> StateReason {
    StateReason { code: code.to_owned(), detail: detail.into() }
}

impl Owner {
    pub(crate) fn new(inner: &Arc<Inner>, row: SandboxRow, provider: Arc<dyn Provider>, gate: Furnished) -> Self {
        let (handle, verbs) = Handle::new(row, provider, gate);
        inner.registry.insert(&handle);
        Self { inner: inner.clone(), handle, verbs, recoveries: Recoveries::default(), unmade: None }
    }

    pub(crate) async fn run(mut self) {
        let closing = self.inner.closing.clone();
        // It died, and that could not be recorded yet.
        let mut unrecorded = false;
        let mut refusals = Refusals::new(&self.handle);
        self.recover().await;
        while self.handle.state() != SandboxState::Deleted {
            let ready = self.handle.state() == SandboxState::Ready;
            let alive = ready || self.handle.state() == SandboxState::Paused;
            if !ready {
                refusals.reset();
            }
            let handle = self.handle.clone();
            let end = async {
                match unrecorded {
                    true => time::sleep(RETRY).await,
                    false => gone(&handle).await,
                }
            };
            tokio::select! {
                biased;
                () = closing.cancelled() => return,
                Some(verb) = self.verbs.recv() => self.take(verb).await,
                () = end, if alive => {
                    unrecorded = !self.died().await;
                    self.recover().await;
                }
                () = refusals.next(), if ready => self.relieve().await,
                () = time::sleep(REMOVE), if self.unmade.is_some() => self.remove_unmade().await,
                () = self.recoveries.due(), if self.recoveries.is_due_later() => self.recover().await,
            }
            unrecorded &= matches!(self.handle.state(), SandboxState::Ready | SandboxState::Paused);
        }
        self.verbs.close();
        while let Some(verb) = self.verbs.recv().await {
            self.take(verb).await;
        }
    }

    async fn take(&mut self, verb: Verb) {
        // A caller that went away needs no answer.
        match verb {
            Verb::Start(reply) => {
                drop(reply.send(self.start(reason("requested", "It is being started.")).await));
            }
            Verb::Stop(reply) => drop(reply.send(self.stop(requested_stop()).await)),
            Verb::Pause(reply) => drop(reply.send(self.pause(requested_pause()).await)),
            Verb::Resume(reply) => drop(reply.send(self.resume().await)),
            Verb::Keep(keep, reply) => drop(reply.send(self.keep(keep).await)),
            Verb::Wake(reply) => drop(reply.send(self.wake().await)),
            Verb::Rest(rest, seen, reply) => drop(reply.send(self.rest(rest, seen).await)),
            Verb::Delete(reason, reply) => drop(reply.send(self.delete(reason).await)),
        }
    }

    pub(crate) async fn transition(&self, to: SandboxState, reason: Option<StateReason>) -> Result<Sandbox, Problem> {
        let row = self.inner.store.transition(&self.handle.id, to, reason).await?;
        self.publish(row.sandbox.clone());
        Ok(row.sandbox)
    }

    /// Tells what was committed.
    pub(crate) fn publish(&self, sandbox: Sandbox) {
        self.handle.record.send_replace(sandbox);
        if self.handle.template.idle != Idle::default() {
            self.inner.idle.notify_one();
        }
    }

    /// Opens the sandbox that was just recorded and made. What fails leaves nothing but the record of it.
    pub(crate) async fn created(&mut self, made: Result<(), sandbar_provider::Error>) -> Result<Sandbox, Problem> {
        let made = match made.map_err(problem::from_provider) {
            Ok(()) => self.connect().await,
            Err(problem) => Err(problem),
        };
        if let Err(problem) = &made {
            self.unmade = Some(reason("start_failed", problem.detail.clone()));
            self.remove_unmade().await;
        }
        made
    }

    /// It stays `creating` until that is done, by this server or the next.
    async fn remove_unmade(&mut self) {
        let Some(why) = self.unmade.clone() else { return };
        match self.discard(why).await {
            Ok(()) => self.unmade = None,
            Err(left) => {
                tracing::warn!(sandbox = %self.handle.id, problem = %left, "a sandbox that failed to start is not removed yet");
            }
        }
    }

    /// Removes a sandbox that never was ready.
    pub(crate) async fn discard(&self, reason: StateReason) -> Result<(), Problem> {
        self.handle.close();
        self.handle.provider.destroy(&self.handle.id).await.map_err(problem::from_provider)?;
        self.transition(SandboxState::Deleted, Some(reason)).await?;
        self.inner.registry.remove(&self.handle);
        Ok(())
    }

    async fn start(&self, why: StateReason) -> Result<Sandbox, Problem> {
        match self.handle.state() {
            SandboxState::Ready => return Ok(self.handle.sandbox()),
            SandboxState::Stopped | SandboxState::Failed if !self.is_going() && !self.keeps_files() => {
                return Err(problem::has_lost_files(&self.handle.name()));
            }
            SandboxState::Stopped | SandboxState::Failed if !self.is_going() => {}
            _ => return Err(problem::wrong_state(&self.handle.record.borrow())),
        }
        // Whoever starts one that waits for its next try does not end its tries.
        let recovers = why.code == RECOVERING || self.recoveries.is_due_later();
        let failed = if recovers { NOT_RECOVERED } else { "start_failed" };
        self.transition(SandboxState::Creating, Some(why)).await?;
        let started = self.handle.provider.start(&self.handle.spec()).await.map_err(problem::from_provider);
        let started = match started {
            Ok(()) => self.connect().await,
            Err(problem) => Err(problem),
        };
        if let Err(problem) = &started {
            self.clean_up().await;
            self.transition(SandboxState::Failed, Some(reason(failed, problem.detail.clone()))).await?;
        }
        started
    }

    /// Meets the guest of a sandbox that was just started, and opens the sandbox for work.
    async fn connect(&self) -> Result<Sandbox, Problem> {
        // The guest listens by now: it answers while the disk takes the record.
        self.handle.announce();
        let ready = self.inner.store.transition(&self.handle.id, SandboxState::Ready, None);
        let ((guest, door), row) = match tokio::join!(self.meet(), ready) {
            (Ok(met), Ok(row)) => (met, row),
            (greeted, recorded) => {
                self.handle.close();
                greeted?;
                return Err(recorded.err().map_or_else(problem::shutting_down, Into::into));
            }
        };
        // Opened before it is called ready, so that nobody who read `ready` is refused.
        self.handle.open(guest, door);
        self.publish(row.sandbox.clone());
        Ok(row.sandbox)
    }

    pub(crate) async fn greet(&self) -> Result<Guest, Problem> {
        greet(&*self.handle.provider, &self.handle.id).await
    }

    /// Meets the guest and opens the gate.
    pub(crate) async fn meet(&self) -> Result<(Guest, Option<Door>), Problem> {
        let (guest, taken) = tokio::try_join!(self.greet(), gate::take(&*self.handle.provider, &self.handle.id))?;
        if taken.is_some() {
            gate::trust(&self.inner, &self.handle, guest.clone()).await?;
        }
        let door = self.serve_gate(taken).await?;
        self.serve_runtimes(&guest, door.as_ref()).await?;
        Ok((guest, door))
    }

    /// From here on the sandbox can talk to whom its rules let it.
    pub(crate) async fn serve_gate(&self, taken: Option<Gate>) -> Result<Option<Door>, Problem> {
        let Some(taken) = taken else { return Ok(None) };
        let known = self.inner.gates.ledger.know(&self.handle.session()).await?;
        gate::open(&self.inner, &self.handle, known, taken).map(Some)
    }

    pub(crate) async fn serve_runtimes(&self, guest: &Guest, door: Option<&Door>) -> Result<(), Problem> {
        runtimes::serve(&self.inner, &self.handle, guest.clone(), door.map(|door| door.port)).await
    }

    async fn stop(&self, why: StateReason) -> Result<Sandbox, Problem> {
        let alive = matches!(self.handle.state(), SandboxState::Ready | SandboxState::Paused);
        if alive && !self.keeps_files() {
            return Err(problem::would_lose_files(&self.handle.name()));
        }
        match self.handle.state() {
            SandboxState::Stopped => {}
            SandboxState::Ready | SandboxState::Paused => {
                self.transition(SandboxState::Stopping, Some(why.clone())).await?;
                self.finish_stop().await?;
            }
            SandboxState::Stopping => drop(self.finish_stop().await?),
            _ => return Err(problem::wrong_state(&self.handle.record.borrow())),
        }
        self.insist(why).await
    }

    pub(crate) async fn finish_stop(&self) -> Result<Sandbox, Problem> {
        self.handle.fate.send_replace(Fate::Stopping);
        if let Some(guest) = self.handle.close() {
            let asked = self.handle.live_ids().into_iter().map(|process| terminate(guest.clone(), process));
            futures_util::future::join_all(asked).await;
            // It may be paused, and whoever stands still cannot end.
            if let Err(error) = self.handle.provider.thaw(&self.handle.id).await {
                tracing::debug!(sandbox = %self.handle.id, %error, "a sandbox is stopped without being thawed");
            }
            // Whoever does not end in time is killed with the sandbox.
            let drained = runtimes::drain(&self.handle, guest);
            let _in_time = time::timeout(GRACE, async { tokio::join!(self.handle.pumps.wait(), drained) }).await;
        }
        self.handle.provider.stop(&self.handle.id).await.map_err(problem::from_provider)?;
        self.bury(Fate::Stopped).await?;
        // As it was begun, which an earlier server may have done.
        let why = self.handle.record.borrow().reason.clone().unwrap_or_else(requested_stop);
        self.transition(SandboxState::Stopped, Some(why)).await
    }

    pub(crate) async fn delete(&self, why: StateReason) -> Result<(), Problem> {
        let state = self.handle.state();
        if state == SandboxState::Deleted {
            return Ok(());
        }
        let code = match why.code.as_str() {
            EXPIRED => EXPIRED,
            IDLE => DELETING_IDLE,
            _ => DELETING,
        };
        let begun = reason(code, why.detail.clone());
        self.handle.fate.send_replace(Fate::Stopping);
        self.handle.close();
        let record = async {
            match state {
                SandboxState::Ready | SandboxState::Paused => {
                    self.transition(SandboxState::Stopping, Some(begun)).await.map(drop)
                }
                _ if self.is_going() => Ok(()),
                _ => {
                    let row = self.inner.store.restate(&self.handle.id, begun).await?;
                    self.publish(row.sandbox);
                    Ok(())
                }
            }
        };
        // The kernel ends it while the disk takes the record. Files go only then: a server that ends in between leaves a
        // sandbox that has all of them, or one whose deletion the next start finishes.
        let (recorded, ended) = tokio::join!(record, self.handle.provider.end(&self.handle.id));
        match recorded {
            // Its files are gone all the same, which makes room to record that they are.
            Err(problem) if problem.code == Code::DiskFull => {
                tracing::warn!(sandbox = %self.handle.id, "the disk is full: it is deleted before that is recorded");
            }
            recorded => recorded?,
        }
        if let Err(error) = ended {
            // Ended once more with its files, and the caller is told of that.
            tracing::debug!(sandbox = %self.handle.id, %error, "a sandbox to be deleted does not end at once");
        }
        self.handle.provider.destroy(&self.handle.id).await.map_err(problem::from_provider)?;
        self.bury(Fate::Stopped).await?;
        self.inner.store.drop_output(&self.handle.id).await?;
        self.inner.gates.approvals.withdraw(&self.inner, &self.handle.id).await?;
        self.transition(SandboxState::Deleted, Some(why)).await?;
        self.inner.registry.remove(&self.handle);
        Ok(())
    }

    fn keeps_files(&self) -> bool {
        self.handle.provider.keeps_files(&self.handle.spec())
    }

    /// Whether its deletion was begun: some of its files may be gone.
    fn is_going(&self) -> bool {
        self.handle.record.borrow().reason.as_ref().is_some_and(is_deleting)
    }

    /// Why the deletion that was under way was begun.
    pub(crate) fn why_deleting(&self) -> StateReason {
        match &self.handle.record.borrow().reason {
            Some(reason) if reason.code == EXPIRED => expired(),
            Some(reason) if reason.code == DELETING_IDLE => self::reason(IDLE, reason.detail.clone()),
            _ => requested_delete(),
        }
    }

    /// The guest ended by itself. Whether that is recorded; if not it is to be called again.
    async fn died(&self) -> bool {
        self.handle.close();
        if let Err(problem) = self.bury(Fate::Gone).await {
            tracing::error!(sandbox = %self.handle.id, %problem, "processes of a sandbox that died are not recorded yet");
        }
        self.clean_up().await;
        let detail = match self.handle.provider.is_elsewhere() {
            true => "Its pod ended, was taken away, or was lost with its node.",
            false => "Its first process ended unexpectedly.",
        };
        let why = reason("guest_died", detail);
        let recorded = self.transition(SandboxState::Failed, Some(why)).await;
        if let Err(problem) = &recorded {
            tracing::error!(sandbox = %self.handle.id, %problem, "a sandbox died and that is not recorded yet");
        }
        recorded.is_ok()
    }

    /// Waits until the ends of all processes are written down.
    async fn bury(&self, fate: Fate) -> Result<(), Problem> {
        self.handle.pumps.close();
        self.handle.fate.send_replace(fate);
        time::timeout(SETTLE, self.handle.pumps.wait()).await.map_err(|_| {
            Problem::new(
                Code::Internal,
                "The ends of the sandbox's processes could not be written down in time.",
                "Look at the server's log, free disk space if it is full, and try again.",
            )
        })
    }

    /// Whatever a failed start or a dead guest left running.
    pub(crate) async fn clean_up(&self) {
        let left = if self.keeps_files() { self.handle.provider.stop(&self.handle.id).await } else { Ok(()) };
        if let Err(error) = left {
            tracing::warn!(sandbox = %self.handle.id, %error, "remains of a sandbox could not be stopped");
        }
    }
}

/// Meets the guest of a running sandbox, and makes sure that it is this sandbox's.
pub(crate) async fn greet(provider: &dyn Provider, id: &SandboxId) -> Result<Guest, Problem> {
    let hello = async {
        let mut guest = provider.connect(id).await.map_err(problem::from_provider)?;
        let reply = guest.hello(HelloRequest {}).await.map_err(|status| problem::from_status(&status))?;
        Ok::<_, Problem>((guest, reply.into_inner()))
    };
    let silent = |cause: String| {
        Problem::new(Code::GuestUnreachable, cause, "Try again; if it stays so, stop and start the sandbox.")
    };
    let (guest, reply) = time::timeout(HELLO, hello)
        .await
        .map_err(|_| silent(format!("The sandbox's guest did not answer within {} s.", HELLO.as_secs())))??;
    // Newer and older guests both understand us: the protocol only ever grows.
    if reply.protocol == 0 || reply.sandbox_id != id.as_str() {
        return Err(silent(format!("What answers for {id} is not its guest.")));
    }
    Ok(guest)
}

async fn terminate(mut guest: Guest, process: ProcessId) {
    let request = SignalRequest { process_id: process.to_string(), signal: signals::TERM };
    if let Err(status) = guest.signal(request).await {
        // It may have ended by itself just now.
        tracing::debug!(%process, message = status.message(), "a process could not be asked to end");
    }
}

async fn gone(handle: &Handle) {
    loop {
        match handle.provider.gone(&handle.id).await {
            Ok(()) | Err(sandbar_provider::Error::Unknown(_)) => return,
            Err(error) => {
                tracing::warn!(sandbox = %handle.id, %error, "a sandbox cannot be watched");
                time::sleep(RETRY).await;
            }
        }
    }
}
