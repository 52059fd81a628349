//! Where the input of one process goes: a pipe or a terminal, and who has typed how much into it.

use std::{io, os::fd::OwnedFd, time::Duration};

use bytes::Bytes;
use rustix::{io::Errno, termios::SpecialCodeIndex};
use tokio::{
    io::{Interest, unix::AsyncFd},
    time::{Instant, sleep},
};
use zeroize::Zeroizing;

use crate::{
    behind::{self, Behind},
    error::{Code, Fault},
    input::{Feed, Response},
    look,
    process::Process,
    protocol::AnswerOutcome,
    sys,
    writers::Writers,
};

/// Until a full terminal that its program has left is tried again: another program may open it.
const FULL: Duration = Duration::from_millis(50);

pub(crate) struct Sink {
    /// `None` once closed.
    target: Option<AsyncFd<OwnedFd>>,
    terminal: bool,
    /// Where the end was last announced by somebody without a name, so that a repeated call does not announce it again.
    ended_at: Option<u64>,
    writers: Writers,
    /// Where in the output the last question ended that the terminal itself answered.
    responded: u64,
    behind: Behind,
}

/// Who types, and so which offsets count it.
#[derive(Clone, Copy)]
enum Who<'a> {
    Person(Option<&'a str>),
    /// Nobody's bytes, but a person's doing.
    Ending,
}

impl Sink {
    pub(crate) fn new(target: OwnedFd, terminal: bool) -> io::Result<Self> {
        let target = Some(sys::watch(target, Interest::WRITABLE)?);
        let (writers, behind) = (Writers::default(), Behind::default());
        Ok(Self { target, terminal, ended_at: None, writers, responded: 0, behind })
    }

    pub(crate) async fn take(&mut self, process: &Process, feed: Feed) -> Result<u64, Fault> {
        while self.is_behind() {
            self.catch_up(process).await;
        }
        let writer = feed.writer.as_deref();
        let (taken, ended_at) = match writer {
            Some(name) => self.writers.get(name),
            None => (process.state().input_offset, self.ended_at),
        };
        let repeat = feed.offset.is_some();
        let data = fresh(taken, feed.offset, feed.data)?;
        let end = taken + data.len() as u64;
        let announced = repeat && ended_at == Some(end);
        if self.target.is_none() {
            return if data.is_empty() && (announced || !feed.eof) {
                Ok(taken)
            } else {
                Err(Fault::new(Code::NoStdin, format!("The input of process {} is closed.", process.id)))
            };
        }
        self.write(process, data, Who::Person(writer)).await?;
        if feed.eof && !announced {
            match writer {
                Some(name) => self.writers.ended(name, end),
                None => self.ended_at = Some(end),
            }
            self.end(process).await?;
        }
        Ok(end)
    }

    async fn end(&mut self, process: &Process) -> Result<(), Fault> {
        if !self.terminal {
            self.target = None;
            return Ok(());
        }
        let Some(target) = &self.target else { return Ok(()) };
        let attributes = rustix::termios::tcgetattr(target.get_ref())
            .map_err(|error| Fault::internal("read the terminal's settings")(error.into()))?;
        let end = attributes.special_codes[SpecialCodeIndex::VEOF];
        self.write(process, Bytes::copy_from_slice(&[end]), Who::Ending).await
    }

    async fn write(&mut self, process: &Process, mut data: Bytes, who: Who<'_>) -> Result<(), Fault> {
        while !data.is_empty() {
            let Some(length) = write_some(&mut self.target, &data).await else {
                return Err(Fault::new(Code::NoStdin, format!("Process {} has closed its input.", process.id)));
            };
            let _ = data.split_to(length);
            let mut state = process.state();
            state.answers.outdate();
            if let Who::Person(writer) = who {
                state.input_offset += length as u64;
                if let Some(name) = writer {
                    self.writers.took(name, length as u64);
                }
            }
        }
        Ok(())
    }

