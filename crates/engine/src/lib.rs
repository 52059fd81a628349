//! Sandboxes, sessions and processes; the store and the event log. Surfaces call it, providers are called by it.
//!
//! [`Engine`] is the whole of what surfaces see. Each sandbox has one owner, a task that takes the verbs of its life in
//! turn; each process has one pump, a task that takes its output from the guest into the store.

mod activity;
mod approvals;
mod browsers;
mod budget;
mod clock;
mod create;
mod enforcement;
mod exec;
mod expiry;
mod files;
mod fork;
mod gate;
mod guard;
mod handle;
mod home;
mod identity;
mod idle;
mod ids;
mod limits;
mod metrics;
mod open;
mod output;
mod owner;
mod patience;
mod pool;
mod ports;
mod problem;
mod process;
mod pump;
mod quarantine;
mod reconcile;
mod registry;
mod restarts;
mod runtimes;
mod sandbox;
mod search;
mod sessions;
mod signals;
mod snapshot;
pub mod store;
mod templates;
mod terminals;
#[cfg(test)]
mod tests;
mod tokens;
mod webhooks;
mod workspaces;

use std::{collections::BTreeMap, fs::File, path::PathBuf, pin::Pin, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::Stream;
use sandbar_api::{Code, InstanceId, Problem, Role, Sandbox, SandboxState, SessionId};
use sandbar_provider::{Origin, Provider};
use tokio::sync::{Notify, watch};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub use approvals::ApprovalQuery;
pub use budget::UsageAsked;
pub use guard::{abort_on_panic, guarded};
pub use identity::Mismatch;
pub use open::{OpenError, StoreAt};
pub use output::{OutputItem, OutputReader};
pub use ports::Dialled;
pub use search::{Hit, Hits, SearchQuery};
pub use sessions::{SessionOutcome, SessionQuery};
pub use terminals::{AttachAsk, Attached, Keyboard, Look, Recording, TranscriptQuery, Viewed, Viewer};
pub use workspaces::{ConversationId, LIMIT as WORKSPACE_LIMIT, NewConversation, Workspace};

/// Bytes on their way, a chunk at a time.
pub type ByteStream = Pin<Box<dyn Stream<Item = Result<Bytes, Problem>> + Send>>;

#[derive(Default)]
pub struct Config {
    /// The directory that holds everything of this engine.
    pub home: PathBuf,
    /// The first is that of templates which name none.
    pub providers: Vec<Arc<dyn Provider>>,
    /// Whether there is somebody who answers approvals; if not, what a rule says to ask about is denied.
    pub asks: bool,
    /// Start also over files that the store was not made for; what it does not know is then quarantined.
    pub adopt: bool,
    /// How long what is quarantined is kept; without it, until somebody removes it.
    pub remove_quarantined_after: Option<Duration>,
}

/// Who calls, decided by the surface from the channel.
#[derive(Clone, Debug)]
pub struct Caller {
    /// `socket` or `token:<id>`.
    pub owner: String,
    pub role: Role,
    /// Of an agent's token: the one session it is bound to.
    pub session: Option<SessionId>,
}

#[derive(Clone, Debug, Default)]
pub struct ListQuery {
    pub labels: BTreeMap<String, String>,
    /// Empty: all but deleted.
    pub states: Vec<SandboxState>,
    pub limit: Option<u32>,
    pub cursor: Option<String>,
}

#[derive(Debug)]
pub struct CreateOutcome {
    pub sandbox: Sandbox,
    /// The same key made it before.
    pub replayed: bool,
}

/// Cheap to clone; its tasks end with [`Engine::shutdown`] or with the last clone.
#[derive(Clone)]
pub struct Engine {
    inner: Arc<Inner>,
    /// For calls that only look into a sandbox.
    asleep: handle::IfAsleep,
    _ending: Arc<Ending>,
}

struct Inner {
    home: PathBuf,
    /// Which store it is.
    instance: InstanceId,
    store: Arc<dyn store::Store>,
    providers: BTreeMap<&'static str, Arc<dyn Provider>>,
    /// Of templates that name no provider.
    usual: &'static str,
    registry: registry::Registry,
    pools: pool::Pools,
    metrics: metrics::Metrics,
    gates: gate::Gates,
    terminals: terminals::Terminals,
    webhooks: webhooks::Webhooks,
    /// A sandbox was made that may expire before all others.
    expiry: Notify,
    /// Something is to be started again that may be due before all others.
    restarts: Notify,
    beginnings: sessions::Beginnings,
    workspaces: workspaces::Workspaces,
    /// A sandbox that can be idle changed its state.
    idle: Notify,
    patience: patience::Patience,
    /// Counts tokens that were revoked, for those whose calls last.
    revoked: watch::Sender<u64>,
    /// No more verbs.
    closing: CancellationToken,
    /// No more pumping.
    halt: CancellationToken,
    owners: TaskTracker,
    tasks: TaskTracker,
    /// Of the home.
    lock: File,
}

impl Inner {
    /// For what is made now.
    fn origin(&self) -> Origin {
        Origin { instance: self.instance.clone(), epoch: *self.store.head().borrow() }
    }

    fn templates(&self) -> PathBuf {
        self.home.join("templates")
    }

    fn provider(&self, name: &str) -> Result<Arc<dyn Provider>, Problem> {
        self.providers.get(name).cloned().ok_or_else(|| {
            let known: Vec<_> = self.providers.keys().copied().collect();
            Problem::new(
                Code::UnknownProvider,
                format!("There is no provider `{}` on this server.", name.escape_debug()),
                format!("Use a template of one of these: {}.", known.join(", ")),
            )
        })
    }
}

impl Engine {
    /// As this caller may use it: who may only look starts nothing by looking.
    #[must_use]
    pub fn of(&self, caller: &Caller) -> Self {
        match caller.role {
            Role::Viewer => Self { asleep: handle::IfAsleep::Refuse, ..self.clone() },
            Role::Agent | Role::Operator | Role::Admin => self.clone(),
        }
    }
}

/// Ends the tasks when the last clone of an engine goes, since each of them holds the engine's inside.
struct Ending(Arc<Inner>);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.closing.cancel();
        self.0.halt.cancel();
    }
}
