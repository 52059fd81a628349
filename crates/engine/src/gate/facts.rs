//! What happens at gates, written down in batches: one commit for all that came while the last was under way.

use std::{
    collections::HashMap,
    mem,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use sandbar_api::SandboxId;
use sandbar_gateway::{Direction, Fact, Outcome};
use serde_json::{Map, Value};
use tokio::{
    sync::{mpsc, oneshot},
    time::{self, Instant},
};

use crate::store::{Store, gate::FactRow};

/// What may wait to be written. A sandbox that makes more than the disk takes loses the record of some, not its memory.
const QUEUE: usize = 4096;
/// Of one sandbox: facts a second in the long run, and at once.
const PER_SECOND: f64 = 100.0;
const BURST: f64 = 2000.0;
/// Facts a transaction.
const BATCH: usize = 512;
/// How often, and how long after the first time, a batch is tried again before it counts as lost.
const TRIES: u32 = 5;
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// When to tell of what was lost, if nothing else happens.
const TELL_AGAIN: Duration = Duration::from_secs(1);
/// Of a text from outside; enough to know it by.
const LONGEST_TEXT: usize = 2048;

/// The way to the task that writes. Never blocks: a bounded queue, and what does not fit is counted and told as one event.
#[derive(Clone)]
pub(crate) struct Facts {
    queue: mpsc::Sender<Message>,
    lost: Lost,
}

enum Message {
    Fact(FactRow),
    Close(oneshot::Sender<()>),
}

impl Facts {
    /// Starts the task that writes.
    pub(crate) fn start(store: Arc<dyn Store>) -> Self {
        let (queue, inbox) = mpsc::channel(QUEUE);
        let lost = Lost::default();
        tokio::spawn(Writing { store, lost: lost.clone() }.run(inbox));
        Self { queue, lost }
    }

    pub(crate) fn record(&self, sandbox: &SandboxId, share: &Share, fact: Fact) {
        if !share.take() || self.queue.try_send(Message::Fact(row(sandbox, fact))).is_err() {
            self.lost.add(sandbox, 1);
        }
    }

    /// How many of a sandbox's are lost and not told yet.
    #[cfg(test)]
    pub(crate) fn lost(&self, sandbox: &SandboxId) -> u64 {
        self.lost.0.lock().unwrap_or_else(PoisonError::into_inner).get(sandbox).copied().unwrap_or_default()
    }

    /// All that was recorded is written when it returns, or was counted as lost.
    pub(crate) async fn close(&self) {
        let (done, closed) = oneshot::channel();
        if self.queue.send(Message::Close(done)).await.is_ok() {
            // An error means that the task has ended, and wrote what it had.
            closed.await.ok();
        }
    }
}

/// What one sandbox may have written down: refused connections cost it nothing, and the log is on a disk that all share.
pub(crate) struct Share(Mutex<(f64, Instant)>);

impl Default for Share {
    fn default() -> Self {
        Self(Mutex::new((BURST, Instant::now())))
    }
}

impl Share {
    fn take(&self) -> bool {
        let mut share = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (left, since) = *share;
        let now = Instant::now();
        let left = (left + now.duration_since(since).as_secs_f64() * PER_SECOND).min(BURST);
        let enough = left >= 1.0;
        *share = (if enough { left - 1.0 } else { left }, now);
        enough
    }
}

/// What was not written, by sandbox: the one who reads a sandbox's log has to know that there is more.
#[derive(Clone, Default)]
struct Lost(Arc<Mutex<HashMap<SandboxId, u64>>>);

impl Lost {
    fn add(&self, sandbox: &SandboxId, count: u64) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(sandbox.clone()).or_default() += count;
    }

    fn take(&self) -> HashMap<SandboxId, u64> {
        mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn is_empty(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }
}

struct Writing {
    store: Arc<dyn Store>,
    lost: Lost,
}

impl Writing {
    async fn run(self, mut inbox: mpsc::Receiver<Message>) {
        let mut messages = Vec::with_capacity(BATCH);
        loop {
            tokio::select! {
                received = inbox.recv_many(&mut messages, BATCH) => {
                    if received == 0 {
                        return;
                    }
                }
                () = time::sleep(TELL_AGAIN), if !self.lost.is_empty() => {}
            }
            let (mut facts, mut closing) = (Vec::new(), None);
            for message in messages.drain(..) {
                match message {
                    Message::Fact(fact) => facts.push(fact),
                    Message::Close(done) => closing = Some(done),
                }
            }
            self.write(facts).await;
            if let Some(done) = closing {
                inbox.close();
                done.send(()).ok();
                return;
            }
        }
    }

    async fn write(&self, facts: Vec<FactRow>) {
        let lost = self.lost.take();
        let told = |(sandbox, count): (&SandboxId, &u64)| FactRow {
            kind: "net.log_lost",
            sandbox: sandbox.clone(),
            data: [("count".to_owned(), Value::from(*count))].into_iter().collect(),
        };
        let rows: Vec<_> = facts.iter().cloned().chain(lost.iter().map(told)).collect();
        if self.insist(rows).await {
            return;
        }
        for (sandbox, count) in lost {
            self.lost.add(&sandbox, count);
        }
        for fact in facts {
            self.lost.add(&fact.sandbox, 1);
        }
    }

    /// Whether it was written in the end.
    async fn insist(&self, rows: Vec<FactRow>) -> bool {
        let mut pause = FIRST_PAUSE;
        for left in (0..TRIES).rev() {
            match self.store.append_facts(rows.clone()).await {
                Ok(()) => return true,
                Err(error) if left == 0 => {
                    let error = &error as &dyn std::error::Error;
                    tracing::error!(error, count = rows.len(), "what happened at gates is not written down");
                }
                Err(_) => time::sleep(pause).await,
            }
            pause *= 2;
        }
        false
    }
}

fn row(sandbox: &SandboxId, fact: Fact) -> FactRow {
    let mut data = Map::new();
    let mut tell = |name: &str, value: Value| drop(data.insert(name.to_owned(), value));
    tell("host", text(&fact.host));
    tell("port", fact.port.into());
    for (name, value) in [("method", &fact.method), ("path", &fact.path), ("rule", &fact.decision.rule)] {
        if let Some(value) = value {
            tell(name, text(value));
        }
    }
    if let Ok(effect) = serde_json::to_value(fact.decision.effect) {
        tell("effect", effect);
    }
    if !fact.secrets.is_empty() {
        tell("secrets", fact.secrets.into());
    }
    let kind = match (&fact.outcome, fact.direction) {
        (Outcome::Opened, _) => "net.opened",
        (Outcome::Done { .. }, Direction::Tunnel) => "net.closed",
        (Outcome::Done { .. }, Direction::Request) => "net.request",
        (Outcome::Denied(_), _) => "net.denied",
        (Outcome::Failed(_), _) => "net.failed",
    };
    match fact.outcome {
        Outcome::Done { status: Some(status) } => tell("status", status.into()),
        Outcome::Denied(reason) | Outcome::Failed(reason) => tell("reason", text(&reason)),
        Outcome::Opened | Outcome::Done { status: None } => {}
    }
    tell("sent", fact.sent.into());
    tell("received", fact.received.into());
    tell("ms", u64::try_from(fact.elapsed.as_millis()).unwrap_or(u64::MAX).into());
    FactRow { kind, sandbox: sandbox.clone(), data: data.into() }
}

/// At most so much of it.
fn text(whole: &str) -> Value {
    if whole.len() <= LONGEST_TEXT {
        return whole.into();
    }
    format!("{}…", &whole[..whole.floor_char_boundary(LONGEST_TEXT)]).into()
}
