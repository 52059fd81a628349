//! Connections to ports inside a pod, through the API server.
//!
//! [`AgentSandbox::port_forward`] is one connection, without a socket on this side. Kubernetes' WebSocket for this has no end of one
//! direction: a stream that was shut down can still be read, but the program in the pod does not learn of it until the stream is
//! dropped.

mod listen;

use std::{
    io,
    pin::Pin,
    sync::{Arc, OnceLock},
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use futures_util::{Sink, SinkExt as _, Stream, StreamExt as _, future};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, DuplexStream, ReadBuf, ReadHalf, WriteHalf},
    time::{MissedTickBehavior, interval, sleep, timeout},
};
use tokio_tungstenite::tungstenite::{self, Message};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{
    AgentSandbox,
    pods::{PATIENCE, PING_EVERY, Pods, Target},
};

pub use listen::Listening;

const DATA: u8 = 0;
const ERROR: u8 = 1;
const CHUNK: usize = 16 << 10;
const BUFFER: usize = 256 << 10;
/// For what was written before a stream was dropped.
const FAREWELL: Duration = Duration::from_secs(10);

/// A connection to a port in a pod. What was written is sent also when the stream is dropped.
pub struct PortStream {
    io: DuplexStream,
    failed: Arc<OnceLock<String>>,
    _here: DropGuard,
}

impl AgentSandbox {
    /// Connects to `port` of the pod's loopback. A port that nobody listens on is an error of the first read. Needs `create` and
    /// `get` on `pods/portforward`.
    pub async fn port_forward(&self, target: impl Into<Target>, port: u16) -> Result<PortStream, crate::Error> {
        open(&self.pods(), &target.into(), port).await
    }
}

async fn open(pods: &Pods, target: &Target, port: u16) -> Result<PortStream, crate::Error> {
    let connection = pods.connect(|pods| pods.portforward(target.pod(), &[port])).await?;
    let (io, other) = tokio::io::duplex(BUFFER);
    let (gone, failed) = (CancellationToken::new(), Arc::new(OnceLock::new()));
    let (sink, source) = connection.into_stream().split();
    tokio::spawn(carry(sink, source, other, Arc::clone(&failed), gone.clone()));
    Ok(PortStream { io, failed, _here: gone.drop_guard() })
}

/// Ends when the pod closes, when the stream fails, and soon after nobody is left on this side.
async fn carry(
    sink: impl Sink<Message, Error = tungstenite::Error> + Unpin,
    source: impl Stream<Item = Result<Message, tungstenite::Error>> + Unpin,
    io: DuplexStream,
    failed: Arc<OnceLock<String>>,
    gone: CancellationToken,
) {
    let (input, output) = tokio::io::split(io);
    let late = async {
        gone.cancelled().await;
        sleep(FAREWELL).await;
    };
    // Until the other side hangs up too: a socket that is closed with something unread is reset, and what was sent last is lost
    // with it.
    let sending = async {
        send(sink, input, &gone).await;
        future::pending::<()>().await;
    };
    // Known before the stream ends, which it does for its reader when both directions are let go of.
    let receiving = async {
        if let Err(error) = receive(source, output).await {
            let _first = failed.set(error);
        }
    };
    tokio::select! {
        () = receiving => {}
        () = sending => {}
        () = late => {}
    }
}

/// Returns when the stream was dropped and all of it is sent; why sending failed is found out by the other direction.
async fn send(
    mut sink: impl Sink<Message, Error = tungstenite::Error> + Unpin,
    mut input: ReadHalf<DuplexStream>,
    gone: &CancellationToken,
) {
    let mut ping = interval(PING_EVERY);
    ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ping.reset();
    let mut open = true;
    loop {
        let message = tokio::select! {
            biased;
            frame = next(&mut input), if open => match frame {
                Some(frame) => Message::binary(frame),
                None => {
                    open = false;
                    continue;
                }
            },
            () = gone.cancelled(), if !open => {
                let _hung_up_already = sink.close().await;
                return;
            }
            _ = ping.tick() => Message::Ping(Bytes::new()),
        };
        if sink.send(message).await.is_err() {
            return future::pending().await;
        }
    }
}

async fn next(input: &mut ReadHalf<DuplexStream>) -> Option<Bytes> {
    let mut frame = BytesMut::with_capacity(CHUNK + 1);
    frame.put_u8(DATA);
    match input.read_buf(&mut frame).await {
        Ok(0) | Err(_) => None,
        Ok(_) => Some(frame.freeze()),
    }
}

