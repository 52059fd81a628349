//! How often a program may ask and take back by itself: what flips between questions fills neither the log nor anybody's list.

use std::time::Duration;

use tokio::time::Instant;

/// So many questions may come and go at once.
const BURST: u32 = 10;
/// And then one in each of these.
const PACE: Duration = Duration::from_secs(if cfg!(test) { 3600 } else { 10 });

#[derive(Default)]
pub(super) struct Restraint {
    /// When all that went by itself is forgotten.
    paid: Option<Instant>,
}

impl Restraint {
    /// A question went without anybody having dealt with it.
    pub(super) fn count(&mut self, now: Instant) {
        self.paid = Some(self.paid.map_or(now, |paid| paid.max(now)) + PACE);
    }

    /// Whether the next has to wait.
    pub(super) fn holds(&self, now: Instant) -> bool {
        self.paid.is_some_and(|paid| paid > now + PACE * (BURST - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_at_once_and_then_few() {
        let (mut restraint, start) = (Restraint::default(), Instant::now());
        for _ in 0..BURST {
            assert!(!restraint.holds(start));
            restraint.count(start);
        }
        assert!(restraint.holds(start) && restraint.holds(start + PACE - Duration::from_millis(1)));
        assert!(!restraint.holds(start + PACE), "one more");
        restraint.count(start + PACE);
        assert!(restraint.holds(start + PACE));
        assert!(!restraint.holds(start + PACE * (BURST + 5)));
    }
}
