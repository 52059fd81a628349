//! How a file worker and the guest talk: frames of a kind, a length and that many bytes, over a pipe each way.

use std::{
    fs::File,
    io::{self, Read, Write},
    os::fd::OwnedFd,
};

use prost::Message;

use crate::{
    error::Fault,
    protocol::{CHUNK, Entry, SearchReply},
};

pub(crate) const HEADER: usize = 5;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Data = 1,
    /// An encoded `Entry`.
    Entry,
    /// The last frame of a worker: a number that the operation answers with.
    Done,
    /// The last frame of a worker: a `Fault`.
    Failed,
    /// The last frame to a worker: everything was sent.
    Commit,
    /// An encoded `SearchReply`.
    Found,
}

pub(crate) fn header(kind: Kind, length: usize) -> [u8; HEADER] {
    // Frames are at most a chunk or an entry long.
    let [a, b, c, d] = u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes();
    [kind as u8, a, b, c, d]
}

pub(crate) fn parse_header(header: [u8; HEADER]) -> Option<(Kind, usize)> {
    let [kind, a, b, c, d] = header;
    let kind = match kind {
        1 => Kind::Data,
        2 => Kind::Entry,
        3 => Kind::Done,
        4 => Kind::Failed,
        5 => Kind::Commit,
        6 => Kind::Found,
        _ => return None,
    };
    usize::try_from(u32::from_le_bytes([a, b, c, d])).ok().map(|length| (kind, length))
}

/// The worker's way to the guest. As a writer it makes data frames of what is written.
pub(crate) struct Outbox {
    pipe: File,
    /// Frames that are complete, then `open` bytes of a data frame whose header is reserved before them.
    buffer: Vec<u8>,
    open: usize,
}

impl Outbox {
    pub(crate) fn new(pipe: OwnedFd) -> Self {
        Self { pipe: pipe.into(), buffer: Vec::new(), open: 0 }
    }

    pub(crate) fn entry(&mut self, entry: &Entry) -> io::Result<()> {
        self.frame(Kind::Entry, &entry.encode_to_vec())
    }

    pub(crate) fn found(&mut self, reply: &SearchReply) -> io::Result<()> {
        self.frame(Kind::Found, &reply.encode_to_vec())
    }

    pub(crate) fn finish(&mut self, outcome: Result<u64, Fault>) -> io::Result<()> {
        match outcome {
            Ok(number) => self.frame(Kind::Done, &number.to_le_bytes())?,
            Err(fault) => self.frame(Kind::Failed, &fault.to_bytes())?,
        }
        self.flush()
    }

    fn frame(&mut self, kind: Kind, payload: &[u8]) -> io::Result<()> {
        self.close_frame();
        self.buffer.extend_from_slice(&header(kind, payload.len()));
        self.buffer.extend_from_slice(payload);
        if self.buffer.len() >= CHUNK { self.flush() } else { Ok(()) }
    }

    fn close_frame(&mut self) {
        if self.open > 0 {
            let start = self.buffer.len() - self.open - HEADER;
            self.buffer[start..start + HEADER].copy_from_slice(&header(Kind::Data, self.open));
            self.open = 0;
        }
    }
}

impl Write for Outbox {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        if self.open == 0 && !data.is_empty() {
            self.buffer.extend_from_slice(&[0; HEADER]);
        }
        let length = data.len().min(CHUNK - self.open);
        self.buffer.extend_from_slice(&data[..length]);
        self.open += length;
        if self.open == CHUNK {
            self.flush()?;
        }
        Ok(length)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.close_frame();
        self.pipe.write_all(&self.buffer)?;
        self.buffer.clear();
        Ok(())
    }
}

/// What the guest sends to a worker: as a reader it gives the data and ends at the commit.
pub(crate) struct Inbox {
    pipe: File,
    left: usize,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    Committed,
    /// The upload broke off, so nothing of it may stay.
    Aborted,
}

impl Inbox {
    pub(crate) fn new(pipe: OwnedFd) -> Self {
        Self { pipe: pipe.into(), left: 0, state: State::Open }
    }

    pub(crate) fn was_aborted(&self) -> bool {
        self.state == State::Aborted
    }

    fn next_frame(&mut self) -> io::Result<()> {
        let mut bytes = [0; HEADER];
        let header = self.pipe.read_exact(&mut bytes).map(|()| parse_header(bytes));
        match header {
            Ok(Some((Kind::Data, length))) => self.left = length,
            Ok(Some((Kind::Commit, _))) => self.state = State::Committed,
            _ => {
                self.state = State::Aborted;
                return Err(io::Error::new(io::ErrorKind::ConnectionAborted, "the upload broke off"));
            }
        }
        Ok(())
    }
}

impl Read for Inbox {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.left == 0 && self.state == State::Open {
            self.next_frame()?;
        }
        if self.left == 0 {
            return Ok(0);
        }
        let length = buffer.len().min(self.left);
        let read = self.pipe.read(&mut buffer[..length])?;
        if read == 0 {
            self.state = State::Aborted;
            return Err(io::Error::new(io::ErrorKind::ConnectionAborted, "the upload broke off"));
        }
        self.left -= read;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_survive_the_pipe() {
        for kind in [Kind::Data, Kind::Entry, Kind::Done, Kind::Failed, Kind::Commit, Kind::Found] {
            assert_eq!(parse_header(header(kind, 70_000)), Some((kind, 70_000)));
        }
        assert_eq!(parse_header([9, 0, 0, 0, 0]), None);
    }

    #[test]
    fn what_is_written_becomes_data_frames_of_at_most_a_chunk() -> io::Result<()> {
        let (inside, outside) = rustix::pipe::pipe()?;
        let writer = std::thread::spawn(move || -> io::Result<()> {
            let mut outbox = Outbox::new(outside);
            outbox.write_all(&vec![7; CHUNK + 10])?;
            outbox.finish(Ok(3))
        });
        let mut pipe = File::from(inside);
        let mut seen = Vec::new();
        let mut bytes = [0; HEADER];
        while pipe.read_exact(&mut bytes).is_ok() {
            let Some((kind, length)) = parse_header(bytes) else { break };
            io::copy(&mut (&mut pipe).take(length as u64), &mut io::sink())?;
            seen.push((kind, length));
        }
        assert_eq!(seen, [(Kind::Data, CHUNK), (Kind::Data, 10), (Kind::Done, 8)]);
        assert!(matches!(writer.join(), Ok(Ok(()))));
        Ok(())
    }

    #[test]
    fn an_upload_without_a_commit_is_not_an_end() -> io::Result<()> {
        for commit in [true, false] {
            let (inside, outside) = rustix::pipe::pipe()?;
            let mut pipe = File::from(outside);
            pipe.write_all(&header(Kind::Data, 2))?;
            pipe.write_all(b"hi")?;
            if commit {
                pipe.write_all(&header(Kind::Commit, 0))?;
            }
            drop(pipe);
            let mut inbox = Inbox::new(inside);
            let mut text = String::new();
            assert_eq!(inbox.read_to_string(&mut text).is_ok(), commit);
            assert_eq!(inbox.was_aborted(), !commit);
        }
        Ok(())
    }
}
