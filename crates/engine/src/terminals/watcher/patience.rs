//! When a terminal stands still: nothing printed, nothing typed, and no processor time used between two looks.

use std::time::Duration;

use sandbar_api::SandboxState;
use sandbar_guest::protocol::LookReply;
use sandbar_terminal::prompt::QUIET_MS;
use tokio::time::{self, Instant};

use super::{Looked, Watcher, judge, place};
use crate::{approvals::terminal::Place, terminals::keeper::Scene};

/// Without output for so long, the first look is worth it.
const SETTLE: Duration = Duration::from_millis(50);
/// A little more than what is demanded: it is measured between two looks.
const QUIET: Duration = Duration::from_millis(QUIET_MS + 10);
/// Enough when its program is known to read the terminal.
const QUIET_READING: Duration = Duration::from_millis(70);
/// Between two looks at a program that works in silence.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// So often it is looked at in any case; after that only while it shows what might be a question.
const LOOKS: u32 = 6;
/// A question is taken back if it is gone for so long from a screen that never stands still.
const RESTLESS: Duration = Duration::from_secs(2);
/// While the sandbox stands still.
const HELD: Duration = Duration::from_secs(5);

pub(super) enum Stood {
    Still(LookReply, Scene, Duration),
    /// It works, and shows nothing that could be a question.
    Busy(Place),
    /// The process has ended.
    Over,
    Unable,
}

impl Watcher {
    pub(super) async fn stand(&mut self) -> Stood {
        let (mut step, mut pause, mut looks) = (SETTLE, QUIET, 0);
        let mut base: Option<(Instant, LookReply)> = None;
        let mut since = Instant::now();
        loop {
            let news = tokio::select! {
                changed = self.progress.changed() => Some(changed),
                () = time::sleep(step) => None,
            };
            if self.is_over() || matches!(news, Some(Err(_))) {
                return Stood::Over;
            }
            if news.is_some() {
                (step, pause, looks, base) = (SETTLE, QUIET, 0, None);
                if self.open.is_some() && since.elapsed() >= RESTLESS {
                    self.glance().await;
                    since = Instant::now();
                }
                continue;
            }
            if self.is_held() {
                self.released().await;
                (step, pause, base) = (SETTLE, QUIET, None);
                continue;
            }
            let look = match self.look().await {
                Looked::At(look) => look,
                Looked::Unable => return Stood::Unable,
                Looked::Silent => {
                    (step, pause, base) = (pause, longer(pause), None);
                    continue;
                }
            };
            let asked = self.open.as_ref().and_then(Place::of);
            if asked.is_some_and(|asked| asked.input != look.input_offset) {
                // Somebody deals with it, however long its program then works.
                self.settle(place(&look), None).await;
            }
            let need = if look.reading == Some(true) { QUIET_READING } else { QUIET };
            let Some((at, before)) = base else {
                (step, base) = (need, Some((Instant::now(), look)));
                continue;
            };
            let quiet = at.elapsed();
            let under_way = look.output_waits || look.output_end != self.progress.borrow().end;
            if under_way || place(&look) != place(&before) || works(&before, &look, quiet) {
                looks += 1;
                if looks > LOOKS && !under_way && !self.might_ask(&look).await {
                    return Stood::Busy(place(&look));
                }
                (step, pause, base) = (pause, longer(pause), Some((Instant::now(), look)));
                continue;
            }
            if quiet < need {
                (step, base) = (need - quiet, Some((at, before)));
                continue;
            }
            match self.scene().await {
                // Held meanwhile, it was quiet because it had to.
                Some(scene) if scene.offset == look.output_end && !self.is_held() => {
                    return Stood::Still(look, scene, quiet);
                }
                _ => (step, pause, base) = (pause, longer(pause), None),
            }
        }
    }

    pub(super) fn is_held(&self) -> bool {
        self.handle.is_held() || self.handle.state() != SandboxState::Ready
    }

    async fn released(&mut self) {
        let mut record = self.handle.record.subscribe();
        while self.is_held() {
            tokio::select! {
                changed = self.progress.changed() => if changed.is_err() || self.is_over() { return },
                changed = record.changed() => if changed.is_err() { return },
                () = time::sleep(HELD) => {}
            }
        }
    }

    async fn might_ask(&self, look: &LookReply) -> bool {
        match self.scene().await {
            // Of an older screen nothing follows for this one.
            Some(scene) => scene.offset != look.output_end || judge(look, scene, QUIET).is_some(),
            None => true,
        }
    }

    /// A screen that never stands still may show the same question all the while, above a clock for example.
    async fn glance(&mut self) {
        if let (Looked::At(look), Some(scene)) = (self.look().await, self.scene().await) {
            let (place, offset) = (place(&look), scene.offset);
            let asked = judge(&look, scene, QUIET);
            let stands = |open: &sandbar_api::Approval| asked.as_ref().is_some_and(|asked| asked.is(open));
            let same = self.open.as_ref().is_some_and(stands);
            // Nothing new is asked while it moves, and offsets count only if they are of this very screen.
            match same {
                true if offset == place.output && !look.output_waits => self.settle(place, asked).await,
                true => {}
                false => self.settle(place, None).await,
            }
        }
    }
}

fn longer(pause: Duration) -> Duration {
    (pause * 2).min(LONGEST_PAUSE)
}

/// Whether it has used more time than a program that waits may: its timers tick, and a menu of Claude Code's takes one or two
/// hundredths of the time for that.
fn works(before: &LookReply, now: &LookReply, between: Duration) -> bool {
    u128::from(now.cpu_us.abs_diff(before.cpu_us)) * 20 > between.as_micros()
}
