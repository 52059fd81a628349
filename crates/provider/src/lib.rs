//! The Provider trait: what makes sandboxes. One contract for local kernel isolation, containers, microVMs and
//! Kubernetes; `suite` holds the tests every implementation must pass.

pub mod report;
pub mod suite;
pub mod unix;

use std::path::PathBuf;

use async_trait::async_trait;
use sandbar_api::{Root, SandboxId, WorkspaceSource};
use sandbar_guest::protocol::guest_client::GuestClient;
use serde::{Deserialize, Serialize};
use tonic::transport::Channel;

pub use report::{Finding, HostReport};

/// A connection to a sandbox's guest, cheap to clone.
pub type Guest = GuestClient<Channel>;

/// Everything a provider needs to make a sandbox; stored with it, so that `start` needs nothing else.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spec {
    pub id: SandboxId,
    /// Its name is its host name.
    pub hostname: String,
    pub root: Root,
    pub workspace: WorkspaceSource,
}

/// What a provider found of its own making.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    pub id: SandboxId,
    /// Whether its guest is alive; otherwise only its files are there.
    pub running: bool,
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
    #[error("the disk that holds {path} is full")]
    DiskFull { path: PathBuf },
    #[error("the guest of {id} does not answer: {cause}")]
    Unreachable { id: SandboxId, cause: String },
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

    /// Makes the sandbox's files and starts it. Leaves nothing behind when it fails.
    async fn create(&self, spec: &Spec) -> Result<(), Error>;

    /// Starts a sandbox whose files exist.
    async fn start(&self, id: &SandboxId) -> Result<(), Error>;

    /// Ends every process; files stay. Returns when they are gone.
    async fn stop(&self, id: &SandboxId) -> Result<(), Error>;

    /// Ends every process and removes every trace; fine if there is none.
    async fn destroy(&self, id: &SandboxId) -> Result<(), Error>;

    /// All sandboxes of its making, after a restart of the server too.
    async fn list(&self) -> Result<Vec<Found>, Error>;

    /// Connects to the guest of a running sandbox.
    async fn connect(&self, id: &SandboxId) -> Result<Guest, Error>;

    /// Returns when the sandbox's guest is no longer alive.
    async fn gone(&self, id: &SandboxId) -> Result<(), Error>;
}
