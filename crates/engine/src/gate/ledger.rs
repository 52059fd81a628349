//! The ledger: accounts of sessions in memory, every reservation and settlement in the store. Where only a server in the same
//! home can come after, a reservation is in the journal before its call goes out, and the store takes many together a moment
//! later; where another may, the call waits for the store.

mod books;
mod journal;
mod writing;

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use chrono::TimeDelta;
use sandbar_api::{SandboxId, SessionId, SetBudget};
use sandbar_gateway::{Held, Refused, Reservation, Reserve, Settlement};
use sandbar_policy::{Account, Amount, Limits};
use tokio::sync::{mpsc, oneshot};

use self::{
    books::{Books, Standing},
    journal::{Journal, Left},
    writing::{Order, Safe, Writing},
};
use crate::{
    budget::micros,
    clock, ids,
    store::{
        self, Error, Store,
        gate::{CallEnd, CallRow, LedgerEntry, Reservations},
    },
};

/// What a rate is about.
const WINDOW: Duration = Duration::from_secs(60);
/// Of a model's name or a note, in bytes: where any model is passed on, its name is whatever a sandbox wrote.
const LONGEST: usize = 256;
const RETRY_ORPHANS: Duration = Duration::from_secs(1);

/// Cheap to clone. Never locked across an await.
#[derive(Clone)]
pub(crate) struct Ledger(Arc<Shared>);

type Shelf = Arc<Mutex<Books>>;

fn locked(shelf: &Shelf) -> MutexGuard<'_, Books> {
    shelf.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Shared {
    store: Arc<dyn Store>,
    shelf: Shelf,
    orders: mpsc::UnboundedSender<Order>,
    record: Record,
    /// The store does not take what it is given, or the disk is full: nothing begins.
    behind: Arc<AtomicBool>,
    /// Held by whoever brings something from the store into the books, so that it cannot change in between.
    bringing: tokio::sync::Mutex<()>,
    /// Calls of servers that died are not ended yet, so what was used is not known.
    orphaned: AtomicBool,
    /// Monotonic: a rate's window must not move with the host's clock.
    opened: Instant,
}

/// What makes a reservation durable.
enum Record {
    Journal(Arc<Journal>),
    Commit,
}

/// What a session has used and holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Spent {
    pub(crate) used: Amount,
    pub(crate) reserved: Amount,
}

/// Keeps a session's accounts in memory.
#[must_use]
pub(crate) struct Known {
    shelf: Shelf,
    session: SessionId,
}

impl Drop for Known {
    fn drop(&mut self) {
        locked(&self.shelf).unneed(&self.session);
    }
}

impl Ledger {
    /// Ends what servers that died left held: it stands, estimated. Starts the task that writes.
    pub(crate) async fn open(store: Arc<dyn Store>) -> store::Result<Self> {
        let (orders, inbox) = mpsc::unbounded_channel();
        let behind = Arc::new(AtomicBool::new(false));
        let (journal, left) = match store.reservations() {
            Reservations::Journal(home) => {
                let (journal, left) = Journal::open(&home).map_err(Error::Output)?;
                (Some(Arc::new(journal)), left)
            }
            Reservations::Committed => (None, Left::default()),
        };
        let ledger = Self(Arc::new(Shared {
            store: store.clone(),
            shelf: Shelf::default(),
            orders,
            record: journal.clone().map_or(Record::Commit, Record::Journal),
            behind: behind.clone(),
            bringing: tokio::sync::Mutex::default(),
            orphaned: AtomicBool::new(false),
            opened: Instant::now(),
        }));
        // What the store had begun, and what it had not come to.
        let held = store.held_calls().await?.into_iter();
        let unknown = left.calls.iter().flat_map(|call| [LedgerEntry::Begin(call.clone()), orphaned(call.clone())]);
        let orphans: Vec<_> = unknown.chain(held.map(orphaned)).collect();
        match store.write_promised(orphans.clone()).await {
            Ok(()) => left.forget(),
            // It is by starting that a full disk can be freed.
            Err(Error::DiskFull) => {
                ledger.0.orphaned.store(true, Ordering::Release);
                tokio::spawn(end_orphans(Arc::downgrade(&ledger.0), orphans, left));
            }
            Err(error) => return Err(error),
        }
        tokio::spawn(Writing { store, shelf: ledger.0.shelf.clone(), journal, behind }.run(inbox));
        Ok(ledger)
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        locked(&self.0.shelf)
    }

    /// A window's length ahead, so that what was settled before the start has a time too.
    fn now_ms(&self) -> u64 {
        u64::try_from((WINDOW + self.0.opened.elapsed()).as_millis()).unwrap_or(u64::MAX)
    }

    /// Whether a budget holds for the session or one above it.
    pub(crate) fn budget(&self, session: &SessionId) -> Held {
        self.books().budget(session)
    }

    pub(crate) fn model(&self, session: &SessionId) -> Option<String> {
        self.books().get(session)?.model.clone()
    }

