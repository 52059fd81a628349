//! Who has how many of the TCP connections. There are only so many descriptors: one token must not have all of them, and
//! those who run the server must get in when everybody else is there already.
//!
//! A connection belongs to nobody until a request on it shows a token; then it counts for that token until it closes, idle
//! or not. When no slot is left, the oldest one that belongs to nobody is closed for the next.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use axum::http::{Extensions, HeaderValue, header};
use axum::response::{IntoResponse as _, Response};
use rustix::process::{Resource, getrlimit};
use sandbar_api::{Code, Problem, Role};
use sandbar_engine::Caller;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::problem::Refused;

/// Of the descriptors that this process may have, one part of so many; the rest is for sandboxes, their gates and the store.
const PART: usize = 4;
const FEWEST: usize = 64;
const MOST: usize = 16 * 1024;
/// Where the limit cannot be told.
const USUAL: u64 = 4096;

/// How many there may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shares {
    pub(crate) all: usize,
    /// Of those whose role is below operator, together.
    common: usize,
    /// Of one agent's or viewer's token.
    small: usize,
    /// Of one operator's or admin's token.
    large: usize,
}

impl Shares {
    /// Out of so many descriptors.
    fn of(descriptors: u64) -> Self {
        let all = usize::try_from(descriptors).unwrap_or(usize::MAX) / PART;
        let all = all.clamp(FEWEST, MOST);
        Self { all, common: all - all / 4, small: (all / 16).max(8), large: all / 2 }
    }

    pub(crate) fn here() -> Self {
        Self::of(getrlimit(Resource::Nofile).current.unwrap_or(USUAL))
    }
}

pub(crate) struct Slots {
    shares: Shares,
    taken: Mutex<Taken>,
    /// One was given back.
    pub(crate) freed: Notify,
}

#[derive(Default)]
struct Taken {
    next: u64,
    /// In the order in which they were taken.
    slots: BTreeMap<u64, Held>,
    owners: HashMap<String, usize>,
    /// Of owners whose role is below operator.
    common: usize,
}

struct Held {
    owner: Option<Owner>,
    end: CancellationToken,
}

#[derive(Clone, PartialEq, Eq)]
struct Owner {
    name: String,
    operates: bool,
}

/// Of one connection, for as long as its socket lives, whatever protocol it has changed to.
pub(crate) struct Slot {
    slots: Arc<Slots>,
    number: u64,
    end: CancellationToken,
}

/// What requests carry: a request that is kept must not keep a slot.
#[derive(Clone)]
pub(crate) struct Connection(Weak<Slot>);

impl Connection {
    pub(crate) fn of(slot: &Arc<Slot>) -> Self {
        Self(Arc::downgrade(slot))
    }
}

impl Slots {
    pub(crate) fn new(shares: Shares) -> Arc<Self> {
        Arc::new(Self { shares, taken: Mutex::default(), freed: Notify::new() })
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether another connection may be accepted: one slot is free, or belongs to nobody and can be.
    pub(crate) fn has_room(&self) -> bool {
        let taken = self.lock();
        taken.slots.len() < self.shares.all || taken.slots.values().any(|held| held.owner.is_none())
    }

    /// For a connection that was accepted. Closes another one where there is no room; for a moment there is one more.
    pub(crate) fn take(self: &Arc<Self>) -> Arc<Slot> {
        let mut taken = self.lock();
        if taken.slots.len() >= self.shares.all {
            let oldest = taken.slots.values().find(|held| held.owner.is_none() && !held.end.is_cancelled());
            oldest.inspect(|held| held.end.cancel());
        }
        let (number, end) = (taken.next, CancellationToken::new());
        taken.next += 1;
        taken.slots.insert(number, Held { owner: None, end: end.clone() });
        Arc::new(Slot { slots: self.clone(), number, end })
    }
}

impl Taken {
    fn release(&mut self, owner: &Owner) {
        self.common -= usize::from(!owner.operates);
        if let Some(count) = self.owners.get_mut(&owner.name) {
            *count -= 1;
            if *count == 0 {
                self.owners.remove(&owner.name);
            }
        }
    }
}

impl Slot {
    /// Told when somebody else needs it.
    pub(crate) async fn ended(&self) {
        self.end.cancelled().await;
    }

