//! One process as callers see it: its output, its exit, and the way to its supervisor and its input.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::{mpsc, oneshot, watch};

use crate::{
    answers::{Answer, Answers},
    error::{Code, Fault},
    input::Request,
    protocol::{AnswerOutcome, CHUNK, Exit, ExitReason, LookReply, ProcessStatus, State as WireState},
    ring::{Outside, Piece, Ring},
};

/// What a caller can ask of the supervisor.
pub(crate) enum Order {
    Signal(i32, Reply<()>),
    /// Everything it started.
    Kill(ExitReason, Reply<()>),
    /// Answered with the offset of the output from which the size holds.
    Resize(rustix::termios::Winsize, Reply<u64>),
    Look(Reply<LookReply>),
    Stage(Answer, Reply<AnswerOutcome>),
}

pub(crate) type Reply<T> = oneshot::Sender<Result<T, Fault>>;

/// What the process's standard input is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Input {
    Closed,
    Pipe,
    Terminal,
}

pub(crate) struct Process {
    pub(crate) id: String,
    state: Mutex<State>,
    /// Counts changes of `state`, for whoever waits for one.
    changes: watch::Sender<()>,
    start: watch::Sender<Option<Result<(), Fault>>>,
    orders: mpsc::Sender<Order>,
    input: Option<mpsc::Sender<Request>>,
    terminal: bool,
}

/// The other ends of a process's channels, for its supervisor.
pub(crate) struct Channels {
    pub(crate) orders: mpsc::Receiver<Order>,
    pub(crate) input: Option<mpsc::Receiver<Request>>,
}

pub(crate) struct State {
    pub(crate) ring: Ring,
    /// Nobody can add to the output any more.
    pub(crate) output_ended: bool,
    /// The exit, and where the output was when everything the leader wrote had been read.
    pub(crate) exit: Option<(Exit, u64)>,
    pub(crate) input_offset: u64,
    pub(crate) answers: Answers,
    pub(crate) reason: ExitReason,
    /// The pid of its minder while that has something to mind.
    pub(crate) minder: Option<i32>,
    /// The record is gone; output is read and thrown away.
    pub(crate) forgotten: bool,
}

impl State {
    fn give_up(&mut self) {
        self.forgotten = true;
        self.ring = Ring::new();
        self.answers = Answers::default();
    }
}

/// What a follower does next.
pub(crate) enum Next {
    Output(Piece),
    Exit(Exit),
    Wait,
    End,
}

const WAITING_CALLS: usize = 8;

impl Process {
    pub(crate) fn new(id: String, input: Input) -> (Self, Channels) {
        let (takes_input, terminal) = (input != Input::Closed, input == Input::Terminal);
        let (orders, order_receiver) = mpsc::channel(WAITING_CALLS);
        let (input, input_receiver) = takes_input.then(|| mpsc::channel(WAITING_CALLS)).unzip();
        let state = State {
            ring: Ring::new(),
            output_ended: false,
            exit: None,
            input_offset: 0,
            answers: Answers::default(),
            reason: ExitReason::ByItself,
            minder: None,
            forgotten: false,
        };
        let process = Self {
            id,
            state: Mutex::new(state),
            changes: watch::Sender::new(()),
            start: watch::Sender::new(None),
            orders,
            input,
            terminal,
        };
        (process, Channels { orders: order_receiver, input: input_receiver })
    }

