//! Budget arithmetic: reserve an upper bound before a call, settle on what was used after it. No overshoot by design:
//! used + reserved never passes a limit. Saturating throughout; time is the caller's, in milliseconds.

use std::collections::VecDeque;

/// What a session may use; absent: no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Limits {
    pub tokens: Option<u64>,
    /// Millionths of a dollar.
    pub micros: Option<u64>,
    /// Tokens in any 60 seconds.
    pub per_minute: Option<u64>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Amount {
    pub tokens: u64,
    pub micros: u64,
}

/// Why a call does not fit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Short {
    /// `used` is settled, `reserved` is held by calls under way.
    Tokens {
        used: u64,
        reserved: u64,
        asked: u64,
        limit: u64,
    },
    Micros {
        used: u64,
        reserved: u64,
        asked: u64,
        limit: u64,
    },
    /// It fits after this long, as far as is known now.
    Rate {
        limit: u64,
        asked: u64,
        retry_after_ms: u64,
    },
    /// More than a whole minute's worth: waiting does not help.
    NeverRate {
        limit: u64,
        asked: u64,
    },
}

/// The window of `per_minute`.
const WINDOW_MS: u64 = 60_000;

/// When only calls under way are in the way, nobody knows when they end: asking again soon costs little.
const ASK_AGAIN_MS: u64 = 1000;

/// One session's account. Holds are kept by the caller; what is held here is their sum.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Account {
    pub used: Amount,
    pub reserved: Amount,
    /// Tokens settled in the last minute: (when, how many), oldest first, one for each second in which there were any.
    recent: VecDeque<(u64, u64)>,
}

impl Account {
    /// What was used by earlier servers, as recorded.
    pub fn with_used(used: Amount) -> Self {
        Self { used, ..Self::default() }
    }

    /// Whether it fits. Changes nothing.
    pub fn admit(&self, limits: &Limits, asked: Amount, now_ms: u64) -> Result<(), Short> {
        let (used, reserved) = (self.used, self.reserved);
        if let Some(limit) = limits.tokens.filter(|limit| passes(*limit, [used.tokens, reserved.tokens, asked.tokens]))
        {
            let (used, reserved, asked) = (used.tokens, reserved.tokens, asked.tokens);
            return Err(Short::Tokens { used, reserved, asked, limit });
        }
        if let Some(limit) = limits.micros.filter(|limit| passes(*limit, [used.micros, reserved.micros, asked.micros]))
        {
            let (used, reserved, asked) = (used.micros, reserved.micros, asked.micros);
            return Err(Short::Micros { used, reserved, asked, limit });
        }
        limits.per_minute.map_or(Ok(()), |limit| self.admit_rate(limit, asked.tokens, now_ms))
    }

    fn admit_rate(&self, limit: u64, asked: u64, now_ms: u64) -> Result<(), Short> {
        if asked > limit {
            return Err(Short::NeverRate { limit, asked });
        }
        let recent = || self.recent.iter().filter(|(when, _)| leaves(*when) > now_ms);
        let mut in_the_way = recent().fold(self.reserved.tokens, |sum, (_, tokens)| sum.saturating_add(*tokens));
        if !passes(limit, [in_the_way, asked, 0]) {
            return Ok(());
        }
        for (when, tokens) in recent() {
            in_the_way = in_the_way.saturating_sub(*tokens);
            if !passes(limit, [in_the_way, asked, 0]) {
                return Err(Short::Rate { limit, asked, retry_after_ms: leaves(*when) - now_ms });
            }
        }
        Err(Short::Rate { limit, asked, retry_after_ms: ASK_AGAIN_MS })
    }

    /// Holds what was admitted.
    pub fn hold(&mut self, asked: Amount) {
        self.reserved.tokens = self.reserved.tokens.saturating_add(asked.tokens);
        self.reserved.micros = self.reserved.micros.saturating_add(asked.micros);
    }

    /// Ends a hold: what was used instead. `used` may be more than was held only where the bound was an estimate; it counts
    /// fully.
    pub fn settle(&mut self, held: Amount, used: Amount, now_ms: u64) {
        self.release(held);
        self.used.tokens = self.used.tokens.saturating_add(used.tokens);
        self.used.micros = self.used.micros.saturating_add(used.micros);
        while self.recent.front().is_some_and(|(when, _)| leaves(*when) <= now_ms) {
            self.recent.pop_front();
        }
        match self.recent.back_mut() {
            _ if used.tokens == 0 => {}
            // The later time of the two, so that nothing leaves the window early; also when the clock went back.
            Some((when, tokens)) if now_ms / 1000 <= *when / 1000 => {
                (*when, *tokens) = (now_ms.max(*when), tokens.saturating_add(used.tokens));
            }
            _ => self.recent.push_back((now_ms, used.tokens)),
        }
    }

    /// Ends a hold of a call that cost nothing.
    pub fn release(&mut self, held: Amount) {
        self.reserved.tokens = self.reserved.tokens.saturating_sub(held.tokens);
        self.reserved.micros = self.reserved.micros.saturating_sub(held.micros);
    }

    /// Tokens that could still be asked for now, the limit's remainder; `u64::MAX` without a limit on tokens.
    pub fn left(&self, limits: &Limits) -> u64 {
        let left = |limit: u64| limit.saturating_sub(self.used.tokens).saturating_sub(self.reserved.tokens);
        limits.tokens.map_or(u64::MAX, left)
    }
}

/// When what was settled then no longer counts.
fn leaves(when: u64) -> u64 {
    when.saturating_add(WINDOW_MS)
}

