//! Answers to what a terminal shows: held from staging to release, given out to be typed once or not at all, and what
//! became of the last ones. Pure: whoever types tells what the terminal's state is.

use std::collections::VecDeque;

use zeroize::Zeroizing;

use crate::{
    error::{Code, Fault},
    protocol::{AnswerOutcome, CHUNK, StageAnswerRequest},
};

/// Room for the longest text and the keys around it.
pub(crate) const KEYS_MAX: usize = CHUNK + 1024;
/// Of a line and its Enter: what Linux keeps of one that nobody has read.
const LINE_MAX: usize = 4096;
const ID_MAX: usize = 128;
const REMEMBERED: usize = 64;

/// How much had been printed and typed, and whether what is typed is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Moment {
    pub(crate) output: u64,
    pub(crate) input: u64,
    pub(crate) echo: bool,
}

pub(crate) struct Answer {
    pub(crate) id: String,
    output: u64,
    input: u64,
    unseen: bool,
    /// Perhaps a password.
    keys: Keys,
}

pub(crate) type Keys = Zeroizing<Vec<u8>>;

impl Answer {
    pub(crate) fn parse(request: StageAnswerRequest) -> Result<Self, Fault> {
        let StageAnswerRequest { answer_id: id, output_offset: output, input_offset: input, keys, unseen, .. } =
            request;
        if id.is_empty() || id.len() > ID_MAX {
            return Err(Fault::new(Code::BadRequest, format!("The id of an answer has 1 to {ID_MAX} bytes.")));
        }
        if keys.is_empty() {
            return Err(Fault::new(Code::BadRequest, "The answer has no keys."));
        }
        if keys.len() > KEYS_MAX {
            return Err(Fault::new(Code::TooLarge, format!("An answer has at most {KEYS_MAX} bytes of keys.")));
        }
        Ok(Self { id, output, input, unseen, keys: Zeroizing::new(keys.to_vec()) })
    }

    /// Whether the terminal is still as it was when the answer was given.
    fn fits(&self, now: Option<Moment>) -> bool {
        let as_it_was = |now: Moment| (now.output, now.input) == (self.output, self.input);
        now.is_some_and(|now| as_it_was(now) && !(self.unseen && now.echo))
    }

    /// A terminal that gathers lines drops what is beyond its longest, and says nothing of it.
    pub(crate) fn demand_lines_fit(&self) -> Result<(), Fault> {
        let fits = self.keys.split_inclusive(|byte| matches!(byte, b'\r' | b'\n')).all(|line| line.len() <= LINE_MAX);
        if fits {
            return Ok(());
        }
        let message = format!("The terminal takes lines of at most {LINE_MAX} bytes; nothing was typed.");
        Err(Fault::new(Code::TooLarge, message))
    }
}

#[derive(Default)]
pub(crate) struct Answers {
    staged: Option<Answer>,
    /// The latest is last.
    settled: VecDeque<(String, AnswerOutcome)>,
}

impl Answers {
    pub(crate) fn outcome(&self, id: &str) -> AnswerOutcome {
        if let Some((_, outcome)) = self.settled.iter().find(|(known, _)| known == id) {
            return *outcome;
        }
        let staged = self.staged.as_ref().is_some_and(|staged| staged.id == id);
        if staged { AnswerOutcome::Staged } else { AnswerOutcome::UnknownAnswer }
    }

    /// `now` is absent where it cannot be told, because unread output waits.
    pub(crate) fn stage(&mut self, answer: Answer, now: Option<Moment>) -> Result<AnswerOutcome, Fault> {
        let known = self.outcome(&answer.id);
        if matches!(known, AnswerOutcome::Typed | AnswerOutcome::MovedOn) {
            return Ok(known);
        }
        if !answer.fits(now) {
            return Ok(AnswerOutcome::MovedOn);
        }
        if let Some(staged) = self.staged.as_ref().filter(|staged| staged.id == answer.id)
            && (staged.output, staged.input) == (answer.output, answer.input)
            && staged.keys != answer.keys
        {
            // Of two that answer at once, the one who is told that theirs counts must have typed theirs.
            let message = format!("Answer {} is staged with other keys; another answer needs another id.", answer.id);
            return Err(Fault::new(Code::WrongState, message));
        }
        self.staged = Some(answer);
        Ok(AnswerOutcome::Staged)
    }

