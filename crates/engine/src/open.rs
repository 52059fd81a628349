//! Opening and closing an engine: home, store, providers, reconciliation, tasks.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use sandbar_provider::Provider;
use tokio::sync::{Notify, watch};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    Config, Ending, Engine, Inner, approvals, expiry,
    gate::Gates,
    handle::IfAsleep,
    home,
    identity::{self, Fit, Mismatch},
    idle,
    metrics::Metrics,
    patience::Patience,
    pool::{self, Pools},
    quarantine, reconcile,
    registry::Registry,
    restarts,
    sessions::Beginnings,
    store::{
        self,
        postgres::{PostgresStore, lead::Lead},
        sqlite::SqliteStore,
    },
    terminals::Terminals,
    webhooks::{self, Webhooks},
    workspaces::Workspaces,
};

/// Why an engine cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("another server{} uses {}", .pid.map(|pid| format!(" (process {pid})")).unwrap_or_default(), .home.display())]
    HomeInUse { home: PathBuf, pid: Option<u32> },
    #[error("{} cannot be written", .path.display())]
    HomeNotWritable { path: PathBuf, source: std::io::Error },
    #[error("others may write to {} (mode {mode:04o})", .home.display())]
    HomeExposed { home: PathBuf, mode: u32 },
    #[error("the host does not tell when it was started")]
    Boot { source: std::io::Error },
    #[error("the store cannot be used")]
    Store(#[source] store::Error),
    #[error("{} is not started: {mismatch}", .home.display())]
    Mismatch { home: PathBuf, mismatch: Mismatch },
    #[error("the provider `{provider}` cannot tell which sandboxes it has")]
    Provider { provider: &'static str, source: sandbar_provider::Error },
    /// Each names file, line, cause and fix.
    #[error("the gateway's configuration is not usable: {}", .0.join(" "))]
    Config(Vec<String>),
    #[error("the gateway cannot be set up")]
    Gateway(#[source] sandbar_gateway::GatewayError),
    #[error("a sandbox's gate cannot be made again")]
    Furnish(#[source] sandbar_api::Problem),
    #[error("{} cannot be used as the key of secrets: {cause}", .path.display())]
    SecretKey { path: PathBuf, cause: String },
    #[error("the sandbox `{sandbox}` was made by the provider `{provider}`, which this server does not have")]
    ProviderMissing { provider: String, sandbox: String },
}

impl OpenError {
    /// What to do about it.
    pub fn fix(&self) -> String {
        match self {
            Self::HomeInUse { .. } => "Use that server, stop it first, or choose another --home.".into(),
            Self::HomeNotWritable { path, .. } => {
                format!("Make {} writable for this user, or choose another --home.", path.display())
            }
            Self::HomeExposed { home, .. } => format!("chmod go-w {}", home.display()),
            Self::Boot { .. } => "Mount /proc.".into(),
            Self::Store(store::Error::DiskFull) => "Free space on the disk that holds the home.".into(),
            Self::Store(store::Error::Unusable { fix, .. }) => fix.clone(),
            Self::Store(_) => "Look at the cause; restore the home from a backup, or choose another --home.".into(),
            Self::Mismatch { .. } => {
                "Nothing was changed. Put the database back that belongs to these files, or give --adopt to start \
                anyway: what the database does not know is then kept in quarantine. docs/recovery.md has the ways."
                    .into()
            }
            Self::Provider { .. } => "`sandbar doctor` shows what the host lacks.".into(),
            Self::Config(_) => "Correct the file, or move it away.".into(),
            Self::Gateway(_) => "Correct gateway.toml in the home.".into(),
            Self::Furnish(problem) => problem.fix.clone(),
            Self::SecretKey { path, .. } => format!(
                "Restore it from a backup (32 bytes, owned by this user, chmod 600 {}); moved away, a new one is made, and \
                 every secret has to be set again.",
                path.display()
            ),
            Self::ProviderMissing { .. } => {
                "Start a server that has the provider, and delete the sandbox there.".into()
            }
        }
    }
}

/// Where an engine keeps its state.
pub enum StoreAt {
    /// In SQLite and files in the home.
    Home,
    /// In the PostgreSQL that this server leads on. Keys, templates and configuration stay in the home.
    Postgres(Lead),
}

/// What the fingerprint of the secret key is made for.
const FINGERPRINT: &str = "sandbar store fingerprint 1";

impl StoreAt {
    /// Which store it is; none where there is none yet.
    async fn identity(&self, home: &Path) -> Result<Option<store::Identity>, OpenError> {
        let identity = match self {
            Self::Home => SqliteStore::identity(home).await,
            Self::Postgres(lead) => PostgresStore::identity(lead).await.map(Some),
        };
        identity.map_err(OpenError::Store)
    }

    fn has_output(&self, home: &Path) -> Result<bool, OpenError> {
        match self {
            Self::Home => SqliteStore::has_output(home).map_err(OpenError::Store),
            Self::Postgres(_) => Ok(false),
        }
    }

    async fn open(self, home: &Path) -> Result<Arc<dyn store::Store>, OpenError> {
        match self {
            Self::Home => Ok(Arc::new(SqliteStore::open(home).await.map_err(OpenError::Store)?)),
            Self::Postgres(lead) => {
                let fingerprint = Engine::derive(home, FINGERPRINT)?;
                Ok(Arc::new(PostgresStore::open(lead, fingerprint).await.map_err(OpenError::Store)?))
            }
        }
    }
}

/// How well store and files fit; an error if they do not, unless the operator says to start anyway.
fn fit(
    home: &Path,
    at: &StoreAt,
    known: Option<&store::Identity>,
    found: &reconcile::Looked,
    adopt: bool,
) -> Result<Fit, OpenError> {
    let judged = identity::read(home).and_then(|marked| {
        let mut files = identity::Files { home: marked, output: at.has_output(home)?, ..Default::default() };
        for (sandboxes, snapshots) in found.values() {
            files.add(sandboxes, snapshots.as_deref().unwrap_or_default());
        }
        identity::judge(known, &files).map_err(|mismatch| OpenError::Mismatch { home: home.to_owned(), mismatch })
    });
    match judged {
        Ok(()) if known.is_some_and(|known| known.instance.is_none()) => Ok(Fit::Unmarked),
        Ok(()) => Ok(Fit::Same),
        Err(OpenError::Mismatch { mismatch, .. }) if adopt => {
            tracing::warn!(%mismatch, "started because of --adopt; what the database does not know is quarantined");
            Ok(Fit::Other)
        }
        Err(error) => Err(error),
    }
}

impl Engine {
    /// With its state in the home.
    pub async fn open(config: Config) -> Result<Self, OpenError> {
        Self::open_on(config, StoreAt::Home).await
    }

    /// Locks the home, opens the store, finds again what earlier servers left, and starts the tasks.
    pub async fn open_on(config: Config, at: StoreAt) -> Result<Self, OpenError> {
        let lock = home::prepare(&config.home)?;
        let same_boot = home::same_boot(&config.home)?;
        let usual = config.providers.first().map_or("local", |provider| provider.name());
        let providers: BTreeMap<&'static str, Arc<dyn Provider>> =
            config.providers.into_iter().map(|provider| (provider.name(), provider)).collect();
        // Before anything is opened that would change what is there.
        let found = reconcile::look(&providers).await?;
        let known = at.identity(&config.home).await?;
        let fit = fit(&config.home, &at, known.as_ref(), &found, config.adopt)?;
        let store = at.open(&config.home).await?;
        let named = known.and_then(|known| known.instance);
        let instance = match named {
            Some(instance) => instance,
            None => {
                let instance = identity::new()?;
                store.set_instance(&instance).await.map_err(OpenError::Store)?;
                instance
            }
        };
        providers.values().for_each(|provider| provider.serve(&instance));
        let gates = Gates::open(&config.home, &store, config.asks).await?;
        let (pools, orders) = Pools::new();
        let inner = Arc::new(Inner {
            home: config.home,
            instance,
            store,
            providers,
            usual,
            registry: Registry::default(),
            pools,
            metrics: Metrics::default(),
            gates,
            terminals: Terminals::default(),
            webhooks: Webhooks::default(),
            expiry: Notify::new(),
            restarts: Notify::new(),
            beginnings: Beginnings::default(),
            workspaces: Workspaces::default(),
            idle: Notify::new(),
            patience: Patience::default(),
            closing: CancellationToken::new(),
            halt: CancellationToken::new(),
            owners: TaskTracker::new(),
            tasks: TaskTracker::new(),
            revoked: watch::Sender::default(),
            lock,
        });
        // From here on an early return ends the tasks too.
        let engine = Self { _ending: Arc::new(Ending(inner.clone())), asleep: IfAsleep::Wake, inner };
        identity::record(&engine.inner)?;
        reconcile::reconcile(&engine.inner, same_boot, found, fit).await?;
        home::record_boot(&engine.inner.home)?;
        let left = pool::load(&engine.inner).await.map_err(OpenError::Store)?;
        engine.inner.tasks.spawn(pool::keep(engine.inner.clone(), orders, left));
        engine.inner.tasks.spawn(expiry::expire(engine.inner.clone()));
        engine.inner.tasks.spawn(approvals::resume(engine.inner.clone()));
        engine.inner.tasks.spawn(approvals::expire(engine.inner.clone()));
        engine.inner.tasks.spawn(idle::watch(engine.inner.clone()));
        engine.inner.tasks.spawn(restarts::watch(engine.inner.clone()));
        webhooks::start(&engine.inner).await.map_err(OpenError::Store)?;
        engine.inner.tasks.spawn(expiry::prune(engine.inner.clone()));
        engine.inner.tasks.spawn(identity::follow(engine.inner.clone()));
        if let Some(age) = config.remove_quarantined_after {
            engine.inner.tasks.spawn(quarantine::expire(engine.inner.clone(), age));
        }
        Ok(engine)
    }

    /// The directory that holds everything of this engine.
    pub fn home(&self) -> &std::path::Path {
        &self.inner.home
    }

    /// What only this server can have made, under a key of its own for each purpose.
    pub fn mac(&self, purpose: &'static str, message: &[u8]) -> [u8; 32] {
        self.inner.gates.vault.mac(purpose, message)
    }

    /// Like [`Self::mac`] of nothing, for whoever needs it before there is an engine. Makes the home's key if there is none.
    pub fn derive(home: &std::path::Path, purpose: &'static str) -> Result<[u8; 32], OpenError> {
        Ok(crate::gate::Vault::open(home)?.mac(purpose, b""))
    }

    /// Gives a home without a key this one; refused where it has another.
    pub fn adopt_key(home: &std::path::Path, file: &std::path::Path) -> Result<(), OpenError> {
        crate::gate::Vault::adopt(home, file)
    }

    /// Where this server listens, which no sandbox may reach through its gate: an agent with a stolen token would be its own
    /// operator.
    pub fn keep_away(&self, own: std::net::SocketAddr) {
        self.inner.gates.gateway.keep_away(own);
    }

    /// Lets verbs under way finish, then ends all tasks and closes the store. Sandboxes go on.
    pub async fn shutdown(&self) {
        let inner = &self.inner;
        inner.closing.cancel();
        inner.owners.close();
        inner.owners.wait().await;
        // Only now: owners that stop or delete a sandbox wait for its pumps to write down the ends.
        inner.halt.cancel();
        inner.tasks.close();
        inner.tasks.wait().await;
        inner.gates.ledger.close().await;
        inner.gates.facts.close().await;
        identity::finish(inner);
        inner.store.close().await;
        // Readers that somebody still holds must not keep the next server out.
        if let Err(error) = inner.lock.unlock() {
            tracing::warn!(%error, "the home stays locked until this process ends");
        }
    }
}
