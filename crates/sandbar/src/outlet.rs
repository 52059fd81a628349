//! One of our output streams, which its reader may close. A command in a pipeline ends by SIGPIPE when the reader goes; so
//! does ours, and more firmly if it will not.

use std::{
    io,
    time::{Duration, Instant},
};

use tokio::io::{AsyncWrite, AsyncWriteExt as _};

use crate::exit::Failure;

/// How long a command may go on writing to a pipe that nobody reads before it is asked more firmly.
const PATIENCE_WITH_WRITERS: Duration = Duration::from_secs(1);

pub(crate) struct Outlet<W> {
    writer: W,
    closed_since: Option<Instant>,
    asked: usize,
}

impl<W: AsyncWrite + Unpin> Outlet<W> {
    pub(crate) fn new(writer: W) -> Self {
        Self { writer, closed_since: None, asked: 0 }
    }

    /// Returns the signal that the command must get, if nobody reads this stream any more.
    pub(crate) async fn write(&mut self, data: &[u8]) -> Result<Option<&'static str>, Failure> {
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
        Ok(self.next_signal(Instant::now()))
    }

    fn next_signal(&mut self, now: Instant) -> Option<&'static str> {
        const FIRMER: [&str; 3] = ["PIPE", "TERM", "KILL"];
        let due = PATIENCE_WITH_WRITERS * u32::try_from(self.asked).unwrap_or(u32::MAX);
        if self.closed_since.is_none_or(|since| now.duration_since(since) < due) {
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
    async fn all_is_written_until_the_reader_goes_and_then_the_writer_is_asked_ever_more_firmly() -> Result<(), Failure>
    {
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
        let since = outlet.closed_since.unwrap_or_else(Instant::now);
        let mut after = |ms| outlet.next_signal(since + Duration::from_millis(ms));
        assert_eq!([0, 999, 1000, 1999, 2000].map(&mut after), [None, None, Some("TERM"), None, Some("KILL")]);
        assert_eq!(after(60_000), None);
        Ok(())
    }
}
