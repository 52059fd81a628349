//! The task that writes the ledger: one commit for all that came in a moment. A call waits for it only where that commit is
//! what makes it safe; what ended is never given up while the server lives.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use sandbar_api::SessionId;
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, sleep, timeout_at},
};

use super::{Shelf, journal::Journal};
use crate::store::{
    self, Store,
    gate::{CallEnd, CallRow, LedgerEntry},
};

/// How long what comes is gathered: many calls share a commit, and the processors are left to the calls.
const GATHER: Duration = Duration::from_millis(10);
/// Entries a transaction: more would keep other writers waiting.
const BATCH: usize = 1024;
const RETRY: Duration = Duration::from_millis(200);
const RETRY_AT_MOST: Duration = Duration::from_secs(5);
/// At the server's end. What is not written then is ended by the next server, at what was held.
const FLUSH: Duration = Duration::from_secs(5);

pub(super) enum Order {
    Begin(CallRow, Safe),
    /// It began, and was given up before anything was sent.
    Strike(String),
    End(SessionId, CallEnd),
    Flush(oneshot::Sender<()>),
    Close(oneshot::Sender<()>),
}

/// How a call is safe that begins.
pub(super) enum Safe {
    /// It is in this file of the journal.
    Journal(u64),
    /// When the store has it, which is told; false: it has not, and never will.
    Told(oneshot::Sender<bool>),
}

pub(super) struct Writing {
    pub(super) store: Arc<dyn Store>,
    pub(super) shelf: Shelf,
    /// None where the commit is what makes a call safe.
    pub(super) journal: Option<Arc<Journal>>,
    /// Set while nothing may begin.
    pub(super) behind: Arc<AtomicBool>,
}

/// What is to be written, in its order, and who waits for that.
#[derive(Default)]
struct Page {
    entries: Vec<LedgerEntry>,
    /// Of what begins: the journal's files.
    journals: Vec<u64>,
    /// Of what begins: who waits for the commit.
    begun: Vec<(String, oneshot::Sender<bool>)>,
    /// Of what ends.
    sessions: Vec<SessionId>,
    waiting: Vec<oneshot::Sender<()>>,
    closing: bool,
}

impl Page {
    fn take(&mut self, order: Order) {
        match order {
            Order::Begin(call, safe) => {
                match safe {
                    Safe::Journal(file) => self.journals.push(file),
                    Safe::Told(told) => self.begun.push((call.id.clone(), told)),
                }
                self.entries.push(LedgerEntry::Begin(call));
            }
            Order::Strike(id) => self.entries.push(LedgerEntry::Strike(id)),
            Order::End(session, end) => {
                self.entries.push(LedgerEntry::End(end));
                self.sessions.push(session);
            }
            Order::Flush(done) => self.waiting.push(done),
            Order::Close(done) => {
                self.waiting.push(done);
                self.closing = true;
            }
        }
    }

    /// Nobody who waits for a commit waits for the next one: those calls are not made. The store may have them all the same.
    fn give_up(&mut self) {
        for (id, told) in self.begun.drain(..) {
            let begin = |entry: &&mut LedgerEntry| matches!(entry, LedgerEntry::Begin(call) if call.id == id);
            if let Some(entry) = self.entries.iter_mut().find(begin) {
                *entry = LedgerEntry::Strike(id);
            }
            told.send(false).ok();
        }
    }

    fn answer(&mut self) {
        for done in self.waiting.drain(..) {
            // Who asked may have stopped waiting.
            done.send(()).ok();
        }
    }
}

impl Writing {
    pub(super) async fn run(self, mut inbox: mpsc::UnboundedReceiver<Order>) {
        let (mut page, mut time) = (Page::default(), GATHER);
        // What could not be written is tried again without anything new to write.
        while !page.closing && (!page.entries.is_empty() || take(&mut page, &mut inbox).await) {
            gather(&mut page, &mut inbox, time, if time == GATHER { BATCH } else { usize::MAX }).await;
            time = match self.write(&mut page).await {
                true => GATHER,
                false => (time * 2).clamp(RETRY, RETRY_AT_MOST),
            };
            // Nobody is kept waiting for a disk that may stay full.
            if !page.closing {
                page.answer();
            }
        }
        inbox.close();
        while take(&mut page, &mut inbox).await {}
        self.flush(page).await;
    }

    /// Whether it is written. Nothing begins from the first failure until the store takes what begins.
    async fn write(&self, page: &mut Page) -> bool {
        let (mut written, mut full) = (self.store.write_ledger(page.entries.clone()).await, false);
        if matches!(written, Err(store::Error::DiskFull)) {
            // Those calls are made: they are written out of the room that is kept for what must be.
            full = true;
            written = self.store.write_promised(page.entries.clone()).await;
        }
        let was_behind = self.behind.swap(full || written.is_err(), Ordering::AcqRel);
        match written {
            Ok(()) => {
                if let Some(journal) = &self.journal {
                    journal.committed(page.journals.drain(..));
                }
                for (_, told) in page.begun.drain(..) {
                    // Who waited may have stopped, and takes it back then.
                    told.send(true).ok();
                }
                page.entries.clear();
                let mut books = super::locked(&self.shelf);
                page.sessions.drain(..).for_each(|session| books.unneed(&session));
                if full && !was_behind {
                    tokio::spawn(wait_for_room(Arc::downgrade(&self.store), self.behind.clone()));
                }
                true
            }
            Err(error) => {
                page.give_up();
                if !was_behind {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(error, "the ledger cannot be written: no calls are let through until it can");
                }
                false
            }
        }
    }

    async fn flush(&self, mut page: Page) {
        let until = Instant::now() + FLUSH;
        while !page.entries.is_empty() && !self.write(&mut page).await && Instant::now() < until {
            sleep(RETRY).await;
        }
        if !page.entries.is_empty() {
            let count = page.entries.len();
            tracing::error!(count, "calls could not be written: the next server takes them at what was held");
        }
        page.answer();
    }
}

/// Waits for an order. False: there will be none.
async fn take(page: &mut Page, inbox: &mut mpsc::UnboundedReceiver<Order>) -> bool {
    let order = inbox.recv().await;
    let taken = order.is_some();
    order.into_iter().for_each(|order| page.take(order));
    taken
}

/// Takes what comes in that time, but no longer than until somebody waits or there is enough.
async fn gather(page: &mut Page, inbox: &mut mpsc::UnboundedReceiver<Order>, time: Duration, most: usize) {
    let until = Instant::now() + time;
    while page.entries.len() < most {
        let order = match page.waiting.is_empty() && page.begun.is_empty() {
            true => timeout_at(until, inbox.recv()).await.ok().flatten(),
            false => inbox.try_recv().ok(),
        };
        match order {
            Some(order) => page.take(order),
            None => return,
        }
    }
}

/// Lets calls begin again when there is room.
async fn wait_for_room(store: std::sync::Weak<dyn Store>, behind: Arc<AtomicBool>) {
    loop {
        sleep(RETRY).await;
        let Some(store) = store.upgrade() else { return };
        if store.check().await.is_ok() {
            return behind.store(false, Ordering::Release);
        }
    }
}
