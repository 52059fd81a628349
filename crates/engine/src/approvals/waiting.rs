//! Those who wait, by approval; and answers that wait for somebody to use them.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use chrono::{DateTime, Utc};
use sandbar_api::{Approval, ApprovalId, ApprovalState, Problem, SandboxId};
use sandbar_gateway::{Answer, Question};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use super::{
    network::{self, Key},
    terminal,
    typing::{Pending, Turns},
};
use crate::{
    Inner,
    handle::{Fate, Handle},
    store::{self, Store, gate::ApprovalFilter},
};

/// More questions of one sandbox at a time than a person reads.
const MAX_OPEN: usize = 32;

/// In `Inner`, by way of its gates.
#[derive(Default)]
pub(crate) struct Approvals {
    shared: Arc<Shared>,
    pub(super) turns: Turns,
    pub(crate) pending: Pending,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// One was opened, whose deadline may be the next.
    nearer: Notify,
}

#[derive(Default)]
struct State {
    open: HashMap<ApprovalId, Arc<Open>>,
    by_key: HashMap<Key, ApprovalId>,
    /// Answered `once` when nobody waited: the next one goes through, until then.
    unspent: HashMap<Key, (ApprovalId, DateTime<Utc>)>,
}

struct Open {
    key: Option<Key>,
    sandbox: Option<SandboxId>,
    /// Its receivers are the connections that wait.
    answers: watch::Sender<Option<Answer>>,
    closed: CancellationToken,
    /// Before it was in the store, perhaps.
    withdrawn: AtomicBool,
}

impl Open {
    fn new(key: Option<Key>, sandbox: Option<SandboxId>) -> Self {
        let (answers, closed) = (watch::Sender::new(None), CancellationToken::new());
        Self { key, sandbox, answers, closed, withdrawn: AtomicBool::new(false) }
    }

    fn end(&self, answer: Answer) {
        self.answers.send_replace(Some(answer));
        self.closed.cancel();
    }
}

/// What to do about a question.
enum Turn {
    Spend(ApprovalId),
    Wait(watch::Receiver<Option<Answer>>),
    /// Nobody asked yet: this is to be opened.
    Ask(Box<Approval>, Arc<Open>, watch::Receiver<Option<Answer>>),
}

impl Approvals {
    /// Those that earlier servers left: open ones stay answerable, and connections made again join them.
    pub(crate) async fn load(store: &dyn Store) -> store::Result<Self> {
        let states = vec![ApprovalState::Open];
        let filter = ApprovalFilter { states, limit: u32::MAX, ..ApprovalFilter::default() };
        let (open, unspent) = (store.approvals(&filter).await?, store.unspent_approvals().await?);
        let pending = store.pending_deliveries().await?;
        let approvals = Self::default();
        let mut state = approvals.shared.lock();
        for approval in open {
            state.insert(approval.id.clone(), Arc::new(Open::new(Key::of(&approval), approval.sandbox)));
        }
        for approval in unspent {
            state.keep(&approval);
        }
        drop(state);
        for (approval, _) in pending {
            if let Some(process) = terminal::process(&approval) {
                approvals.pending.add(approval.id, process);
            }
        }
        Ok(approvals)
    }

    /// Asks about a connection, and waits. One open approval per sandbox, host and port (and request, if one was seen),
    /// however many wait.
    pub(crate) async fn ask(&self, inner: &Inner, handle: &Handle, question: Question) -> Answer {
        if !inner.gates.asks {
            return deny("there is nobody to ask in `sandbar run`: use a server (`sandbar up`), or allow it");
        }
        let question = network::without_query(question);
        let key = Key::new(&handle.id, &question);
        loop {
            if *handle.fate.borrow() != Fate::Alive {
                return deny("the sandbox is ending");
            }
            if handle.rules.approved(&question) {
                return Answer::Allow;
            }
            let waiting = match self.shared.turn(&key, || network::ask(handle, &question)) {
                Err(answer) => return answer,
                Ok(Turn::Wait(waiting)) => waiting,
                Ok(Turn::Ask(approval, open, waiting)) => {
                    let opening = self.shared.clone().open(inner.store.clone(), *approval, open);
                    // To its end even if the one who asked has gone: others may wait for it by now.
                    inner.tasks.spawn(opening);
                    waiting
                }
                Ok(Turn::Spend(id)) => match inner.store.spend_approval(&id).await {
                    Ok(spent) => {
                        self.shared.lock().spent(&key, &id);
                        if spent {
                            return Answer::Allow;
                        }
                        continue;
                    }
                    Err(error) => return deny(format!("that it was allowed once cannot be recorded: {error}")),
                },
            };
            return wait(waiting, &inner.closing).await;
        }
    }

