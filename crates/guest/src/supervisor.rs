//! The task that owns one running process: its minder, its output, its deadline. It ends when the leader has exited,
//! no descendant is left and the output is at its end.

mod terminal;

use std::{
    os::unix::process::ExitStatusExt,
    process::ExitStatus,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use rustix::process::Signal;
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, sleep, sleep_until},
};

use crate::{
    children::{Child, Forker, Task},
    command::{self, Command, User},
    error::{Code, Fault},
    input, leader,
    link::Link,
    minder::{self, Report},
    outlet::{Outlet, Read},
    process::{Channels, Order, Process},
    protocol::{Exit, ExitReason, StartRequest, Stream},
    sink::Sink,
    stdio,
};

/// A minder that has not killed its tree by then is killed itself, and the guest sweeps up.
const KILL_GRACE: Duration = Duration::from_secs(5);
/// How often a terminal that nobody has open is looked at again.
const HANGUP_PAUSE: Duration = Duration::from_millis(100);

pub(crate) struct Supervisor {
    process: Arc<Process>,
    changes: watch::Receiver<()>,
    orders: mpsc::Receiver<Order>,
    outlets: Vec<Outlet>,
    child: Child,
    /// `None` once the minder has nothing left to mind.
    link: Option<Link>,
    /// What the caller called it, for errors of the start.
    program: String,
    cwd: String,
    started: bool,
    /// Bytes read so far, and after how many of them everything is killed.
    written: u64,
    max_output: Option<u64>,
    /// Of everything the process started, also when its leader has exited long before.
    deadline: Option<Instant>,
    kill_by: Option<Instant>,
    /// The leader has exited and its last words are being collected.
    leaving: Option<Exit>,
}

enum Event {
    Readable(usize),
    Report(Option<Report>),
    Order(Order),
    Room,
    Deadline,
    KillOverdue,
    LookAgain,
}

impl Supervisor {
    /// Forks the process. Whether it started is told by the minder, later.
    pub(crate) async fn launch(
        process: Arc<Process>,
        channels: Channels,
        request: StartRequest,
        user: &User,
        forker: &Forker,
    ) -> Result<Self, Fault> {
        let command = Command::parse(&request, user)?;
        let (inner, outer) = match &request.terminal {
            Some(size) => stdio::terminal(command::terminal_size(size)?, user),
            None => stdio::pipes(request.stdin),
        }
        .map_err(Fault::internal("open the process's streams"))?;
        let mut outlets = vec![
            Outlet::new(Stream::Stdout, outer.stdout, outer.terminal).map_err(Fault::internal("watch the output"))?,
        ];
        if let Some(stderr) = outer.stderr {
            let outlet = Outlet::new(Stream::Stderr, stderr, false).map_err(Fault::internal("watch the output"))?;
            outlets.push(outlet);
        }
        let (link, theirs) = Link::pair().map_err(Fault::internal("make a socket for the minder"))?;
        let plan = minder::Plan { leader: leader::Plan { command, stdio: inner }, link: theirs };
        let child =
            forker.fork(Task::Mind(Box::new(plan))).await.map_err(Fault::internal("fork the process's minder"))?;
        if let (Some(sink), Some(requests)) = (outer.stdin, channels.input) {
            let sink = Sink::new(sink, outer.terminal).map_err(Fault::internal("watch the input"))?;
            tokio::spawn(input::feed(Arc::clone(&process), sink, requests));
        }
        process.state().minder = Some(child.pid.as_raw_pid());
        Ok(Self {
            changes: process.changes(),
            process,
            orders: channels.orders,
            outlets,
            child,
            link: Some(link),
            program: request.argv.into_iter().next().unwrap_or_default(),
            cwd: request.cwd,
            started: false,
            written: 0,
            max_output: Some(request.max_output).filter(|limit| *limit > 0),
            deadline: Some(request.timeout_ms)
                .filter(|timeout| *timeout > 0)
                .and_then(|timeout| Instant::now().checked_add(Duration::from_millis(timeout))),
            kill_by: None,
            leaving: None,
        })
    }

