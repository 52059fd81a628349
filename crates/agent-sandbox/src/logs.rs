//! What the containers of a pod wrote, as the node keeps it.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use futures_util::{AsyncBufRead, AsyncBufReadExt as _, Stream, stream};
use kube::api::LogParams;

use crate::{AgentSandbox, pods::Target};

/// Of one line; a longer one comes in several pieces.
const LINE: usize = 1 << 20;

/// Which part of the log.
#[derive(Clone, Debug, Default)]
pub struct Logs(LogParams);

impl Logs {
    /// All that there is now.
    pub fn new() -> Self {
        Self::default()
    }

    /// Of this container of the pod; may be left out where there is one.
    #[must_use]
    pub fn container(mut self, container: impl Into<String>) -> Self {
        self.0.container = Some(container.into());
        self
    }

    /// Also what is written later, until the container ends.
    #[must_use]
    pub fn follow(mut self) -> Self {
        self.0.follow = true;
        self
    }

    /// Only the last lines.
    #[must_use]
    pub fn tail(mut self, lines: u32) -> Self {
        self.0.tail_lines = Some(i64::from(lines));
        self
    }

    /// Only what is younger than this; at least a second.
    #[must_use]
    pub fn since(mut self, age: Duration) -> Self {
        self.0.since_seconds = Some(i64::try_from(age.as_secs().max(1)).unwrap_or(i64::MAX));
        self
    }

    /// Of the container's life before this one.
    #[must_use]
    pub fn previous(mut self) -> Self {
        self.0.previous = true;
        self
    }

    /// Every line begins with the time it was written.
    #[must_use]
    pub fn timestamps(mut self) -> Self {
        self.0.timestamps = true;
        self
    }
}

/// A log that is read: a stream of bytes as they come, or [`lines`](Self::lines).
pub struct LogStream(Pin<Box<dyn AsyncBufRead + Send>>);

impl LogStream {
    /// The next line without its end, with what is no UTF-8 replaced; none at the end of the log.
    pub async fn next_line(&mut self) -> io::Result<Option<String>> {
        let mut line = vec![];
        loop {
            let buffer = self.0.fill_buf().await?;
            let room = LINE - line.len();
            let (taken, ended) = match buffer.iter().take(room).position(|byte| *byte == b'\n') {
                Some(end) => (end + 1, true),
                None => (buffer.len().min(room), false),
            };
            line.extend(buffer.iter().take(taken));
            self.0.as_mut().consume(taken);
            if taken == 0 && line.is_empty() {
                return Ok(None);
            }
            if ended || taken == 0 || line.len() == LINE {
                let text = line.strip_suffix(b"\n").unwrap_or(&line);
                return Ok(Some(String::from_utf8_lossy(text).into_owned()));
            }
        }
    }

    /// The lines of the log, as [`next_line`](Self::next_line) gives them.
    pub fn lines(self) -> impl Stream<Item = io::Result<String>> + Send {
        stream::try_unfold(self, |mut log| async move { Ok(log.next_line().await?.map(|line| (line, log))) })
    }
}

impl Stream for LogStream {
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let buffer = match ready!(self.0.as_mut().poll_fill_buf(context)) {
            Ok(buffer) => Bytes::copy_from_slice(buffer),
            Err(error) => return Poll::Ready(Some(Err(error))),
        };
        self.0.as_mut().consume(buffer.len());
        Poll::Ready((!buffer.is_empty()).then_some(Ok(buffer)))
    }
}

impl AgentSandbox {
    /// Reads the log of a container. Needs `get` on `pods/log`.
    pub async fn logs(&self, target: impl Into<Target>, logs: Logs) -> Result<LogStream, crate::Error> {
        let stream = self.pods().api().log_stream(target.into().pod(), &logs.0).await?;
        Ok(LogStream(Box::pin(stream)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::{TryStreamExt as _, io::Cursor};

    fn log(text: impl Into<Vec<u8>>) -> LogStream {
        LogStream(Box::pin(Cursor::new(text.into())))
    }

    #[tokio::test]
    async fn lines_end_where_they_end() -> io::Result<()> {
        let lines: Vec<_> = log(&b"one\n\ntwo\xff\nrest"[..]).lines().try_collect().await?;
        assert_eq!(lines, ["one", "", "two\u{fffd}", "rest"]);
        assert_eq!(log("").next_line().await?, None);
        Ok(())
    }

    #[tokio::test]
    async fn a_line_without_end_comes_in_pieces() -> io::Result<()> {
        let lines: Vec<_> = log(vec![b'x'; LINE + 1]).lines().try_collect().await?;
        assert_eq!(lines.iter().map(String::len).collect::<Vec<_>>(), [LINE, 1]);
        Ok(())
    }

    #[tokio::test]
    async fn bytes_come_as_they_are() -> io::Result<()> {
        let bytes: Vec<Bytes> = log(&b"a\xff\n"[..]).try_collect().await?;
        assert_eq!(bytes.concat(), b"a\xff\n");
        Ok(())
    }
}
