//! Terminals: attached to, or looked at without attaching: what they show, what they have shown, and a recording to play
//! again.
//!
//! Everything is made from stored output, so a look disturbs nobody and works after the end of the process or of a server.
//! Each terminal that runs, or was looked at lately, has one keeper, a task that owns its screen.

mod keeper;
mod keyboard;
mod recording;
mod replies;
mod seats;
mod shown;
mod sizes;
mod transcript;
mod viewer;
mod watcher;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use sandbar_api::{Code, Problem, Process, ProcessId, ProcessState, ScreenView};
use tokio::sync::{Notify, Semaphore, mpsc, oneshot, watch};

use crate::{
    Engine, Inner,
    handle::Handle,
    problem,
    process::{self, Progress},
};
use keeper::{Ask, Keeper};
pub use keyboard::Keyboard;
pub use recording::Recording;
#[cfg(test)]
pub(crate) use seats::MOST_SEATS;
use seats::Seats;
pub use transcript::TranscriptQuery;
pub use viewer::{AttachAsk, Attached, Viewed, Viewer};

/// Screens held in memory at once; each is rebuilt from its checkpoint when it is wanted again.
pub(crate) const MOST_SCREENS: usize = 32;
/// Looks that may wait for a keeper; more callers wait to be let in.
const MAILBOX: usize = 16;

/// What a look sees.
#[derive(Debug, Clone)]
pub struct Look {
    pub view: ScreenView,
    /// The rows with their colours, and nothing else that a terminal would obey.
    pub ansi: String,
}

pub(crate) struct Terminals {
    keepers: Mutex<HashMap<ProcessId, mpsc::Sender<Ask>>>,
    room: Arc<Semaphore>,
    /// Somebody waits for room: screens that nobody looks at are given up.
    pressed: Notify,
    seats: Seats,
    pub(crate) watchers: watcher::Watchers,
}

impl Default for Terminals {
    fn default() -> Self {
        Self {
            keepers: Mutex::default(),
            room: Arc::new(Semaphore::new(MOST_SCREENS)),
            pressed: Notify::new(),
            seats: Seats::default(),
            watchers: watcher::Watchers::default(),
        }
    }
}

impl Terminals {
    fn keepers(&self) -> MutexGuard<'_, HashMap<ProcessId, mpsc::Sender<Ask>>> {
        self.keepers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has who is attached look at the sizes.
    pub(crate) fn resized(&self, process: &ProcessId) {
        self.seats.resized(process);
    }
}

/// Has a terminal that runs followed, whether somebody looks or not.
pub(crate) fn follow(
    inner: &Arc<Inner>,
    handle: &Arc<Handle>,
    process: &ProcessId,
    progress: watch::Receiver<Progress>,
) {
    watcher::watch(inner, handle, process, progress.clone());
    // One that was there before knows of no output to come; those who asked it are answered still.
    begin(inner, handle, process, Some(progress), &mut inner.terminals.keepers());
}

/// The terminal's keeper, a new one if it has none.
fn keeper(
    inner: &Arc<Inner>,
    handle: &Arc<Handle>,
    process: &ProcessId,
    progress: Option<watch::Receiver<Progress>>,
) -> mpsc::Sender<Ask> {
    let mut keepers = inner.terminals.keepers();
    match keepers.get(process) {
        Some(keeper) => keeper.clone(),
        None => begin(inner, handle, process, progress, &mut keepers),
    }
}

fn begin(
    inner: &Arc<Inner>,
    handle: &Arc<Handle>,
    process: &ProcessId,
    progress: Option<watch::Receiver<Progress>>,
    keepers: &mut HashMap<ProcessId, mpsc::Sender<Ask>>,
) -> mpsc::Sender<Ask> {
    let (asks, inbox) = mpsc::channel(MAILBOX);
    keepers.insert(process.clone(), asks.clone());
    let interval = keeper::interval(handle.template.output_retention);
    inner.tasks.spawn(Keeper::new(inner.clone(), handle.clone(), process.clone(), inbox, progress, interval).run());
    asks
}

impl Engine {
    /// What a terminal shows now, or showed at its end.
    pub async fn screen(&self, sandbox: &str, process: &str) -> Result<Look, Problem> {
        let (handle, process) = terminal(&self.inner, sandbox, process).await?;
        let mut look = ask(&self.inner, &handle, &process.id, Ask::Look).await?;
        look.view.ended = process.state != ProcessState::Running;
        Ok(look)
    }
}

/// Asks the terminal's keeper, for example for an `Ask::Paint`.
async fn ask<T>(
    inner: &Arc<Inner>,
    handle: &Arc<Handle>,
    process: &ProcessId,
    question: impl Fn(keeper::Reply<T>) -> Ask,
) -> Result<T, Problem> {
    loop {
        if inner.closing.is_cancelled() {
            return Err(problem::shutting_down());
        }
        let progress = handle.live(process).map(|live| live.progress.subscribe());
        let keeper = keeper(inner, handle, process, progress);
        let (reply, answer) = oneshot::channel();
        // A keeper who just left answers nothing; the next one does.
        if keeper.send(question(reply)).await.is_ok()
            && let Ok(answer) = answer.await
        {
            return answer;
        }
    }
}

/// A process of the sandbox that has a terminal.
async fn terminal(inner: &Inner, sandbox: &str, process: &str) -> Result<(Arc<Handle>, Process), Problem> {
    let handle = inner.handle(sandbox).await?;
    let process = process::stored(inner, &handle, process).await?;
    if process.terminal {
        return Ok((handle, process));
    }
    Err(Problem::new(
        Code::NoTerminal,
        format!("The process `{}` was started without a terminal.", process.id),
        "Read its output instead; start the process with a `terminal` size to have a screen.",
    ))
}