    pub(crate) fn spent(&self, session: &SessionId) -> Option<Spent> {
        let books = self.books();
        let account = &books.get(session)?.account;
        Some(Spent { used: account.used, reserved: account.reserved })
    }

    /// The accounts of a session and those above it are in memory as long as what is returned. `Missing` if there is no
    /// such session.
    pub(crate) async fn know(&self, session: &SessionId) -> store::Result<Known> {
        if let Some(known) = self.known(session) {
            return Ok(known);
        }
        let _bringing = self.0.bringing.lock().await;
        let (mut missing, mut next) = (Vec::<(SessionId, Standing)>::new(), Some(session.clone()));
        // Kept in memory until those below it are.
        let mut above = None;
        while let Some(id) = next.take() {
            above = self.known(&id);
            if above.is_some() {
                break;
            }
            if missing.iter().any(|(below, _)| *below == id) {
                return Err(Error::Unreadable(format!("the session {id} is above itself")));
            }
            let standing = self.0.standing(&id, self.now_ms()).await?;
            next.clone_from(&standing.parent);
            missing.push((id, standing));
        }
        {
            let mut books = self.books();
            missing.into_iter().rev().for_each(|(id, standing)| books.enter(id, standing));
        }
        let known = self.known(session);
        drop(above);
        known.ok_or_else(|| Error::Missing(format!("session {session}")))
    }

    /// Of a session that was made just now, with nothing above it: it has used nothing.
    pub(crate) fn born(&self, session: &SessionId, limits: &SetBudget) -> Option<Known> {
        {
            let mut books = self.books();
            if books.get(session).is_none() {
                let limits = in_micros(limits);
                books.enter(session.clone(), Standing { limits, ..Standing::default() });
            }
        }
        self.known(session)
    }

    fn known(&self, session: &SessionId) -> Option<Known> {
        let is_known = self.books().need(session);
        is_known.then(|| Known { shelf: self.0.shelf.clone(), session: session.clone() })
    }

    pub(crate) async fn reserve(
        &self,
        session: &SessionId,
        sandbox: &SandboxId,
        call: Reserve,
    ) -> Result<Reservation, Refused> {
        if self.0.orders.is_closed() {
            return Err(closed());
        }
        if self.0.behind.load(Ordering::Acquire) {
            let cause = "the disk is full, or earlier calls cannot be written down";
            return Err(Refused::Unavailable(cause.into()));
        }
        if self.0.orphaned.load(Ordering::Acquire) {
            return Err(Refused::Unavailable("the disk is full, and what was used before is not written".into()));
        }
        let began_at = clock::now();
        let id = ids::call(began_at).map_err(|problem| Refused::Unavailable(problem.detail))?;
        self.books().hold(&id, session, &call, self.now_ms())?;
        let row = CallRow {
            id: id.clone(),
            session: session.clone(),
            sandbox: sandbox.clone(),
            model: shortened(call.model),
            upstream: call.upstream,
            began_at,
            held_tokens: call.bound.tokens,
            held_micros: call.bound.micros,
        };
        match &self.0.record {
            Record::Journal(journal) => self.begin_in(journal, row)?,
            Record::Commit => self.begin_committed(row).await?,
        }
        Ok(Reservation { id, held: call.bound })
    }

    fn begin_in(&self, journal: &Journal, row: CallRow) -> Result<(), Refused> {
        let id = row.id.clone();
        let safe = journal.append(&row).map_err(|error| {
            self.books().strike(&id);
            let full = error.kind() == std::io::ErrorKind::StorageFull;
            let cause = if full { "the disk is full".to_owned() } else { error.to_string() };
            Refused::Unavailable(format!("the call cannot be written down: {cause}"))
        })?;
        self.order(Order::Begin(row, Safe::Journal(safe))).inspect_err(|_| self.books().strike(&id))
    }

    async fn begin_committed(&self, row: CallRow) -> Result<(), Refused> {
        // Whoever stops waiting makes no call.
        let mut struck = Struck { ledger: self, id: Some(row.id.clone()) };
        let (told, written) = oneshot::channel();
        self.order(Order::Begin(row, Safe::Told(told)))?;
        if !written.await.unwrap_or(false) {
            return Err(Refused::Unavailable("the call cannot be written down: the database does not take it".into()));
        }
        struck.id = None;
        Ok(())
    }

    fn order(&self, order: Order) -> Result<(), Refused> {
        self.0.orders.send(order).map_err(|_| closed())
    }

    pub(crate) fn settle(&self, reservation: Reservation, end: Settlement) {
        self.end(&reservation.id, end);
    }

    fn end(&self, id: &str, mut end: Settlement) {
        end.note = end.note.map(shortened);
        let settled = self.books().settle(id, end, self.now_ms());
        let Some((session, end)) = settled else { return };
        if self.0.orders.send(Order::End(session, end)).is_err() {
            tracing::warn!(call = id, "a call ended after the ledger: the next server takes it at what was held");
        }
    }

