//! The time as it is kept: the store has microseconds, and what is answered first must equal what is read later.

use chrono::{DateTime, SubsecRound as _, Utc};

pub(crate) fn now() -> DateTime<Utc> {
    Utc::now().trunc_subsecs(6)
}
