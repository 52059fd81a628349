//! One viewer of a terminal: the screen as it is, then output from the store at the viewer's own pace, then the exit. A
//! viewer that stands still costs one chunk and disturbs nobody.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use bytes::Bytes;
use sandbar_api::{Code, Control, OutputChunk, Problem, Process, ProcessId, Role, TerminalFrame, TerminalSize};
use sandbar_terminal::{InputModes, Neutral, Titles};
use sha2::{Digest as _, Sha256};
use tokio::{sync::watch, time};

use super::{
    ask,
    keeper::{Ask, Painting},
    keyboard::{self, Keyboard, Notes, Typist},
    seats::{Seat, Seats, Table},
    sizes::Sizes,
    terminal,
};
use crate::{
    Caller, Engine, Inner,
    handle::Handle,
    ids,
    output::{OutputItem, OutputReader},
    process,
};

const LONGEST_WRITER: usize = 64;
/// For a guest whose program reads nothing: what was taken is then told with the next key.
const PATIENCE: Duration = Duration::from_secs(1);

/// How somebody wants to attach.
#[derive(Debug, Clone, Default)]
pub struct AttachAsk {
    /// The first byte wanted; none for the screen as it is now.
    pub from: Option<u64>,
    /// As the program wrote it. Otherwise without what acts on the viewer's machine.
    pub raw: bool,
    pub control: Control,
    /// Names this client over its connections, so that it types nothing twice.
    pub writer: Option<String>,
    /// Of the viewer's window.
    pub size: Option<TerminalSize>,
}

pub struct Attached {
    pub viewer: Viewer,
    pub keyboard: Keyboard,
}

/// What a viewer is given next.
#[derive(Debug, Clone, PartialEq)]
pub enum Viewed {
    /// Output that ends at this offset. Where it is filtered, nothing unfinished lies before that.
    Output {
        end: u64,
        data: Bytes,
    },
    Frame(TerminalFrame),
}

/// The eyes of a viewer.
pub struct Viewer {
    inner: Arc<Inner>,
    handle: Arc<Handle>,
    process: ProcessId,
    seat: Arc<Seat>,
    reader: OutputReader,
    /// None: raw.
    filter: Option<Neutral>,
    /// Where the output stands that was given.
    given: u64,
    ready: VecDeque<Viewed>,
    table: watch::Receiver<Table>,
    control: (bool, Option<String>),
    sizes: Sizes,
    notes: Notes,
    /// Retention took what was to be read next.
    lost: bool,
    over: bool,
}

impl Engine {
    /// Attaches to a terminal, also to one that has ended: its last screen, then its exit.
    pub async fn attach(
        &self,
        caller: &Caller,
        sandbox: &str,
        process: &str,
        wanted: AttachAsk,
    ) -> Result<Attached, Problem> {
        let may_control = match caller.role {
            Role::Operator | Role::Admin => true,
            Role::Viewer | Role::Agent => false,
        };
        if !may_control && wanted.control != Control::View {
            return Err(keyboard::forbidden());
        }
        wanted.size.map(process::terminal).transpose()?;
        let writer = wanted.writer.as_deref().map(checked).transpose()?;
        let named = writer.is_some();
        let writer = match writer {
            Some(writer) => writer,
            None => sandbar_api::bytes::encode(&ids::random::<16>()?),
        };
        let (handle, process) = terminal(&self.inner, sandbox, process).await?;
        // Before anybody loses control to one who cannot attach.
        if wanted.from.is_some() {
            drop(self.output(handle.id.as_str(), process.id.as_str(), wanted.from).await?);
        }
        let seat = Arc::new(Seats::sit(&self.inner, &process.id, &caller.owner, &writer)?);
        let table = seat.watch();
        let typist = Typist {
            inner: self.inner.clone(),
            handle: handle.clone(),
            process: process.id.clone(),
            seat: seat.clone(),
            writer: known_as(&caller.owner, &writer),
        };
        let guest_name = typist.writer.clone();
        let (keyboard, notes) = Keyboard::new(self.clone(), typist, may_control, wanted.size);
        let (mut input, mut trouble) = (0, None);
        if handle.live(&process.id).is_some() && seat.ask(wanted.control) {
            let (fitted, taken) = tokio::join!(keyboard.fit(), async {
                if named { taken(&handle, &process.id, &guest_name).await } else { 0 }
            });
            (input, trouble) = (taken, fitted.err());
        }
        let mut viewer = Viewer::open(self, handle, process, seat, table, notes, &wanted).await?;
        viewer.begin(input, trouble);
        Ok(Attached { viewer, keyboard })
    }
}