    /// Returns early, with the reason, when the process did not start.
    pub(crate) async fn run(mut self) -> Result<(), Fault> {
        while !self.is_over() {
            match self.next().await {
                Event::Readable(index) => self.read(index),
                Event::Report(report) => self.heed(report)?,
                Event::Order(order) => self.obey(order),
                Event::Room => {}
                Event::Deadline => {
                    self.deadline = None;
                    self.kill(ExitReason::Timeout);
                }
                Event::KillOverdue => {
                    self.kill_by = None;
                    self.child.signal(Signal::KILL);
                }
                Event::LookAgain => self.outlets.iter_mut().for_each(|outlet| outlet.hung_up = false),
            }
            self.collect_last_words();
        }
        Ok(())
    }

    fn is_over(&self) -> bool {
        self.link.is_none() && self.leaving.is_none() && !self.outlets.iter().any(Outlet::is_open)
    }

    async fn next(&mut self) -> Event {
        self.changes.borrow_and_update();
        let room = self.room() > 0;
        let Self { changes, orders, outlets, link, deadline, kill_by, .. } = self;
        let hung_up = outlets.iter().any(|outlet| outlet.hung_up);
        tokio::select! {
            () = readable(outlets.first()), if room => Event::Readable(0),
            () = readable(outlets.get(1)), if room => Event::Readable(1),
            report = receive(link.as_ref()) => Event::Report(report),
            Some(order) = orders.recv() => Event::Order(order),
            Ok(()) = changes.changed(), if !room => Event::Room,
            () = until(*deadline) => Event::Deadline,
            () = until(*kill_by) => Event::KillOverdue,
            () = sleep(HANGUP_PAUSE), if hung_up => Event::LookAgain,
        }
    }

    fn read(&mut self, index: usize) {
        let room = self.room();
        let Some(outlet) = self.outlets.get_mut(index).filter(|_| room > 0) else { return };
        let read = outlet.read(room);
        self.take(index, read);
    }

    fn take(&mut self, index: usize, read: Read) {
        let leader_alive = self.leader_alive();
        let Some(outlet) = self.outlets.get_mut(index) else { return };
        match read {
            Read::Nothing => {}
            Read::Data(data) => {
                let stream = outlet.stream;
                if self.is_too_long() {
                    return;
                }
                self.written += data.len() as u64;
                self.process.change(|state| {
                    if !state.forgotten {
                        state.ring.push(stream, now_ms(), data);
                        state.answers.outdate();
                    }
                });
                if self.is_too_long() {
                    self.cut_off();
                }
            }
            Read::End if leader_alive && outlet.terminal().is_some() => outlet.hung_up = true,
            Read::End => {
                outlet.close();
                if !self.outlets.iter().any(Outlet::is_open) {
                    self.process.change(|state| state.output_ended = true);
                }
            }
        }
    }

    /// How much may be read now. What nobody will ask for is read and thrown away, so that its writer never blocks.
    fn room(&self) -> usize {
        let state = self.process.state();
        if state.forgotten || self.is_too_long() { usize::MAX } else { state.ring.room() }
    }

    fn is_too_long(&self) -> bool {
        self.max_output.is_some_and(|limit| self.written > limit)
    }

    /// What comes after this is thrown away, so the exit must say why even if it was no kill that ended the leader.
    fn cut_off(&mut self) {
        if let Some(exit) = self.leaving.as_mut().filter(|exit| exit.reason() == ExitReason::ByItself) {
            exit.reason = ExitReason::OutputLimit.into();
        }
        self.kill(ExitReason::OutputLimit);
    }

    fn leader_alive(&self) -> bool {
        self.leaving.is_none() && self.process.state().exit.is_none()
    }

    fn heed(&mut self, report: Option<Report>) -> Result<(), Fault> {
        match report {
            Some(Report::Started) => {
                self.started = true;
                self.process.settle_start(Ok(()));
            }
            Some(Report::Failed(failure)) => return Err(failure.fault(&self.program, &self.cwd)),
            Some(Report::Exited(status)) => self.leave(ExitStatus::from_raw(status)),
            Some(Report::Empty) => self.unlink(),
            None => {
                self.unlink();
                if !self.started {
                    return Err(Fault::new(Code::Internal, "The process's minder ended before the process started."));
                }
                // Killed from inside, or by us because it did not obey; its leader is as good as dead.
                if self.leader_alive() {
                    self.leave(ExitStatus::from_raw(libc::SIGKILL));
                }
            }
        }
        Ok(())
    }

    fn unlink(&mut self) {
        self.link = None;
        self.process.state().minder = None;
    }

