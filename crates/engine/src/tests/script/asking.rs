//! What the scripted guest knows of a terminal that waits for an answer: the promises of the protocol, in memory.

use std::{collections::HashMap, sync::atomic::Ordering};

use sandbar_guest::protocol::*;
use tonic::Status;

use super::{
    guest::{Play, Script},
    lock,
};

/// How a call goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::tests) enum Fault {
    /// The guest is of an older version.
    Old,
    /// Nothing happens.
    Unreachable,
    /// It is done, but nobody is told.
    Lost,
}

/// Of one process: its terminal's flags, what was typed, and answers.
#[derive(Default, Clone)]
pub(in crate::tests) struct Tty {
    pub(in crate::tests) typed: Vec<u8>,
    pub(in crate::tests) no_echo: bool,
    pub(in crate::tests) raw: bool,
    pub(in crate::tests) cpu_us: u64,
    /// What each look finds it has used since the last.
    pub(in crate::tests) works_us: u64,
    pub(in crate::tests) reading: Option<bool>,
    pub(in crate::tests) looks: u32,
    staged: Option<StageAnswerRequest>,
    outcomes: HashMap<String, AnswerOutcome>,
}

impl Script {
    /// Until it is mended.
    pub(in crate::tests) fn fail(&self, call: &'static str, fault: Option<Fault>) {
        let mut faults = lock(self.faults());
        match fault {
            Some(fault) => drop(faults.insert(call, fault)),
            None => drop(faults.remove(call)),
        }
    }

    /// How many calls went wrong as they were told to.
    pub(in crate::tests) fn refused(&self) -> u64 {
        self.refusals().load(Ordering::SeqCst)
    }

    /// Somebody types into it, not by way of the server.
    pub(in crate::tests) fn types(&self, process: &str, keys: &[u8]) {
        self.change(process, |play| play.take(keys));
    }

    pub(super) fn works<T>(&self, call: &'static str, work: impl FnOnce() -> T) -> Result<T, Status> {
        let fault = lock(self.faults()).get(call).copied();
        if fault.is_some() {
            self.refusals().fetch_add(1, Ordering::SeqCst);
        }
        match fault {
            Some(Fault::Old) => Err(Status::unimplemented("the script is old")),
            Some(Fault::Unreachable) => Err(Status::unavailable("the script says so")),
            Some(Fault::Lost) => {
                work();
                Err(Status::unavailable("the script does not say"))
            }
            None => Ok(work()),
        }
    }
}

impl Play {
    fn place(&self) -> (u64, u64) {
        (self.output.len() as u64, self.tty.typed.len() as u64)
    }

    pub(super) fn take(&mut self, keys: &[u8]) {
        self.tty.typed.extend_from_slice(keys);
    }

    pub(super) fn look(&mut self) -> LookReply {
        self.tty.looks += 1;
        self.tty.cpu_us += self.tty.works_us;
        let (output_end, input_offset) = self.place();
        LookReply {
            output_end,
            input_offset,
            output_waits: false,
            echo: !self.tty.no_echo,
            canonical: !self.tty.raw,
            cpu_us: self.tty.cpu_us,
            reading: self.tty.reading,
        }
    }

    pub(super) fn stage(&mut self, request: StageAnswerRequest) -> AnswerOutcome {
        if (request.output_offset, request.input_offset) != self.place() {
            return AnswerOutcome::MovedOn;
        }
        self.tty.staged = Some(request);
        AnswerOutcome::Staged
    }

    pub(super) fn outcome(&self, id: &str) -> Option<AnswerOutcome> {
        self.tty.outcomes.get(id).copied()
    }

    pub(super) fn release(&mut self, id: &str) -> AnswerOutcome {
        let Some(staged) = self.tty.staged.take_if(|staged| staged.answer_id == id) else {
            return AnswerOutcome::UnknownAnswer;
        };
        let outcome = match (staged.output_offset, staged.input_offset) == self.place() {
            true => {
                self.take(&staged.keys);
                AnswerOutcome::Typed
            }
            false => AnswerOutcome::MovedOn,
        };
        self.tty.outcomes.insert(id.to_owned(), outcome);
        outcome
    }
}