impl Viewer {
    async fn open(
        engine: &Engine,
        handle: Arc<Handle>,
        process: Process,
        seat: Arc<Seat>,
        table: watch::Receiver<Table>,
        notes: Notes,
        wanted: &AttachAsk,
    ) -> Result<Self, Problem> {
        let inner = engine.inner.clone();
        let id = process.id;
        let sizes = Sizes::default();
        let (painting, from) = match wanted.from {
            Some(from) => (None, from),
            None => {
                let (painting, from) = painted(&inner, &handle, &id).await?;
                (Some(painting), from)
            }
        };
        let reader = engine.output(handle.id.as_str(), id.as_str(), Some(from)).await?.looking_on();
        let control = seat.control(&table.borrow());
        let filter = (!wanted.raw).then(|| Neutral::new(Titles::Drop, InputModes::Pass));
        let mut viewer = Self {
            inner,
            handle,
            process: id,
            seat,
            reader,
            filter,
            given: from,
            ready: VecDeque::new(),
            table,
            control,
            sizes,
            notes,
            lost: false,
            over: false,
        };
        viewer.learn_sizes().await?;
        viewer.sizes.go_to(from);
        if let Some(painting) = painting {
            viewer.show(painting, from);
        }
        Ok(viewer)
    }

    fn begin(&mut self, input: u64, trouble: Option<Problem>) {
        let (control, controller) = self.control.clone();
        let (process, offset, size) = (self.process.clone(), self.given, self.sizes.now());
        let attached = TerminalFrame::Attached { process, offset, size, control, controller, input };
        self.ready.push_front(Viewed::Frame(attached));
        if let Some(problem) = trouble {
            self.tell(TerminalFrame::Error { problem: Box::new(problem) });
        }
    }

    /// What comes next; None after the exit. Whoever stops waiting for it loses nothing.
    pub async fn next(&mut self) -> Result<Option<Viewed>, Problem> {
        loop {
            if self.ready.is_empty() {
                self.resized();
            }
            if let Some(ready) = self.ready.pop_front() {
                return Ok(Some(ready));
            }
            if self.over {
                return Ok(None);
            }
            if self.lost {
                self.repaint().await?;
                continue;
            }
            if self.sizes.seen() != self.table.borrow().resized {
                self.learn_sizes().await?;
                continue;
            }
            tokio::select! {
                biased;
                Some(frame) = self.notes.frames.recv() => self.tell(frame),
                Ok(()) = self.notes.taken.changed() => {
                    let input = *self.notes.taken.borrow_and_update();
                    self.tell(TerminalFrame::Taken { input });
                }
                Ok(()) = self.table.changed() => self.controlled(),
                read = self.reader.next(true) => self.take(read)?,
            }
        }
    }

    fn tell(&mut self, frame: TerminalFrame) {
        self.ready.push_back(Viewed::Frame(frame));
    }

    fn take(&mut self, read: Result<Option<OutputItem>, Problem>) -> Result<(), Problem> {
        match read {
            Ok(Some(OutputItem::Chunk(chunk))) => self.give(chunk),
            Ok(Some(OutputItem::Exit(process))) => {
                self.tell(TerminalFrame::Exit { process: Box::new(process) });
                self.over = true;
            }
            Ok(None) => self.over = true,
            Err(problem) if problem.code == Code::OutputDropped => self.lost = true,
            Err(problem) => return Err(problem),
        }
        Ok(())
    }

    /// In parts of one size each.
    fn give(&mut self, chunk: OutputChunk) {
        let (mut offset, mut data) = (chunk.offset, Bytes::from(chunk.data));
        while !data.is_empty() {
            while let Some(change) = self.sizes.due(offset) {
                self.tell(TerminalFrame::Resized { offset: change.offset, size: change.size });
            }
            let until = self.sizes.next().map_or(u64::MAX, |next| next - offset);
            let part = data.split_to(usize::try_from(until).unwrap_or(usize::MAX).min(data.len()));
            offset += part.len() as u64;
            self.pass(offset, part);
        }
    }

