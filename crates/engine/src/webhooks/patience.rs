//! How long to wait before a notice is tried again, and when not to any more.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};

/// For all webhooks; only tests have another one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience {
    pub(crate) first: Duration,
    pub(crate) most: Duration,
    /// From the first attempt of a notice.
    pub(crate) in_all: TimeDelta,
    /// Attempts, however long ago the first was: a laptop that slept over the weekend has not tried for three days.
    pub(crate) at_least: u32,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            first: Duration::from_secs(1),
            most: Duration::from_secs(15 * 60),
            in_all: TimeDelta::days(3),
            at_least: 100,
        }
    }
}

impl Patience {
    /// After so many attempts. `dice` spreads webhooks that failed together over the second half of the pause.
    pub(crate) fn pause(&self, attempts: u32, asked: Option<Duration>, dice: u16) -> Duration {
        if let Some(asked) = asked {
            return asked.clamp(self.first, self.most);
        }
        let doubled = self.first.saturating_mul(1 << attempts.saturating_sub(1).min(20)).min(self.most);
        doubled / 2 + doubled / 2 * u32::from(dice) / u32::from(u16::MAX)
    }

    pub(crate) fn is_over(&self, attempts: u32, first_failed_at: Option<DateTime<Utc>>, now: DateTime<Utc>) -> bool {
        attempts >= self.at_least && first_failed_at.is_some_and(|first| now - first >= self.in_all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_quarter_of_an_hour() {
        let patience = Patience::default();
        let longest = |attempts| patience.pause(attempts, None, u16::MAX).as_secs();
        assert_eq!([1, 2, 3, 5, 10, 11, 12, 400, u32::MAX].map(longest), [1, 2, 4, 16, 512, 900, 900, 900, 900]);
        assert_eq!(patience.pause(5, None, 0), Duration::from_secs(8), "at least half of it");
        let middle = patience.pause(5, None, u16::MAX / 2);
        assert!(middle > Duration::from_secs(11) && middle < Duration::from_secs(13), "{middle:?}");
    }

    #[test]
    fn what_the_target_asks_for_counts_within_bounds() {
        let asked = |seconds| Patience::default().pause(9, Some(Duration::from_secs(seconds)), 0).as_secs();
        assert_eq!([0, 7, 86_400].map(asked), [1, 7, 900]);
    }

    #[test]
    fn after_three_days_of_trying_it_is_over() {
        let (patience, now) = (Patience::default(), Utc::now());
        let is_over = |attempts, hours| patience.is_over(attempts, Some(now - TimeDelta::hours(hours)), now);
        assert!(!patience.is_over(300, None, now) && !is_over(300, 71));
        assert!(is_over(300, 72) && is_over(100, 72));
        assert!(!is_over(99, 24 * 365), "nobody was there to try");
    }
}
