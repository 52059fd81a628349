//! What the server asks of the launcher, and what it gets back.

use std::{collections::BTreeMap, path::PathBuf};

use sandbar_api::{Layer, Requirement, SandboxId, User};
use serde::{Deserialize, Serialize};

use crate::{bound::Bound, cgroup::Shape, directory::Data, fence::Wanted, oom::Scores, step::Failure, uids::Uids};

/// Each is carried out by a fork of the launcher, which tells on a pipe how it went.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Request {
    Launch(Box<Launch>),
    Bind(Box<Bind>),
    Keep(Keep),
}

/// Start a guest. Comes with descriptors, in this order: the sandbox's directory, the lower layer, a bound workspace if
/// there is one, the skills and the image likewise, each layer, and of groups the guest's, the workload's and those to join.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Launch {
    pub id: SandboxId,
    pub hostname: String,
    pub uids: Uids,
    pub root: RootKind,
    pub user: User,
    pub workspace: Option<Bound>,
    /// What is seen at /skills, read-only.
    pub skills: Option<Bound>,
    pub data: Data,
    /// Where the lower layer is: who has one uid opens it again by its path.
    pub lower: PathBuf,
    /// What lies between the lower layer and the sandbox's own files, nearest first.
    pub layers: Vec<Below>,
    pub asked: BTreeMap<Layer, Requirement>,
    pub tmp_size: Option<u64>,
    pub open_files: Option<u32>,
    pub groups: Option<Shape>,
}

impl Launch {
    pub(crate) fn asked(&self, layer: Layer) -> Requirement {
        self.asked.get(&layer).copied().unwrap_or(Requirement::Off)
    }

    pub(crate) fn wanted(&self) -> Wanted<'_> {
        let (uids, user, open_files) = (self.uids, self.user, self.open_files);
        Wanted { uids, user, layers: &self.asked, open_files, writable: &[] }
    }
}

/// A layer to stand on: a directory with the kept names in it, or an image of one.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Below {
    pub path: PathBuf,
    pub uids: Uids,
    pub data: Data,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RootKind {
    Host,
    Image,
}

/// Give a warm sandbox its name and workspace. Comes with the guest's pidfd, and the workspace if there is one.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Bind {
    pub hostname: String,
    pub uids: Uids,
    pub user: User,
    pub workspace: Option<Bound>,
}

/// Copy a sandbox's files into a layer. Comes with the directory that holds them and the layer's.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Keep {
    pub uids: Uids,
}

/// `Forked` comes with two descriptors: the fork's pidfd and the pipe on which it tells how it went.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Reply {
    Forked,
    Failed(Failure),
}

/// What a fork of the launcher says at its end, or a guest when it serves.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Told {
    Done,
    /// Bytes that were written.
    Kept(u64),
    Failed(Failure),
}

/// What the launcher tells the booting guest; comes with the file of its scores, if it has any, the host's programs, and the
/// other trees of its view.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Go {
    pub oom: Option<Scores>,
    /// Where each of the programs is seen.
    pub programs: Vec<String>,
}
