//! Pools: warm sandboxes of a template, made ahead and waiting to be claimed by a create.
//!
//! What is warm is in memory, and taken out of it before anything else happens to it, so that no two creates get the
//! same one. Each member also has a row in the store, written when it is warm and removed in the transaction that makes
//! it a sandbox: a server that is killed at any point leaves members that the next one adopts or destroys.
//! One task, the keeper, decides what is made and what goes.

mod claim;
mod keeper;
mod member;
mod native;
mod pressure;

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use sandbar_api::{Code, Idle, Pool, Problem, SandboxId, SetBudget, StateReason, Template, pool::MAX_POOL};
use sha2::{Digest as _, Sha256};
use tokio::{
    sync::{Notify, mpsc, oneshot, watch},
    time::Instant,
};

use self::{member::Member, pressure::Pressure};
use crate::{Engine, Inner, owner, problem, store};

pub(crate) use claim::claim;
#[cfg(test)]
pub(crate) use keeper::TICK;
pub(crate) use keeper::keep;

/// Sizes that may wait for the keeper; more callers wait to be let in.
const ORDERS: usize = 16;
const CLAIMING: &str = "claiming";

/// What it was made from, and by which version.
type Digest = [u8; 32];

pub(crate) struct Pools {
    states: Mutex<BTreeMap<String, State>>,
    orders: mpsc::Sender<Order>,
    /// Something is different: the keeper looks again.
    changed: Notify,
    /// Creates that somebody waits for.
    busy: AtomicUsize,
    /// Why members are released rather than made.
    short: Mutex<Option<String>>,
    pressure: Mutex<Pressure>,
}

/// A pool, or what is left of one (of size 0).
#[derive(Default)]
struct State {
    size: u32,
    members: VecDeque<Member>,
    /// Being made, or made and not yet taken in or gone again.
    making: watch::Sender<u32>,
    /// Of the template, as last read.
    digest: Option<Digest>,
    trouble: Option<Trouble>,
    /// Of a provider that keeps its pools itself: what it was told.
    ordered: Option<native::Ordered>,
    /// Whose turn it is to tell it: what was said first must not be heard last.
    turn: Arc<tokio::sync::Mutex<()>>,
    /// The provider cannot bind a workspace late.
    no_workspaces: bool,
}

/// Why members cannot be made.
struct Trouble {
    cause: String,
    failures: u32,
    again: Instant,
}

pub(crate) struct Order {
    template: String,
    size: u32,
    reply: oneshot::Sender<Result<Pool, Problem>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pools {
    pub(crate) fn new() -> (Self, mpsc::Receiver<Order>) {
        let (orders, inbox) = mpsc::channel(ORDERS);
        let pools = Self {
            states: Mutex::default(),
            orders,
            changed: Notify::new(),
            busy: AtomicUsize::new(0),
            short: Mutex::default(),
            pressure: Mutex::new(Arc::new(pressure::of_host)),
        };
        (pools, inbox)
    }

    fn states(&self) -> MutexGuard<'_, BTreeMap<String, State>> {
        lock(&self.states)
    }

    /// As if all places were being filled already, so that no more members are made.
    #[cfg(test)]
    pub(crate) fn stop_filling(&self, template: &str) {
        if let Some(state) = self.states().get_mut(template) {
            state.making.send_modify(|making| *making += state.size);
        }
    }

    fn exists(&self, template: &str) -> bool {
        self.states().get(template).is_some_and(|state| state.size > 0)
    }

    fn list(&self) -> Vec<Pool> {
        let short = lock(&self.short).clone();
        let states = self.states();
        let pools = states.iter().filter(|(_, state)| state.size > 0);
        pools.map(|(template, state)| state.show(template, short.clone())).collect()
    }

    /// How many are warm, by template.
    pub(crate) fn warm(&self) -> BTreeMap<String, u64> {
        let pools = self.list().into_iter();
        pools.map(|pool| (pool.template, u64::from(pool.warm))).collect()
    }

    /// While it is held, pools are filled with less zeal.
    pub(crate) fn busy(&self) -> Busy<'_> {
        self.busy.fetch_add(1, Ordering::Relaxed);
        Busy(self)
    }

    #[cfg(test)]
    pub(crate) fn feel(&self, pressure: impl Fn() -> Option<String> + Send + Sync + 'static) {
        *lock(&self.pressure) = Arc::new(pressure);
    }
}

