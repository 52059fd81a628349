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

    /// Begun that long ago, with this much processor time behind it.
    fn old(age: Duration, cpu: Duration) -> Option<Activity> {
        let born = Instant::now().checked_sub(age)?;
        Some(Activity { born, last: AtomicI64::new(0), looked: Mutex::new(Look { at: born, cpu }) })
    }

    #[test]
    fn a_touch_changes_the_mark_and_ends_idleness() {
        let day = Duration::from_secs(24 * 60 * 60);
        let activity = old(day, Duration::ZERO).expect("a day before now");
        let mark = activity.last();
        assert!(activity.idle_for() >= day);
        assert_eq!(activity.last(), mark, "to look is no use");
        activity.touch();
        assert!(activity.last() >= micros(day), "the mark is of now");
        assert!(activity.idle_for() < day);
    }

    #[test]
    fn a_hundredth_of_the_time_is_no_work() {
        let (seconds, age) = (Duration::from_secs, Duration::from_secs(100_000));
        // A machine would have to stand still for half a day between two lines to make work of less.
        for (cpu, works) in [(5, false), (505, false), (2005, true), (1, false)] {
            let activity = old(age, seconds(5)).expect("a day before now");
            assert_eq!(activity.worked(seconds(cpu)), works, "{cpu} s, of which 5 s were before");
        }
        let activity = old(age, seconds(5)).expect("a day before now");
        assert!(activity.worked(seconds(2005)));
        assert!(!activity.worked(seconds(2005)), "counted once");
        activity.begin(seconds(7));
        assert!(!activity.worked(seconds(7)), "what was found behind it is no work");
    }
}
