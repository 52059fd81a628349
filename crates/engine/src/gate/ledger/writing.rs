//! The task that writes the ledger: one commit for all that came while the last was under way. What begins is refused
//! when it cannot be written; what ended is never given up while the server lives.

use std::{sync::Arc, time::Duration};

use sandbar_api::SessionId;
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, sleep, timeout_at},
};

use super::Shelf;
use crate::store::{
    self, Store,
    gate::{CallEnd, CallRow, LedgerEntry},
};

/// Entries a transaction: more would keep other writers waiting.
const BATCH: usize = 512;
const RETRY: Duration = Duration::from_millis(200);
const RETRY_AT_MOST: Duration = Duration::from_secs(5);
/// At the server's end. What is not written then is ended by the next server, at what was held.
const FLUSH: Duration = Duration::from_secs(5);

pub(super) enum Order {
    Begin(CallRow, oneshot::Sender<Result<(), NotBegun>>),
    End(SessionId, CallEnd),
    Close(oneshot::Sender<()>),
}

/// Why a call may not be made.
pub(super) struct NotBegun {
    pub(super) cause: String,
    /// Whether it may have been written all the same.
    pub(super) perhaps: bool,
}

pub(super) struct Writing {
    pub(super) store: Arc<dyn Store>,
    pub(super) shelf: Shelf,
}

/// Of ends that are not written yet.
type Ends = Vec<(SessionId, CallEnd)>;

impl Writing {
    pub(super) async fn run(self, mut inbox: mpsc::UnboundedReceiver<Order>) {
        let (mut orders, mut closing) = (Vec::with_capacity(BATCH), Vec::new());
        let (mut behind, mut retry, mut next_try) = (Ends::new(), RETRY, Instant::now());
        loop {
            let open = if behind.is_empty() {
                inbox.recv_many(&mut orders, BATCH).await > 0
            } else {
                // Nothing until then: another try.
                timeout_at(next_try, inbox.recv_many(&mut orders, BATCH)).await.map_or(true, |received| received > 0)
            };
            let due = behind.is_empty() || Instant::now() >= next_try;
            behind = self.write(behind, orders.drain(..), &mut closing, due).await;
            if behind.is_empty() {
                retry = RETRY;
            } else if due {
                next_try = Instant::now() + retry;
                retry = (retry * 2).min(RETRY_AT_MOST);
            }
            if !open || !closing.is_empty() {
                inbox.close();
                return self.flush(behind, inbox, closing).await;
            }
        }
    }

    /// Returns what has to be written again. Nothing begins while there are such; they are tried when that is `due`.
    async fn write(
        &self,
        mut ends: Ends,
        orders: impl Iterator<Item = Order>,
        closing: &mut Vec<oneshot::Sender<()>>,
        due: bool,
    ) -> Ends {
        let behind = !ends.is_empty();
        let mut entries: Vec<_> = ends.iter().map(|(_, end)| LedgerEntry::End(end.clone())).collect();
        let mut begun = Vec::new();
        for order in orders {
            match order {
                Order::Begin(_, reply) if behind => {
                    let cause = "earlier calls cannot be written down".to_owned();
                    drop(reply.send(Err(NotBegun { cause, perhaps: false })));
                }
                Order::Begin(call, reply) => {
                    entries.push(LedgerEntry::Begin(call));
                    begun.push(reply);
                }
                Order::End(session, end) => {
                    entries.push(LedgerEntry::End(end.clone()));
                    ends.push((session, end));
                }
                Order::Close(done) => closing.push(done),
            }
        }
        if !due {
            return ends;
        }
        let written = self.store.write_ledger(entries).await;
        // Nobody may be waiting any more: then the call is ended without having been made.
        match &written {
            Ok(()) => begun.into_iter().for_each(|reply| drop(reply.send(Ok(())))),
            Err(error) => {
                let perhaps = !matches!(error, store::Error::DiskFull);
                for reply in begun {
                    drop(reply.send(Err(NotBegun { cause: error.to_string(), perhaps })));
                }
            }
        }
        match written {
            Ok(()) => self.shelved(ends, behind),
            // Ends alone are let through on a full disk.
            Err(store::Error::DiskFull) if !ends.is_empty() => self.write_ends(ends, behind).await,
            Err(error) => stay_behind(ends, behind, &error),
        }
    }

    async fn write_ends(&self, ends: Ends, behind: bool) -> Ends {
        let entries = ends.iter().map(|(_, end)| LedgerEntry::End(end.clone())).collect();
        match self.store.write_ledger(entries).await {
            Ok(()) => self.shelved(ends, behind),
            Err(error) => stay_behind(ends, behind, &error),
        }
    }

    fn shelved(&self, ends: Ends, behind: bool) -> Ends {
        if behind {
            tracing::info!("the ledger is written up again");
        }
        let mut books = super::locked(&self.shelf);
        ends.iter().for_each(|(session, _)| books.unneed(session));
        Ends::new()
    }

    async fn flush(
        &self,
        mut ends: Ends,
        mut inbox: mpsc::UnboundedReceiver<Order>,
        mut closing: Vec<oneshot::Sender<()>>,
    ) {
        let (mut orders, until) = (Vec::new(), Instant::now() + FLUSH);
        while inbox.recv_many(&mut orders, BATCH).await > 0 {
            ends = self.write(ends, orders.drain(..), &mut closing, true).await;
        }
        while !ends.is_empty() && Instant::now() < until {
            sleep(RETRY).await;
            ends = self.write_ends(ends, true).await;
        }
        if !ends.is_empty() {
            let count = ends.len();
            tracing::error!(count, "ends of calls could not be written: the next server takes them at what was held");
        }
        for done in closing {
            // Who asked may have stopped waiting.
            done.send(()).ok();
        }
    }
}

fn stay_behind(ends: Ends, behind: bool, error: &store::Error) -> Ends {
    if !behind && !ends.is_empty() {
        let error = error as &dyn std::error::Error;
        tracing::warn!(error, "the ledger cannot be written: no calls are let through until it can");
    }
    ends
}
