//! The minder of one process: a fork of the guest that adopts every descendant of the leader and lives until none is
//! left. So a whole tree can be killed even when it daemonised, and the guest knows when it is gone.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec},
    io::Errno,
    net::{RecvFlags, SendFlags},
    process::{Pid, WaitOptions},
};

use crate::{
    leader::{self, Failure},
    sys, tree,
    workload::Workload,
};

pub(crate) struct Plan {
    pub(crate) leader: leader::Plan,
    pub(crate) link: OwnedFd,
}

/// From the minder to the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Report {
    Started,
    Failed(Failure),
    /// The leader's wait status.
    Exited(i32),
    /// No descendant is left; the minder ends.
    Empty,
}

/// From the guest to the minder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// To the leader's process group.
    Signal(i32),
    /// Everything below the minder.
    Kill,
}

/// Both directions: a kind and what belongs to it.
pub(crate) const MESSAGE: usize = 6;

impl Report {
    pub(crate) fn to_bytes(self) -> [u8; MESSAGE] {
        match self {
            Self::Started => [1, 0, 0, 0, 0, 0],
            Self::Failed(failure) => {
                let [step, a, b, c, d] = failure.to_bytes();
                [2, step, a, b, c, d]
            }
            Self::Exited(status) => number(3, status),
            Self::Empty => [4, 0, 0, 0, 0, 0],
        }
    }

    pub(crate) fn from_bytes(bytes: [u8; MESSAGE]) -> Option<Self> {
        let [kind, step, a, b, c, d] = bytes;
        match kind {
            1 => Some(Self::Started),
            2 => Failure::from_bytes([step, a, b, c, d]).map(Self::Failed),
            3 => Some(Self::Exited(i32::from_le_bytes([a, b, c, d]))),
            4 => Some(Self::Empty),
            _ => None,
        }
    }
}

impl Order {
    pub(crate) fn to_bytes(self) -> [u8; MESSAGE] {
        match self {
            Self::Signal(signal) => number(1, signal),
            Self::Kill => number(2, 0),
        }
    }

    pub(crate) fn from_bytes(bytes: [u8; MESSAGE]) -> Option<Self> {
        let [kind, _, a, b, c, d] = bytes;
        match kind {
            1 => Some(Self::Signal(i32::from_le_bytes([a, b, c, d]))),
            2 => Some(Self::Kill),
            _ => None,
        }
    }
}

fn number(kind: u8, value: i32) -> [u8; MESSAGE] {
    let [a, b, c, d] = value.to_le_bytes();
    [kind, 0, a, b, c, d]
}

/// Between two rounds of killing what forked away meanwhile; grows, because some may be stuck in the kernel.
const KILL_PAUSE: Duration = Duration::from_millis(1);
const KILL_PAUSE_MAX: Duration = Duration::from_millis(100);

struct Minder {
    link: OwnedFd,
    signals: OwnedFd,
    /// Until the leader has become the program or failed to.
    report: Option<OwnedFd>,
    leader: Pid,
    leader_alive: bool,
    /// The next pause, when everything is to be killed.
    killing: Option<Duration>,
}

/// The body of the minder's process; returns its exit code. Zero promises that no descendant is left.
pub(crate) fn run(plan: Plan, workload: &Workload) -> i32 {
    match start(plan, workload).and_then(Minder::live) {
        Ok(()) => 0,
        Err(_) => 1,
    }
}

fn start(plan: Plan, workload: &Workload) -> io::Result<Minder> {
    rustix::thread::set_name(c"sandbar-minder")?;
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    // A workload of the same user may signal us; only SIGKILL and SIGSTOP get through.
    sys::block_signals(sys::Mask::Everything)?;
    let signals = sys::child_signals()?;
    let spawned = leader::spawn(&plan.leader, workload);
    let Plan { link, leader } = plan;
    // Our copies of its streams would keep them open for ever.
    drop(leader);
    let (leader, report) = match spawned {
        Ok(spawned) => spawned,
        Err(failure) => {
            tell(&link, Report::Failed(failure));
            return Err(io::Error::from_raw_os_error(failure.errno));
        }
    };
    sys::close_all_but(&[link.as_fd(), signals.as_fd(), report.as_fd()])?;
    Ok(Minder { link, signals, report: Some(report), leader, leader_alive: true, killing: None })
}

