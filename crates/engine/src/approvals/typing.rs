//! Answers that are typed into a terminal: once, or not at all.
//!
//! Keys are staged in the guest, which holds them as long as the terminal stands where the question was seen; then the
//! answer is committed in the store; then the keys are released. Whoever dies in between, nothing is typed that does not
//! count, and what counts is released again, by the next server too, until the guest says that it was typed or never will be.
//! Where nobody heard how a commit ended, the store is asked until it says.

use std::{
    collections::HashMap,
    future::Future,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use sandbar_api::{
    Approval, ApprovalAnswer, ApprovalId, ApprovalKind, ApprovalState, Code, Delivery, Problem, ProcessId,
};
use sandbar_guest::protocol::{AnswerOutcome, AnswerReply, ReleaseAnswerRequest, StageAnswerRequest};
use tokio::{
    sync::{OwnedMutexGuard, watch},
    time::{self, timeout},
};
use tonic::{Response, Status};
use zeroize::Zeroizing;

use super::{over, terminal, unknown};
use crate::{
    Inner, ids, problem,
    store::{
        self,
        gate::{ApprovalFilter, Closed, Consequence},
    },
};

/// Of a guest, to a call that it answers from memory.
const PATIENCE: Duration = Duration::from_secs(10);
const FIRST_RETRY: Duration = Duration::from_millis(200);
const LONGEST_RETRY: Duration = Duration::from_secs(5);

/// Whose turn it is to answer a terminal: a guest holds one answer of it, and lets go of the one before.
#[derive(Default)]
pub(super) struct Turns(Mutex<HashMap<ProcessId, Arc<tokio::sync::Mutex<()>>>>);

impl Turns {
    async fn take(&self, process: &ProcessId) -> OwnedMutexGuard<()> {
        let turn = {
            let mut turns = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            turns.retain(|_, turn| Arc::strong_count(turn) > 1);
            turns.entry(process.clone()).or_default().clone()
        };
        turn.lock_owned().await
    }
}

/// Answers that count and of which it is not known yet whether they were typed, with whose terminal that is.
pub(crate) struct Pending(watch::Sender<HashMap<ApprovalId, ProcessId>>);

impl Default for Pending {
    fn default() -> Self {
        Self(watch::Sender::new(HashMap::new()))
    }
}

impl Pending {
    pub(super) fn add(&self, id: ApprovalId, process: ProcessId) {
        self.0.send_modify(|pending| drop(pending.insert(id, process)));
    }

    fn remove(&self, id: &ApprovalId) {
        self.0.send_if_modified(|pending| pending.remove(id).is_some());
    }

    /// Waits until nothing is left to ask a guest about answers to this terminal, however long that takes: what a guest has
    /// forgotten it cannot tell.
    pub(crate) async fn settled(&self, process: &ProcessId) {
        // An error would mean that nobody can add to it any more.
        drop(self.0.subscribe().wait_for(|pending| !pending.values().any(|one| one == process)).await);
    }
}

/// What a guest says of an answer that counts.
enum Released {
    Typed,
    MovedOn,
    /// There is nothing left to type into.
    Ended,
    /// It says nothing: asked again later.
    Silent,
}

pub(super) async fn answer(inner: Arc<Inner>, id: ApprovalId, mut answer: ApprovalAnswer) -> Result<Approval, Problem> {
    let process = terminal::process(&read(&inner, &id).await?).ok_or_else(|| unknown(id.as_str()))?;
    let _turn = inner.gates.approvals.turns.take(&process).await;
    // Only now: it may have been answered, or seen elsewhere, by whoever had the turn before.
    let approval = read(&inner, &id).await?;
    if approval.state != ApprovalState::Open {
        return Err(over(&approval));
    }
    let (keys, kept) = terminal::keys(&approval, &answer.choice, answer.text.as_deref())?;
    if !kept {
        answer.masked = answer.text.take().map(Zeroizing::new).is_some();
    }
    // Of this attempt alone: what an attempt before has staged under its own id is never taken for it.
    let staged = format!("{id}-{}", hex(&ids::random::<8>()?));
    stage(&inner, &approval, &process, &staged, keys, !kept).await?;
    let also = Some(Consequence::Typing(staged.clone()));
    inner.gates.approvals.pending.add(id.clone(), process.clone());
    let closed = inner.store.answer_approval(&id, answer, also).await;
    let closed = super::found_out(&inner, &id, closed, |_, counts| counts == Some(&staged)).await;
    match &closed {
        Ok(Closed::Now(_)) => {}
        // The next server asks the guest.
        Err(error) if error.leaves_open() => {}
        _ => inner.gates.approvals.pending.remove(&id),
    }
    let approval = match closed? {
        Closed::Now(approval) => approval,
        Closed::Before(approval) => {
            inner.gates.approvals.ended(&approval);
            return Err(over(&approval));
        }
    };
    inner.gates.approvals.answered(&*inner.store, &approval).await;
    match release(&inner, &approval, &process, &staged).await {
        Ok(Some(settled)) => told(settled),
        Ok(None) => {
            pursue(&inner, approval.clone(), process, staged);
            Ok(approval)
        }
        Err(error) => {
            tracing::error!(approval = %id, %error, "how an answer ended is not recorded yet");
            pursue(&inner, approval.clone(), process, staged);
            Ok(approval)
        }
    }
}

fn told(approval: Approval) -> Result<Approval, Problem> {
    if approval.delivery != Some(Delivery::Refused) {
        return Ok(approval);
    }
    Err(Problem::new(
        Code::ScreenMoved,
        format!(
            "The answer counts, but it was not typed: the terminal moved on, or its program ended, before {} was.",
            approval.id
        ),
        "If it still waits, a new approval follows; `sandbar approvals` shows it.",
    ))
}

async fn read(inner: &Inner, id: &ApprovalId) -> Result<Approval, Problem> {
    inner.store.approval(id).await?.ok_or_else(|| unknown(id.as_str()))
}

async fn stage(
    inner: &Inner,
    approval: &Approval,
    process: &ProcessId,
    staged: &str,
    keys: Zeroizing<String>,
    unseen: bool,
) -> Result<(), Problem> {
    let gone = || problem::process_over(process.as_str());
    let sandbox = approval.sandbox.as_ref().ok_or_else(gone)?;
    let handle = inner.registry.by_id(sandbox).ok_or_else(|| problem::gone(sandbox.as_str()))?;
    let place = terminal::Place::of(approval).ok_or_else(gone)?;
    let mut inside = handle.enter().await?;
    let request = StageAnswerRequest {
        process_id: process.to_string(),
        answer_id: staged.to_owned(),
        output_offset: place.output,
        input_offset: place.input,
        keys: Bytes::from_owner(keys),
        unseen,
    };
    let outcome =
        call(inner, inside.guest.stage_answer(request)).await.map_err(|status| {
            match problem::from_status(&status) {
                problem if matches!(problem.code, Code::UnknownProcess | Code::ProcessOver) => gone(),
                problem => problem,
            }
        })?;
    match outcome {
        AnswerOutcome::Staged | AnswerOutcome::Typed => Ok(()),
        AnswerOutcome::MovedOn | AnswerOutcome::UnknownAnswer => {
            inner.terminals.watchers.nudge(process);
            Err(Problem::new(
                Code::ScreenMoved,
                "The terminal has moved on since this was asked; nothing was typed and nothing has changed.",
                "`sandbar approvals` shows in a moment whether it still asks; then answer that.",
            ))
        }
    }
}

/// Asks for the keys to be typed and records what came of it. None if nobody knows yet.
async fn release(
    inner: &Inner,
    approval: &Approval,
    process: &ProcessId,
    staged: &str,
) -> store::Result<Option<Approval>> {
    let delivery = match released(inner, approval, process, staged).await {
        Released::Typed => Delivery::Typed,
        Released::MovedOn | Released::Ended => Delivery::Refused,
        Released::Silent => return Ok(None),
    };
    let settled = inner.store.settle_delivery(&approval.id, delivery).await;
    if matches!(settled, Ok(_) | Err(store::Error::Missing(_))) {
        inner.gates.approvals.pending.remove(&approval.id);
    }
    let settled = settled?;
    inner.terminals.watchers.nudge(process);
    Ok(Some(settled))
}

async fn released(inner: &Inner, approval: &Approval, process: &ProcessId, staged: &str) -> Released {
    let Some(handle) = approval.sandbox.as_ref().and_then(|sandbox| inner.registry.by_id(sandbox)) else {
        return Released::Ended;
    };
    // Awake, if it may be woken: what is typed into one that sleeps does nothing.
    let (mut guest, _call) = match (handle.live(process).is_some(), handle.guest()) {
        (_, None) => return Released::Ended,
        (false, Some(guest)) => (guest, None),
        (true, Some(guest)) => match handle.enter().await {
            Ok(inside) => (inside.guest, Some(inside.call)),
            Err(_) => (guest, None),
        },
    };
    let request = ReleaseAnswerRequest { process_id: process.to_string(), answer_id: staged.to_owned() };
    match call(inner, guest.release_answer(request)).await {
        Ok(AnswerOutcome::Typed) => Released::Typed,
        Ok(AnswerOutcome::MovedOn | AnswerOutcome::UnknownAnswer) => Released::MovedOn,
        Ok(AnswerOutcome::Staged) => Released::Silent,
        Err(status) => match problem::guest_code(&status) {
            Some(Code::UnknownProcess | Code::ProcessOver) => Released::Ended,
            _ => {
                tracing::debug!(approval = %approval.id, message = status.message(), "an answer is released again");
                Released::Silent
            }
        },
    }
}

async fn call(
    inner: &Inner,
    reply: impl Future<Output = Result<Response<AnswerReply>, Status>>,
) -> Result<AnswerOutcome, Status> {
    let late = |_| Err(Status::deadline_exceeded("it takes too long"));
    tokio::select! {
        () = inner.halt.cancelled() => Err(Status::cancelled("the server is shutting down")),
        reply = timeout(PATIENCE, reply) => Ok(reply.unwrap_or_else(late)?.into_inner().outcome()),
    }
}

/// Until it is known.
fn pursue(inner: &Arc<Inner>, approval: Approval, process: ProcessId, staged: String) {
    let inner = inner.clone();
    inner.tasks.clone().spawn(async move {
        let mut retry = FIRST_RETRY;
        loop {
            tokio::select! {
                () = inner.halt.cancelled() => return,
                () = time::sleep(retry) => retry = (retry * 2).min(LONGEST_RETRY),
            }
            let _turn = inner.gates.approvals.turns.take(&process).await;
            match release(&inner, &approval, &process, &staged).await {
                Ok(Some(_)) | Err(store::Error::Missing(_)) => return,
                Ok(None) => {}
                Err(error) => {
                    tracing::error!(approval = %approval.id, %error, "how an answer ended is not recorded yet")
                }
            }
        }
    });
}

/// What earlier servers left: answers on their way are released, and what nobody can be asking any more is withdrawn.
pub(crate) async fn resume(inner: Arc<Inner>) {
    if let Err(error) = take_up(&inner).await {
        let error = &error as &dyn std::error::Error;
        tracing::error!(error, "answers that earlier servers left wait for the next start");
    }
}

async fn take_up(inner: &Arc<Inner>) -> store::Result<()> {
    for (approval, staged) in inner.store.pending_deliveries().await? {
        if let Some(process) = terminal::process(&approval) {
            pursue(inner, approval, process, staged);
        }
    }
    let states = vec![ApprovalState::Open];
    let filter = ApprovalFilter { states, limit: u32::MAX, ..ApprovalFilter::default() };
    for approval in inner.store.approvals(&filter).await? {
        let handle = approval.sandbox.as_ref().and_then(|sandbox| inner.registry.by_id(sandbox));
        let lives = |process: &ProcessId| handle.as_ref().is_some_and(|handle| handle.live(process).is_some());
        if approval.kind == ApprovalKind::Terminal
            && !terminal::process(&approval).is_some_and(|process| lives(&process))
            && let Some(withdrawn) = inner.store.withdraw_approval(&approval.id, terminal::PROCESS_ENDED).await?
        {
            inner.gates.approvals.ended(&withdrawn);
        }
    }
    Ok(())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    /// Outside a runtime, where nothing can be waited for with a time limit.
    #[test]
    fn what_nobody_heard_of_is_waited_for_however_long_it_takes() {
        let (pending, id) = (Pending::default(), ApprovalId::from_parts(1, [1; 10]));
        let (terminal, other) = (ProcessId::from_parts(1, [1; 10]), ProcessId::from_parts(2, [1; 10]));
        pending.add(id.clone(), terminal.clone());
        let mut settled = Box::pin(pending.settled(&terminal));
        assert!(settled.as_mut().now_or_never().is_none(), "the guest was to forget what it alone knows");
        assert!(pending.settled(&other).now_or_never().is_some(), "of another terminal");
        pending.remove(&id);
        assert!(settled.now_or_never().is_some());
    }
}
