//! What only a process with a terminal can be asked.

use std::os::fd::OwnedFd;

use rustix::termios::Winsize;

use super::Supervisor;
use crate::{
    answers::Answer,
    error::Fault,
    look,
    outlet::{Outlet, Read, TERMINAL_BUFFERS},
    protocol::{AnswerOutcome, LookReply},
};

impl Supervisor {
    pub(super) fn resize(&mut self, size: Winsize) -> Result<u64, Fault> {
        // What was printed before belongs to the size before.
        self.catch_up();
        rustix::termios::tcsetwinsize(self.terminal()?, size)
            .map_err(|error| Fault::internal("resize the terminal")(error.into()))?;
        Ok(self.process.state().ring.end())
    }

    pub(super) fn look(&mut self) -> Result<LookReply, Fault> {
        self.catch_up();
        let terminal = self.terminal()?;
        look::look(&self.process.state(), terminal).map_err(Fault::internal("look at the terminal"))
    }

    pub(super) fn stage(&mut self, answer: Answer) -> Result<AnswerOutcome, Fault> {
        self.catch_up();
        let terminal = self.terminal()?;
        if look::is_canonical(terminal) {
            answer.demand_lines_fit()?;
        }
        let mut state = self.process.state();
        let now = look::moment(&state, terminal).map_err(Fault::internal("look at the terminal"))?;
        state.answers.stage(answer, now)
    }

    fn terminal(&self) -> Result<&OwnedFd, Fault> {
        if !self.leader_alive() {
            return Err(self.process.over());
        }
        self.process.demand_terminal()?;
        self.outlets.iter().find_map(Outlet::terminal).ok_or_else(|| self.process.over())
    }

    /// Reads what a terminal has for us, as far as there is room for it; not what somebody keeps adding meanwhile.
    fn catch_up(&mut self) {
        let mut due = TERMINAL_BUFFERS;
        while due > 0
            && let room = self.room().min(due)
            && room > 0
            && let Some(outlet) = self.outlets.first().filter(|outlet| outlet.terminal().is_some())
            && let Read::Data(data) = outlet.read_now(room)
        {
            due -= data.len();
            self.take(0, Read::Data(data));
        }
    }
}