    /// Types what the terminal itself has to say, unless that was said or cannot be taken now: what does not read its
    /// input does not wait for this, and it must not stand in the way of people's. Returns the offset of people's input.
    pub(crate) fn respond(&mut self, process: &Process, response: &Response) -> u64 {
        if response.question > self.responded && Instant::now() < response.by {
            self.responded = response.question;
            self.catch_up_now(process);
            if !self.is_behind() {
                // The kernel does not tell how much it would take. Where that is a part, the rest follows first of all.
                let length = write_now(self.target.as_ref(), &response.data);
                if length > 0 {
                    self.behind = Behind::rest(Zeroizing::new(response.data[length..].to_vec()), false);
                }
            }
        }
        process.state().input_offset
    }

    /// Types a staged answer if the terminal is as it was. From the look to the first byte nothing else runs here.
    pub(crate) fn release(&mut self, process: &Process, id: &str) -> Result<AnswerOutcome, Fault> {
        self.catch_up_now(process);
        let mut state = process.state();
        let now = match &self.target {
            Some(target) if !self.is_behind() => {
                look::moment(&state, target.get_ref()).map_err(Fault::internal("look at the terminal"))?
            }
            _ => None,
        };
        let keys = match state.answers.release(id, now) {
            Ok(keys) => keys,
            Err(outcome) => return Ok(outcome),
        };
        // Whoever reads whole lines gets them whole; whoever reads keys, one by one.
        let first = match &self.target {
            Some(target) if !look::is_canonical(target.get_ref()) => behind::key(&keys),
            _ => keys.len(),
        };
        let length = write_now(self.target.as_ref(), &keys[..first]);
        if length == 0 {
            // Full of what was typed before and nobody has read: nobody knows what would read this.
            return Ok(state.answers.settle(id, AnswerOutcome::MovedOn));
        }
        state.input_offset += length as u64;
        let rest = Zeroizing::new(keys[length..].to_vec());
        self.behind = match first < keys.len() {
            true => Behind::paced(rest, first - length, state.ring.end()),
            false => Behind::rest(rest, true),
        };
        Ok(state.answers.settle(id, AnswerOutcome::Typed))
    }

    pub(crate) fn is_behind(&self) -> bool {
        !self.behind.is_empty()
    }

    /// Waits until more of what was left behind is taken; may be given up and tried again.
    pub(crate) async fn catch_up(&mut self, process: &Process) {
        self.behind.due(process).await;
        let taken = write_some(&mut self.target, self.behind.next()).await;
        self.caught_up(process, taken);
    }

    fn catch_up_now(&mut self, process: &Process) {
        if self.is_behind() && !self.behind.is_paced() {
            let taken = write_now(self.target.as_ref(), self.behind.next());
            self.caught_up(process, Some(taken));
        }
    }

    /// `None`: nobody reads it any more.
    fn caught_up(&mut self, process: &Process, taken: Option<usize>) {
        let mut state = process.state();
        if self.behind.counts() {
            state.input_offset += taken.unwrap_or(0) as u64;
        }
        match taken {
            Some(length) => self.behind.took(length, state.ring.end()),
            None => self.behind = Behind::default(),
        }
    }
}

/// Waits until some of it is taken, and tells how much; `None` once nobody reads it, and nobody will.
async fn write_some(target: &mut Option<AsyncFd<OwnedFd>>, data: &[u8]) -> Option<usize> {
    loop {
        let open = target.as_ref()?;
        let written = match open.writable().await {
            Ok(mut ready) => {
                let hung_up = ready.ready().is_write_closed();
                match ready.try_io(|target| Ok(rustix::io::write(target, data)?)) {
                    Ok(written) => written,
                    Err(_) => {
                        // A terminal that its program has left is full and yet ready for ever: asked again at once, it
                        // would never let anything else run.
                        if hung_up {
                            sleep(FULL).await;
                        }
                        continue;
                    }
                }
            }
            Err(error) => Err(error),
        };
        match written {
            Ok(length) => return Some(length),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => *target = None,
        }
    }
}

