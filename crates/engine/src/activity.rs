//! When a sandbox was last worked in: asked of by the idle policy, told by every call that works in it, by its output,
//! and by its processor time. By the monotonic clock, so that a wall clock that jumps puts nothing away.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicI64, Ordering},
    },
    time::{Duration, Instant},
};

/// Less than one part in this many of the time that passed is no work, but timers and the like.
const IDLE_SHARE: u32 = 100;

pub(crate) struct Activity {
    born: Instant,
    /// Microseconds after `born`.
    last: AtomicI64,
    looked: Mutex<Look>,
}

#[derive(Clone, Copy)]
struct Look {
    at: Instant,
    cpu: Duration,
}

impl Default for Activity {
    fn default() -> Self {
        let born = Instant::now();
        let looked = Mutex::new(Look { at: born, cpu: Duration::ZERO });
        Self { born, last: AtomicI64::new(0), looked }
    }
}

impl Activity {
    pub(crate) fn touch(&self) {
        self.last.store(micros(self.born.elapsed()), Ordering::SeqCst);
    }

    /// A mark of the last activity: the same as long as there is none.
    pub(crate) fn last(&self) -> i64 {
        self.last.load(Ordering::SeqCst)
    }

    pub(crate) fn idle_for(&self) -> Duration {
        let idle = micros(self.born.elapsed()).saturating_sub(self.last());
        Duration::from_micros(u64::try_from(idle).unwrap_or(0))
    }

    /// Whether so much processor time was used since the last look that it counts as work.
    pub(crate) fn worked(&self, cpu: Duration) -> bool {
        let now = Look { at: Instant::now(), cpu };
        let before = std::mem::replace(&mut *self.looked.lock().unwrap_or_else(PoisonError::into_inner), now);
        cpu.saturating_sub(before.cpu) > now.at.saturating_duration_since(before.at) / IDLE_SHARE
    }

    /// It runs anew, or was found running with this much processor time behind it.
    pub(crate) fn begin(&self, cpu: Duration) {
        *self.looked.lock().unwrap_or_else(PoisonError::into_inner) = Look { at: Instant::now(), cpu };
        self.touch();
    }
}

fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_touch_changes_the_mark_and_ends_idleness() {
        let activity = Activity::default();
        let mark = activity.last();
        std::thread::sleep(Duration::from_millis(2));
        assert!(activity.idle_for() >= Duration::from_millis(2));
        activity.touch();
        assert_ne!(activity.last(), mark);
        assert!(activity.idle_for() < Duration::from_millis(2) || activity.last() > mark);
    }

    #[test]
    fn a_hundredth_of_the_time_is_no_work() {
        let activity = Activity::default();
        activity.begin(Duration::from_secs(5));
        std::thread::sleep(Duration::from_millis(10));
        assert!(!activity.worked(Duration::from_secs(5)), "nothing was used");
        std::thread::sleep(Duration::from_millis(10));
        assert!(activity.worked(Duration::from_secs(6)));
        assert!(!activity.worked(Duration::from_secs(1)), "a new run begins at zero");
    }
}
