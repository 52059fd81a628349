//! The accounts in memory. A session is in them while somebody knows it, while one below it is, and until the ends of
//! its calls are written: who is not in the books has nothing that the store does not know.

use std::{collections::HashMap, iter::successors};

use sandbar_api::SessionId;
use sandbar_gateway::{Held, Refused, Reserve, Settlement, llm::Usage};
use sandbar_policy::{Account, Amount, Limits, Price, Short};

use crate::{budget::usd, store::gate::CallEnd};

/// Tokens of a call that nothing bounds: above what any model reads and writes, and far below what vendors can make up.
const UNBOUNDED: u64 = 1 << 24;

#[derive(Default)]
pub(super) struct Books {
    accounts: HashMap<SessionId, Standing>,
    holds: HashMap<String, Hold>,
}

#[derive(Default)]
pub(super) struct Standing {
    pub(super) limits: Limits,
    pub(super) account: Account,
    pub(super) parent: Option<SessionId>,
    pub(super) model: Option<String>,
    /// Who needs it: those who know it, accounts below it, calls whose end is not written.
    pub(super) needed: usize,
}

struct Hold {
    session: SessionId,
    held: Amount,
    /// What of it can count, whatever the vendor reports.
    most: Amount,
    /// At the time of the reservation: a change of prices is for calls after it.
    price: Option<Price>,
}

impl Books {
    pub(super) fn get(&self, session: &SessionId) -> Option<&Standing> {
        self.accounts.get(session)
    }

    pub(super) fn get_mut(&mut self, session: &SessionId) -> Option<&mut Standing> {
        self.accounts.get_mut(session)
    }

    pub(super) fn sessions(&self) -> Vec<SessionId> {
        self.accounts.keys().cloned().collect()
    }

    /// Its parent, if it has one, is in the books already.
    pub(super) fn enter(&mut self, session: SessionId, standing: Standing) {
        if let Some(parent) = standing.parent.as_ref().and_then(|parent| self.accounts.get_mut(parent)) {
            parent.needed += 1;
        }
        self.accounts.insert(session, standing);
    }

    pub(super) fn need(&mut self, session: &SessionId) -> bool {
        let standing = self.accounts.get_mut(session);
        standing.map(|standing| standing.needed += 1).is_some()
    }

    pub(super) fn unneed(&mut self, session: &SessionId) {
        let mut next = Some(session.clone());
        while let Some(session) = next.take() {
            let Some(standing) = self.accounts.get_mut(&session) else { return };
            standing.needed = standing.needed.saturating_sub(1);
            if standing.needed == 0 {
                next = self.accounts.remove(&session).and_then(|standing| standing.parent);
            }
        }
    }

