//! Lines of processes that follow one another: what the store keeps of them, and what becomes of one when its process
//! ends. The decision is made in the transaction that writes down the end, so that none is forgotten or made twice.

use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, TimeDelta, Utc};
use sandbar_api::{Exit, ExitReason, Process, ProcessId, ProcessState, Restart, SandboxId, SessionId, StartProcess};

use super::Result;

/// Who ran this long has started well: what went wrong before is forgiven.
pub const STEADY: TimeDelta = TimeDelta::seconds(60);
/// So many in a row that did not are a crash loop.
pub const LIMIT: u32 = 5;
/// The newest so many processes of a line are kept, and the first; what those between wrote goes with them.
pub const KEPT: u32 = 20;
/// How long the next start waits; each further one that ended too soon doubles it.
pub const FIRST_WAIT: Duration = Duration::from_millis(250);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LineState {
    Running,
    /// It runs, and was asked to end by a person: nothing follows.
    Leaving,
    /// The next one is to be started then.
    Waiting(DateTime<Utc>),
    CrashLoop,
    /// Nothing follows unless somebody asks for it.
    Ended,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LineRow {
    /// The first of its processes, which names it.
    pub line: ProcessId,
    pub sandbox: SandboxId,
    /// What each of them is started with.
    pub request: StartProcess,
    /// The newest.
    pub process: ProcessId,
    /// How often one was started after the first.
    pub restarts: u32,
    /// How many in a row ended too soon.
    pub quick: u32,
    /// When the first of these was started.
    pub since: DateTime<Utc>,
    pub state: LineState,
    pub changed_at: DateTime<Utc>,
}

/// The end of a process of a line.
#[derive(Debug, Clone, Copy)]
pub struct End<'e> {
    /// None: nobody saw it, or it did not even start.
    pub exit: Option<&'e Exit>,
    pub started_at: DateTime<Utc>,
    pub at: DateTime<Utc>,
    /// The sandbox is not about to end, or at its end.
    pub sandbox_stays: bool,
}

impl LineRow {
    pub fn ended(&mut self, end: &End<'_>, now: DateTime<Utc>) {
        self.changed_at = now;
        if end.at - end.started_at >= STEADY {
            self.quick = 0;
        } else {
            if self.quick == 0 {
                self.since = end.started_at;
            }
            self.quick += 1;
        }
        self.state = match self.state {
            LineState::Leaving => LineState::Ended,
            _ if !self.is_followed(end) => LineState::Ended,
            _ if self.quick >= LIMIT => LineState::CrashLoop,
            _ => LineState::Waiting(now + FIRST_WAIT * (1 << self.quick.saturating_sub(1))),
        };
    }

    fn is_followed(&self, end: &End<'_>) -> bool {
        let asked = |exit: &Exit| matches!(exit.reason, ExitReason::Killed | ExitReason::Stopped);
        let wanted = match self.request.restart {
            None | Some(Restart::Never) => false,
            Some(Restart::OnFailure) => end.exit.is_none_or(|exit| exit.code != 0),
            Some(Restart::Always) => true,
        };
        wanted && end.sandbox_stays && !end.exit.is_some_and(asked)
    }
}

/// Who starts the next process of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// It was due.
    Time,
    /// What went wrong before is forgiven.
    Person,
}