    /// From now on it counts for this owner. A connection that several share, as proxies have them, counts for the last.
    fn belongs_to(&self, owner: &Owner) -> Result<(), Problem> {
        let shares = self.slots.shares;
        let mut taken = self.slots.lock();
        let Some(held) = taken.slots.get(&self.number) else { return Ok(()) };
        if held.owner.as_ref() == Some(owner) {
            return Ok(());
        }
        let before = held.owner.clone();
        let own = taken.owners.get(&owner.name).copied().unwrap_or(0);
        let share = if owner.operates { shares.large } else { shares.small };
        if own >= share {
            return Err(Problem::new(
                Code::TooMany,
                format!("The token has {share} connections, which is as many as one may have."),
                "Close some of them, or send requests over fewer.",
            ));
        }
        let moved = before.as_ref().is_some_and(|before| !before.operates);
        if !owner.operates && taken.common - usize::from(moved) >= shares.common {
            return Err(Problem::new(
                Code::TooMany,
                "The server has as many connections as it may have; those that are left are for operators.",
                "Try again later.",
            ));
        }
        if let Some(before) = before {
            taken.release(&before);
        }
        *taken.owners.entry(owner.name.clone()).or_default() += 1;
        taken.common += usize::from(!owner.operates);
        if let Some(held) = taken.slots.get_mut(&self.number) {
            held.owner = Some(owner.clone());
        }
        Ok(())
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut taken = self.slots.lock();
        if let Some(Held { owner: Some(owner), .. }) = taken.slots.remove(&self.number) {
            taken.release(&owner);
        }
        drop(taken);
        self.slots.freed.notify_one();
    }
}

/// Counts the connection of a request for its caller. Over the owner's socket there is nothing to count.
pub(crate) fn claim(request: &Extensions, caller: &Caller) -> Result<(), Problem> {
    claim_for(request, &caller.owner, caller.role >= Role::Operator)
}

/// For callers who have no token of ours.
pub(crate) fn claim_for(request: &Extensions, name: &str, operates: bool) -> Result<(), Problem> {
    let slot = request.get::<Connection>().and_then(|connection| connection.0.upgrade());
    slot.map_or(Ok(()), |slot| slot.belongs_to(&Owner { name: name.to_owned(), operates }))
}

/// A connection that may not stay is not kept for another request.
pub(crate) fn turned_away(problem: Problem) -> Response {
    let mut response = Refused(problem).into_response();
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARES: Shares = Shares { all: 8, common: 5, small: 2, large: 4 };

    fn owner(name: &str, operates: bool) -> Owner {
        Owner { name: name.to_owned(), operates }
    }

    fn claimed(slots: &Arc<Slots>, name: &str, operates: bool) -> Option<Arc<Slot>> {
        let slot = slots.take();
        slot.belongs_to(&owner(name, operates)).ok().map(|()| slot)
    }

    #[test]
    fn they_follow_the_descriptors() {
        for (descriptors, all, small) in
            [(0, 64, 8), (1024, 256, 16), (20_000, 5000, 312), (1 << 20, 16_384, 1024), (u64::MAX, 16_384, 1024)]
        {
            let shares = Shares::of(descriptors);
            assert_eq!((shares.all, shares.small), (all, small), "{descriptors}");
            assert!(shares.small < shares.common && shares.common < shares.all && shares.large < shares.all);
        }
    }

    #[test]
    fn one_token_has_its_share_and_no_more() {
        let slots = Slots::new(SHARES);
        let mut held: Vec<_> = (0..2).filter_map(|_| claimed(&slots, "agent", false)).collect();
        assert_eq!(held.len(), 2);
        assert!(claimed(&slots, "agent", false).is_none());
        assert!(held[0].belongs_to(&owner("agent", false)).is_ok(), "another request on the same connection");
        assert!(claimed(&slots, "other", false).is_some());
        held.pop();
        assert!(claimed(&slots, "agent", false).is_some());
        // What a proxy sends over one connection counts for the last.
        let shared = claimed(&slots, "other", false).expect("there is room");
        assert!(shared.belongs_to(&owner("third", false)).is_ok());
        assert_eq!(slots.lock().owners.get("other"), None);
        drop((shared, held));
        let left = slots.lock();
        assert_eq!((left.common, left.owners.len(), left.slots.len()), (0, 0, 0));
    }

    #[test]
    fn operators_get_in_when_everybody_else_is_there() {
        let slots = Slots::new(SHARES);
        let many = ["a", "a", "b", "b", "c", "c", "d"];
        let held: Vec<_> = many.iter().filter_map(|name| claimed(&slots, name, false)).collect();
        assert_eq!(held.len(), SHARES.common);
        let operators: Vec<_> = (0..3).filter_map(|_| claimed(&slots, "operator", true)).collect();
        assert_eq!(operators.len(), 3);
        assert!(!slots.has_room(), "everybody who is there is somebody");
        drop(held);
        assert!(slots.has_room());
    }

    #[test]
    fn who_shows_no_token_makes_room_for_the_next() {
        let slots = Slots::new(SHARES);
        let strangers: Vec<_> = (0..8).map(|_| slots.take()).collect();
        assert!(slots.has_room());
        let operator = claimed(&slots, "operator", true).expect("a stranger goes");
        let gone: Vec<_> = strangers.iter().map(|slot| slot.end.is_cancelled()).collect();
        assert_eq!(gone, [true, false, false, false, false, false, false, false]);
        let _next = slots.take();
        assert!(strangers[1].end.is_cancelled() && !operator.end.is_cancelled());
    }
}
