//! The task that has the connection: hands out what arrives, sends what is to be typed, and connects again.

use std::{sync::Arc, time::Duration};

use bytes::{Buf as _, Bytes};
use futures_util::{StreamExt as _, stream::SplitStream};
use sandbar_api::{ATTACH_HEADER, Code, Control, TerminalFrame, ViewerFrame};
use tokio::{sync::mpsc, time};
use tokio_tungstenite::tungstenite::Message;

use super::{
    AttachEvent, Shared,
    connection::{Greeting, Request, Socket},
    writing::{Left, write},
};
use crate::{Error, Result};

/// A connection that has carried nothing for so long, no answer either, is none.
const SILENCE: Duration = Duration::from_secs(40);

pub(super) struct Task {
    request: Request,
    /// The first byte of output that was not handed out; none is known before a screen came.
    next: Option<u64>,
    shared: Arc<Shared>,
    events: mpsc::Sender<Result<AttachEvent>>,
}

/// Nothing more is to be told, or nobody listens.
struct Over;

/// What ends the reading of a connection.
enum End {
    Over,
    /// The viewer wants to see it anew.
    Redraw,
    Broken(Error),
}

impl From<Over> for End {
    fn from(_: Over) -> Self {
        Self::Over
    }
}

impl From<Error> for End {
    fn from(error: Error) -> Self {
        Self::Broken(error)
    }
}

impl Task {
    pub(super) fn new(
        request: Request,
        from: Option<u64>,
        shared: Arc<Shared>,
        events: mpsc::Sender<Result<AttachEvent>>,
    ) -> Self {
        Self { request, next: from, shared, events }
    }

    pub(super) async fn run(mut self, mut socket: Socket) {
        loop {
            let again = match self.serve(socket).await {
                End::Over => break,
                End::Redraw => self.redrawn().await,
                End::Broken(error) => self.again(error).await,
            };
            socket = match again {
                Ok(socket) => socket,
                Err(End::Over | End::Redraw) => break,
                Err(End::Broken(error)) => {
                    // Nobody may listen any more.
                    let _ = self.events.send(Err(error)).await;
                    break;
                }
            };
        }
        self.shared.state().over = true;
        self.shared.room.notify_waiters();
    }

    async fn serve(&mut self, socket: Socket) -> End {
        let (sink, stream) = socket.split();
        let shared = self.shared.clone();
        tokio::select! {
            end = self.read(stream) => match end {
                Ok(never) => match never {},
                Err(end) => end,
            },
            end = write(&shared, sink) => match end {
                Left::Failed => End::Broken(self.request.broken("it takes nothing any more")),
                Left::Redraw => End::Redraw,
            },
        }
    }

    /// A connection that begins with a screen.
    async fn redrawn(&mut self) -> Result<Socket, End> {
        self.next = None;
        match self.open().await {
            Ok((socket, greeting)) => {
                self.reconnected(greeting).await?;
                Ok(socket)
            }
            Err(error) => self.again(error).await,
        }
    }

    async fn again(&mut self, broken: Error) -> Result<Socket, End> {
        if !broken.is_passing() {
            return Err(broken.into());
        }
        self.hand_out(AttachEvent::Reconnecting).await?;
        let client = self.request.client.clone();
        let (mut backoff, mut error) = (client.backoff(), broken);
        loop {
            if !client.wait(&mut backoff).await {
                return Err(error.into());
            }
            match self.open().await {
                Ok((socket, greeting)) => {
                    self.reconnected(greeting).await?;
                    return Ok(socket);
                }
                // What this viewer has seen is not there any more: it goes on with a screen.
                Err(Error::Problem(problem))
                    if self.next.is_some() && matches!(problem.code, Code::OutputDropped | Code::OffsetBeyond) =>
                {
                    self.next = None;
                }
                Err(next) if next.is_passing() => error = next,
                Err(next) => return Err(next.into()),
            }
        }
    }

    async fn open(&self) -> Result<(Socket, Greeting)> {
        let (size, control) = {
            let state = self.shared.state();
            // Given again to who has it still, by the writer's name, and never taken back from somebody else.
            (state.size, if state.held { Control::Free } else { Control::View })
        };
        self.request.open(self.next, control, size).await
    }

