//! The Provider trait: what makes sandboxes. One contract for local kernel isolation, containers, microVMs and
//! Kubernetes; `suite` holds the tests every implementation must pass.

pub mod identity;
pub mod ownership;
pub mod relay;
pub mod report;
pub mod suite;
pub mod tls;
pub mod unix;

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use async_trait::async_trait;
use sandbar_api::{
    ClusterCheck, ClusterReport, InstanceId, Kubernetes, Layer, LayerReport, Limits, Profile, Requirement, Root,
    SandboxId, SnapshotId, User, WorkspaceSource, profile,
};
use sandbar_guest::protocol::guest_client::GuestClient;
use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::mpsc,
};
use tonic::transport::Channel;

pub use ownership::{Made, Mark, Origin, Quarantine};
pub use report::{Finding, HostReport};

/// A connection to a sandbox's guest, cheap to clone.
pub type Guest = GuestClient<Channel>;

/// Everything a provider needs to make a sandbox, or to start it again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Spec {
    pub id: SandboxId,
    /// Its name is its host name.
    pub hostname: String,
    pub root: Root,
    pub workspace: WorkspaceSource,
    /// What the profile and the template together ask of each layer but the limits.
    pub layers: BTreeMap<Layer, Requirement>,
    pub user: User,
    pub limits: Limits,
    /// Its first files are those of this snapshot.
    pub from: Option<SnapshotId>,
    /// A directory of the host that is seen at `/skills`, read-only. Its path has no symbolic link in it, and it is found
    /// anew whenever the sandbox starts.
    #[serde(default)]
    pub skills: Option<String>,
    /// The template's name, for those who make something of their own for each template.
    #[serde(default)]
    pub template: String,
    /// What only a cluster has use for.
    #[serde(default)]
    pub kubernetes: Kubernetes,
    /// The store it is made for; absent where none remembers it.
    #[serde(default)]
    pub origin: Option<Origin>,
}

impl Spec {
    /// With the host's programs, an empty workspace and the standard profile.
    pub fn standard(id: SandboxId, hostname: impl Into<String>) -> Self {
        Self {
            id,
            hostname: hostname.into(),
            root: Root::Host,
            workspace: WorkspaceSource::Empty,
            layers: Profile::named(profile::DEFAULT).map(|profile| profile.layers).unwrap_or_default(),
            user: User::Agent,
            limits: Limits::default(),
            from: None,
            skills: None,
            template: "default".into(),
            kubernetes: Kubernetes::default(),
            origin: None,
        }
    }

    /// What is asked of a layer; a limit is required exactly when it is stated.
    pub fn requirement(&self, layer: Layer) -> Requirement {
        let stated = |stated: bool| if stated { Requirement::Required } else { Requirement::Off };
        match layer {
            Layer::Memory => stated(self.limits.memory.is_some()),
            Layer::Cpu => stated(self.limits.cpus.is_some()),
            Layer::Processes => stated(self.limits.processes.is_some()),
            Layer::OpenFiles => stated(self.limits.open_files.is_some()),
            Layer::Tmpfs => stated(self.limits.tmpfs.is_some()),
            Layer::Disk => stated(self.limits.disk.is_some()),
            other => self.layers.get(&other).copied().unwrap_or(Requirement::Off),
        }
    }
}

/// What a sandbox has run into so far; numbers only ever grow while it runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Processes that the kernel killed for want of memory.
    pub oom_kills: u64,
    /// Forks that the process limit refused.
    pub refused_forks: u64,
    /// Whether there is no room left within the process limit now.
    pub processes_full: bool,
    /// Whether there is no room left within the disk limit.
    pub disk_full: bool,
    /// Processor time of all workload processes, where it can be told.
    pub cpu: Option<Duration>,
}

/// Where a sandbox's programs connect to when they want out.
#[derive(Debug)]
#[non_exhaustive]
pub enum Gate {
    /// A listener inside the sandbox's network, on loopback.
    Listener(std::net::TcpListener),
    /// Where no descriptor can be handed over: the guest listens, and what it accepts comes over the server's connection.
    Relay(Relay),
}