/// Exact: a saturated sum would seem to fit under the highest limit.
fn passes(limit: u64, parts: [u64; 3]) -> bool {
    parts.into_iter().map(u128::from).sum::<u128>() > u128::from(limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn amount(tokens: u64, micros: u64) -> Amount {
        Amount { tokens, micros }
    }

    #[test]
    fn limits_hold_for_used_and_reserved() {
        let limits = Limits { tokens: Some(100), micros: Some(50), per_minute: None };
        let mut account = Account::with_used(amount(10, 5));
        assert_eq!(account.admit(&limits, amount(90, 45), 0), Ok(()));
        account.hold(amount(60, 20));
        assert_eq!(account.left(&limits), 30);
        assert_eq!(account.admit(&limits, amount(30, 25), 0), Ok(()));
        let short = Short::Tokens { used: 10, reserved: 60, asked: 31, limit: 100 };
        assert_eq!(account.admit(&limits, amount(31, 26), 0), Err(short));
        let short = Short::Micros { used: 5, reserved: 20, asked: 26, limit: 50 };
        assert_eq!(account.admit(&limits, amount(30, 26), 0), Err(short));
        account.settle(amount(60, 20), amount(15, 3), 0);
        assert_eq!((account.used, account.reserved), (amount(25, 8), amount(0, 0)));
        assert_eq!(account.left(&limits), 75);
        account.hold(amount(75, 0));
        account.release(amount(75, 0));
        assert_eq!(account.left(&limits), 75);
        account.settle(amount(0, 0), amount(1000, 0), 0);
        assert_eq!((account.used.tokens, account.left(&limits)), (1025, 0), "more than the bound counts fully");
        assert_eq!(account.left(&Limits::default()), u64::MAX);
    }

    #[test]
    fn nothing_wraps() {
        let limits = Limits { tokens: Some(u64::MAX), micros: None, per_minute: Some(u64::MAX) };
        let mut account = Account::with_used(amount(u64::MAX, u64::MAX));
        assert!(matches!(account.admit(&limits, amount(1, 0), 0), Err(Short::Tokens { .. })));
        assert_eq!(account.admit(&Limits::default(), amount(u64::MAX, u64::MAX), 0), Ok(()));
        account.hold(amount(u64::MAX, u64::MAX));
        account.hold(amount(u64::MAX, u64::MAX));
        let rate = Limits { per_minute: Some(u64::MAX), ..Limits::default() };
        assert!(matches!(account.admit(&rate, amount(1, 0), 0), Err(Short::Rate { .. })));
        account.settle(amount(u64::MAX, u64::MAX), amount(u64::MAX, u64::MAX), u64::MAX);
        account.settle(amount(1, 1), amount(1, 1), u64::MAX);
        assert_eq!((account.used, account.reserved), (amount(u64::MAX, u64::MAX), amount(0, 0)));
    }

    #[test]
    fn the_rate_is_a_sliding_minute() {
        let limits = Limits { per_minute: Some(100), ..Limits::default() };
        let mut account = Account::default();
        let short = |asked, retry_after_ms| Err(Short::Rate { limit: 100, asked, retry_after_ms });
        assert_eq!(account.admit(&limits, amount(101, 0), 0), Err(Short::NeverRate { limit: 100, asked: 101 }));
        account.settle(amount(0, 0), amount(40, 0), 5_000);
        account.settle(amount(0, 0), amount(40, 0), 20_000);
        assert_eq!(account.admit(&limits, amount(20, 0), 30_000), Ok(()));
        assert_eq!(account.admit(&limits, amount(21, 0), 30_000), short(21, 35_000), "the first 40 leave at 65 s");
        assert_eq!(account.admit(&limits, amount(61, 0), 30_000), short(61, 50_000), "the second 40 leave at 80 s");
        assert_eq!(account.admit(&limits, amount(21, 0), 64_999), short(21, 1));
        assert_eq!(account.admit(&limits, amount(21, 0), 65_000), Ok(()));
        account.hold(amount(50, 0));
        assert_eq!(account.admit(&limits, amount(11, 0), 65_000), short(11, 15_000));
        assert_eq!(account.admit(&limits, amount(51, 0), 65_000), short(51, 1000), "only what is held is in the way");
        account.release(amount(50, 0));
        assert_eq!(account.admit(&limits, amount(100, 0), 80_000), Ok(()));
    }

    #[test]
    fn what_shares_a_second_leaves_with_its_last() {
        let limits = Limits { per_minute: Some(2), ..Limits::default() };
        let mut account = Account::default();
        account.settle(amount(0, 0), amount(1, 0), 1_000);
        account.settle(amount(0, 0), amount(1, 0), 1_900);
        let short = Short::Rate { limit: 2, asked: 1, retry_after_ms: 1 };
        assert_eq!(account.admit(&limits, amount(1, 0), 61_899), Err(short));
        assert_eq!(account.admit(&limits, amount(2, 0), 61_900), Ok(()));
    }

    #[test]
    fn the_window_is_bounded_and_a_clock_may_go_back() {
        let mut account = Account::default();
        for now in (0..600_000).step_by(7) {
            account.settle(amount(0, 0), amount(1, 0), now);
        }
        assert!(account.recent.len() <= 61, "{}", account.recent.len());
        let limits = Limits { per_minute: Some(1), ..Limits::default() };
        account.settle(amount(0, 0), amount(1, 0), 10);
        assert!(account.recent.iter().is_sorted());
        assert!(matches!(account.admit(&limits, amount(1, 0), 10), Err(Short::Rate { .. })));
        assert_eq!(account.admit(&limits, amount(1, 0), 700_000), Ok(()));
    }
}