    async fn reconnected(&mut self, greeting: Greeting) -> Result<(), Over> {
        let Greeting { standing, input } = greeting;
        let lost = {
            let mut state = self.shared.state();
            state.held = standing.held;
            if !standing.held {
                state.pending.give_up()
            } else {
                if !state.pending.resume(input) {
                    // It is held; asking for it also asks what was taken.
                    state.ask = Some(ViewerFrame::Take {});
                }
                0
            }
        };
        self.shared.room.notify_waiters();
        self.hand_out(AttachEvent::Reconnected(standing)).await?;
        self.lost(lost).await
    }

    async fn lost(&self, bytes: u64) -> Result<(), Over> {
        if bytes == 0 { Ok(()) } else { self.hand_out(AttachEvent::Lost { bytes }).await }
    }

    async fn read(&mut self, mut stream: SplitStream<Socket>) -> Result<std::convert::Infallible, End> {
        let mut last_words = None;
        loop {
            let closed =
                |request: &Request, said: Option<Error>| said.unwrap_or_else(|| request.broken("it was closed"));
            let message = match time::timeout(SILENCE, stream.next()).await {
                Err(_) => return Err(self.request.broken("nothing comes any more").into()),
                Ok(None) | Ok(Some(Ok(Message::Close(_)))) => return Err(closed(&self.request, last_words).into()),
                Ok(Some(Err(error))) => {
                    let error = self.request.failed(error);
                    return Err(if error.is_passing() { closed(&self.request, last_words) } else { error }.into());
                }
                Ok(Some(Ok(message))) => message,
            };
            match message {
                Message::Binary(data) => self.output(data).await?,
                Message::Text(text) => {
                    let frame = self.request.frame(&text)?;
                    last_words = match &frame {
                        TerminalFrame::Error { problem } => Some(Error::Problem(problem.clone())),
                        _ => None,
                    };
                    self.told(frame).await?;
                }
                _ => {}
            }
        }
    }

    async fn output(&mut self, mut frame: Bytes) -> Result<(), End> {
        if frame.len() < ATTACH_HEADER {
            return Err(self.request.client.foreign(101, "a frame is too short").into());
        }
        let (end, mut data) = (frame.get_u64(), frame);
        // Filtered output is shorter than what it was made of, so only the end of a piece is known.
        if let (true, Some(expected)) = (self.request.raw, self.next) {
            let start = end.saturating_sub(data.len() as u64);
            if start > expected {
                return Err(Error::Gap { expected, got: start }.into());
            }
            let seen = usize::try_from(expected - start).unwrap_or(usize::MAX).min(data.len());
            data.advance(seen);
        }
        if self.next.is_some_and(|next| end <= next) {
            return Ok(());
        }
        self.hand_out(AttachEvent::Output { offset: end, data }).await?;
        self.next = Some(end);
        Ok(())
    }

    async fn told(&mut self, frame: TerminalFrame) -> Result<(), End> {
        let event = match frame {
            TerminalFrame::Attached { .. } => return Ok(()),
            TerminalFrame::Taken { input } => {
                let lost = self.shared.state().pending.taken(input);
                // What waited for this count, and whoever waits for room.
                self.shared.work.notify_one();
                self.shared.room.notify_waiters();
                return Ok(self.lost(lost).await?);
            }
            TerminalFrame::Screen { offset, size, data } => {
                self.hand_out(AttachEvent::Screen { offset, size, data }).await?;
                self.next = Some(offset);
                return Ok(());
            }
            TerminalFrame::Skipped { from, to } => {
                self.hand_out(AttachEvent::Skipped { from, to }).await?;
                self.next = None;
                return Ok(());
            }
            TerminalFrame::Control { held, controller } => {
                let lost = {
                    let mut state = self.shared.state();
                    state.held = held;
                    if held { 0 } else { state.pending.give_up() }
                };
                self.shared.room.notify_waiters();
                self.hand_out(AttachEvent::Control { held, controller }).await?;
                return Ok(self.lost(lost).await?);
            }
            TerminalFrame::Resized { offset, size } => AttachEvent::Resized { offset, size },
            TerminalFrame::Error { problem } => AttachEvent::Refused(problem),
            TerminalFrame::Exit { process } => {
                self.hand_out(AttachEvent::Exit(process)).await?;
                return Err(End::Over);
            }
        };
        Ok(self.hand_out(event).await?)
    }

    async fn hand_out(&self, event: AttachEvent) -> Result<(), Over> {
        self.events.send(Ok(event)).await.map_err(|_| Over)
    }
}
