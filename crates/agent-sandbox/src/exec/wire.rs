//! The stream of one command: numbered channels in binary frames, over one WebSocket.
//!
//! A reader that is gone is no error, its output is dropped; a reader that is slow makes the command wait. Readers are told
//! of an end only when the command's end was reported, so that half of an output never passes for the whole.

use std::{
    io::{self, Cursor},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use futures_util::{Sink, SinkExt as _, Stream, StreamExt as _, future};
use kube::client::Connection;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, Chain, DuplexStream, ReadBuf},
    sync::mpsc,
    time::{MissedTickBehavior, interval, timeout},
};
use tokio_tungstenite::tungstenite::{self, Message};

use super::{ExecError, ExitStatus, status};
use crate::pods::{PATIENCE, PING_EVERY};

const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const STATUS: u8 = 3;
const RESIZE: u8 = 4;
/// Of v5: the channel named by the next byte has ended.
const CLOSE: u8 = 255;

/// Of one frame of input.
const CHUNK: usize = 16 << 10;
/// Frames of one output that wait for its reader.
const WAITING: usize = 16;

pub(super) enum Piece {
    Data(Bytes),
    End,
}

/// What is there to begin with, then what the handle is given. The first goes out while nobody holds the handle yet, and a command
/// may wait for its output to be read before it reads more.
pub(super) type Input = Chain<Cursor<Bytes>, DuplexStream>;

/// Columns and rows.
pub(super) struct Size(pub(super) u16, pub(super) u16);

pub(super) struct Ends {
    pub(super) stdin: Option<Input>,
    pub(super) sizes: mpsc::Receiver<Size>,
    pub(super) stdout: mpsc::Sender<Piece>,
    pub(super) stderr: Option<mpsc::Sender<Piece>>,
}

pub(super) fn output() -> (mpsc::Sender<Piece>, Output) {
    let (sender, pieces) = mpsc::channel(WAITING);
    (sender, Output { pieces, rest: Bytes::new(), ended: false })
}

/// Carries everything until the command's end is reported, or the stream fails.
pub(super) async fn carry(connection: Connection, ends: Ends) -> Result<ExitStatus, ExecError> {
    let half_close = connection.supports_stream_close();
    let (sink, source) = connection.into_stream().split();
    let Ends { stdin, sizes, stdout, stderr } = ends;
    let ended = tokio::select! {
        ended = receive(source, &stdout, stderr.as_ref()) => ended?,
        failed = send(sink, stdin, sizes, half_close) => return Err(failed),
    };
    for reader in [Some(&stdout), stderr.as_ref()].into_iter().flatten() {
        let _reader_gone = reader.send(Piece::End).await;
    }
    ended
}

/// The inner result is what the last frame says: an orderly end of the stream, however the command fared.
async fn receive(
    mut source: impl Stream<Item = Result<Message, tungstenite::Error>> + Unpin,
    stdout: &mpsc::Sender<Piece>,
    stderr: Option<&mpsc::Sender<Piece>>,
) -> Result<Result<ExitStatus, ExecError>, ExecError> {
    loop {
        let message = match timeout(PATIENCE, source.next()).await {
            Err(_) => return Err(ExecError::Silent(PATIENCE)),
            Ok(None) => return Err(ExecError::Lost { source: None }),
            Ok(Some(Err(error))) => return Err(ExecError::Lost { source: Some(Arc::new(error)) }),
            Ok(Some(Ok(message))) => message,
        };
        let Message::Binary(mut frame) = message else { continue };
        // A frame without content opens a channel.
        if frame.len() < 2 {
            continue;
        }
        match frame.get_u8() {
            STDOUT => drop(stdout.send(Piece::Data(frame)).await),
            STDERR => {
                if let Some(stderr) = stderr {
                    drop(stderr.send(Piece::Data(frame)).await);
                }
            }
            STATUS => return Ok(status::ended(&frame)),
            _ => {}
        }
    }
}

