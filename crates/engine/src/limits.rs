//! Why a process failed, when a limit of its sandbox was the cause: what the sandbox has run into since the process
//! started, as its provider counts it.

use std::sync::PoisonError;

use sandbar_api::{ExitReason, Limits, Template};
use sandbar_provider::Counters;

use crate::{handle::Handle, signals};

/// What failures were put down to already, so that one kill does not explain two of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Reached {
    oom_kills: u64,
    refused_forks: u64,
}

/// Whether a process can fail for a limit that only the provider sees.
fn are_stated(template: &Template) -> bool {
    let Limits { memory, processes, disk, .. } = &template.limits;
    memory.is_some() || processes.is_some() || disk.is_some()
}

/// What the sandbox has run into so far; None where nothing is stated, or where it cannot be told.
pub(crate) async fn counters(handle: &Handle) -> Option<Counters> {
    if !are_stated(&handle.template) {
        return None;
    }
    match handle.provider.counters(&handle.id).await {
        Ok(counters) => Some(counters),
        Err(error) => {
            tracing::warn!(sandbox = %handle.id, %error, "it cannot be told which limits a sandbox has reached");
            None
        }
    }
}

/// The limit that a process which ended like this has failed for, if it was one.
pub(crate) async fn cause(handle: &Handle, start: Option<Counters>, code: i32, signal: i32) -> Option<ExitReason> {
    if code == 0 {
        return None;
    }
    let now = counters(handle).await?;
    let mut reached = handle.reached.lock().unwrap_or_else(PoisonError::into_inner);
    let cause = attribute(&handle.template.limits, *reached, start, now, code, signal);
    match cause {
        Some(ExitReason::Oom) => reached.oom_kills = now.oom_kills,
        Some(ExitReason::PidsLimit) => reached.refused_forks = now.refused_forks,
        _ => {}
    }
    cause
}

/// `start` is unknown of a process that an earlier server started: then only a kill is evidence enough.
fn attribute(
    limits: &Limits,
    reached: Reached,
    start: Option<Counters>,
    now: Counters,
    code: i32,
    signal: i32,
) -> Option<ExitReason> {
    let killed = signal == signals::KILL || code == 128 + signals::KILL;
    let before = start.unwrap_or_default();
    let known = start.is_some();
    if limits.memory.is_some() && now.oom_kills > before.oom_kills.max(reached.oom_kills) && (killed || known) {
        return Some(ExitReason::Oom);
    }
    if limits.processes.is_some() && known && now.refused_forks > before.refused_forks.max(reached.refused_forks) {
        return Some(ExitReason::PidsLimit);
    }
    (limits.disk.is_some() && now.disk_full).then_some(ExitReason::DiskLimit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use sandbar_api::HumanSize;

    fn all() -> Limits {
        let size = Some(HumanSize(1 << 20));
        Limits { memory: size, processes: Some(10), disk: size, ..Limits::default() }
    }

    #[test]
    fn a_failure_is_put_down_to_what_rose_since_the_start() {
        let start = Counters { oom_kills: 2, refused_forks: 5, ..Counters::default() };
        let none = Reached::default();
        let oom = Counters { oom_kills: 3, ..start };
        let pids = Counters { refused_forks: 6, ..start };
        let full = Counters { disk_full: true, ..start };
        for (now, code, signal, want) in [
            (start, 137, 9, None),
            (oom, 137, 9, Some(ExitReason::Oom)),
            (oom, 137, 0, Some(ExitReason::Oom)),
            (oom, 1, 0, Some(ExitReason::Oom)),
            (pids, 254, 0, Some(ExitReason::PidsLimit)),
            (full, 1, 0, Some(ExitReason::DiskLimit)),
            (Counters { oom_kills: 3, ..full }, 137, 9, Some(ExitReason::Oom)),
        ] {
            assert_eq!(attribute(&all(), none, Some(start), now, code, signal), want, "{now:?} {code}");
            assert_eq!(attribute(&Limits::default(), none, Some(start), now, code, signal), None, "none is stated");
        }
        let explained = Reached { oom_kills: 3, refused_forks: 6 };
        assert_eq!(attribute(&all(), explained, Some(start), oom, 1, 0), None, "it explained another failure");
        assert_eq!(attribute(&all(), explained, Some(start), pids, 1, 0), None);
    }

    #[test]
    fn of_an_earlier_servers_process_only_a_kill_is_evidence() {
        let now = Counters { oom_kills: 1, refused_forks: 1, ..Counters::default() };
        assert_eq!(attribute(&all(), Reached::default(), None, now, 137, 9), Some(ExitReason::Oom));
        assert_eq!(attribute(&all(), Reached::default(), None, now, 1, 0), None);
    }
}
