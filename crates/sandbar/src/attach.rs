//! Drives a process as if it ran here: input, output, signals, terminal, exit code. Shared by `run`, `exec` and `session`.

use std::{
    io::{self, IsTerminal as _},
    time::{Duration, Instant},
};

use futures_util::StreamExt as _;
use sandbar_api::{Code, ExitReason, Process, Stream};
use sandbar_client::{Client, OutputItem};
use sandbar_terminal::{InputModes, Neutral, Titles};
use tokio::io::{AsyncWrite, AsyncWriteExt as _};

use crate::{
    exit::{self, Failure},
    print::Printer,
    terminal::{self, Received, Signals},
};

/// How long a command may go on writing to a pipe that nobody reads before it is asked more firmly.
const PATIENCE_WITH_WRITERS: Duration = Duration::from_secs(1);

/// What is between us and the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Manner {
    /// It runs for us: signals are for it, and its input ends with ours.
    Ours,
    /// It may have been there before us, and goes on when we leave: signals are for us.
    Visit,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// Of the process, whose code is ours.
    Exit(u8),
    /// Of our visit.
    Detached,
}

pub(crate) struct Attachment<'a> {
    pub client: &'a Client,
    pub sandbox: &'a str,
    pub process: &'a Process,
    pub forward_input: bool,
    pub manner: Manner,
    pub print: Printer,
}

impl Attachment<'_> {
    /// Gives its terminal the size of ours.
    pub(crate) async fn fit(&self) {
        let outcome = self.client.resize(self.sandbox, self.process.id.as_str(), terminal::size()).await;
        self.tell("the terminal size did not reach the command", outcome);
    }

    /// Until the process ends, or a visit does.
    pub(crate) async fn drive(&self, signals: &mut Signals) -> Result<End, Failure> {
        let input = self.forward_input.then(|| {
            let (client, sandbox, print) = (self.client.clone(), self.sandbox.to_owned(), self.print);
            let (process, manner) = (self.process.id.to_string(), self.manner);
            tokio::spawn(async move {
                let outcome = match manner {
                    Manner::Ours => client.forward_stdin(&sandbox, &process, tokio::io::stdin()).await.map(drop),
                    Manner::Visit => client.type_stdin(&sandbox, &process, tokio::io::stdin()).await,
                };
                if let Err(error) = outcome
                    && !is_over(error.code())
                {
                    print.warn(format!("standard input is no longer forwarded: {}", exit::chain(&error)));
                }
            })
        });
        let outcome = tokio::select! {
            outcome = self.pump() => outcome,
            () = self.heed(signals) => Ok(End::Detached),
        };
        if let Some(input) = input {
            input.abort();
        }
        outcome
    }

    async fn pump(&self) -> Result<End, Failure> {
        let from = match self.manner {
            Manner::Ours => Some(0),
            // The first byte that is kept.
            Manner::Visit => None,
        };
        let mut output = std::pin::pin!(self.client.output(self.sandbox, self.process.id.as_str(), from, true));
        // A visitor is shown what others made it print, and whose terminal it is must not depend on that.
        let shown = self.manner == Manner::Visit && io::stdout().is_terminal();
        let mut neutral = shown.then(|| Neutral::new(Titles::Drop, InputModes::Pass));
        let mut stdout = Outlet::new(tokio::io::stdout());
        let mut stderr = Outlet::new(tokio::io::stderr());
        while let Some(item) = output.next().await {
            let signal = match item? {
                OutputItem::Exit(process) => return self.ending(&process).map(End::Exit),
                OutputItem::Chunk(chunk) => match chunk.stream {
                    Stream::Stdout => {
                        let harmless = neutral.as_mut().map(|neutral| neutral.filter(&chunk.data));
                        stdout.write(harmless.as_deref().unwrap_or(&chunk.data)).await?
                    }
                    Stream::Stderr => stderr.write(&chunk.data).await?,
                },
            };
            match (signal, self.manner) {
                (None, _) => {}
                (Some(name), Manner::Ours) => self.signal(name).await,
                // Nobody reads us any more, which is nothing to the process.
                (Some(_), Manner::Visit) => return Ok(End::Detached),
            }
        }
        Err(Failure::new(exit::SANDBAR, "the output ended without the command's exit"))
    }

    fn ending(&self, process: &Process) -> Result<u8, Failure> {
        let Some(exit) = &process.exit else {
            return Err(Failure::new(exit::SANDBAR, "the sandbox died while the command ran, nobody saw how it ended")
                .hint(format!("`sandbar inspect {}` says why.", self.sandbox)));
        };
        // A shell may outlive what was killed, and fail for it.
        let how = if exit.signal.is_some() { "killed" } else { "failed" };
        let why = match exit.reason {
            ExitReason::Timeout => Some("the command's time was over"),
            ExitReason::Stopped => Some("the sandbox was stopped"),
            ExitReason::Oom => Some("the sandbox's memory limit was reached"),
            ExitReason::PidsLimit => Some("the sandbox's process limit was reached"),
            ExitReason::OutputLimit => Some("the sandbox's output limit was reached"),
            ExitReason::DiskLimit => Some("the sandbox's disk limit was reached"),
            ExitReason::Exited | ExitReason::Killed => None,
        };
        if let Some(why) = why {
            self.print.say(format!("{how}: {why}"));
        }
        // The kernel keeps eight bits of it too.
        Ok(exit.code as u8)
    }

    /// Returns when a signal ends a visit.
    async fn heed(&self, signals: &mut Signals) {
        loop {
            match (signals.next().await, self.manner) {
                (Received::Signal { name, .. }, Manner::Ours) => self.signal(name).await,
                (Received::Signal { .. }, Manner::Visit) => return,
                (Received::Resized, _) if self.process.terminal => self.fit().await,
                (Received::Resized, _) => {}
            }
        }
    }

    async fn signal(&self, name: &str) {
        let outcome = self.client.signal(self.sandbox, self.process.id.as_str(), name).await;
        self.tell(&format!("SIG{name} did not reach the command"), outcome);
    }

    /// A command that has just ended needs no signal, and its end is on its way to us.
    fn tell(&self, what: &str, outcome: sandbar_client::Result<()>) {
        if let Err(error) = outcome
            && !is_over(error.code())
        {
            self.print.warn(format!("{what}: {}", exit::chain(&error)));
        }
    }
}