/// Only ever returns with an error that receiving would not find out.
async fn send(
    mut sink: impl Sink<Message, Error = tungstenite::Error> + Unpin,
    mut stdin: Option<Input>,
    mut sizes: mpsc::Receiver<Size>,
    half_close: bool,
) -> ExecError {
    let mut ping = interval(PING_EVERY);
    ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ping.reset();
    loop {
        let message = tokio::select! {
            Some(Size(cols, rows)) = sizes.recv() => {
                let mut frame = vec![RESIZE];
                frame.extend_from_slice(format!(r#"{{"Width":{cols},"Height":{rows}}}"#).as_bytes());
                Message::binary(frame)
            }
            read = next(stdin.as_mut()) => match read {
                Err(error) => return ExecError::Input(Arc::new(error)),
                Ok(Some(frame)) => Message::binary(frame),
                Ok(None) if half_close => {
                    stdin = None;
                    Message::binary(vec![CLOSE, STDIN])
                }
                Ok(None) => return ExecError::NoHalfClose,
            },
            _ = ping.tick() => Message::Ping(Bytes::new()),
        };
        // The command may have ended meanwhile, which the other direction knows.
        if sink.send(message).await.is_err() {
            drop(stdin);
            return future::pending().await;
        }
    }
}

/// The next frame of input; none at its end, and never anything without input.
async fn next(stdin: Option<&mut Input>) -> io::Result<Option<Bytes>> {
    let Some(stdin) = stdin else { return future::pending().await };
    let mut frame = BytesMut::with_capacity(CHUNK + 1);
    frame.put_u8(STDIN);
    let read = stdin.read_buf(&mut frame).await?;
    Ok((read > 0).then(|| frame.freeze()))
}

/// What a command writes. It ends when the command's end was reported; a lost stream is an error.
pub struct Output {
    pieces: mpsc::Receiver<Piece>,
    rest: Bytes,
    ended: bool,
}

impl AsyncRead for Output {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        while self.rest.is_empty() {
            if self.ended {
                return Poll::Ready(Ok(()));
            }
            match ready!(self.pieces.poll_recv(context)) {
                Some(Piece::Data(data)) => self.rest = data,
                Some(Piece::End) => self.ended = true,
                None => {
                    let lost = "the stream was lost, or its handle dropped, before the command's end was reported";
                    return Poll::Ready(Err(io::Error::new(io::ErrorKind::ConnectionAborted, lost)));
                }
            }
        }
        let length = self.rest.len().min(buffer.remaining());
        buffer.put_slice(&self.rest.split_to(length));
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::stream;

    fn frame(channel: u8, content: &[u8]) -> Result<Message, tungstenite::Error> {
        Ok(Message::binary([&[channel], content].concat()))
    }

    async fn read(mut output: Output) -> io::Result<Vec<u8>> {
        let mut bytes = vec![];
        output.read_to_end(&mut bytes).await?;
        Ok(bytes)
    }

    #[tokio::test]
    async fn channels_go_to_their_readers_and_the_status_ends_them() -> io::Result<()> {
        let ((out, stdout), (err, stderr)) = (output(), output());
        let success = frame(STATUS, br#"{"status":"Success"}"#);
        let frames = [
            frame(STDOUT, b""),
            frame(STDOUT, b"one "),
            frame(STDERR, b"bad"),
            frame(9, b"?"),
            frame(STDOUT, b"two"),
            success,
        ];
        let ended = receive(stream::iter(frames), &out, Some(&err)).await;
        assert!(matches!(ended, Ok(Ok(ExitStatus { code: 0 }))), "{ended:?}");
        drop(out.send(Piece::End).await);
        drop(err.send(Piece::End).await);
        assert_eq!(read(stdout).await?, b"one two");
        assert_eq!(read(stderr).await?, b"bad");
        Ok(())
    }

    #[tokio::test]
    async fn a_lost_stream_is_no_end() {
        let (out, stdout) = output();
        let ended = receive(stream::iter([frame(STDOUT, b"half")]), &out, None).await;
        assert!(matches!(ended, Err(ExecError::Lost { source: None })), "{ended:?}");
        drop(out);
        let error = read(stdout).await.map_err(|error| error.kind());
        assert_eq!(error, Err(io::ErrorKind::ConnectionAborted));
    }

    #[tokio::test]
    async fn output_that_nobody_reads_does_not_hold_up_the_end() {
        let (out, stdout) = output();
        drop(stdout);
        let mut frames: Vec<_> = (0..4 * WAITING).map(|_| frame(STDOUT, b"x")).collect();
        frames.push(frame(STATUS, br#"{"status":"Success"}"#));
        assert!(receive(stream::iter(frames), &out, None).await.is_ok());
    }
}
