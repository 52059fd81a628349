//! The input of one process: a task that types what callers send, in order, each byte once. A caller that goes away
//! changes nothing about what was taken.

use std::{io, os::fd::OwnedFd, sync::Arc};

use bytes::Bytes;
use rustix::termios::SpecialCodeIndex;
use tokio::{
    io::{Interest, unix::AsyncFd},
    sync::mpsc,
};

use crate::{
    error::{Code, Fault},
    process::{Feed, Process, Reply},
    sys,
};

/// Where input goes.
pub(crate) struct Sink {
    /// `None` once closed.
    target: Option<AsyncFd<OwnedFd>>,
    terminal: bool,
    /// Where the end was last announced, so that a repeated call does not announce it again.
    ended_at: Option<u64>,
}

impl Sink {
    pub(crate) fn new(target: OwnedFd, terminal: bool) -> io::Result<Self> {
        let target = Some(sys::watch(target, Interest::WRITABLE)?);
        Ok(Self { target, terminal, ended_at: None })
    }
}

/// Runs until the process is over; unanswered calls then see their channel closed.
pub(crate) async fn feed(process: Arc<Process>, mut sink: Sink, mut requests: mpsc::Receiver<(Feed, Reply<u64>)>) {
    let mut changes = process.changes();
    let over = async {
        while !{
            let state = process.state();
            state.exit.is_some() || state.forgotten
        } {
            // The sender lives in `process`, which we hold.
            let _ = changes.changed().await;
        }
    };
    let serve = async {
        while let Some((request, reply)) = requests.recv().await {
            let outcome = sink.take(&process, request).await;
            // Its caller may be gone; the bytes are counted all the same.
            let _ = reply.send(outcome);
        }
    };
    tokio::select! {
        () = over => {}
        () = serve => {}
    }
}

impl Sink {
    async fn take(&mut self, process: &Process, request: Feed) -> Result<u64, Fault> {
        let taken = process.state().input_offset;
        let repeat = request.offset.is_some();
        let data = fresh(taken, request.offset, request.data)?;
        let end = taken + data.len() as u64;
        let announced = repeat && self.ended_at == Some(end);
        if self.target.is_none() {
            return if data.is_empty() && (announced || !request.eof) {
                Ok(taken)
            } else {
                Err(Fault::new(Code::NoStdin, format!("The input of process {} is closed.", process.id)))
            };
        }
        self.write(process, data, true).await?;
        if request.eof && !announced {
            self.ended_at = Some(end);
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
        self.write(process, Bytes::copy_from_slice(&[end]), false).await
    }

    async fn write(&mut self, process: &Process, mut data: Bytes, counts: bool) -> Result<(), Fault> {
        while let Some(target) = &self.target
            && !data.is_empty()
        {
            let written = target.async_io(Interest::WRITABLE, |target| Ok(rustix::io::write(target, &data)?)).await;
            match written {
                Ok(length) => {
                    let _ = data.split_to(length);
                    if counts {
                        process.state().input_offset += length as u64;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => {
                    // Nobody reads it any more, and nobody will.
                    self.target = None;
                    return Err(Fault::new(Code::NoStdin, format!("Process {} has closed its input.", process.id)));
                }
            }
        }
        Ok(())
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
    use super::*;

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