    /// The session and those above it; all of them, since each keeps the next.
    fn chain<'b>(&'b self, session: &'b SessionId) -> impl Iterator<Item = (&'b SessionId, &'b Standing)> {
        let find = |session: &'b SessionId| self.accounts.get_key_value(session);
        successors(find(session), move |(_, standing)| standing.parent.as_ref().and_then(find))
    }

    fn each(&mut self, session: &SessionId, mut change: impl FnMut(&mut Account)) {
        let mut next = Some(session.clone());
        while let Some(standing) = next.take().and_then(|session| self.accounts.get_mut(&session)) {
            change(&mut standing.account);
            next.clone_from(&standing.parent);
        }
    }

    pub(super) fn budget(&self, session: &SessionId) -> Held {
        if !self.accounts.contains_key(session) {
            // Nobody asks for one that is not known; if somebody did, nothing may be let through uncounted.
            return Held::Budget { left: 0, priced: true };
        }
        if !self.is_limited(session) {
            return Held::Counted;
        }
        let left = |standing: &Standing| {
            let minute = standing.limits.per_minute.unwrap_or(u64::MAX);
            standing.account.left(&standing.limits).min(minute)
        };
        let left = self.chain(session).map(|(_, standing)| left(standing)).min().unwrap_or(0);
        Held::Budget { left, priced: self.is_priced(session) }
    }

    fn is_limited(&self, session: &SessionId) -> bool {
        self.chain(session).any(|(_, standing)| standing.limits != Limits::default())
    }

    fn is_priced(&self, session: &SessionId) -> bool {
        self.chain(session).any(|(_, standing)| standing.limits.micros.is_some())
    }

    /// Holds what the call asks for on the session and all above it, or on none.
    pub(super) fn hold(&mut self, id: &str, session: &SessionId, call: &Reserve, now_ms: u64) -> Result<(), Refused> {
        let (asked, price) = (call.bound, call.price);
        if !self.accounts.contains_key(session) {
            return Err(Refused::Unavailable(format!("the session {session} is not known")));
        }
        // What was planned while nothing held may be without any bound.
        if !call.budgeted && self.is_limited(session) || !call.priced && self.is_priced(session) {
            return Err(Refused::Changed);
        }
        if price.is_none() && self.is_priced(session) {
            let cause = "a budget in dollars holds and the model has no price: add its prices to gateway.toml";
            return Err(Refused::Unavailable(cause.into()));
        }
        let short = |(session, standing): (&SessionId, &Standing)| {
            let short = standing.account.admit(&standing.limits, asked, now_ms).err()?;
            Some(Refused::Short { session: session.to_string(), short })
        };
        // What waiting does not help against comes first, then the longest wait.
        if let Some(refused) = self.chain(session).filter_map(short).max_by_key(lasting) {
            return Err(refused);
        }
        self.each(session, |account| account.hold(asked));
        self.need(session);
        // without a budget what is held is only an estimate
        let unbounded = Amount { tokens: asked.tokens.max(UNBOUNDED), micros: u64::MAX };
        let most = if call.budgeted { asked } else { unbounded };
        self.holds.insert(id.to_owned(), Hold { session: session.clone(), held: asked, most, price });
        Ok(())
    }

    /// Of a call that never was one: it is not in the store either.
    pub(super) fn strike(&mut self, id: &str) {
        let Some(Hold { session, held, .. }) = self.holds.remove(id) else { return };
        self.each(&session, |account| account.release(held));
        self.unneed(&session);
    }

    /// Once: who comes second finds no hold. The session stays needed until its end is written.
    pub(super) fn settle(&mut self, id: &str, end: Settlement, now_ms: u64) -> Option<(SessionId, CallEnd)> {
        let Hold { session, held, most, price } = self.holds.remove(id)?;
        let mut told = CallEnd {
            id: id.to_owned(),
            ended_at: crate::clock::now(),
            status: end.status,
            elapsed_ms: u64::try_from(end.elapsed.as_millis()).unwrap_or(u64::MAX),
            note: end.note,
            ..CallEnd::default()
        };
        match end.usage {
            Some(usage) => {
                let reported = amount(&usage, price);
                let usage = within(usage, most.tokens);
                let counted = amount(&usage, price);
                let counted = Amount { micros: counted.micros.min(most.micros), ..counted };
                (told.input, told.output) = (usage.input, usage.output);
                (told.cached_input, told.cache_write) = (usage.cached_input, usage.cache_write);
                (told.tokens, told.micros) = (counted.tokens, counted.micros);
                if counted != reported {
                    told.estimated = true;
                    told.note = Some(format!(
                        "the vendor reports {} tokens (${}), more than the call can use, so {} (${}) count",
                        reported.tokens,
                        usd(reported.micros),
                        counted.tokens,
                        usd(counted.micros)
                    ));
                    told.reported = Some(reported);
                }
            }
            None if end.free => {}
            None => (told.estimated, told.tokens, told.micros) = (true, held.tokens, held.micros),
        }
        let used = Amount { tokens: told.tokens, micros: told.micros };
        self.each(&session, |account| account.settle(held, used, now_ms));
        Some((session, told))
    }
}

fn amount(usage: &Usage, price: Option<Price>) -> Amount {
    let plain = usage.input.saturating_sub(usage.cached_input).saturating_sub(usage.cache_write);
    let cost = |price: Price| price.of(plain, usage.cached_input, usage.cache_write, usage.output);
    Amount { tokens: usage.input.saturating_add(usage.output), micros: price.map_or(0, cost) }
}

/// No more tokens than that, of which kind ever: the output first, which cost more as a rule.
fn within(usage: Usage, tokens: u64) -> Usage {
    let output = usage.output.min(tokens);
    let input = usage.input.min(tokens - output);
    let cached_input = usage.cached_input.min(input);
    Usage { input, cached_input, cache_write: usage.cache_write.min(input - cached_input), output }
}

fn lasting(refused: &Refused) -> u64 {
    match refused {
        Refused::Short { short: Short::Rate { retry_after_ms, .. }, .. } => *retry_after_ms,
        Refused::Short { .. } | Refused::Changed | Refused::Unavailable(_) => u64::MAX,
    }
}