    /// What asked is gone, and with it everybody who waits.
    pub(crate) async fn withdraw(&self, inner: &Inner, sandbox: &SandboxId) -> store::Result<()> {
        inner.store.withdraw_approvals(sandbox).await?;
        let taken = self.shared.lock().take_of(sandbox);
        for open in &taken {
            open.withdrawn.store(true, Ordering::SeqCst);
            open.end(deny("the sandbox is gone"));
        }
        // One that was recorded in between looked before it could see that.
        if !taken.is_empty() {
            inner.store.withdraw_approvals(sandbox).await?;
        }
        Ok(())
    }

    /// A person's answer was recorded: does what it says.
    pub(super) async fn answered(&self, store: &dyn Store, approval: &Approval) {
        let Some(answer) = &approval.answer else { return };
        let (open, waiting) = {
            let mut state = self.shared.lock();
            let open = state.take(&approval.id);
            let waiting = open.as_ref().is_some_and(|open| open.answers.receiver_count() > 0);
            if answer.choice == network::ONCE && !waiting {
                state.keep(approval);
            }
            (open, waiting)
        };
        let Some(open) = open else { return };
        let says = match answer.choice.as_str() {
            network::ONCE if waiting => match store.spend_approval(&approval.id).await {
                Ok(_) => Answer::Allow,
                Err(error) => {
                    // Unrecorded it could be let through again after a restart: the next one tries to record it.
                    self.shared.lock().keep(approval);
                    deny(format!("that it was allowed once cannot be recorded: {error}"))
                }
            },
            network::ONCE | network::SANDBOX => Answer::Allow,
            _ => deny("a person denied it"),
        };
        open.end(says);
    }

    /// It is closed without an answer. Fine if that is known.
    pub(crate) fn ended(&self, approval: &Approval) {
        let why = match approval.state {
            // Whoever took the answer ends it.
            ApprovalState::Open | ApprovalState::Answered => return,
            ApprovalState::Withdrawn => "what asked is gone".to_owned(),
            ApprovalState::Expired => {
                let minutes = (approval.deadline - approval.created_at).num_minutes();
                format!("nobody answered in time ({minutes} minutes); try again to ask again")
            }
        };
        if let Some(open) = self.shared.lock().take(&approval.id) {
            open.end(deny(why));
        }
    }

    /// Opens one that nobody in this server waits for.
    pub(crate) async fn open(&self, store: &dyn Store, approval: &Approval) -> store::Result<()> {
        let open = Arc::new(Open::new(None, approval.sandbox.clone()));
        // First: whoever reads it in the store can wait for it.
        self.shared.lock().insert(approval.id.clone(), open.clone());
        if let Err(error) = store.open_approval(approval).await {
            self.shared.lock().take(&approval.id);
            return Err(error);
        }
        self.shared.nearer.notify_one();
        if let Some(sandbox) = approval.sandbox.as_ref().filter(|_| open.withdrawn.load(Ordering::SeqCst)) {
            store.withdraw_approvals(sandbox).await?;
        }
        Ok(())
    }

    pub(crate) fn is_open(&self, id: &ApprovalId) -> bool {
        self.shared.lock().open.contains_key(id)
    }

    /// Cancelled when it is closed; none if it is not open.
    pub(super) fn closed(&self, id: &ApprovalId) -> Option<CancellationToken> {
        self.shared.lock().open.get(id).map(|open| open.closed.clone())
    }

