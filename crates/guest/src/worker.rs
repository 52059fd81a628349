//! The guest's side of a file worker: starts it, moves its frames, and ends it when the call is given up.

use std::{
    io,
    os::fd::OwnedFd,
    path::{Component, PathBuf},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use prost::Message;
use rustix::{
    pipe::{PipeFlags, fcntl_setpipe_size, pipe_with},
    process::Signal,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, BufReader},
    net::unix::pipe,
    sync::OwnedSemaphorePermit,
    time::timeout,
};

use crate::{
    children::{Child, Forker, Task},
    error::{Code, Fault},
    files::{
        Errand, Job,
        below::Ask,
        frames::{HEADER, Kind, header, parse_header},
    },
    protocol::{CHUNK, Entry, SearchReply},
};

/// Fewer switches between guest and worker on large files; the kernel may refuse it to an ordinary user with many pipes.
const PIPE_SIZE: usize = 4 * CHUNK;
/// A worker that writes removes its draft when its input breaks off; only one that does not is killed.
const CLEANUP_TIME: Duration = Duration::from_secs(5);
const FRAME_BUFFER: usize = 8 * 1024;
/// Larger than any entry or hit: a name and a link target, a path and a line.
const MAX_FRAME: usize = 2 * CHUNK;

pub(crate) struct Worker {
    pub(crate) sender: Sender,
    pub(crate) receiver: Receiver,
}

pub(crate) enum Frame {
    Data(Bytes),
    Entry(Entry),
    Found(SearchReply),
    Done(u64),
}

impl Worker {
    pub(crate) async fn start(forker: &Forker, job: Job) -> Result<Self, Fault> {
        let writes_below = matches!(&job, Job::Below(below) if matches!(below.ask, Ask::Write { .. }));
        let reads_below = matches!(&job, Job::Below(below) if matches!(below.ask, Ask::Read(_)));
        let cleans_up = writes_below || matches!(job, Job::Write { .. });
        let large = cleans_up || reads_below || matches!(job, Job::Read { .. } | Job::Pack { .. } | Job::Unpack { .. });
        let (inbox, to_worker) = open_pipe(large)?;
        let (from_worker, outbox) = open_pipe(large)?;
        let child = forker
            .fork(Task::Work(Box::new(Errand { job, inbox, outbox })))
            .await
            .map_err(Fault::internal("fork a file worker"))?;
        let guard = Guard { child: Some(child), cleans_up, place: None };
        let to_worker = pipe::Sender::from_owned_fd(to_worker).map_err(Fault::internal("watch a pipe"))?;
        let from_worker = pipe::Receiver::from_owned_fd(from_worker).map_err(Fault::internal("watch a pipe"))?;
        let receiver = Receiver { pipe: BufReader::with_capacity(FRAME_BUFFER, from_worker), guard };
        Ok(Self { sender: Sender { pipe: to_worker }, receiver })
    }
}

fn open_pipe(large: bool) -> Result<(OwnedFd, OwnedFd), Fault> {
    let pipe = pipe_with(PipeFlags::CLOEXEC).map_err(|error| Fault::internal("make a pipe")(error.into()))?;
    if large {
        // Only speed depends on it.
        let _ = fcntl_setpipe_size(&pipe.1, PIPE_SIZE);
    }
    Ok(pipe)
}

pub(crate) struct Sender {
    pipe: pipe::Sender,
}

impl Sender {
    /// An error only says that the worker has stopped listening; why is in its last frame.
    pub(crate) async fn data(&mut self, mut data: Bytes) -> io::Result<()> {
        while !data.is_empty() {
            let part = data.split_to(data.len().min(CHUNK));
            self.pipe.write_all(&header(Kind::Data, part.len())).await?;
            self.pipe.write_all(&part).await?;
        }
        Ok(())
    }

    pub(crate) async fn commit(&mut self) -> io::Result<()> {
        self.pipe.write_all(&header(Kind::Commit, 0)).await
    }
}

pub(crate) struct Receiver {
    pipe: BufReader<pipe::Receiver>,
    guard: Guard,
}

