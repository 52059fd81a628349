//! The guest's own children, minders and file workers: one task forks and reaps them all, so that no status is lost,
//! no pid is used after it was reaped, and every orphan that ends up at PID 1 is buried.

use std::{
    collections::HashMap,
    io,
    os::fd::OwnedFd,
    panic::{AssertUnwindSafe, catch_unwind},
    time::Duration,
};

use rustix::{
    io::Errno,
    process::{Pid, PidfdFlags, Signal, WaitOptions, WaitStatus},
};
use tokio::{
    io::{Interest, unix::AsyncFd},
    sync::{mpsc, oneshot},
    time::{Instant, sleep, sleep_until},
};

use crate::{
    files::{self, Errand},
    minder,
    oom::OomScores,
    probe,
    protocol::ProbeRequest,
    sys, tree,
    workload::Workload,
};

/// What a forked child does.
pub(crate) enum Task {
    Mind(Box<minder::Plan>),
    Work(Box<Errand>),
    /// Tells on the pipe what a workload finds around it.
    Probe(OwnedFd, ProbeRequest),
}

/// A living or dead child, by a handle that can never mean another process.
pub(crate) struct Child {
    /// Means this child only as long as it has not ended.
    pub(crate) pid: Pid,
    handle: OwnedFd,
    ended: oneshot::Receiver<WaitStatus>,
}

impl Child {
    /// Resolves once the child was reaped. To be asked once: `None` means that it was told before, or that the parent
    /// task is gone and with it the guest.
    pub(crate) async fn ended(&mut self) -> Option<WaitStatus> {
        (&mut self.ended).await.ok()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        // Only fails when it has already ended.
        let _ = rustix::process::pidfd_send_signal(&self.handle, signal);
    }
}

type Request = (Task, oneshot::Sender<io::Result<Child>>);

/// Asks the parent task for children.
#[derive(Clone)]
pub(crate) struct Forker {
    requests: mpsc::Sender<Request>,
}

impl Forker {
    pub(crate) async fn fork(&self, task: Task) -> io::Result<Child> {
        let (reply, answer) = oneshot::channel();
        let gone = || io::Error::other("the task that forks has ended");
        self.requests.send((task, reply)).await.map_err(|_| gone())?;
        answer.await.map_err(|_| gone())?
    }
}

const WAITING_REQUESTS: usize = 16;
/// Between two rounds of killing what a dead minder left behind.
const SWEEP_PAUSE: Duration = Duration::from_millis(5);
/// After the last child ended; what moved its data has been dropped by then.
const TRIM_PAUSE: Duration = Duration::from_secs(1);
/// How long a file worker is woken whenever the workload stops it.
const STOPPED_LONGEST: Duration = Duration::from_secs(10);
/// A scan can miss a process that was forked while it ran.
const EMPTY_SCANS: u32 = 2;

/// Owns the children; its `run` is the guest's main task.
pub(crate) struct Parent {
    requests: mpsc::Receiver<Request>,
    workload: Workload,
    oom: Option<OomScores>,
    signals: AsyncFd<OwnedFd>,
    children: HashMap<i32, Known>,
    /// How many more empty scans end the sweep; zero when there is none.
    sweep: u32,
    /// When to give freed memory back.
    trim: Option<Instant>,
}

struct Known {
    minder: bool,
    /// When the workload first stopped it.
    stopped: Option<Instant>,
    ended: oneshot::Sender<WaitStatus>,
}

impl Parent {
    /// SIGCHLD must be blocked.
    pub(crate) fn new(workload: Workload, oom: Option<OomScores>) -> io::Result<(Self, Forker)> {
        let (requests, receiver) = mpsc::channel(WAITING_REQUESTS);
        let signals = sys::watch(sys::child_signals()?, Interest::READABLE)?;
        let children = HashMap::new();
        let parent = Self { requests: receiver, workload, oom, signals, children, sweep: 0, trim: None };
        Ok((parent, Forker { requests }))
    }

