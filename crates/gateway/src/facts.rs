//! What is recorded of a connection or a request: once when it ends, however it ends.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use hyper::StatusCode;
use sandbar_policy::{Decision, Effect};
use tokio::time::Instant;

use crate::{Direction, Fact, Outcome, Warden, refusal::shown, secrets::Used};

/// The longest host and path that are recorded.
const LONGEST: usize = 1024;

/// Bytes towards the server and back, counted where they pass.
#[derive(Clone, Default)]
pub(crate) struct Traffic {
    pub(crate) sent: Arc<AtomicU64>,
    pub(crate) received: Arc<AtomicU64>,
}

/// A fact in the making. Dropped without an outcome it records that nobody waited for one.
pub(crate) struct Record {
    warden: Arc<dyn Warden>,
    fact: Option<Fact>,
    began: Instant,
    pub(crate) traffic: Traffic,
    pub(crate) used: Used,
}

impl Record {
    /// Nothing is decided yet: a denial by no rule.
    pub(crate) fn new(warden: &Arc<dyn Warden>, direction: Direction, host: &str, port: u16) -> Self {
        let fact = Fact {
            direction,
            host: shorten(&host.escape_debug().to_string()),
            port,
            method: None,
            path: None,
            decision: Decision { effect: Effect::Deny, rule: None },
            secrets: Vec::new(),
            outcome: Outcome::Opened,
            sent: 0,
            received: 0,
            elapsed: std::time::Duration::ZERO,
        };
        Self {
            warden: Arc::clone(warden),
            fact: Some(fact),
            began: Instant::now(),
            traffic: Traffic::default(),
            used: Used::default(),
        }
    }

    /// The path comes without its query, because queries hold what people mean to be secret.
    pub(crate) fn request(mut self, method: &str, path: &str) -> Self {
        if let Some(fact) = &mut self.fact {
            fact.method = Some(shorten(&method.escape_debug().to_string()));
            fact.path = Some(shorten(&path.escape_debug().to_string()));
        }
        self
    }

    pub(crate) fn decided(&mut self, decision: &Decision) {
        if let Some(fact) = &mut self.fact {
            fact.decision = decision.clone();
        }
    }

    /// Others tell what became of it.
    pub(crate) fn forget(&mut self) {
        self.fact = None;
    }

    pub(crate) fn opened(&self) {
        if let Some(fact) = &self.fact {
            let mut fact = fact.clone();
            fact.outcome = Outcome::Opened;
            fact.elapsed = self.began.elapsed();
            self.warden.record(fact);
        }
    }

    pub(crate) fn done(&mut self, status: Option<StatusCode>) {
        self.end(Outcome::Done { status: status.map(|status| status.as_u16()) });
    }

    /// What went nowhere is worth no more of the path than its beginning.
    pub(crate) fn denied(&mut self, sentence: impl Into<String>) {
        if let Some(fact) = &mut self.fact {
            fact.path = fact.path.as_deref().map(shown);
        }
        self.end(Outcome::Denied(sentence.into()));
    }

    pub(crate) fn failed(&mut self, sentence: impl Into<String>) {
        self.end(Outcome::Failed(sentence.into()));
    }

    /// The first outcome counts.
    fn end(&mut self, outcome: Outcome) {
        let Some(mut fact) = self.fact.take() else { return };
        fact.outcome = outcome;
        fact.secrets = self.used.names();
        fact.sent = self.traffic.sent.load(Ordering::Relaxed);
        fact.received = self.traffic.received.load(Ordering::Relaxed);
        fact.elapsed = self.began.elapsed();
        self.warden.record(fact);
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        self.failed("it was given up before its end");
    }
}

fn shorten(text: &str) -> String {
    match text.char_indices().nth(LONGEST) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}
