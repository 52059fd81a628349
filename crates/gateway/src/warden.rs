//! What the gateway asks about the one sandbox that an entrance belongs to.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use sandbar_policy::{Amount, Decision, Host, Placement, Policy, Price, Short};
use zeroize::Zeroizing;

use crate::llm::{Catalogue, Usage};

/// A secret's value; wiped when dropped, never shown by `Debug`.
#[derive(Clone)]
pub struct Secret(Arc<Zeroizing<String>>);

impl Secret {
    pub fn new(value: String) -> Self {
        Self(Arc::new(Zeroizing::new(value)))
    }

    /// The one way to the value: every place that sees it can be found by this name.
    pub fn expose(&self) -> &str {
        self.0.as_str()
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

/// A secret the sandbox may use, without its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    pub name: String,
    /// What the sandbox holds instead of it. Letters, digits and `_` only.
    pub placeholder: String,
    /// The hosts it may go to.
    pub hosts: Vec<Host>,
    pub placement: Placement,
}

/// Something a person is to decide while a connection waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    pub host: Host,
    pub port: u16,
    /// Of a request that was seen, else absent: the whole connection is asked for.
    pub method: Option<String>,
    pub path: Option<String>,
    /// The rule that asks.
    pub rule: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    Allow,
    /// With a sentence for the one who is refused, for example that nobody answered in time.
    Deny(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// A tunnel whose content is not seen.
    Tunnel,
    /// A request that was seen, in plain or over terminated TLS.
    Request,
}

/// What became of a connection or a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// A tunnel was opened; another fact follows at its end.
    Opened,
    /// The status, of requests.
    Done { status: Option<u16> },
    /// By the rules or a person; the sentence the client was given.
    Denied(String),
    /// Allowed, but it failed: the sentence the client was given.
    Failed(String),
}

/// One decision and what came of it: an event. Holds no header, no query and no value of a secret.
#[derive(Debug, Clone)]
pub struct Fact {
    pub direction: Direction,
    /// As asked for, escaped if it was no host at all.
    pub host: String,
    pub port: u16,
    pub method: Option<String>,
    /// Without the query.
    pub path: Option<String>,
    pub decision: Decision,
    /// Names of secrets that were put in.
    pub secrets: Vec<String>,
    pub outcome: Outcome,
    /// Towards the server and back.
    pub sent: u64,
    pub received: u64,
    pub elapsed: Duration,
}

/// What an LLM call asks of the budget.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reserve {
    pub model: String,
    pub upstream: String,
    /// The most it can use.
    pub bound: Amount,
    /// By which the bound was computed, and by which the call will be settled.
    pub price: Option<Price>,
    /// Whether [`Warden::budget`] told of a budget when the bound was computed. Without one a bound is only an estimate.
    pub budgeted: bool,
    /// Whether it told of one in dollars.
    pub priced: bool,
}

/// Held for a call under way. Every one is ended by `settle`, exactly once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reservation {
    pub id: String,
    pub held: Amount,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Held {
    /// A budget is in force somewhere above this session: input that cannot be bounded is refused, a missing output cap is
    /// set. `left` is how many tokens could be asked for now; `priced` whether a limit in dollars is among them.
    Budget { left: u64, priced: bool },
    /// Only counted.
    Counted,
}

/// Why a reservation was not made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refused {
    /// `session` is the one whose budget it is, which may be a parent's.
    Short { session: String, short: Short },
    /// A budget came into force since the bound was computed: it has to be computed anew.
    Changed,
    /// The books cannot be written (disk full, shutting down): fail closed.
    Unavailable(String),
}

/// How an LLM call ended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settlement {
    /// Reported by the vendor; absent: none was seen, and the reservation stands unless `free`.
    pub usage: Option<Usage>,
    /// The vendor refused it or was never reached: it cost nothing.
    pub free: bool,
    pub status: Option<u16>,
    pub elapsed: Duration,
    /// For the log: why there is no usage, or what failed.
    pub note: Option<String>,
}

/// Answers for one sandbox. Everything is asked anew for each connection or request, so that changes are live.
#[async_trait]
pub trait Warden: Send + Sync + 'static {
    /// What people call the sandbox.
    fn name(&self) -> String;

    /// The rules now.
    fn policy(&self) -> Arc<Policy>;

    /// The secrets it may use now.
    fn grants(&self) -> Arc<[Grant]>;

    /// The value of a granted secret now; absent if it was removed.
    fn reveal(&self, name: &str) -> Option<Secret>;

    /// Asks a person, and returns when there is an answer, which may take long. Dropping the future gives up waiting.
    async fn ask(&self, question: Question) -> Answer;

    /// Never blocks; what is recorded is written soon after.
    fn record(&self, fact: Fact);

    /// Upstreams, models and prices now.
    fn catalogue(&self) -> Arc<Catalogue>;

    /// The key of the upstream of that name; only for upstreams of the catalogue, only sent over verified TLS.
    fn upstream_secret(&self, upstream: &str) -> Option<(Secret, Placement)>;

    /// The model this session was switched to, whatever it asks for.
    fn model(&self) -> Option<String>;

    /// Whether a budget is in force, before a bound is computed.
    fn budget(&self) -> Held;

    /// Reserves before a call; durable when it returns.
    async fn reserve(&self, call: Reserve) -> Result<Reservation, Refused>;

    /// Ends a reservation. Returns at once; it is written soon after and in any case before the server ends.
    fn settle(&self, reservation: Reservation, end: Settlement);
}