/// Connections of programs inside, carried by the guest. Dropping it leaves later ones waiting in the guest's backlog.
#[derive(Debug)]
pub struct Relay {
    /// Where programs inside find the gate, on their loopback.
    pub port: u16,
    pub connections: mpsc::Receiver<Carried>,
}

/// One connection; ends of either side pass through.
pub type Carried = Box<dyn Duplex>;

pub trait Duplex: AsyncRead + AsyncWrite + Send + Unpin + std::fmt::Debug + 'static {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin + std::fmt::Debug + 'static> Duplex for T {}

/// Sandboxes that a provider itself keeps warm.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warm {
    /// Ready to be handed out now.
    pub ready: u32,
    /// Why there are fewer than wanted, where that is known.
    pub reason: Option<String>,
}

/// What a provider found of its own making.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    pub id: SandboxId,
    /// Whether its guest is alive; otherwise only its files are there.
    pub running: bool,
    pub mark: Option<Mark>,
}

/// A snapshot that a provider found of its own making.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundSnapshot {
    pub id: SnapshotId,
    pub mark: Option<Mark>,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Fail closed: the host lacks a layer that the sandbox requires.
    #[error("{layer} cannot be enforced on this host: {cause}")]
    NotEnforceable { layer: &'static str, cause: String, fix: String },
    #[error("sandbox {0} is not known to the provider")]
    Unknown(SandboxId),
    #[error("{what} cannot be used: {cause}")]
    BadSpec { what: String, cause: String, fix: String },
    /// What only another template, or another image, changes.
    #[error("{what} cannot be used: {cause}")]
    BadTemplate { what: String, cause: String, fix: String },
    #[error("the disk that holds {path} is full")]
    DiskFull { path: PathBuf },
    #[error("the guest of {id} does not answer: {cause}")]
    Unreachable { id: SandboxId, cause: String },
    /// Not every provider can do everything.
    #[error("the provider `{provider}` cannot {verb} a sandbox")]
    Declined { provider: &'static str, verb: &'static str },
    /// There is nothing wrong with the sandbox: what it would take is used up.
    #[error("there is no room for the sandbox: {cause}")]
    NoRoom { cause: String, fix: String },
    /// What makes and holds sandboxes elsewhere did not do its part.
    #[error("the cluster did not do its part: {cause}")]
    Cluster { cause: String, fix: String },
    #[error("failed to {action}")]
    Io { action: String, source: std::io::Error },
}

impl Error {
    pub fn io(action: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let action = action.into();
        move |source| Self::Io { action, source }
    }
}

