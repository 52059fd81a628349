//! Starting a sandbox again that failed by itself, where its template says so: its pod was evicted, its node was lost, its
//! guest died. What ran in it has ended; its files are as they were.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use sandbar_api::SandboxState;
use tokio::time;

use super::{Owner, reason};

/// One that fails more often than this within the time has a cause that starting it again does not mend.
const MOST: usize = 5;
const WITHIN: Duration = Duration::from_secs(60 * 60);
/// After each try that failed: a node that was lost takes minutes to be replaced, and is missed for half an hour.
const PAUSES: [Duration; MOST - 1] =
    [Duration::from_secs(60), Duration::from_secs(4 * 60), Duration::from_secs(10 * 60), Duration::from_secs(15 * 60)];
/// Of a start that nobody asked for, and of one that failed.
pub(super) const RECOVERING: &str = "recovering";
pub(super) const NOT_RECOVERED: &str = "not_recovered";
/// What a sandbox is said to have failed of when it did so by itself.
const BY_ITSELF: [&str; 4] = ["guest_died", "guest_unreachable", "interrupted", NOT_RECOVERED];

#[derive(Default)]
pub(super) struct Recoveries {
    tried: VecDeque<Instant>,
    /// The last one failed, and this is when the next is due.
    due: Option<Instant>,
}

impl Recoveries {
    /// Whether one more may be tried now, which then counts.
    fn admit(&mut self, now: Instant) -> bool {
        self.tried.retain(|then| now.saturating_duration_since(*then) < WITHIN);
        let admitted = self.tried.len() < MOST;
        if admitted {
            self.tried.push_back(now);
        }
        admitted
    }

    fn failed(&mut self, now: Instant) {
        let pause = self.tried.len().checked_sub(1).and_then(|tries| PAUSES.get(tries));
        self.due = pause.map(|pause| now + if cfg!(test) { *pause / 20 } else { *pause });
    }

    pub(super) fn is_due_later(&self) -> bool {
        self.due.is_some()
    }

    /// Returns when the next try is due.
    pub(super) fn due(&self) -> impl Future<Output = ()> + use<> {
        let due = self.due;
        async move {
            match due {
                Some(due) => time::sleep_until(due.into()).await,
                None => std::future::pending().await,
            }
        }
    }
}

impl Owner {
    /// Does nothing unless it failed by itself.
    pub(super) async fn recover(&mut self) {
        self.recoveries.due = None;
        let failed = {
            let sandbox = self.handle.record.borrow();
            let why = sandbox.reason.as_ref().map_or("", |reason| reason.code.as_str());
            sandbox.state == SandboxState::Failed && BY_ITSELF.contains(&why)
        };
        if !failed || !self.handle.template.kubernetes.recover {
            return;
        }
        if !self.recoveries.admit(Instant::now()) {
            tracing::warn!(sandbox = %self.handle.id, "a sandbox failed {MOST} times within an hour and is left failed");
            return;
        }
        if let Err(problem) = self.start(reason(RECOVERING, "It failed and is started again.")).await {
            self.recoveries.failed(Instant::now());
            let again = self.recoveries.is_due_later();
            tracing::warn!(sandbox = %self.handle.id, %problem, again, "a sandbox that failed cannot be started again");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_over_and_over_is_left_alone_for_a_while() {
        let mut recoveries = Recoveries::default();
        let start = Instant::now();
        assert!((0..MOST).all(|_| recoveries.admit(start)));
        assert!(!recoveries.admit(start + WITHIN / 2));
        assert!(recoveries.admit(start + WITHIN));
    }

    #[test]
    fn a_try_that_failed_is_followed_by_another_but_for_the_last() {
        let mut recoveries = Recoveries::default();
        let start = Instant::now();
        let mut pauses = vec![];
        for _ in 0..MOST {
            assert!(recoveries.admit(start));
            recoveries.failed(start);
            pauses.push(recoveries.due.map(|due| due - start));
        }
        assert!(
            pauses.iter().take(MOST - 1).is_sorted() && pauses.iter().take(MOST - 1).all(Option::is_some),
            "{pauses:?}"
        );
        assert_eq!(pauses.last(), Some(&None));
    }
}
