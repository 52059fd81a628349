//! How long to keep trying while a server is away, and how often.

use std::time::Duration;

/// Retries wait `first`, then twice as long each time up to `longest`, and end when they have waited `total` without
/// any progress in between.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    pub first: Duration,
    pub longest: Duration,
    pub total: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self { first: Duration::from_millis(50), longest: Duration::from_secs(1), total: Duration::from_secs(30) }
    }
}

impl Patience {
    /// Fail at the first broken connection.
    pub const NONE: Self = Self { first: Duration::ZERO, longest: Duration::ZERO, total: Duration::ZERO };
}

/// The state of one series of attempts.
#[derive(Debug)]
pub(crate) struct Backoff {
    patience: Patience,
    next: Duration,
    waited: Duration,
}

impl Backoff {
    pub(crate) fn new(patience: Patience) -> Self {
        Self { patience, next: patience.first, waited: Duration::ZERO }
    }

    /// Something arrived: the next failure starts from the beginning.
    pub(crate) fn progress(&mut self) {
        self.next = self.patience.first;
        self.waited = Duration::ZERO;
    }

    pub(crate) fn is_refusing(&self) -> bool {
        self.patience.total.is_zero()
    }

    /// Whether this is more than a hiccup, and worth telling.
    pub(crate) fn is_long(&self) -> bool {
        !self.is_refusing() && self.waited >= self.patience.first * 3
    }

    /// Waits before the next attempt; `false` when there should be none.
    pub(crate) async fn wait(&mut self) -> bool {
        if self.waited + self.next > self.patience.total || self.is_refusing() {
            return false;
        }
        self.waited += self.next;
        tokio::time::sleep(self.next).await;
        self.next = (self.next * 2).min(self.patience.longest);
        true
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn waits_double_up_to_the_longest_and_end() {
        let patience = Patience {
            first: Duration::from_millis(100),
            longest: Duration::from_millis(400),
            total: Duration::from_secs(2),
        };
        let mut backoff = Backoff::new(patience);
        let begin = Instant::now();
        let mut waits = 0;
        while backoff.wait().await {
            waits += 1;
        }
        assert_eq!((waits, begin.elapsed()), (6, Duration::from_millis(100 + 200 + 4 * 400)));
        backoff.progress();
        assert!(backoff.wait().await);
        assert!(!Backoff::new(Patience::NONE).wait().await);
    }
}