async fn receive(
    mut source: impl Stream<Item = Result<Message, tungstenite::Error>> + Unpin,
    mut output: WriteHalf<DuplexStream>,
) -> Result<(), String> {
    // The first frame of each channel repeats the port.
    let mut begun = [false; 2];
    loop {
        let message = match timeout(PATIENCE, source.next()).await {
            Err(_) => return Err(format!("the stream was silent for {PATIENCE:?}, although it was asked")),
            Ok(None) => return Ok(()),
            Ok(Some(Err(error))) => return Err(error.to_string()),
            Ok(Some(Ok(message))) => message,
        };
        let Message::Binary(mut frame) = message else { continue };
        if frame.len() < 2 {
            continue;
        }
        let channel = frame.get_u8();
        match begun.get_mut(usize::from(channel)) {
            None => return Err(format!("a frame of channel {channel}, of which there is none")),
            Some(begun) if !*begun => *begun = true,
            Some(_) if channel == ERROR => return Err(String::from_utf8_lossy(&frame).trim().to_owned()),
            // Nobody may be there to read it while the last of what was written goes out.
            Some(_) => drop(output.write_all(&frame).await),
        }
    }
}

impl AsyncRead for PortStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.io).poll_read(context, buffer))?;
        let nothing = buffer.filled().len() == before && buffer.remaining() > 0;
        match self.failed.get() {
            Some(failed) if nothing => {
                Poll::Ready(Err(io::Error::new(io::ErrorKind::ConnectionAborted, failed.clone())))
            }
            _ => Poll::Ready(Ok(())),
        }
    }
}

impl AsyncWrite for PortStream {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::stream;
    use tokio::sync::mpsc;
    use tokio_util::sync::PollSender;

    use super::*;

    fn frame(channel: u8, content: &[u8]) -> Result<Message, tungstenite::Error> {
        Ok(Message::binary([&[channel], content].concat()))
    }

    async fn received(frames: Vec<Result<Message, tungstenite::Error>>) -> (Vec<u8>, Result<(), String>) {
        let (mut ours, theirs) = tokio::io::duplex(1024);
        let (_input, output) = tokio::io::split(theirs);
        let outcome = receive(stream::iter(frames), output).await;
        drop(_input);
        let mut bytes = vec![];
        let _read = ours.read_to_end(&mut bytes).await;
        (bytes, outcome)
    }

    #[tokio::test]
    async fn the_port_is_no_data() {
        let port = 8080_u16.to_le_bytes();
        let (bytes, outcome) =
            received(vec![frame(DATA, &port), frame(ERROR, &port), frame(DATA, b"hi"), frame(DATA, b"!")]).await;
        assert_eq!((&bytes[..], outcome), (&b"hi!"[..], Ok(())));
    }

    /// A connection that is let go of earlier may be reset, and what was sent last is lost.
    #[tokio::test]
    async fn who_is_gone_hangs_up_after_the_other_side_has() {
        let (sink, mut sent) = mpsc::channel(8);
        let (pod, messages) = mpsc::channel(8);
        let sink = PollSender::new(sink).sink_map_err(|_| tungstenite::Error::ConnectionClosed);
        let source = Box::pin(stream::unfold(messages, async |mut messages| Some((messages.recv().await?, messages))));
        let (mut io, other) = tokio::io::duplex(1024);
        let gone = CancellationToken::new();
        let carried = tokio::spawn(carry(sink, source, other, Arc::default(), gone.clone()));
        assert!(io.write_all(b"last").await.is_ok());
        drop(io);
        gone.cancel();
        assert_eq!(sent.recv().await, Some(Message::binary(&b"\0last"[..])));
        assert_eq!(sent.recv().await, None, "it says that it is gone");
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert!(!carried.is_finished(), "the other side has not hung up");
        drop(pod);
        assert!(timeout(FAREWELL * 2, carried).await.is_ok_and(|ended| ended.is_ok()));
    }

    #[tokio::test]
    async fn an_error_of_the_pod_is_told() {
        let port = 1_u16.to_le_bytes();
        let (_, outcome) =
            received(vec![frame(DATA, &port), frame(ERROR, &port), frame(ERROR, b"connection refused\n")]).await;
        assert_eq!(outcome, Err("connection refused".to_owned()));
        let (_, outcome) = received(vec![frame(7, b"??")]).await;
        assert!(outcome.is_err());
    }
}