    /// The keys, if they are to be typed now; what came of it has to be told to `settle`.
    pub(crate) fn release(&mut self, id: &str, now: Option<Moment>) -> Result<Keys, AnswerOutcome> {
        match self.outcome(id) {
            AnswerOutcome::Staged => {}
            outcome => return Err(outcome),
        }
        match self.staged.take() {
            Some(answer) if answer.fits(now) => Ok(answer.keys),
            _ => Err(self.settle(id, AnswerOutcome::MovedOn)),
        }
    }

    pub(crate) fn settle(&mut self, id: &str, outcome: AnswerOutcome) -> AnswerOutcome {
        if self.settled.len() == REMEMBERED {
            self.settled.pop_front();
        }
        self.settled.push_back((id.to_owned(), outcome));
        outcome
    }

    /// Its release takes too long: from now on it is never typed. Tells what became of it if that is known already.
    pub(crate) fn give_up(&mut self, id: &str) -> AnswerOutcome {
        self.release(id, None).err().unwrap_or(AnswerOutcome::MovedOn)
    }

    /// Something was printed or typed: what was staged before can never be typed, so its keys are not kept for it.
    pub(crate) fn outdate(&mut self) {
        if let Some(staged) = self.staged.take() {
            self.settle(&staged.id, AnswerOutcome::MovedOn);
        }
    }

