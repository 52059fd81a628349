//! What a viewer says: keys, its window's size, and that it wants to control the terminal, or no longer.
//!
//! Keys are typed by a task of their own, so that a program that does not read holds up nothing but keys; what waits is
//! bounded, and then so is what is read from the viewer.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use sandbar_api::{Code, Control, Problem, ProcessId, TerminalFrame, TerminalSize, ViewerFrame};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch},
    time,
};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::seats::Seat;
use crate::{Engine, Inner, handle::Handle, process};

/// Bytes of input that may wait to be typed.
const MOST_WAITING: u32 = 128 << 10;
const MOST_PIECES: usize = 256;
/// How long what was received is still typed after its viewer has gone.
const AFTERWARDS: Duration = Duration::from_secs(1);

/// The hands of a viewer.
pub struct Keyboard {
    engine: Engine,
    handle: Arc<Handle>,
    process: ProcessId,
    seat: Arc<Seat>,
    may_control: bool,
    /// Of the viewer's window, as far as it is known.
    size: Option<TerminalSize>,
    notes: mpsc::Sender<TerminalFrame>,
    pieces: mpsc::Sender<Piece>,
    room: Arc<Semaphore>,
    _leaving: DropGuard,
}

struct Piece {
    /// None only asks what was taken.
    offset: Option<u64>,
    data: Bytes,
    _room: Option<OwnedSemaphorePermit>,
}

/// What a viewer is told by its keyboard.
pub(super) struct Notes {
    pub(super) frames: mpsc::Receiver<TerminalFrame>,
    pub(super) taken: watch::Receiver<u64>,
}

pub(super) struct Typist {
    pub(super) inner: Arc<Inner>,
    pub(super) handle: Arc<Handle>,
    pub(super) process: ProcessId,
    pub(super) seat: Arc<Seat>,
    /// As the guest knows it.
    pub(super) writer: String,
}

impl Keyboard {
    pub(super) fn new(engine: Engine, typist: Typist, may_control: bool, size: Option<TerminalSize>) -> (Self, Notes) {
        let (notes, frames) = mpsc::channel(16);
        let (taken, taken_by_now) = watch::channel(0);
        let (pieces, queue) = mpsc::channel(MOST_PIECES);
        let left = CancellationToken::new();
        let keyboard = Self {
            engine,
            handle: typist.handle.clone(),
            process: typist.process.clone(),
            seat: typist.seat.clone(),
            may_control,
            size,
            notes: notes.clone(),
            pieces,
            room: Arc::new(Semaphore::new(MOST_WAITING as usize)),
            _leaving: left.clone().drop_guard(),
        };
        let inner = typist.inner.clone();
        inner.tasks.spawn(async move {
            let halt = typist.inner.halt.clone();
            tokio::select! {
                () = halt.cancelled() => {}
                () = async { left.cancelled().await; time::sleep(AFTERWARDS).await } => {}
                () = typist.type_all(queue, notes, taken) => {}
            }
        });
        (keyboard, Notes { frames, taken: taken_by_now })
    }

    /// Takes input that begins at `offset` among all that this writer types; waits while too much is still to be typed.
    pub async fn type_input(&mut self, offset: u64, data: Bytes) {
        if !self.seat.controls() {
            return self.refuse(not_controller()).await;
        }
        let size = u32::try_from(data.len()).unwrap_or(u32::MAX).min(MOST_WAITING);
        // It is never closed.
        let room = self.room.clone().acquire_many_owned(size).await.ok();
        self.send(Piece { offset: Some(offset), data, _room: room }).await;
    }

    pub async fn frame(&mut self, frame: ViewerFrame) {
        let done = match frame {
            ViewerFrame::Resize { cols, rows } => self.resize(TerminalSize { cols, rows }).await,
            ViewerFrame::Take {} => self.take().await,
            ViewerFrame::Release {} => {
                self.seat.release();
                Ok(())
            }
        };
        if let Err(problem) = done {
            self.refuse(problem).await;
        }
    }

    async fn resize(&mut self, size: TerminalSize) -> Result<(), Problem> {
        process::terminal(size)?;
        self.size = Some(size);
        if self.seat.controls() { self.fit().await } else { Ok(()) }
    }

    async fn take(&mut self) -> Result<(), Problem> {
        if !self.may_control {
            return Err(forbidden());
        }
        self.seat.ask(Control::Take);
        self.send(Piece { offset: None, data: Bytes::new(), _room: None }).await;
        self.fit().await
    }

    /// Gives the terminal the size of this viewer's window.
    pub(super) async fn fit(&self) -> Result<(), Problem> {
        match self.size {
            Some(size) => self.engine.resize(self.handle.id.as_str(), self.process.as_str(), size).await,
            None => Ok(()),
        }
    }

    async fn send(&self, piece: Piece) {
        // Without a typist the engine is about to end, which the viewer is told.
        drop(self.pieces.send(piece).await);
    }

    async fn refuse(&self, problem: Problem) {
        // A viewer that has gone is told nothing.
        drop(self.notes.send(TerminalFrame::Error { problem: Box::new(problem) }).await);
    }
}

impl Typist {
    async fn type_all(
        self,
        mut queue: mpsc::Receiver<Piece>,
        notes: mpsc::Sender<TerminalFrame>,
        taken: watch::Sender<u64>,
    ) {
        while let Some(piece) = queue.recv().await {
            match self.type_one(piece).await {
                Ok(count) => drop(taken.send_replace(count)),
                Err(problem) => drop(notes.send(TerminalFrame::Error { problem: Box::new(problem) }).await),
            }
        }
    }

    async fn type_one(&self, piece: Piece) -> Result<u64, Problem> {
        // Again: it may have been taken over while the piece waited.
        if !self.seat.controls() {
            return Err(not_controller());
        }
        if self.handle.live(&self.process).is_none() {
            return Err(crate::problem::process_over(self.process.as_str()));
        }
        let mut inside = self.handle.enter().await?;
        // And once more: to wake a sandbox takes its time.
        if !self.seat.controls() {
            return Err(not_controller());
        }
        let taken = process::type_as(&mut inside.guest, &self.process, &self.writer, piece.offset, piece.data).await;
        self.inner.terminals.watchers.nudge(&self.process);
        taken
    }
}

fn not_controller() -> Problem {
    Problem::new(
        Code::NotController,
        "Nothing was typed: this viewer does not control the terminal.",
        "Take control of it first.",
    )
}

pub(super) fn forbidden() -> Problem {
    Problem::new(
        Code::Forbidden,
        "A viewer's token may look at a terminal, not control it.",
        "Attach with `control=view`, or use a token with the role operator or admin.",
    )
}
