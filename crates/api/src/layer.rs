//! The layers of the fence, what a profile asks of each, and the report of what is in force.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::SandboxId;

macro_rules! layers {
    ($($(#[$doc:meta])* $name:ident $text:literal $title:literal)*) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, utoipa::ToSchema)]
        #[serde(rename_all = "snake_case")]
        pub enum Layer { $($(#[$doc])* $name,)* }
        impl Layer {
            pub const ALL: &[Layer] = &[$(Layer::$name),*];
            pub fn as_str(self) -> &'static str { match self { $(Layer::$name => $text,)* } }
            /// For people.
            pub fn title(self) -> &'static str { match self { $(Layer::$name => $title,)* } }
        }
    };
}

layers! {
    /// Uids that no other sandbox and nobody on the host has.
    Users "users" "uid separation"
    Mounts "mounts" "mount view"
    PidNamespace "pid_namespace" "pid namespace"
    NetNamespace "net_namespace" "net namespace"
    IpcNamespace "ipc_namespace" "ipc namespace"
    UtsNamespace "uts_namespace" "uts namespace"
    Network "network" "network"
    Capabilities "capabilities" "capabilities"
    NoNewPrivs "no_new_privs" "no_new_privs"
    Seccomp "seccomp" "seccomp"
    Landlock "landlock" "landlock"
    ReadOnlyRoot "read_only_root" "read-only root"
    /// No execution from writable places outside the workspace.
    NoExec "no_exec" "no execution outside the workspace"
    Memory "memory" "memory limit"
    Cpu "cpu" "cpu limit"
    Processes "processes" "process limit"
    OpenFiles "open_files" "open files limit"
    Tmpfs "tmpfs" "tmpfs limit"
    Disk "disk" "disk limit"
}

impl Layer {
    /// Asked for by stating a limit; profiles and `[layers]` say nothing of them.
    pub fn is_limit(self) -> bool {
        use Layer::*;
        matches!(self, Memory | Cpu | Processes | OpenFiles | Tmpfs | Disk)
    }

    /// The machinery itself: without it there is no sandbox, so it cannot be turned off.
    pub fn is_essential(self) -> bool {
        use Layer::*;
        matches!(self, Mounts | PidNamespace | NetNamespace | IpcNamespace | UtsNamespace | Network)
    }
}

/// What is asked of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Requirement {
    /// A sandbox without it is refused.
    Required,
    /// Applied where the host can; the report says when it is not in force.
    Optional,
    /// Not applied.
    Off,
}

impl Requirement {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Required => "required",
            Self::Optional => "optional",
            Self::Off => "off",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct LayerReport {
    pub layer: Layer,
    pub requirement: Requirement,
    /// As observed by the probe, not as configured.
    pub in_force: bool,
    /// What the probe saw.
    pub evidence: String,
    /// What to do about a layer that is not in force though it was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

/// What holds a sandbox, as seen by a process inside it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Enforcement {
    pub sandbox: SandboxId,
    pub profile: String,
    /// The workload's user inside: `agent`, or `root` of its own user namespace.
    pub user: String,
    pub probed_at: DateTime<Utc>,
    pub layers: Vec<LayerReport>,
}

impl Enforcement {
    /// Whether everything that is required is in force.
    pub fn holds(&self) -> bool {
        self.layers.iter().all(|layer| layer.in_force || layer.requirement != Requirement::Required)
    }
}