impl Receiver {
    /// A place that is free again when the worker has really ended, however long it outlives its call.
    pub(crate) fn occupy(&mut self, place: OwnedSemaphorePermit) {
        self.guard.place = Some(place);
    }

    pub(crate) async fn next(&mut self) -> Result<Frame, Fault> {
        let garbled = || Fault::new(Code::Internal, "The file worker's answer makes no sense.");
        let Ok((kind, payload)) = self.frame().await else { return Err(self.lost().await) };
        let kind = kind.ok_or_else(garbled)?;
        match kind {
            Kind::Data => Ok(Frame::Data(payload.freeze())),
            Kind::Entry => Entry::decode(payload.freeze()).map(Frame::Entry).map_err(|_| garbled()),
            Kind::Found => SearchReply::decode(payload.freeze()).map(Frame::Found).map_err(|_| garbled()),
            Kind::Done => {
                let number = payload.as_ref().try_into().map_err(|_| garbled())?;
                Ok(Frame::Done(u64::from_le_bytes(number)))
            }
            Kind::Failed => Err(Fault::from_bytes(&payload).unwrap_or_else(garbled)),
            Kind::Commit => Err(garbled()),
        }
    }

    /// No kind: a frame that no worker sends.
    async fn frame(&mut self) -> io::Result<(Option<Kind>, BytesMut)> {
        let mut bytes = [0; HEADER];
        self.pipe.read_exact(&mut bytes).await?;
        let Some((kind, length)) = parse_header(bytes).filter(|(_, length)| *length <= MAX_FRAME) else {
            return Ok((None, BytesMut::new()));
        };
        let mut payload = BytesMut::zeroed(length);
        self.pipe.read_exact(&mut payload).await?;
        Ok((Some(kind), payload))
    }

    /// Why there is no more of its answer.
    async fn lost(&mut self) -> Fault {
        let status = match &mut self.guard.child {
            // Its pipe has ended, so it is about to end as well; if not, how does not matter.
            Some(child) => timeout(CLEANUP_TIME, child.ended()).await.ok().flatten(),
            None => None,
        };
        if status.is_some() {
            self.guard.child = None;
        }
        match status.and_then(|status| status.terminating_signal()) {
            Some(libc::SIGKILL | libc::SIGTERM | libc::SIGINT | libc::SIGHUP) => Fault::new(
                Code::GuestUnreachable,
                "A process in the sandbox stopped or killed the worker that did this.",
            ),
            _ => Fault::new(Code::Internal, "The file worker ended before its work was done."),
        }
    }

    /// The answer of a job that gives nothing else.
    pub(crate) async fn done(&mut self) -> Result<u64, Fault> {
        match self.next().await? {
            Frame::Done(number) => Ok(number),
            Frame::Data(_) | Frame::Entry(_) | Frame::Found(_) => {
                Err(Fault::new(Code::Internal, "The file worker's answer makes no sense."))
            }
        }
    }
}

/// Ends the worker when the call is over, however it ended.
struct Guard {
    child: Option<Child>,
    cleans_up: bool,
    place: Option<OwnedSemaphorePermit>,
}

impl Drop for Guard {
    fn drop(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        let place = self.place.take();
        if !self.cleans_up {
            child.signal(Signal::KILL);
            if place.is_none() {
                return;
            }
        }
        tokio::spawn(async move {
            if timeout(CLEANUP_TIME, child.ended()).await.is_err() {
                child.signal(Signal::KILL);
                child.ended().await;
            }
            drop(place);
        });
    }
}

/// A path as the protocol has it.
pub(crate) fn path(text: String) -> Result<PathBuf, Fault> {
    if !text.starts_with('/') || text.contains('\0') {
        let message = format!("`{}` is not an absolute path.", text.escape_debug());
        return Err(Fault::new(Code::BadPath, message));
    }
    let path = PathBuf::from(text);
    // Collecting drops `.` and doubled slashes, so that the fixed directories are recognised however they are written.
    Ok(path.components().filter(|part| *part != Component::CurDir).collect())
}