/// A create that somebody waits for.
pub(crate) struct Busy<'p>(&'p Pools);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.busy.fetch_sub(1, Ordering::Relaxed);
    }
}

impl State {
    fn warm(&self) -> u32 {
        u32::try_from(self.members.len()).unwrap_or(u32::MAX)
    }

    fn show(&self, template: &str, short: Option<String>) -> Pool {
        let trouble = || self.trouble.as_ref().map(|trouble| trouble.cause.clone());
        if let Some(ordered) = &self.ordered {
            return ordered.show(template, trouble());
        }
        let reason = if self.warm() < self.size { short.or_else(trouble) } else { None };
        Pool { template: template.to_owned(), size: self.size, warm: self.warm(), reason }
    }
}

impl Engine {
    /// How many sandboxes of a template are kept warm. 0 ends the pool, and returns when its members are gone.
    pub async fn set_pool(&self, template: &str, size: u32) -> Result<Pool, Problem> {
        if size > MAX_POOL {
            return Err(Problem::new(
                Code::BadRequest,
                format!("A pool cannot have {size} sandboxes."),
                format!("Ask for at most {MAX_POOL}; 0 ends the pool."),
            ));
        }
        // A pool can be ended whatever became of its template.
        if size > 0 || !self.inner.pools.exists(template) {
            let template = self.template(template).await?;
            self.inner.provider(&template.provider)?;
        }
        let (reply, answer) = oneshot::channel();
        let order = Order { template: template.to_owned(), size, reply };
        let sent = self.inner.pools.orders.send(order).await;
        sent.map_err(|_| problem::shutting_down())?;
        answer.await.map_err(|_| problem::shutting_down())?
    }

    /// By name of their templates.
    pub async fn pools(&self) -> Result<Vec<Pool>, Problem> {
        native::refresh(&self.inner).await;
        Ok(self.inner.pools.list())
    }
}

/// Which pools there are; returns the members that an earlier server left, for the keeper to adopt.
pub(crate) async fn load(inner: &Inner) -> store::Result<Vec<store::PoolMember>> {
    let (rows, members) = (inner.store.pools().await?, inner.store.pool_members().await?);
    let states = rows.into_iter().map(|row| (row.template, State { size: row.size, ..State::default() }));
    inner.pools.states().extend(states);
    Ok(members)
}

/// Whether this is a claim that was not finished: the workspace may or may not be bound, so nobody can have it.
pub(crate) fn is_claiming(reason: &StateReason) -> bool {
    reason.code == CLAIMING
}

pub(crate) fn claiming() -> StateReason {
    owner::reason(CLAIMING, "Its workspace is being bound.")
}

/// What happens by the clock and what calls may cost is the engine's to know: sandboxes that differ in nothing else can be
/// made of the same member.
fn digest(template: &Template) -> Option<Digest> {
    let canonical = Template { ttl: None, idle: Idle::default(), budget: SetBudget::default(), ..template.clone() };
    let canonical = canonical.canonical().ok()?;
    Some(Sha256::new().chain_update(canonical).chain_update(env!("CARGO_PKG_VERSION")).finalize().into())
}

/// Takes out what `matches`, for whoever ends it.
fn pick(state: &mut State, matches: impl Fn(&Member) -> bool) -> Vec<Member> {
    let (gone, stay) = std::mem::take(&mut state.members).into_iter().partition(matches);
    state.members = stay;
    Vec::from(gone)
}

impl Pools {
    /// One for a request, which may have a workspace of the host's to be bound.
    fn take(&self, template: &Template, binds: bool) -> Option<Member> {
        // Most creates are of templates that nobody keeps warm.
        let unfit = |state: &State| state.members.is_empty() || (binds && state.no_workspaces);
        if self.states().get(&template.name).is_none_or(unfit) {
            return None;
        }
        let digest = digest(template)?;
        let mut states = self.states();
        let members = &mut states.get_mut(&template.name)?.members;
        let at = members.iter().position(|member| member.digest == digest)?;
        let mut member = members.remove(at)?;
        member.watch = None;
        drop(states);
        self.changed.notify_one();
        Some(member)
    }

    fn bind_no_workspace(&self, template: &str) {
        if let Some(state) = self.states().get_mut(template) {
            state.no_workspaces = true;
        }
    }

    /// Its guest is no longer alive.
    fn lose(&self, template: &str, id: &SandboxId) -> Vec<Member> {
        let mut states = self.states();
        states.get_mut(template).map(|state| pick(state, |member| member.id == *id)).unwrap_or_default()
    }
}
