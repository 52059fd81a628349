//! Standard input and output as MCP uses them: one message a line. A line that is too long is told as such and costs no
//! more memory than the longest that is looked into.

use std::io;

use tokio::{
    io::{AsyncBufReadExt as _, AsyncRead, AsyncWrite, AsyncWriteExt as _, BufReader},
    sync::mpsc,
};

/// What the server takes.
pub(super) const LONGEST: usize = 4 * 1024 * 1024;
/// Of a longer line this much is kept, to find out which request it was.
const LOOKED_INTO: usize = 4 * LONGEST;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line {
    Message(Vec<u8>),
    /// With its text, if that is not too long even to look into.
    TooLong(Option<Vec<u8>>),
}

pub(super) struct Lines<R> {
    reader: BufReader<R>,
}

impl<R: AsyncRead + Unpin> Lines<R> {
    pub(super) fn new(reader: R) -> Self {
        Self { reader: BufReader::with_capacity(64 * 1024, reader) }
    }

    /// `None` at the end. Empty lines are none.
    pub(super) async fn next(&mut self) -> io::Result<Option<Line>> {
        loop {
            let mut line = Vec::new();
            let mut length = 0;
            let ended = loop {
                let piece = self.reader.fill_buf().await?;
                if piece.is_empty() {
                    break true;
                }
                let end = piece.iter().position(|byte| *byte == b'\n');
                let taken = &piece[..end.unwrap_or(piece.len())];
                length += taken.len();
                if length <= LOOKED_INTO {
                    line.extend_from_slice(taken);
                } else {
                    line = Vec::new();
                }
                let used = taken.len() + usize::from(end.is_some());
                self.reader.consume(used);
                if end.is_some() {
                    break false;
                }
            };
            if length > LOOKED_INTO {
                return Ok(Some(Line::TooLong(None)));
            }
            if length > LONGEST {
                return Ok(Some(Line::TooLong(Some(line))));
            }
            if !line.trim_ascii().is_empty() {
                return Ok(Some(Line::Message(line)));
            }
            if ended {
                return Ok(None);
            }
        }
    }
}

/// Reads until the end, or until nobody listens.
pub(super) async fn read(from: impl AsyncRead + Unpin, to: mpsc::Sender<Line>) -> io::Result<()> {
    let mut lines = Lines::new(from);
    while let Some(line) = lines.next().await? {
        if to.send(line).await.is_err() {
            break;
        }
    }
    Ok(())
}

/// Writes each message as one line, until all who could send one are gone.
pub(super) async fn write(mut from: mpsc::Receiver<String>, mut to: impl AsyncWrite + Unpin) -> io::Result<()> {
    while let Some(message) = from.recv().await {
        to.write_all(one_line(message).as_bytes()).await?;
        to.flush().await?;
    }
    Ok(())
}

/// In JSON line ends are only ever between tokens.
fn one_line(message: String) -> String {
    let mut line = if message.contains(['\n', '\r']) { message.replace(['\n', '\r'], " ") } else { message };
    line.push('\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn all(text: &[u8]) -> io::Result<Vec<Line>> {
        let (to, mut lines) = mpsc::channel(100);
        read(text, to).await?;
        let mut got = vec![];
        while let Some(line) = lines.recv().await {
            got.push(line);
        }
        Ok(got)
    }

    #[tokio::test]
    async fn lines_are_told_apart_however_they_end() -> io::Result<()> {
        let message = |text: &str| Line::Message(text.into());
        assert_eq!(all(b"a\n\n \nb c\r\nlast").await?, [message("a"), message("b c\r"), message("last")]);
        assert_eq!(all(b"").await?, []);
        Ok(())
    }

    #[tokio::test]
    async fn a_line_that_is_too_long_is_told_and_the_next_is_read() -> io::Result<()> {
        for (length, kept) in [(LONGEST + 1, true), (LOOKED_INTO, true), (LOOKED_INTO + 1, false)] {
            let mut text = vec![b'x'; length];
            text.extend(b"\nnext\n");
            let lines = all(&text).await?;
            assert!(matches!(&lines[0], Line::TooLong(text) if text.is_some() == kept), "{length}");
            assert_eq!(lines[1..], [Line::Message(b"next".into())]);
        }
        let fits = all(&vec![b'x'; LONGEST]).await?;
        assert!(matches!(&fits[..], [Line::Message(line)] if line.len() == LONGEST));
        Ok(())
    }

    #[tokio::test]
    async fn a_message_is_one_line() -> io::Result<()> {
        let (to, messages) = mpsc::channel(2);
        for message in ["{\"a\":\r\n1}", "{\"b\":\"\\n\"}"] {
            to.send(message.to_owned()).await.map_err(io::Error::other)?;
        }
        drop(to);
        let mut written = vec![];
        write(messages, &mut written).await?;
        assert_eq!(written, b"{\"a\":  1}\n{\"b\":\"\\n\"}\n");
        Ok(())
    }
}
