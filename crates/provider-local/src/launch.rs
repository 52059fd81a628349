//! What the server asks of the launcher, and what it gets back.

use sandbar_api::SandboxId;
use serde::{Deserialize, Serialize};

use crate::{bound::Bound, step::Failure, uids::Uids};

/// Comes with two or three descriptors: the sandbox's directory, the lower layer, and a bound workspace if there is one.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Launch {
    pub id: SandboxId,
    pub hostname: String,
    pub uids: Uids,
    pub root: RootKind,
    /// Set exactly when the third descriptor is there.
    pub workspace: Option<Bound>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RootKind {
    Host,
    Image,
}

/// `Launched` comes with two descriptors: the guest's pidfd and the pipe on which it tells how its boot went.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Reply {
    Launched,
    Failed(Failure),
}

/// What the launcher tells the booting guest; comes with the lower layer's tree and the workspace's.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Go;