/// Verbs are idempotent: after an error, or a crash in the middle, the same call again finishes the work.
#[async_trait]
pub trait Provider: Send + Sync + 'static {
    /// As templates name it.
    fn name(&self) -> &'static str;

    /// What this host can enforce, tried for real, with the fix for what it cannot.
    async fn probe(&self) -> HostReport;

    /// Whether its cluster can hold sandboxes, for one that has a cluster.
    async fn check(&self, _asked: &ClusterCheck) -> Option<ClusterReport> {
        None
    }

    /// Told once, before anything else is asked: the store that it works for.
    fn serve(&self, _instance: &InstanceId) {}

    /// Makes the sandbox's files and starts it. Leaves nothing behind when it fails.
    async fn create(&self, spec: &Spec) -> Result<(), Error>;

    /// Starts a sandbox whose files exist. The spec is the one it was created with, but for what was bound late.
    async fn start(&self, spec: &Spec) -> Result<(), Error>;

    /// Gives a running sandbox that nobody has used yet the host name and the workspace of `spec`.
    async fn bind(&self, _spec: &Spec) -> Result<(), Error> {
        Err(Error::Declined { provider: self.name(), verb: "claim" })
    }

    /// Whether its sandboxes are on other machines, so that a restart of this one says nothing about them.
    fn is_elsewhere(&self) -> bool {
        false
    }

    /// Whether it keeps warm sandboxes itself, so that `create` hands one out when there is one.
    fn keeps_pools(&self) -> bool {
        false
    }

    /// Keeps so many sandboxes of the spec's template warm from now on, whatever its id; 0 for none. Tells how many are
    /// ready, and may be repeated to learn that.
    async fn pool(&self, _spec: &Spec, _size: u32) -> Result<Warm, Error> {
        Err(Error::Declined { provider: self.name(), verb: "keep warm" })
    }

    /// Inspects a sandbox that nobody waits for yet, and does once what is slow the first time. Leaves no trace in it.
    async fn warm(&self, spec: &Spec) -> Result<Vec<LayerReport>, Error> {
        self.inspect(spec).await
    }

    /// What is in force, by a probe inside this very sandbox: a report for each layer.
    async fn inspect(&self, spec: &Spec) -> Result<Vec<LayerReport>, Error>;

    /// Holds every process but the guest still; returns when they stand. Repeating it is fine.
    async fn freeze(&self, _id: &SandboxId) -> Result<(), Error> {
        Err(Error::Declined { provider: self.name(), verb: "pause" })
    }

    async fn thaw(&self, _id: &SandboxId) -> Result<(), Error> {
        Err(Error::Declined { provider: self.name(), verb: "resume" })
    }

    /// Keeps the sandbox's files as they are now, under a name that outlives the sandbox, and tells the bytes that took.
    /// The caller has frozen or stopped it. Leaves nothing behind when it fails; repeating it keeps what was kept.
    async fn snapshot(&self, _id: &SandboxId, _snapshot: &SnapshotId) -> Result<u64, Error> {
        Err(Error::Declined { provider: self.name(), verb: "snapshot" })
    }

    /// Gives a snapshot up. What sandboxes made from it stand on stays until they are gone. Fine if there is none.
    async fn discard(&self, _snapshot: &SnapshotId) -> Result<(), Error> {
        Ok(())
    }

    /// All snapshots that were not given up, after a restart of the server too.
    async fn snapshots(&self) -> Result<Vec<FoundSnapshot>, Error> {
        Ok(Vec::new())
    }

    /// Writes down whose it is. What is quarantined is held still where that loses nothing, is never removed by itself, and
    /// loses its quarantine with the next mark. `Unknown`, or fine, if there is none.
    async fn mark(&self, _made: Made<'_>, _mark: &Mark) -> Result<(), Error> {
        Ok(())
    }

    /// What a sandbox, or the origin of a snapshot, was made by, where that was written down.
    async fn spec(&self, _made: Made<'_>) -> Result<Option<Spec>, Error> {
        Ok(None)
    }

    /// What the sandbox has run into so far.
    async fn counters(&self, _id: &SandboxId) -> Result<Counters, Error> {
        Ok(Counters::default())
    }

    /// Returns when a fork was refused by the process limit since the call. Never, where there is no such limit.
    async fn refused_fork(&self, _id: &SandboxId) -> Result<(), Error> {
        std::future::pending().await
    }

    /// Ends every process; files stay. Returns when they are gone.
    async fn stop(&self, id: &SandboxId) -> Result<(), Error>;

    /// Ends every process of a sandbox that is to be destroyed next, as soon as that is recorded.
    async fn end(&self, id: &SandboxId) -> Result<(), Error> {
        self.stop(id).await
    }

    /// Whether a sandbox that is stopped, or whose guest died, still has its files.
    fn keeps_files(&self, _spec: &Spec) -> bool {
        true
    }

    /// Ends every process and removes every trace; fine if there is none.
    async fn destroy(&self, id: &SandboxId) -> Result<(), Error>;

    /// All sandboxes of its making, after a restart of the server too.
    async fn list(&self) -> Result<Vec<Found>, Error>;

    /// Connects to the guest of a running sandbox.
    async fn connect(&self, id: &SandboxId) -> Result<Guest, Error>;

    /// The way out of a running sandbox: where its programs connect to, for whoever decides about it. May be asked for
    /// again, also by another server; connections that nobody accepts wait.
    async fn gate(&self, _id: &SandboxId) -> Result<Gate, Error> {
        Err(Error::Declined { provider: self.name(), verb: "open a gate for" })
    }

    /// Returns when the sandbox's guest is no longer alive.
    async fn gone(&self, id: &SandboxId) -> Result<(), Error>;
}