    fn leave(&mut self, status: ExitStatus) {
        if !self.leader_alive() {
            return;
        }
        let signal = status.signal().unwrap_or(0);
        let code = status.code().unwrap_or(128 + signal);
        let reason = reason(self.process.state().reason, signal);
        self.leaving = Some(Exit { code, signal, reason: reason.into(), at_ms: now_ms() });
        for outlet in &mut self.outlets {
            outlet.hung_up = false;
            outlet.start_last_words();
        }
    }

    /// Publishes the exit after everything the leader wrote, as far as the ring has room for it now.
    fn collect_last_words(&mut self) {
        if self.leaving.is_none() {
            return;
        }
        for index in 0..self.outlets.len() {
            while self.outlets[index].has_last_words() {
                let room = self.room();
                if room == 0 {
                    return;
                }
                let read = self.outlets[index].read_last_words(room);
                self.take(index, read);
            }
        }
        // Only now: the last words may have been cut off, which the exit tells.
        let Some(exit) = self.leaving.take() else { return };
        self.process.change(|state| {
            state.exit = Some((exit, state.ring.end()));
            state.answers.close();
        });
    }

    /// The caller may have gone away; the order stands.
    fn obey(&mut self, order: Order) {
        match order {
            Order::Kill(reason, reply) => drop(reply.send(self.kill_all(reason))),
            Order::Signal(signal, reply) => drop(reply.send(self.signal(signal))),
            Order::Resize(size, reply) => drop(reply.send(self.resize(size))),
            Order::Look(reply) => drop(reply.send(self.look())),
            Order::Stage(answer, reply) => drop(reply.send(self.stage(answer))),
        }
    }

    fn kill_all(&mut self, reason: ExitReason) -> Result<(), Fault> {
        // What the leader left behind can still be killed, but is no group that signals could reach.
        if self.link.is_none() {
            return Err(self.process.over());
        }
        self.kill(reason);
        Ok(())
    }

    fn signal(&mut self, signal: i32) -> Result<(), Fault> {
        let Some(link) = self.link.as_ref().filter(|_| self.leader_alive()) else { return Err(self.process.over()) };
        self.child.signal(Signal::CONT);
        if link.send(minder::Order::Signal(signal)) {
            return Ok(());
        }
        Err(Fault::new(Code::TooMany, "The process's minder does not take more signals."))
    }

    fn kill(&mut self, reason: ExitReason) {
        let Some(link) = &self.link else { return };
        let mut state = self.process.state();
        if state.reason == ExitReason::ByItself {
            state.reason = reason;
        }
        drop(state);
        // A workload of the same user may have stopped its minder.
        self.child.signal(Signal::CONT);
        self.kill_by = self.kill_by.or_else(|| Some(Instant::now() + KILL_GRACE));
        if !link.send(minder::Order::Kill) {
            self.child.signal(Signal::KILL);
        }
    }
}

/// Why a leader ended: why it was to be killed, and the signal it died of.
fn reason(asked: ExitReason, signal: i32) -> ExitReason {
    match asked {
        // A limit that was hit is why it ended, whatever it made of that itself.
        ExitReason::PidsLimit | ExitReason::OutputLimit => asked,
        ExitReason::Killed | ExitReason::Timeout | ExitReason::ByItself if signal == libc::SIGKILL => asked,
        // A leader that was quicker than its killer ended by itself.
        ExitReason::Killed | ExitReason::Timeout | ExitReason::ByItself => ExitReason::ByItself,
    }
}

async fn readable(outlet: Option<&Outlet>) {
    match outlet {
        Some(outlet) => outlet.readable().await,
        None => std::future::pending().await,
    }
}

async fn receive(link: Option<&Link>) -> Option<Report> {
    match link {
        Some(link) => link.receive().await,
        None => std::future::pending().await,
    }
}

async fn until(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_the_reason_whatever_the_leader_made_of_it() {
        for (asked, signal, wanted) in [
            (ExitReason::PidsLimit, 0, ExitReason::PidsLimit),
            (ExitReason::OutputLimit, libc::SIGPIPE, ExitReason::OutputLimit),
            (ExitReason::PidsLimit, libc::SIGKILL, ExitReason::PidsLimit),
            (ExitReason::Killed, libc::SIGKILL, ExitReason::Killed),
            (ExitReason::Timeout, 0, ExitReason::ByItself),
            (ExitReason::ByItself, libc::SIGKILL, ExitReason::ByItself),
        ] {
            assert_eq!(reason(asked, signal), wanted, "{asked:?} and signal {signal}");
        }
    }
}
