//! One connection of a program inside, as a stream of bytes over a call. Shut down, it tells inside that nothing more comes;
//! dropped without that, it is reset, so that what broke off never looks complete.

use std::{
    fmt, io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{Buf as _, Bytes};
use futures_util::Stream as _;
use sandbar_guest::protocol::{CHUNK, DialReply, DialRequest, dial_request::Message};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    runtime::Handle,
    sync::{Semaphore, mpsc},
    time::timeout,
};
use tokio_util::sync::PollSender;
use tonic::Streaming;

/// For what is still on its way when both are done with it, as a kernel would.
const LINGER: Duration = Duration::from_secs(30);

pub(super) struct Connection {
    requests: PollSender<DialRequest>,
    /// Taken only when it is dropped.
    replies: Option<Streaming<DialReply>>,
    unread: Bytes,
    /// Nothing more comes from inside.
    heard: bool,
    /// Nothing more goes inside.
    ended: bool,
    lingering: Arc<Semaphore>,
    runtime: Handle,
}

impl Connection {
    /// With what its first reply said. To be called within a runtime.
    pub(super) fn new(
        requests: mpsc::Sender<DialRequest>,
        replies: Streaming<DialReply>,
        unread: Bytes,
        heard: bool,
        lingering: Arc<Semaphore>,
    ) -> Self {
        let requests = PollSender::new(requests);
        Self { requests, replies: Some(replies), unread, heard, ended: false, lingering, runtime: Handle::current() }
    }

    fn send(&mut self, message: Message) -> io::Result<()> {
        self.requests.send_item(DialRequest { message: Some(message) }).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        while this.unread.is_empty() && !this.heard && buffer.remaining() > 0 {
            let Some(replies) = &mut this.replies else { break };
            match ready!(Pin::new(replies).poll_next(context)) {
                Some(Ok(DialReply { data, end })) => (this.unread, this.heard) = (data, end),
                Some(Err(status)) => {
                    return Poll::Ready(Err(io::Error::new(io::ErrorKind::ConnectionReset, status)));
                }
                None => return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
            }
        }
        let count = this.unread.len().min(buffer.remaining());
        buffer.put_slice(&this.unread[..count]);
        this.unread.advance(count);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        if self.ended {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        if data.is_empty() {
            return Poll::Ready(Ok(0));
        }
        ready!(self.requests.poll_reserve(context)).map_err(|_| io::ErrorKind::BrokenPipe)?;
        let data = &data[..data.len().min(CHUNK)];
        self.send(Message::Data(Bytes::copy_from_slice(data)))?;
        Poll::Ready(Ok(data.len()))
    }

    /// What was written is on its way.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.ended {
            ready!(self.requests.poll_reserve(context)).map_err(|_| io::ErrorKind::BrokenPipe)?;
            self.send(Message::End(true))?;
            self.ended = true;
        }
        Poll::Ready(Ok(()))
    }
}

impl Drop for Connection {
    /// Ending the call resets the connection, which is right unless its end was said and has yet to arrive inside: the guest
    /// ends the call when it has.
    fn drop(&mut self) {
        let Some(mut replies) = self.replies.take() else { return };
        if !self.ended {
            return;
        }
        let Ok(place) = Arc::clone(&self.lingering).try_acquire_owned() else { return };
        self.runtime.spawn(async move {
            let _place = place;
            let end = async { while let Ok(Some(_)) = replies.message().await {} };
            let _in_time = timeout(LINGER, end).await;
        });
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("heard", &self.heard).field("ended", &self.ended).finish_non_exhaustive()
    }
}