/// How much was taken without waiting.
fn write_now(target: Option<&AsyncFd<OwnedFd>>, data: &[u8]) -> usize {
    let Some(target) = target else { return 0 };
    loop {
        match rustix::io::write(target, data) {
            Ok(length) => return length,
            Err(Errno::INTR) => {}
            // Full, or nobody reads it any more; the latter shows when somebody types.
            Err(_) => return 0,
        }
    }
}

/// What of `data` was not taken before.
fn fresh(taken: u64, offset: Option<u64>, mut data: Bytes) -> Result<Bytes, Fault> {
    let offset = offset.unwrap_or(taken);
    if offset > taken {
        let message = format!("Input at offset {offset} leaves a gap: {taken} bytes have been taken.");
        return Err(Fault::new(Code::OffsetBeyond, message));
    }
    let known = usize::try_from(taken - offset).unwrap_or(usize::MAX).min(data.len());
    Ok(data.split_off(known))
}

#[cfg(test)]
mod tests {
    use crate::{
        answers::{Answer, Moment},
        command::User,
        process::Input,
        protocol::StageAnswerRequest,
        stdio::{self, Inner},
    };

    use super::*;

    type Outcome = Result<(), Box<dyn std::error::Error>>;

    /// A terminal whose output nobody reads, and its program's end.
    fn terminal() -> Result<(Process, Sink, OwnedFd, OwnedFd), Box<dyn std::error::Error>> {
        let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
        let user = User { uid, gid, name: "test".into(), home: "/".into(), env: Default::default() };
        let size = rustix::termios::Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
        let (Inner::Terminal(inner), outer) = stdio::terminal(size, &user)? else { return Err("no terminal".into()) };
        rustix::io::ioctl_fionbio(&inner, true)?;
        let sink = Sink::new(outer.stdin.ok_or("no input")?, true)?;
        Ok((Process::new("p".into(), Input::Terminal).0, sink, outer.stdout, inner))
    }

    fn stage(process: &Process) -> Outcome {
        let keys = Bytes::from_static(b"y\n");
        let answer =
            Answer::parse(StageAnswerRequest { answer_id: "a".into(), keys, ..StageAnswerRequest::default() })?;
        let staged = process.state().answers.stage(answer, Some(Moment { output: 0, input: 0, echo: true }))?;
        assert_eq!(staged, AnswerOutcome::Staged);
        Ok(())
    }

    #[tokio::test]
    async fn an_answer_is_typed_into_a_terminal_that_stood_still() -> Outcome {
        let (process, mut sink, _output, program) = terminal()?;
        stage(&process)?;
        assert_eq!(sink.release(&process, "a")?, AnswerOutcome::Typed);
        let mut typed = [0; 8];
        assert_eq!((rustix::io::read(&program, &mut typed)?, &typed[..2]), (2, &b"y\n"[..]));
        assert_eq!(process.state().input_offset, 2);
        Ok(())
    }

    #[tokio::test]
    async fn an_answer_is_not_typed_when_output_waits_that_has_no_offset_yet() -> Outcome {
        let (process, mut sink, _output, program) = terminal()?;
        stage(&process)?;
        rustix::io::write(&program, b"Delete all? ")?;
        assert_eq!(sink.release(&process, "a")?, AnswerOutcome::MovedOn);
        assert_eq!(rustix::io::read(&program, &mut [0; 8]), Err(Errno::AGAIN));
        assert_eq!(process.state().input_offset, 0);
        Ok(())
    }

    #[test]
    fn repeats_are_skipped_and_gaps_refused() {
        let data = || Bytes::from_static(b"hello");
        assert_eq!(fresh(0, Some(0), data()).as_deref(), Ok(&b"hello"[..]));
        assert_eq!(fresh(3, Some(0), data()).as_deref(), Ok(&b"lo"[..]));
        assert_eq!(fresh(5, Some(0), data()).as_deref(), Ok(&b""[..]));
        assert_eq!(fresh(9, Some(2), data()).as_deref(), Ok(&b""[..]));
        assert_eq!(fresh(7, None, data()).as_deref(), Ok(&b"hello"[..]));
        assert_eq!(fresh(2, Some(3), data()).map_err(|fault| fault.code), Err(Code::OffsetBeyond));
    }
}
