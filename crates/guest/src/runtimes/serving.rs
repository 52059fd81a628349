//! What is served: what was asked for, the processes started through it, and how much of anything there may be at once.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicI32, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, sleep},
};

use crate::{
    children::Forker,
    error::{Code, Fault},
    files::{
        Job,
        below::{Ask, Below},
    },
    process::Order,
    protocol::{Legacy, Sandboxd, ServeRequest},
    table::Table,
    worker::Worker,
};

/// Processes, those included that left something running behind. Each may have a mebibyte of output here that nobody takes.
const PROCESSES: usize = 128;
/// File workers that only look, and those that change something: each is a process outside the workload's limits.
const LOOKS: usize = 32;
const CHANGES: u32 = 32;
/// Commands whose output is collected to be answered in one piece, and how many bytes of it all of them together.
const COLLECTED: usize = 32;
const COLLECTED_BYTES: usize = 64 << 20;
/// Between two looks whether something is left.
const LOOK: Duration = Duration::from_millis(20);

pub(super) struct Serving {
    pub(super) sandboxd: Option<Sandboxd>,
    pub(super) legacy: Option<Legacy>,
    common: Mutex<Common>,
    pub(super) table: Arc<Table>,
    forker: Forker,
    last_id: AtomicI32,
    draining: AtomicBool,
    pub(super) since: Instant,
    looks: Arc<Semaphore>,
    changes: Arc<Semaphore>,
    collected: Arc<Semaphore>,
    pub(super) bytes: Arc<Semaphore>,
}

/// What holds for every process.
#[derive(Clone)]
pub(super) struct Common {
    pub(super) env: HashMap<String, String>,
    pub(super) timeout_ms: u64,
    pub(super) max_output: u64,
}

impl Serving {
    pub(super) fn new(request: ServeRequest, table: Table, forker: Forker) -> Self {
        let ServeRequest { sandboxd, legacy, env, timeout_ms, max_output } = request;
        Self {
            sandboxd,
            legacy,
            common: Mutex::new(Common { env, timeout_ms, max_output }),
            table: Arc::new(table),
            forker,
            last_id: AtomicI32::new(0),
            draining: AtomicBool::new(false),
            since: Instant::now(),
            looks: Arc::new(Semaphore::new(LOOKS)),
            changes: Arc::new(Semaphore::new(CHANGES as usize)),
            collected: Arc::new(Semaphore::new(COLLECTED)),
            bytes: Arc::new(Semaphore::new(COLLECTED_BYTES)),
        }
    }

    /// A server that was started again may have other values for processes, but what listens stays.
    pub(super) fn renew(&self, request: ServeRequest) -> Result<(), Fault> {
        let ServeRequest { sandboxd, legacy, env, timeout_ms, max_output } = request;
        if sandboxd != self.sandboxd || legacy != self.legacy {
            let message = "Other runtimes are served already; stop and start the sandbox to change them.";
            return Err(Fault::new(Code::WrongState, message));
        }
        *self.common.lock().unwrap_or_else(PoisonError::into_inner) = Common { env, timeout_ms, max_output };
        Ok(())
    }

    pub(super) fn common(&self) -> Common {
        self.common.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// An id for one more process: small numbers of its own, which say nothing about pids.
    pub(super) fn next_id(&self) -> Result<i32, Fault> {
        if self.is_draining() {
            return Err(Fault::new(Code::GuestUnreachable, SHUTTING_DOWN));
        }
        if self.table.count() >= PROCESSES {
            let message = format!("{PROCESSES} processes run already; wait for some to end, or end them.");
            return Err(Fault::new(Code::TooMany, message));
        }
        loop {
            let last = self.last_id.load(Ordering::Relaxed);
            let next = last.checked_add(1).unwrap_or(1);
            self.last_id.store(next, Ordering::Relaxed);
            if !self.table.has(&next.to_string()) {
                return Ok(next);
            }
        }
    }

    /// A file worker. Waits while there are too many, and with changes while they are held.
    pub(super) async fn work(&self, below: Below) -> Result<Worker, Fault> {
        let room = match below.ask {
            Ask::Look | Ask::Read(_) => &self.looks,
            Ask::Write { .. } | Ask::Remove { .. } => &self.changes,
        };
        let place = acquire(room, 1).await?;
        let mut worker = Worker::start(&self.forker, Job::Below(below)).await?;
        worker.receiver.occupy(place);
        Ok(worker)
    }

    /// Returns when no file worker changes anything; as long as it is held none begins.
    pub(super) async fn hold(&self) -> Result<OwnedSemaphorePermit, Fault> {
        acquire(&self.changes, CHANGES).await
    }

    /// The right to collect a command's output.
    pub(super) async fn collect(&self) -> Result<OwnedSemaphorePermit, Fault> {
        acquire(&self.collected, 1).await
    }

    pub(super) async fn look(&self, below: Below) -> Result<crate::protocol::Entry, Fault> {
        let mut worker = self.work(Below { ask: Ask::Look, ..below }).await?;
        match worker.receiver.next().await? {
            crate::worker::Frame::Entry(entry) => Ok(entry),
            _ => Err(Fault::new(Code::Internal, "The file worker told nothing.")),
        }
    }

    /// Refuses what is new and asks what runs to end; returns when nothing is left.
    pub(super) async fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
        let asked = self.table.minded().into_iter().map(|(_, process)| async move {
            // It may have ended just now.
            let _ended = process.order(|reply| Order::Signal(libc::SIGTERM, reply)).await;
        });
        futures_util::future::join_all(asked).await;
        while !self.table.minded().is_empty() {
            sleep(LOOK).await;
        }
    }
}

pub(super) const SHUTTING_DOWN: &str = "sandboxd is shutting down";

async fn acquire(room: &Arc<Semaphore>, count: u32) -> Result<OwnedSemaphorePermit, Fault> {
    let gone = |_| Fault::new(Code::Internal, "The guest has ended.");
    Arc::clone(room).acquire_many_owned(count).await.map_err(gone)
}