fn is_over(code: Option<Code>) -> bool {
    matches!(
        code,
        Some(Code::ProcessOver | Code::NoStdin | Code::UnknownProcess | Code::SandboxGone | Code::WrongState)
    )
}

/// One of our output streams, which its reader may close. A command in a pipeline ends by SIGPIPE when the reader goes;
/// so does ours, and more firmly if it will not.
struct Outlet<W> {
    writer: W,
    closed_since: Option<Instant>,
    asked: usize,
}

impl<W: AsyncWrite + Unpin> Outlet<W> {
    fn new(writer: W) -> Self {
        Self { writer, closed_since: None, asked: 0 }
    }

    /// Returns the signal that the command must get, if nobody reads this stream any more.
    async fn write(&mut self, data: &[u8]) -> Result<Option<&'static str>, Failure> {
        if self.closed_since.is_none() {
            let outcome = match self.writer.write_all(data).await {
                Ok(()) => self.writer.flush().await,
                Err(error) => Err(error),
            };
            match outcome {
                Ok(()) => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => self.closed_since = Some(Instant::now()),
                Err(error) => return Err(Failure::io("failed to write the command's output")(error)),
            }
        }
        Ok(self.next_signal())
    }

    fn next_signal(&mut self) -> Option<&'static str> {
        const FIRMER: [&str; 3] = ["PIPE", "TERM", "KILL"];
        let due = PATIENCE_WITH_WRITERS * u32::try_from(self.asked).unwrap_or(u32::MAX);
        if self.closed_since.is_none_or(|since| since.elapsed() < due) {
            return None;
        }
        let name = FIRMER.get(self.asked).copied();
        self.asked += 1;
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn all_is_written_until_the_reader_goes_and_then_the_writer_is_asked_once_at_first() -> Result<(), Failure> {
        let mut written = Vec::new();
        let mut outlet = Outlet::new(&mut written);
        for piece in [&b"one "[..], b"", b"two ", b"three"] {
            assert_eq!(outlet.write(piece).await?, None);
        }
        assert_eq!(written, b"one two three");

        let (writer, reader) = tokio::io::duplex(64);
        let mut outlet = Outlet::new(writer);
        assert_eq!(outlet.write(b"read").await?, None);
        drop(reader);
        assert_eq!(outlet.write(b"unread").await?, Some("PIPE"));
        assert_eq!(outlet.write(b"unread").await?, None);
        Ok(())
    }
}
