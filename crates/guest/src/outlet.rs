//! One stream of a process's output, read without blocking.

use std::{io, os::fd::OwnedFd};

use bytes::{Bytes, BytesMut};
use rustix::io::Errno;
use tokio::io::{Interest, unix::AsyncFd};

use crate::{
    protocol::{CHUNK, Stream},
    sys,
};

/// What a terminal can hold that its master has not read: the line buffer and the kernel's flip buffers, generously.
pub(crate) const TERMINAL_BUFFERS: usize = 128 * 1024;

pub(crate) struct Outlet {
    pub(crate) stream: Stream,
    /// `None` once nobody can write to it.
    source: Option<AsyncFd<OwnedFd>>,
    terminal: bool,
    /// Nobody has the terminal open at the moment. The leader may open it again, so this is not its end yet.
    pub(crate) hung_up: bool,
    /// While the leader's last words are collected: how many bytes may still be among them.
    owed: u64,
}

pub(crate) enum Read {
    Data(Bytes),
    Nothing,
    End,
}

impl Outlet {
    pub(crate) fn new(stream: Stream, source: OwnedFd, terminal: bool) -> io::Result<Self> {
        let source = Some(sys::watch(source, Interest::READABLE)?);
        Ok(Self { stream, source, terminal, hung_up: false, owed: 0 })
    }

    pub(crate) fn is_open(&self) -> bool {
        self.source.is_some()
    }

    pub(crate) fn terminal(&self) -> Option<&OwnedFd> {
        self.source.as_ref().filter(|_| self.terminal).map(AsyncFd::get_ref)
    }

    /// Never resolves for one that is closed or hung up.
    pub(crate) async fn readable(&self) {
        match &self.source {
            // The guard is dropped with the readiness kept; `read` clears it when there was nothing. An error shows there.
            Some(source) if !self.hung_up => drop(source.readable().await),
            _ => std::future::pending().await,
        }
    }

    pub(crate) fn close(&mut self) {
        self.source = None;
        self.owed = 0;
    }

    /// At most `room` bytes.
    pub(crate) fn read(&mut self, room: usize) -> Read {
        let Some(source) = &self.source else { return Read::End };
        match source.try_io(Interest::READABLE, |source| read_available(source, room)) {
            Ok(data) if data.is_empty() => Read::End,
            Ok(data) => Read::Data(data),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                Read::Nothing
            }
            // A terminal's way to say that nobody has it open.
            Err(_) => Read::End,
        }
    }

    /// Called when the leader has exited: everything it wrote is in the kernel now, and what others add later does not
    /// keep its exit waiting.
    pub(crate) fn start_last_words(&mut self) {
        self.owed = match &self.source {
            Some(_) if self.terminal => TERMINAL_BUFFERS as u64,
            Some(source) => rustix::io::ioctl_fionread(source).unwrap_or(TERMINAL_BUFFERS as u64),
            None => 0,
        };
    }

    pub(crate) fn has_last_words(&self) -> bool {
        self.owed > 0
    }

    /// Like `read`, but asks the kernel even if the reactor has not seen yet that there is something.
    pub(crate) fn read_now(&self, room: usize) -> Read {
        let Some(source) = &self.source else { return Read::End };
        loop {
            return match read_available(source.get_ref(), room) {
                Ok(data) if data.is_empty() => Read::End,
                Ok(data) => Read::Data(data),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => Read::Nothing,
                Err(_) => Read::End,
            };
        }
    }

    pub(crate) fn read_last_words(&mut self, room: usize) -> Read {
        let read = self.read_now(room.min(usize::try_from(self.owed).unwrap_or(room)));
        match &read {
            Read::Data(data) => self.owed -= data.len() as u64,
            Read::Nothing => self.owed = 0,
            Read::End => {}
        }
        read
    }
}

/// Sized by what is there, so that a short line does not cost a large buffer for as long as it is kept.
fn read_available(source: &OwnedFd, room: usize) -> io::Result<Bytes> {
    let there = rustix::io::ioctl_fionread(source).map_or(0, |there| usize::try_from(there).unwrap_or(CHUNK));
    let mut buffer = BytesMut::zeroed(there.clamp(256, CHUNK).min(room));
    let length = match rustix::io::read(source, &mut buffer[..]) {
        Ok(length) => length,
        Err(Errno::AGAIN) => return Err(io::ErrorKind::WouldBlock.into()),
        Err(error) => return Err(error.into()),
    };
    buffer.truncate(length);
    if length * 2 < buffer.capacity() {
        return Ok(Bytes::copy_from_slice(&buffer));
    }
    Ok(buffer.freeze())
}