#[async_trait]
pub trait RestartStore: Send + Sync {
    /// Like `create_process`, for the first of a line.
    async fn begin_line(&self, process: &Process, request: &StartProcess) -> Result<()>;
    /// Like `create_process`, for the next of the line it names. False, and nothing is recorded, if that line does not
    /// wait for it any more: of several who would start it one does. Those before the newest few are forgotten.
    async fn next_run(&self, process: &Process, by: By) -> Result<bool>;
    /// Like `end_process`, for one of a line; decides what follows. Event `process.restart_due` or `process.crash_loop`.
    async fn end_run(&self, id: &ProcessId, state: ProcessState, exit: Option<Exit>, at: DateTime<Utc>) -> Result<()>;
    /// A person wants nothing to follow this process, the newest of its line. Event `process.restart_cancelled` if
    /// another one was due. The line as it was before.
    async fn give_up_line(&self, process: &ProcessId) -> Result<Option<LineRow>>;
    /// Undoes `give_up_line`, given what that returned: the process could not be ended. Nothing is done if more has happened
    /// to the line, or its sandbox ends.
    async fn take_up_line(&self, before: &LineRow) -> Result<()>;
    /// The line that a process is of.
    async fn line_of(&self, process: &ProcessId) -> Result<Option<LineRow>>;
    /// Of sandboxes that are not deleted, oldest first.
    async fn lines(&self, session: &SessionId) -> Result<Vec<LineRow>>;
    /// Also what was decided later than now, before the clock went back.
    async fn due_lines(&self, now: DateTime<Utc>) -> Result<Vec<LineRow>>;
    async fn next_due(&self) -> Result<Option<DateTime<Utc>>>;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(restart: Restart) -> LineRow {
        let at = DateTime::UNIX_EPOCH;
        let line = ProcessId::from_parts(1, [1; 10]);
        LineRow {
            process: line.clone(),
            line,
            sandbox: SandboxId::from_parts(1, [1; 10]),
            request: StartProcess { restart: Some(restart), ..StartProcess::default() },
            restarts: 0,
            quick: 0,
            since: at,
            state: LineState::Running,
            changed_at: at,
        }
    }

    fn exit(code: i32, reason: ExitReason) -> Exit {
        Exit { code, signal: None, reason }
    }

    fn end(exit: Option<&Exit>, ran: i64) -> End<'_> {
        let started_at = DateTime::UNIX_EPOCH + TimeDelta::days(1);
        End { exit, started_at, at: started_at + TimeDelta::seconds(ran), sandbox_stays: true }
    }

    #[test]
    fn the_policy_says_what_is_followed_and_a_person_has_the_last_word() {
        use ExitReason::{Exited, Killed, Oom, OutputLimit, Stopped, Timeout};
        for (policy, code, reason, followed) in [
            (Restart::Never, 1, Exited, false),
            (Restart::OnFailure, 0, Exited, false),
            (Restart::OnFailure, 3, Exited, true),
            (Restart::OnFailure, 137, Oom, true),
            (Restart::OnFailure, 137, OutputLimit, true),
            (Restart::OnFailure, 137, Timeout, true),
            (Restart::OnFailure, 137, Killed, false),
            (Restart::OnFailure, 137, Stopped, false),
            (Restart::Always, 0, Exited, true),
            (Restart::Always, 137, Killed, false),
            (Restart::Always, 137, Stopped, false),
        ] {
            let exit = exit(code, reason);
            assert_eq!(line(policy).is_followed(&end(Some(&exit), 1)), followed, "{policy:?} {exit:?}");
        }
        assert!(line(Restart::OnFailure).is_followed(&end(None, 1)), "lost is no success");
        assert!(!line(Restart::Always).is_followed(&End { sandbox_stays: false, ..end(None, 1) }));
        let mut leaving = LineRow { state: LineState::Leaving, ..line(Restart::Always) };
        leaving.ended(&end(Some(&exit(143, Exited)), 1), Utc::now());
        assert_eq!(leaving.state, LineState::Ended);
    }

    #[test]
    fn each_end_that_comes_too_soon_doubles_the_wait_and_the_fifth_is_the_last() {
        let (mut line, now, failed) = (line(Restart::OnFailure), Utc::now(), exit(1, ExitReason::Exited));
        let mut waits = Vec::new();
        for _ in 0..LIMIT - 1 {
            line.ended(&end(Some(&failed), 59), now);
            let LineState::Waiting(due) = line.state else { panic!("{line:?}") };
            waits.push((due - now).num_milliseconds());
        }
        assert_eq!(waits, [250, 500, 1000, 2000]);
        let steady = &mut line.clone();
        steady.ended(&end(Some(&failed), 60), now);
        assert_eq!((steady.quick, steady.state), (0, LineState::Waiting(now + FIRST_WAIT)));
        line.ended(&end(Some(&failed), 59), now);
        assert_eq!((line.quick, line.state, line.since), (LIMIT, LineState::CrashLoop, end(None, 0).started_at));
    }
}