/// The guest may be gone, which the next receive shows.
fn tell(link: &OwnedFd, report: Report) {
    let _ = rustix::net::send(link, &report.to_bytes(), SendFlags::NOSIGNAL);
}

impl Minder {
    fn live(mut self) -> io::Result<()> {
        loop {
            self.read_start();
            if self.reap()? {
                tell(&self.link, Report::Empty);
                return Ok(());
            }
            if self.killing.is_some() {
                self.kill();
            }
            self.wait()?;
            self.obey();
            self.killing = self.killing.map(|pause| (pause * 2).min(KILL_PAUSE_MAX));
        }
    }

    fn wait(&self) -> io::Result<()> {
        let mut fds = vec![PollFd::new(&self.signals, PollFlags::IN), PollFd::new(&self.link, PollFlags::IN)];
        if let Some(report) = &self.report {
            fds.push(PollFd::new(report, PollFlags::IN));
        }
        let pause = self.killing.map(|pause| Timespec { tv_sec: 0, tv_nsec: i64::from(pause.subsec_nanos()) });
        match rustix::event::poll(&mut fds, pause.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let mut info = [0; 128];
        match rustix::io::read(&self.signals, &mut info) {
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Tells once whether the leader became the program.
    fn read_start(&mut self) {
        let Some(report) = &self.report else { return };
        let mut ready = [PollFd::new(report, PollFlags::IN)];
        if matches!(rustix::event::poll(&mut ready, Some(&Timespec::default())), Ok(0) | Err(_)) {
            return;
        }
        let mut bytes = [0; 5];
        let outcome = match rustix::io::read(report, &mut bytes) {
            Ok(5) => Failure::from_bytes(bytes).map_or(Report::Started, Report::Failed),
            Err(Errno::INTR) => return,
            // The end of the pipe: execve closed it.
            _ => Report::Started,
        };
        self.report = None;
        tell(&self.link, outcome);
    }

    /// Whether no child is left.
    fn reap(&mut self) -> io::Result<bool> {
        loop {
            match rustix::process::wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) => {
                    if pid == self.leader {
                        // A dead leader's pipe has ended, so this has an answer: the start is told before the exit.
                        self.read_start();
                        self.leader_alive = false;
                        tell(&self.link, Report::Exited(status.as_raw()));
                    }
                }
                Ok(None) => return Ok(false),
                Err(Errno::CHILD) => return Ok(true),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Errors do not stop it: children that are left bring the next round.
    fn kill(&self) {
        if self.leader_alive {
            let _ = sys::signal_group(self.leader, libc::SIGKILL);
        }
        let _ = tree::kill_descendants(|_| false);
    }

    fn obey(&mut self) {
        let mut bytes = [0; MESSAGE];
        match rustix::net::recv(&self.link, &mut bytes, RecvFlags::DONTWAIT) {
            Ok((MESSAGE, _)) => match Order::from_bytes(bytes) {
                Some(Order::Kill) => self.killing = Some(KILL_PAUSE),
                Some(Order::Signal(signal)) if self.leader_alive => {
                    // A group that just vanished shows as the leader's exit.
                    let _ = sys::signal_group(self.leader, signal);
                }
                Some(Order::Signal(_)) | None => {}
            },
            Err(Errno::AGAIN | Errno::INTR) => {}
            // The guest is gone, and nobody else will ever ask.
            _ => self.killing = self.killing.or(Some(KILL_PAUSE)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::leader::Step;

    #[test]
    fn messages_survive_the_socket() {
        let failure = |step| Report::Failed(Failure { step, errno: libc::ENOENT });
        for report in
            [Report::Started, failure(Step::Fork), failure(Step::Group), Report::Exited(0x0900), Report::Empty]
        {
            assert_eq!(Report::from_bytes(report.to_bytes()), Some(report));
        }
        for order in [Order::Signal(15), Order::Kill] {
            assert_eq!(Order::from_bytes(order.to_bytes()), Some(order));
        }
    }
}
