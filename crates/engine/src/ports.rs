//! Connections from outside to a server inside: bytes both ways, and the end of each way, through the guest. They are
//! opened from outside only, so they are no way out.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::BytesMut;
use sandbar_api::{Code, Problem, SandboxState};
use sandbar_guest::protocol::{CHUNK, DialReply, DialRequest, dial_request::Message};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, DuplexStream, ReadBuf, ReadHalf, WriteHalf},
    sync::{OwnedSemaphorePermit, mpsc},
    time,
};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Status, Streaming};

use crate::{Engine, handle::Handle, problem};

/// To the ports of one sandbox at once.
pub(crate) const MOST: usize = 256;
/// Bytes on their way in each direction; more wait on either side.
const BUFFER: usize = CHUNK / 4;
const IN_FLIGHT: usize = 1;
/// For what was still on its way when its sender left, as a kernel would.
const LINGER: Duration = Duration::from_secs(10);

impl Engine {
    /// Connects to a port on the sandbox's loopback.
    pub async fn dial(&self, sandbox: &str, port: u16) -> Result<Dialled, Problem> {
        if port == 0 {
            return Err(Problem::new(Code::BadRequest, "There is no port 0.", "Give a port from 1 to 65535."));
        }
        let handle = self.inner.handle(sandbox).await?;
        let permit = handle.dials.clone().try_acquire_owned().map_err(|_| {
            let detail = format!("{MOST} connections to ports of the sandbox `{}` are open already.", handle.name());
            Problem::new(Code::TooMany, detail, "Close some of them, then connect again.")
        })?;
        let inside = handle.enter().await?;
        if handle.gate_port() == Some(port) {
            let detail = format!("Port {port} is the sandbox's own way out, for programs inside only.");
            let fix = "Let the server inside listen on another port.";
            return Err(Problem::new(Code::BadRequest, detail, fix));
        }
        // On a connection of its own, so that bytes which nobody takes hold up nothing else that goes to this guest.
        let mut guest = handle.provider.connect(&handle.id).await.map_err(problem::from_provider)?;
        let (requests, receiver) = mpsc::channel(IN_FLIGHT);
        let told = |status: Status| problem::from_status(&status);
        let asked = requests.send(message(Message::Port(port.into()))).await;
        asked.map_err(|_| told(Status::unavailable("the call did not begin")))?;
        let replies = guest.dial(ReceiverStream::new(receiver)).await.map_err(told)?.into_inner();
        drop(inside);

        let (ours, theirs) = tokio::io::duplex(BUFFER);
        let state = Arc::new(State::default());
        let dialled = Dialled { stream: theirs, state: state.clone() };
        let carried = Carried { handle, state, halt: self.inner.halt.clone(), _permit: permit };
        self.inner.tasks.spawn(carried.carry(ours, requests, replies));
        Ok(dialled)
    }
}

fn message(message: Message) -> DialRequest {
    DialRequest { message: Some(message) }
}

/// A connection to a port inside. Shut down, it tells inside that nothing more comes; dropped without that, it is reset.
#[derive(Debug)]
pub struct Dialled {
    stream: DuplexStream,
    state: Arc<State>,
}

#[derive(Debug, Default)]
struct State {
    /// It ended otherwise than by both sides' will.
    broken: AtomicBool,
    /// Nothing more comes from outside, and that was meant.
    ended: AtomicBool,
    left: CancellationToken,
}

impl Drop for Dialled {
    fn drop(&mut self) {
        self.state.left.cancel();
    }
}

impl AsyncRead for Dialled {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let (before, room) = (buffer.filled().len(), buffer.remaining());
        let polled = Pin::new(&mut self.stream).poll_read(context, buffer);
        let is_over = polled.is_ready() && room > 0 && buffer.filled().len() == before;
        if is_over && self.state.broken.load(Ordering::Acquire) {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        polled
    }
}

impl AsyncWrite for Dialled {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, data)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.state.ended.store(true, Ordering::Release);
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// What moves the bytes of one connection.
struct Carried {
    handle: Arc<Handle>,
    state: Arc<State>,
    halt: CancellationToken,
    _permit: OwnedSemaphorePermit,
}

/// It cannot go on.
struct Broken;

impl Carried {
    async fn carry(self, ours: DuplexStream, requests: mpsc::Sender<DialRequest>, replies: Streaming<DialReply>) {
        let (reader, writer) = tokio::io::split(ours);
        let mut fate = self.handle.fate.subscribe();
        let both = async { tokio::try_join!(self.inwards(reader, requests), self.outwards(writer, replies)) };
        let mut both = std::pin::pin!(both);
        let whole = tokio::select! {
            both = &mut both => both.is_ok(),
            () = self.left() => false,
            _ = fate.wait_for(|fate| fate.is_over()) => false,
            () = self.halt.cancelled() => false,
        };
        // Before the halves are dropped, which is how the other side notices.
        self.state.broken.store(!whole, Ordering::Release);
    }

    /// Nobody holds it outside any more, and what was on its way has had its time.
    async fn left(&self) {
        self.state.left.cancelled().await;
        if self.state.ended.load(Ordering::Acquire) {
            time::sleep(LINGER).await;
        }
    }

    async fn inwards(
        &self,
        mut reader: ReadHalf<DuplexStream>,
        requests: mpsc::Sender<DialRequest>,
    ) -> Result<(), Broken> {
        loop {
            let mut data = BytesMut::with_capacity(BUFFER);
            let read = reader.read_buf(&mut data).await.map_err(|_| Broken)?;
            let next = match read {
                0 if self.state.ended.load(Ordering::Acquire) => Message::End(true),
                0 => return Err(Broken),
                _ => Message::Data(data.freeze()),
            };
            self.woken().await;
            if requests.send(message(next)).await.is_err() {
                // The call is over; how, its replies say.
                return std::future::pending().await;
            }
            if read == 0 {
                return Ok(());
            }
        }
    }

    /// Who speaks to a sandbox that idleness put away wakes it. With one that a person paused, bytes wait here: what the
    /// guest itself serves does not stand still with the rest.
    async fn woken(&self) {
        let mut record = self.handle.record.subscribe();
        while self.handle.enter().await.is_err() && self.handle.state() == SandboxState::Paused {
            // The handle, which is held here, has the sender.
            let _resumed = record.wait_for(|sandbox| sandbox.state != SandboxState::Paused).await;
        }
    }

    async fn outwards(
        &self,
        mut writer: WriteHalf<DuplexStream>,
        mut replies: Streaming<DialReply>,
    ) -> Result<(), Broken> {
        let mut ended = false;
        while let Some(DialReply { data, end }) = replies.message().await.map_err(|_| Broken)? {
            self.handle.activity.touch();
            // Who has left reads no more; what they sent before is still passed on.
            let _read = writer.write_all(&data).await;
            if end {
                ended = true;
                let _read = writer.shutdown().await;
            }
        }
        if ended { Ok(()) } else { Err(Broken) }
    }
}
