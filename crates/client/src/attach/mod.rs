//! A terminal attached to: what it shows as events, what is typed by number. A broken connection is taken up again at the
//! exact byte in both directions, without taking control back from whoever has it by then.

mod connection;
mod pending;
mod task;
mod writing;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use sandbar_api::{Code, Control, Problem, Process, TerminalSize, ViewerFrame};
use tokio::sync::{Notify, mpsc};

use self::{connection::Request, pending::Pending, task::Task};
use crate::{Client, Result};

/// Frames that wait for whoever reads them; the rest waits in the server's store.
const EVENTS: usize = 16;

/// How to attach.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AttachOptions {
    /// The first byte of output wanted. When absent, a screen comes first.
    pub from: Option<u64>,
    /// Output as the program wrote it, also what would act on the terminal of whoever reads it.
    pub raw: bool,
    pub control: Control,
    /// Who types; a random name when absent.
    pub writer: Option<String>,
    /// How large the window is.
    pub size: Option<TerminalSize>,
}

/// Where a viewer stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    pub size: TerminalSize,
    /// Whether this viewer controls the terminal.
    pub held: bool,
    /// Who does, if anybody.
    pub controller: Option<String>,
}

#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum AttachEvent {
    /// What the terminal shows, as text that draws it on an empty one of `size`. Output goes on from `offset`.
    Screen { offset: u64, size: TerminalSize, data: String },
    /// Output that ends at `offset`.
    Output { offset: u64, data: Bytes },
    /// From `offset` on the terminal has this size.
    Resized { offset: u64, size: TerminalSize },
    /// Who controls it now.
    Control { held: bool, controller: Option<String> },
    /// Retention took this output; a screen follows.
    Skipped { from: u64, to: u64 },
    /// Something that was asked for could not be done.
    Refused(Box<Problem>),
    /// The connection broke.
    Reconnecting,
    /// There is one again.
    Reconnected(Standing),
    /// So many bytes were typed and may not have arrived: control was lost, or what was taken of them is not known.
    Lost { bytes: u64 },
    /// The process ended; the last event.
    Exit(Box<Process>),
}

/// What is shared between those who type and the task that has the connection.
#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// There is something to send.
    work: Notify,
    /// Something was taken, or will not be.
    room: Notify,
}

#[derive(Debug, Default)]
struct State {
    pending: Pending,
    size: Option<TerminalSize>,
    /// Not yet told to the server.
    resized: bool,
    /// `Take` or `Release`, the same.
    ask: Option<ViewerFrame>,
    redraw: bool,
    held: bool,
    over: bool,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One viewer of one terminal. Dropping it ends nothing but the view.
#[derive(Debug)]
pub struct Attachment {
    standing: Standing,
    events: mpsc::Receiver<Result<AttachEvent>>,
    typist: Typist,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Attachment {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Attachment {
    /// How it began.
    pub fn standing(&self) -> &Standing {
        &self.standing
    }

    /// Nothing is lost when this is dropped while it waits. After an error, or the exit, there is nothing more.
    pub async fn next(&mut self) -> Option<Result<AttachEvent>> {
        self.events.recv().await
    }

    /// What types and steers; while somebody reads the events.
    pub fn typist(&self) -> Typist {
        self.typist.clone()
    }
}

/// Types into an attached terminal.
#[derive(Debug, Clone)]
pub struct Typist {
    shared: Arc<Shared>,
}

impl Typist {
    /// Types; returns when the bytes are on their way, and waits while too many are. Each is typed once or, if control is
    /// lost first, not at all.
    pub async fn send(&self, data: impl Into<Bytes>) -> Result<()> {
        let mut data = data.into();
        loop {
            // Made before the look, so that what happens in between is noticed.
            let room = self.shared.room.notified();
            {
                let mut state = self.shared.state();
                if state.over {
                    return Err(problem(Code::ProcessOver, "The terminal is no longer attached to.", "Attach again."));
                }
                if !state.held {
                    let detail = "Nothing was typed: somebody else controls the terminal, or nobody.";
                    return Err(problem(Code::NotController, detail, "Take control first."));
                }
                state.pending.push(&mut data);
            }
            self.shared.work.notify_one();
            if data.is_empty() {
                return Ok(());
            }
            room.await;
        }
    }

    /// Returns when everything typed was taken, or will not be.
    pub async fn flush(&self) {
        loop {
            let room = self.shared.room.notified();
            {
                let state = self.shared.state();
                if state.over || state.pending.is_empty() {
                    return;
                }
            }
            room.await;
        }
    }

    /// The window has another size; if this viewer controls the terminal, so does the terminal.
    pub fn resize(&self, size: TerminalSize) {
        {
            let mut state = self.shared.state();
            state.size = Some(size);
            state.resized = true;
        }
        self.shared.work.notify_one();
    }

    /// Controls the terminal, whoever does now; the event `Control` tells when.
    pub fn take(&self) {
        self.ask(ViewerFrame::Take {});
    }

    /// Controls it no longer.
    pub fn release(&self) {
        self.ask(ViewerFrame::Release {});
    }

    /// Begins anew with a screen.
    pub fn redraw(&self) {
        self.shared.state().redraw = true;
        self.shared.work.notify_one();
    }

    fn ask(&self, ask: ViewerFrame) {
        self.shared.state().ask = Some(ask);
        self.shared.work.notify_one();
    }
}

fn problem(code: Code, detail: &str, fix: &str) -> crate::Error {
    Problem::new(code, detail, fix).into()
}

impl Client {
    /// Attaches to a terminal. What the server refuses is told before there is an attachment.
    pub async fn attach(&self, sandbox: &str, process: &str, options: AttachOptions) -> Result<Attachment> {
        let AttachOptions { from, raw, control, writer, size } = options;
        let writer = match writer {
            Some(writer) => writer,
            None => random()?,
        };
        let request =
            Request { client: self.clone(), sandbox: sandbox.to_owned(), process: process.to_owned(), raw, writer };
        let mut backoff = self.backoff();
        let (connection, greeting) = loop {
            match request.open(from, control, size).await {
                Err(error) if error.is_passing() => {
                    if !self.wait(&mut backoff).await {
                        return Err(error);
                    }
                }
                outcome => break outcome?,
            }
        };
        let shared = Arc::new(Shared::default());
        let (sender, events) = mpsc::channel(EVENTS);
        {
            let mut state = shared.state();
            (state.size, state.held) = (size, greeting.standing.held);
            // Whoever does not control it is not told what was taken before control is.
            if state.held {
                state.pending.taken(greeting.input);
            }
        }
        let task = Task::new(request, from, shared.clone(), sender);
        let task = tokio::spawn(task.run(connection));
        Ok(Attachment { standing: greeting.standing, events, typist: Typist { shared }, task })
    }
}

/// A name that nobody else has.
fn random() -> Result<String> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| crate::Error::Read(std::io::Error::other(error.to_string())))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