    /// For the next call. `Missing` if there is no such session.
    pub(crate) async fn set_budget(&self, session: &SessionId, limits: &SetBudget) -> store::Result<()> {
        let _bringing = self.0.bringing.lock().await;
        self.0.store.set_budget(session, limits).await?;
        if let Some(standing) = self.books().get_mut(session) {
            standing.limits = in_micros(limits);
        }
        Ok(())
    }

    pub(crate) async fn switch_model(&self, session: &SessionId, model: Option<&str>) -> store::Result<()> {
        let _bringing = self.0.bringing.lock().await;
        self.0.store.set_model(session, model).await?;
        if let Some(standing) = self.books().get_mut(session) {
            standing.model = model.map(str::to_owned);
        }
        Ok(())
    }

    /// All that was reserved and settled until now is in the store when it returns, as far as that takes it.
    pub(crate) async fn flush(&self) {
        let (done, flushed) = oneshot::channel();
        if self.0.orders.send(Order::Flush(done)).is_ok() {
            // An error means that the task has ended, which it does when all is written.
            flushed.await.ok();
        }
    }

    /// All that was settled is written when it returns, and nothing more can be reserved.
    pub(crate) async fn close(&self) {
        let (done, closed) = oneshot::channel();
        if self.0.orders.send(Order::Close(done)).is_ok() {
            // An error means that the task has ended, which it does when all is written.
            closed.await.ok();
        }
    }
}

fn closed() -> Refused {
    Refused::Unavailable("the server is shutting down".into())
}

/// Takes a reservation back that came to nothing, unless it is told otherwise.
struct Struck<'l> {
    ledger: &'l Ledger,
    id: Option<String>,
}

impl Drop for Struck<'_> {
    fn drop(&mut self) {
        let Some(id) = self.id.take() else { return };
        self.ledger.books().strike(&id);
        // At the ledger's end the next server ends it, at what was held.
        self.ledger.0.orders.send(Order::Strike(id)).ok();
    }
}

impl Shared {
    async fn standing(&self, session: &SessionId, now_ms: u64) -> store::Result<Standing> {
        let row = self.store.session(session).await?;
        let row = row.ok_or_else(|| Error::Missing(format!("session {session}")))?;
        let account = self.account(session, now_ms).await?;
        Ok(Standing { limits: in_micros(&row.limits), account, parent: row.parent, model: row.model, needed: 0 })
    }

    /// As the store has it, with what still counts for a rate.
    async fn account(&self, session: &SessionId, now_ms: u64) -> store::Result<Account> {
        let now = clock::now();
        let window = TimeDelta::from_std(WINDOW).unwrap_or_default();
        let (tokens, micros) = self.store.used(session).await?;
        let recent = self.store.settled_since(session, now - window).await?;
        let of_recent = recent.iter().fold(0_u64, |sum, (_, tokens)| sum.saturating_add(*tokens));
        let mut account = Account::with_used(Amount { tokens: tokens.saturating_sub(of_recent), micros });
        for (at, tokens) in recent {
            let ago = u64::try_from((now - at).num_milliseconds()).unwrap_or(0);
            account.settle(Amount::default(), Amount { tokens, micros: 0 }, now_ms.saturating_sub(ago));
        }
        Ok(account)
    }
}

fn shortened(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(LONGEST));
    text
}

fn in_micros(limits: &SetBudget) -> Limits {
    Limits { tokens: limits.tokens, micros: limits.usd.map(micros), per_minute: limits.per_minute }
}

/// It may have been made: what was held stands.
fn orphaned(call: CallRow) -> LedgerEntry {
    LedgerEntry::End(CallEnd {
        id: call.id,
        ended_at: clock::now(),
        estimated: true,
        tokens: call.held_tokens,
        micros: call.held_micros,
        note: Some("the server ended while it was under way".into()),
        ..CallEnd::default()
    })
}

async fn end_orphans(ledger: Weak<Shared>, orphans: Vec<LedgerEntry>, left: Left) {
    loop {
        tokio::time::sleep(RETRY_ORPHANS).await;
        let Some(shared) = ledger.upgrade() else { return };
        let _bringing = shared.bringing.lock().await;
        let ledger = Ledger(shared.clone());
        let ended = async {
            shared.store.write_promised(orphans.clone()).await?;
            // Nothing can have been reserved: the books hold only what the store had.
            let sessions = ledger.books().sessions();
            for session in sessions {
                let account = shared.account(&session, ledger.now_ms()).await?;
                if let Some(standing) = ledger.books().get_mut(&session) {
                    standing.account = account;
                }
            }
            store::Result::Ok(())
        };
        match ended.await {
            Ok(()) => {
                shared.orphaned.store(false, Ordering::Release);
                return left.forget();
            }
            Err(Error::DiskFull) => {}
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::error!(error, "calls that an earlier server left cannot be ended");
            }
        }
    }
}