    /// Nothing will be typed any more.
    pub(crate) fn close(&mut self) {
        self.staged = None;
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    const NOW: Moment = Moment { output: 7, input: 3, echo: false };

    fn answer(id: &str, keys: &'static [u8]) -> Result<Answer, Fault> {
        Answer::parse(StageAnswerRequest {
            process_id: "p".into(),
            answer_id: id.into(),
            output_offset: NOW.output,
            input_offset: NOW.input,
            keys: Bytes::from_static(keys),
            unseen: id == "unseen",
        })
    }

    #[test]
    fn what_is_not_to_be_seen_is_typed_only_where_it_is_not_shown() -> Result<(), Fault> {
        let shown = Some(Moment { echo: true, ..NOW });
        let mut answers = Answers::default();
        assert_eq!(answers.stage(answer("unseen", b"hunter2\r")?, shown), Ok(AnswerOutcome::MovedOn));
        assert_eq!(answers.stage(answer("unseen", b"hunter2\r")?, Some(NOW)), Ok(AnswerOutcome::Staged));
        assert_eq!(answers.release("unseen", shown).err(), Some(AnswerOutcome::MovedOn));
        assert_eq!(answers.stage(answer("a", b"y\r")?, shown), Ok(AnswerOutcome::Staged));
        assert!(answers.release("a", shown).is_ok());
        Ok(())
    }

    #[test]
    fn is_typed_once() -> Result<(), Fault> {
        let mut answers = Answers::default();
        assert_eq!(answers.stage(answer("a", b"y")?, Some(NOW)), Ok(AnswerOutcome::Staged));
        assert_eq!(answers.stage(answer("a", b"y")?, Some(NOW)), Ok(AnswerOutcome::Staged));
        assert_eq!(answers.release("a", Some(NOW)).as_deref().map(Vec::as_slice), Ok(&b"y"[..]));
        answers.settle("a", AnswerOutcome::Typed);
        assert_eq!(answers.release("a", Some(NOW)), Err(AnswerOutcome::Typed));
        assert_eq!(answers.stage(answer("a", b"y")?, Some(NOW)), Ok(AnswerOutcome::Typed));
        assert_eq!(answers.give_up("a"), AnswerOutcome::Typed);
        Ok(())
    }

    #[test]
    fn is_not_typed_when_anything_moved() -> Result<(), Fault> {
        let moved = [None, Some(Moment { output: 8, ..NOW }), Some(Moment { input: 4, ..NOW })];
        for (id, now) in ["a", "b", "c"].into_iter().zip(moved) {
            let mut answers = Answers::default();
            assert_eq!(answers.stage(answer(id, b"y")?, now), Ok(AnswerOutcome::MovedOn));
            assert_eq!(answers.release(id, Some(NOW)), Err(AnswerOutcome::UnknownAnswer));
            assert_eq!(answers.stage(answer(id, b"y")?, Some(NOW)), Ok(AnswerOutcome::Staged));
            assert_eq!(answers.release(id, now), Err(AnswerOutcome::MovedOn));
            assert_eq!(answers.release(id, Some(NOW)), Err(AnswerOutcome::MovedOn));
        }
        let mut answers = Answers::default();
        answers.stage(answer("a", b"y")?, Some(NOW))?;
        answers.outdate();
        assert!(answers.staged.is_none(), "its keys are gone at once");
        assert_eq!(answers.release("a", Some(NOW)), Err(AnswerOutcome::MovedOn));
        Ok(())
    }

    #[test]
    fn there_is_one_at_a_time_and_its_keys_do_not_change() -> Result<(), Fault> {
        let mut answers = Answers::default();
        answers.stage(answer("a", b"y")?, Some(NOW))?;
        let other = answers.stage(answer("a", b"n")?, Some(NOW));
        assert_eq!(other.map_err(|fault| fault.code), Err(Code::WrongState));
        assert_eq!(answers.stage(answer("b", b"n")?, Some(NOW)), Ok(AnswerOutcome::Staged));
        assert_eq!(answers.release("a", Some(NOW)), Err(AnswerOutcome::UnknownAnswer));
        assert_eq!(answers.give_up("b"), AnswerOutcome::MovedOn);
        assert_eq!(answers.release("b", Some(NOW)), Err(AnswerOutcome::MovedOn));
        Ok(())
    }

    #[test]
    fn lines_fit_into_a_terminal_that_gathers_them() -> Result<(), Fault> {
        static LINE: [u8; LINE_MAX] = [b'x'; LINE_MAX];
        let fits = |keys: Vec<u8>| -> Result<bool, Fault> {
            let request = StageAnswerRequest { answer_id: "a".into(), keys: keys.into(), ..Default::default() };
            Ok(Answer::parse(request)?.demand_lines_fit().is_ok())
        };
        assert!(fits([&LINE[1..], b"\r"].concat())?);
        assert!(fits([&LINE[1..], b"\r", &LINE[1..], b"\n"].concat())?);
        assert!(!fits([&LINE[..], b"\r"].concat())?);
        Ok(())
    }

    #[test]
    fn what_is_remembered_and_what_is_taken_have_bounds() -> Result<(), Fault> {
        let mut answers = Answers::default();
        for id in 0..=REMEMBERED {
            answers.settle(&id.to_string(), AnswerOutcome::Typed);
        }
        assert_eq!((answers.outcome("0"), answers.outcome("1")), (AnswerOutcome::UnknownAnswer, AnswerOutcome::Typed));
        let code = |answer: Result<Answer, Fault>| answer.map(|_| ()).map_err(|fault| fault.code);
        assert_eq!(code(answer("", b"y")), Err(Code::BadRequest));
        assert_eq!(code(answer("a", b"")), Err(Code::BadRequest));
        static LONG: [u8; KEYS_MAX + 1] = [b'x'; KEYS_MAX + 1];
        assert_eq!(code(answer("a", &LONG)), Err(Code::TooLarge));
        assert_eq!(code(answer("a", &LONG[1..])), Ok(()));
        Ok(())
    }
}