    /// Reads the state; whoever changes it for others to see uses `change`.
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        // One thread: a poisoned lock would mean that a panic was survived, and the state is still the best we have.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let outcome = change(&mut self.state());
        self.changes.send_replace(());
        outcome
    }

    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    pub(crate) fn settle_start(&self, outcome: Result<(), Fault>) {
        self.start.send_replace(Some(outcome));
    }

    /// Waits until the start has succeeded or failed; every repeat of the call gets the same answer.
    pub(crate) async fn started(&self) -> Result<(), Fault> {
        let mut start = self.start.subscribe();
        let outcome = start.wait_for(Option::is_some).await.map(|outcome| outcome.clone());
        match outcome {
            Ok(Some(outcome)) => outcome,
            _ => Err(Fault::new(Code::Internal, "The start of the process was given up.")),
        }
    }

    pub(crate) fn status(&self) -> ProcessStatus {
        let state = self.state();
        ProcessStatus {
            process_id: self.id.clone(),
            state: if state.exit.is_some() { WireState::Exited } else { WireState::Running }.into(),
            exit: state.exit.map(|(exit, _)| exit),
            output_start: state.ring.start(),
            output_end: state.ring.end(),
            input_offset: state.input_offset,
        }
    }

    /// The next thing for a follower that has everything below `offset`.
    pub(crate) fn next(&self, offset: u64, exit_sent: bool) -> Result<Next, Fault> {
        let state = self.state();
        if state.forgotten {
            return Ok(Next::End);
        }
        // The exit stands in the output exactly where the leader's last byte was read.
        let exit = state.exit.filter(|_| !exit_sent);
        let limit = exit.map_or(u64::MAX, |(_, at)| at.saturating_sub(offset)).try_into().unwrap_or(CHUNK).min(CHUNK);
        match (state.ring.read(offset, limit), exit) {
            (Err(outside @ Outside::Dropped { .. }), _) => Err(Fault::new(Code::OutputDropped, outside.to_string())),
            (Err(outside @ Outside::Beyond { .. }), _) => Err(Fault::new(Code::OffsetBeyond, outside.to_string())),
            (Ok(_), Some((exit, at))) if offset >= at => Ok(Next::Exit(exit)),
            (Ok(Some(piece)), _) => Ok(Next::Output(piece)),
            (Ok(None), _) if exit_sent && state.output_ended => Ok(Next::End),
            (Ok(None), _) => Ok(Next::Wait),
        }
    }

    pub(crate) fn acknowledge(&self, offset: u64) -> Result<(), Fault> {
        self.change(|state| if state.forgotten { Ok(()) } else { state.ring.acknowledge(offset) }).map_err(|outside| {
            Fault::new(Code::BadRequest, format!("Output was acknowledged that is not there. {outside}"))
        })
    }

    pub(crate) async fn order<T>(&self, order: impl FnOnce(Reply<T>) -> Order) -> Result<T, Fault> {
        if self.has_exited() {
            return Err(self.over());
        }
        ask(&self.orders, order).await.unwrap_or_else(|| Err(self.over()))
    }

    /// Also of one that has exited, for what it left behind.
    pub(crate) async fn kill(&self, reason: ExitReason) -> Result<(), Fault> {
        ask(&self.orders, |reply| Order::Kill(reason, reply)).await.unwrap_or_else(|| Err(self.over()))
    }

    /// Where its input goes.
    pub(crate) fn input(&self) -> Result<&mpsc::Sender<Request>, Fault> {
        let Some(input) = &self.input else {
            return Err(Fault::new(Code::NoStdin, format!("Process {} was started without input.", self.id)));
        };
        if self.has_exited() { Err(self.over()) } else { Ok(input) }
    }

    pub(crate) fn has_exited(&self) -> bool {
        self.state().exit.is_some()
    }

    pub(crate) fn demand_terminal(&self) -> Result<(), Fault> {
        if self.terminal {
            return Ok(());
        }
        Err(Fault::new(Code::NoTerminal, format!("Process {} was started without a terminal.", self.id)))
    }

    pub(crate) fn over(&self) -> Fault {
        Fault::new(Code::ProcessOver, format!("Process {} has ended.", self.id))
    }

    /// Whether something of it may still live.
    pub(crate) fn is_supervised(&self) -> bool {
        !self.orders.is_closed()
    }

    /// Drops what is kept of an exited process.
    pub(crate) fn forget(&self) -> Result<(), Fault> {
        self.change(|state| {
            if state.exit.is_none() {
                return Err(Fault::new(Code::WrongState, format!("Process {} is still running.", self.id)));
            }
            state.give_up();
            Ok(())
        })
    }

    /// Nobody will ask for it again, though it may still run: what it writes is thrown away, and its record goes when it
    /// has ended.
    pub(crate) fn abandon(&self) {
        self.change(State::give_up);
    }
}

/// `None` when the other side has ended before it answered.
pub(crate) async fn ask<Q, A>(channel: &mpsc::Sender<Q>, question: impl FnOnce(oneshot::Sender<A>) -> Q) -> Option<A> {
    let (reply, answer) = oneshot::channel();
    channel.send(question(reply)).await.ok()?;
    answer.await.ok()
}