    /// How many connections wait for it.
    #[cfg(test)]
    pub(crate) fn waiting(&self, id: &ApprovalId) -> usize {
        self.shared.lock().open.get(id).map_or(0, |open| open.answers.receiver_count())
    }

    pub(super) async fn nearer(&self) {
        self.shared.nearer.notified().await;
    }

    /// Answers that nobody used in time.
    pub(super) fn forget(&self, now: DateTime<Utc>) {
        self.shared.lock().unspent.retain(|_, (_, until)| *until > now);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn turn(&self, key: &Key, ask: impl FnOnce() -> Result<Approval, Problem>) -> Result<Turn, Answer> {
        let mut state = self.lock();
        if let Some((id, until)) = state.unspent.get(key)
            && *until > Utc::now()
        {
            return Ok(Turn::Spend(id.clone()));
        }
        if let Some(open) = state.by_key.get(key).and_then(|id| state.open.get(id)) {
            return Ok(Turn::Wait(open.answers.subscribe()));
        }
        if state.by_key.keys().filter(|open| open.sandbox == key.sandbox).count() >= MAX_OPEN {
            return Err(deny(format!("{MAX_OPEN} approvals of this sandbox are open already; answer those first")));
        }
        let approval = ask().map_err(|problem| deny(problem.detail))?;
        let open = Arc::new(Open::new(Some(key.clone()), Some(key.sandbox.clone())));
        let waiting = open.answers.subscribe();
        state.insert(approval.id.clone(), open.clone());
        Ok(Turn::Ask(Box::new(approval), open, waiting))
    }

    async fn open(self: Arc<Self>, store: Arc<dyn Store>, approval: Approval, open: Arc<Open>) {
        if let Err(error) = store.open_approval(&approval).await {
            self.lock().take(&approval.id);
            open.end(deny(format!("the question cannot be recorded: {error}")));
            return;
        }
        self.nearer.notify_one();
        if let Some(sandbox) = approval.sandbox.filter(|_| open.withdrawn.load(Ordering::SeqCst))
            && let Err(error) = store.withdraw_approvals(&sandbox).await
        {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(%sandbox, error, "an approval of a deleted sandbox stays open until its deadline");
        }
    }
}

impl State {
    fn insert(&mut self, id: ApprovalId, open: Arc<Open>) {
        if let Some(key) = &open.key {
            self.by_key.insert(key.clone(), id.clone());
        }
        self.open.insert(id, open);
    }

    fn take(&mut self, id: &ApprovalId) -> Option<Arc<Open>> {
        let open = self.open.remove(id)?;
        if let Some(key) = &open.key
            && self.by_key.get(key) == Some(id)
        {
            self.by_key.remove(key);
        }
        Some(open)
    }

    fn take_of(&mut self, sandbox: &SandboxId) -> Vec<Arc<Open>> {
        self.unspent.retain(|key, _| key.sandbox != *sandbox);
        let of = |(id, open): (&ApprovalId, &Arc<Open>)| (open.sandbox.as_ref() == Some(sandbox)).then(|| id.clone());
        let ids: Vec<_> = self.open.iter().filter_map(of).collect();
        ids.iter().filter_map(|id| self.take(id)).collect()
    }

    fn keep(&mut self, approval: &Approval) {
        let once = approval.answer.as_ref().is_some_and(|answer| answer.choice == network::ONCE);
        if let Some(key) = Key::of(approval).filter(|_| once) {
            self.unspent.insert(key, (approval.id.clone(), approval.deadline));
        }
    }

    fn spent(&mut self, key: &Key, id: &ApprovalId) {
        if self.unspent.get(key).is_some_and(|(kept, _)| kept == id) {
            self.unspent.remove(key);
        }
    }
}

fn deny(why: impl Into<String>) -> Answer {
    Answer::Deny(why.into())
}

async fn wait(mut waiting: watch::Receiver<Option<Answer>>, closing: &CancellationToken) -> Answer {
    let answer = async { waiting.wait_for(Option::is_some).await.ok().and_then(|answer| answer.clone()) };
    tokio::select! {
        () = closing.cancelled() => deny("the server is shutting down"),
        answer = answer => answer.unwrap_or_else(|| deny("there is nobody left to answer")),
    }
}
