//! Idleness: what nobody has used for as long as its template says is paused, stopped or deleted. One task for all
//! sandboxes, which sleeps until the next of them is due.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::{StreamExt as _, stream};
use sandbar_api::{Code, Idle, Sandbox, SandboxId, SandboxState};
use tokio::time;

use crate::{
    Inner,
    handle::Handle,
    owner::{self, Verb},
    runtimes,
};

/// Nothing becomes due without a change that wakes the task; this is for what nobody thought of.
const LONGEST_SLEEP: Duration = Duration::from_secs(60);
/// What could not be put away is tried again after this.
const PUT_OFF: Duration = Duration::from_secs(60);
/// Sandboxes looked at or put away at once.
const AT_ONCE: usize = 16;

/// How a sandbox is put away. The later, the more is given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Rest {
    Pause,
    Stop,
    Delete,
}

/// What could not be done, and until when it is not tried again; what gives up more still may be.
type PutOff = HashMap<(SandboxId, Rest), Instant>;

pub(crate) async fn watch(inner: Arc<Inner>) {
    let mut put_off = PutOff::new();
    while !inner.closing.is_cancelled() {
        let wait = round(&inner, &mut put_off).await;
        tokio::select! {
            () = inner.closing.cancelled() => return,
            () = inner.idle.notified() => {}
            () = time::sleep(wait) => {}
        }
    }
}

/// Puts away what is due and returns how long to wait.
async fn round(inner: &Inner, put_off: &mut PutOff) -> Duration {
    put_off.retain(|_, until| *until > Instant::now());
    let mut wait =
        put_off.values().min().map_or(LONGEST_SLEEP, |until| until.saturating_duration_since(Instant::now()));
    let mut due = Vec::new();
    for handle in inner.registry.all() {
        if handle.template.idle == Idle::default() {
            continue;
        }
        let seen = handle.activity.last();
        let step = step(&handle, put_off);
        match step {
            Some((rest, Duration::ZERO)) => due.push((handle, rest, seen)),
            Some((_, left)) => wait = wait.min(left),
            None => {}
        }
    }
    let mut acted = stream::iter(due.into_iter().map(|(handle, rest, seen)| async move {
        let failed = put_away(&handle, rest, seen).await.is_err();
        (handle, rest, failed)
    }))
    .buffer_unordered(AT_ONCE);
    while let Some((handle, rest, failed)) = acted.next().await {
        if failed {
            put_off.insert((handle.id.clone(), rest), Instant::now() + PUT_OFF);
        }
        if let Some((_, left)) = step(&handle, put_off) {
            wait = wait.min(left);
        }
    }
    wait.min(LONGEST_SLEEP)
}

fn step(handle: &Handle, put_off: &PutOff) -> Option<(Rest, Duration)> {
    let may = |rest| !put_off.contains_key(&(handle.id.clone(), rest));
    next(&handle.template.idle, &handle.record.borrow(), handle.activity.idle_for(), may)
}

/// What comes next for a sandbox that nobody has used for that long, and how long it has left.
fn next(idle: &Idle, sandbox: &Sandbox, unused: Duration, may: impl Fn(Rest) -> bool) -> Option<(Rest, Duration)> {
    use SandboxState::{Creating, Deleted, Failed, Paused, Ready, Stopped, Stopping};
    // What a person paused or stopped stays so until it is to go altogether.
    let rests: &[Rest] = match sandbox.state {
        Ready => &[Rest::Delete, Rest::Stop, Rest::Pause],
        Paused if owner::is_put_away(sandbox) => &[Rest::Delete, Rest::Stop],
        Paused | Stopped | Failed => &[Rest::Delete],
        Creating | Stopping | Deleted => &[],
    };
    let after = |rest: &Rest| {
        let after = match rest {
            Rest::Pause => idle.pause_after,
            Rest::Stop => idle.stop_after,
            Rest::Delete => idle.delete_after,
        };
        after.map(|after| (*rest, after.0.saturating_sub(unused)))
    };
    let stated: Vec<_> = rests.iter().filter(|rest| may(**rest)).filter_map(after).collect();
    // Of those that are due the one that gives up the most, which comes first.
    let due = stated.iter().find(|(_, left)| left.is_zero());
    due.or_else(|| stated.iter().min_by_key(|(_, left)| *left)).copied()
}