    fn pass(&mut self, end: u64, data: Bytes) {
        let (end, data) = match &mut self.filter {
            None => (end, data),
            Some(filter) => {
                let data = filter.filter_whole(&data);
                (end.saturating_sub(filter.waiting()), data.into())
            }
        };
        // Also without bytes: whoever comes back need not go through them again.
        if end > self.given || !data.is_empty() {
            self.given = self.given.max(end);
            self.ready.push_back(Viewed::Output { end, data });
        }
    }

    fn resized(&mut self) {
        while let Some(change) = self.sizes.due(self.reader.offset()) {
            self.tell(TerminalFrame::Resized { offset: change.offset, size: change.size });
        }
    }

    fn controlled(&mut self) {
        let control = self.seat.control(&self.table.borrow_and_update());
        if control != self.control {
            let (held, controller) = control.clone();
            self.control = control;
            self.tell(TerminalFrame::Control { held, controller });
        }
    }

    async fn learn_sizes(&mut self) -> Result<(), Problem> {
        let seen = self.table.borrow().resized;
        let all = self.inner.store.terminal_sizes(&self.process).await?;
        self.sizes.learn(all, seen);
        Ok(())
    }

    async fn repaint(&mut self) -> Result<(), Problem> {
        let (painting, offset) = painted(&self.inner, &self.handle, &self.process).await?;
        self.learn_sizes().await?;
        self.lost = false;
        self.tell(TerminalFrame::Skipped { from: self.given, to: offset });
        self.reader.go_to(offset);
        self.sizes.go_to(offset);
        if let Some(filter) = &mut self.filter {
            *filter = Neutral::new(Titles::Drop, InputModes::Pass);
        }
        self.given = offset;
        self.show(painting, offset);
        Ok(())
    }

    fn show(&mut self, painting: Painting, offset: u64) {
        let Painting { mut data, size, .. } = painting;
        if self.filter.is_some() {
            let shown = Neutral::new(Titles::Drop, InputModes::Pass).filter(data.as_bytes());
            // It lets nothing pass but text.
            data = String::from_utf8_lossy(&shown).into_owned();
        }
        self.tell(TerminalFrame::Screen { offset, size, data });
        let now = self.sizes.now();
        if now != size {
            // It changed while the screen was painted.
            self.tell(TerminalFrame::Resized { offset, size: now });
        }
    }
}

/// The screen, and where output goes on after it.
async fn painted(inner: &Arc<Inner>, handle: &Arc<Handle>, process: &ProcessId) -> Result<(Painting, u64), Problem> {
    let painting = ask(inner, handle, process, Ask::Paint).await?;
    // Of an endless sequence the beginning may be gone.
    let offset = painting.offset.max(inner.store.output_range(process).await?.start);
    Ok((painting, offset))
}

/// What the guest took of this writer, as far as it says so soon; does not wake a sandbox.
async fn taken(handle: &Handle, process: &ProcessId, writer: &str) -> u64 {
    let Some(mut guest) = handle.guest() else { return 0 };
    let asked = process::type_as(&mut guest, process, writer, None, Bytes::new());
    match time::timeout(PATIENCE, asked).await {
        Ok(Ok(taken)) => taken,
        Ok(Err(problem)) => {
            tracing::debug!(%process, %problem, "a guest does not say what a writer typed");
            0
        }
        Err(_) => 0,
    }
}

fn checked(writer: &str) -> Result<String, Problem> {
    let usable = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    if (1..=LONGEST_WRITER).contains(&writer.len()) && writer.bytes().all(usable) {
        return Ok(writer.to_owned());
    }
    Err(Problem::new(
        Code::BadRequest,
        format!("`{}` cannot be the name of a writer.", writer.chars().take(80).collect::<String>().escape_debug()),
        format!("Use 1 to {LONGEST_WRITER} letters, digits, `-` and `_`, chosen at random and kept over reconnects."),
    ))
}

/// What the guest calls a writer: nobody can type as somebody else by guessing a name.
fn known_as(owner: &str, writer: &str) -> String {
    let digest = Sha256::new().chain_update(owner).chain_update([0]).chain_update(writer).finalize();
    digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}
