//! What is refused before anything was reserved, as a fact: the books know nothing of it, and somebody may look for why an
//! agent stands still. Names what was asked of and why, nothing of what was asked.

use std::time::Instant;

use sandbar_policy::{Decision, Effect};

use super::{refusal::Refusal, route::Endpoint};
use crate::{Direction, Fact, Outcome, Warden};

/// Where it was not known yet which upstream it would have been.
const NOWHERE: (&str, u16) = ("llm", 0);

pub(super) fn record(warden: &dyn Warden, endpoint: Endpoint, refusal: &Refusal, began: Instant) {
    let reason = refusal.message.clone();
    let (effect, outcome) = if refusal.status.is_server_error() {
        (Effect::Allow, Outcome::Failed(reason))
    } else {
        (Effect::Deny, Outcome::Denied(reason))
    };
    let (host, port) = refusal.upstream.as_deref().cloned().unwrap_or((NOWHERE.0.to_owned(), NOWHERE.1));
    warden.record(Fact {
        direction: Direction::Request,
        host,
        port,
        method: Some("POST".into()),
        path: Some(endpoint.own_path().into()),
        decision: Decision { effect, rule: None },
        secrets: Vec::new(),
        outcome,
        sent: 0,
        received: 0,
        elapsed: began.elapsed(),
    });
}