async fn put_away(handle: &Arc<Handle>, rest: Rest, seen: i64) -> Result<(), ()> {
    if handle.state() == SandboxState::Ready && is_busy(handle).await {
        handle.activity.touch();
        return Ok(());
    }
    match handle.ask(|reply| Verb::Rest(rest, seen, reply)).await {
        Ok(()) => Ok(()),
        // It is something else by now, or nothing.
        Err(problem) if [Code::SandboxGone, Code::ShuttingDown, Code::WrongState].contains(&problem.code) => Ok(()),
        Err(problem) => {
            tracing::warn!(sandbox = %handle.id, ?rest, %problem, "an idle sandbox is not put away");
            Err(())
        }
    }
}

/// Whether it works without saying anything, or somebody waits for it.
async fn is_busy(handle: &Handle) -> bool {
    if !handle.waiting.is_empty() || runtimes::are_awaited(handle).await {
        return true;
    }
    match handle.provider.counters(&handle.id).await.map(|counters| counters.cpu) {
        Ok(Some(cpu)) => handle.activity.worked(cpu),
        // Who cannot be looked at is given the benefit of the doubt.
        Ok(None) | Err(_) => handle.is_running_something(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sandbar_api::{HumanDuration, SandboxId, SessionId, StateReason, WorkspaceSource};

    fn sandbox(state: SandboxState, code: &str) -> Sandbox {
        let at = chrono::Utc::now();
        Sandbox {
            id: SandboxId::from_parts(1, [1; 10]),
            name: "s".into(),
            session: SessionId::from_parts(1, [1; 10]),
            state,
            reason: Some(StateReason { code: code.into(), detail: String::new() }),
            template: "default".into(),
            provider: "local".into(),
            labels: [].into(),
            env: [].into(),
            workspace: WorkspaceSource::Empty,
            from: None,
            created_at: at,
            changed_at: at,
            expires_at: None,
        }
    }

    #[test]
    fn each_step_comes_in_its_time_and_only_from_where_it_may() {
        use Rest::{Delete, Pause, Stop};
        use SandboxState::{Creating, Failed, Paused, Ready, Stopped};
        let seconds = Duration::from_secs;
        let after = |time| Some(HumanDuration(seconds(time)));
        let idle = Idle { pause_after: after(10), stop_after: after(20), delete_after: after(30) };
        for (state, code, unused, want) in [
            (Ready, "", 0, Some((Pause, 10))),
            (Ready, "", 10, Some((Pause, 0))),
            (Ready, "", 25, Some((Stop, 0))),
            (Ready, "", 30, Some((Delete, 0))),
            (Paused, "idle", 10, Some((Stop, 10))),
            (Paused, "idle", 20, Some((Stop, 0))),
            (Paused, "requested", 20, Some((Delete, 10))),
            (Stopped, "idle", 20, Some((Delete, 10))),
            (Stopped, "requested", 31, Some((Delete, 0))),
            (Failed, "guest_died", 29, Some((Delete, 1))),
            (Creating, "idle", 99, None),
        ] {
            let got = next(&idle, &sandbox(state, code), seconds(unused), |_| true);
            assert_eq!(got, want.map(|(rest, left)| (rest, seconds(left))), "{state:?} {code} {unused}");
        }
        assert_eq!(next(&Idle::default(), &sandbox(Ready, ""), seconds(99), |_| true), None);
        let unpausable = next(&idle, &sandbox(Ready, ""), seconds(15), |rest| rest != Pause);
        assert_eq!(unpausable, Some((Stop, seconds(5))));
    }
}