    /// Returns only when it cannot go on.
    pub(crate) async fn run(mut self) -> io::Error {
        loop {
            let outcome = tokio::select! {
                request = self.requests.recv() => match request {
                    Some((task, reply)) => {
                        // Without a listener the child is dropped, and it notices by its closed link.
                        let _ = reply.send(self.fork(task));
                        Ok(())
                    }
                    None => Err(io::Error::other("nobody can ask for processes any more")),
                },
                ready = self.signals.readable() => ready.map(|mut ready| {
                    // The descriptor only wakes us: SIGCHLD is merged, so children are counted by waiting for them.
                    let mut info = [0; 128];
                    while matches!(rustix::io::read(ready.get_inner(), &mut info), Ok(_) | Err(Errno::INTR)) {}
                    ready.clear_ready();
                }).and_then(|()| self.reap()),
                () = sleep(SWEEP_PAUSE), if self.sweep > 0 => {
                    self.sweep();
                    Ok(())
                }
                () = sleep_until(self.trim.unwrap_or_else(Instant::now)), if self.trim.is_some() => {
                    self.trim = None;
                    sys::trim_memory();
                    Ok(())
                }
            };
            if let Err(error) = outcome {
                return error;
            }
        }
    }

    fn fork(&mut self, task: Task) -> io::Result<Child> {
        let minder = matches!(task, Task::Mind(_));
        let workload = &self.workload;
        let probe = || workload.fork().map_err(|failure| io::Error::from_raw_os_error(failure.errno));
        let forked = match (&task, &self.oom) {
            (Task::Probe(..), Some(oom)) => oom.fork(probe)?,
            (Task::Probe(..), None) => probe()?,
            (Task::Mind(_), Some(oom)) => oom.fork(sys::fork)?,
            (Task::Mind(_), None) | (Task::Work(_), _) => sys::fork()?,
        };
        match forked {
            sys::Forked::Child => {
                // Unwinding further would run the guest's own tasks a second time.
                let code = catch_unwind(AssertUnwindSafe(|| match task {
                    Task::Mind(plan) => minder::run(*plan, workload),
                    Task::Work(errand) => files::run(*errand, &*workload.confine),
                    Task::Probe(outbox, request) => probe::run(&outbox, &request, workload),
                }));
                sys::exit(code.unwrap_or(101))
            }
            sys::Forked::Parent(pid) => {
                let (ended, receiver) = oneshot::channel();
                self.children.insert(pid.as_raw_pid(), Known { minder, stopped: None, ended });
                let handle = rustix::process::pidfd_open(pid, PidfdFlags::empty()).inspect_err(|_| {
                    // Not reaped yet, so the pid still means this child.
                    let _ = rustix::process::kill_process(pid, Signal::KILL);
                })?;
                Ok(Child { pid, handle, ended: receiver })
            }
        }
    }

    fn reap(&mut self) -> io::Result<()> {
        loop {
            match rustix::process::wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
                Ok(Some((pid, status))) if status.stopped() => self.wake(pid),
                Ok(Some((pid, status))) => self.bury(pid, status),
                Ok(None) | Err(Errno::CHILD) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// A workload of our own user can stop our children, and whoever waits for their work would wait for ever.
    fn wake(&mut self, pid: Pid) {
        let Some(known) = self.children.get_mut(&pid.as_raw_pid()) else { return };
        let since = *known.stopped.get_or_insert_with(Instant::now);
        // One that is stopped again and again gets nowhere; its caller is told. A minder's work is never given up.
        let hopeless = !known.minder && since.elapsed() > STOPPED_LONGEST;
        let signal = if hopeless { Signal::KILL } else { Signal::CONT };
        // Not reaped yet, so the pid still means this child.
        let _ = rustix::process::kill_process(pid, signal);
    }

    fn bury(&mut self, pid: Pid, status: WaitStatus) {
        let Some(known) = self.children.remove(&pid.as_raw_pid()) else { return };
        self.trim = Some(Instant::now() + TRIM_PAUSE);
        // Nobody waits for a child whose process was forgotten or whose call was cancelled.
        let _ = known.ended.send(status);
        if known.minder && status.exit_status() != Some(0) {
            // A workload of our own user can kill its minder; what that minder kept together is now ours to end.
            self.sweep = EMPTY_SCANS;
            self.sweep();
        }
    }

    fn sweep(&mut self) {
        let children = &self.children;
        match tree::kill_descendants(|pid| children.contains_key(&pid)) {
            Ok(0) => self.sweep -= 1,
            // Not seeing /proc now (too many open files, say) is no reason to let them live: the next round looks again.
            Ok(_) | Err(_) => self.sweep = EMPTY_SCANS,
        }
    }
}
