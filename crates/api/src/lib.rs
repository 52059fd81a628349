//! The wire types of Sandbar: requests, resources, events and errors, with their validation.
//! Shared by server, engine and client, so that they cannot drift. Never does I/O.

pub mod bytes;
pub mod check;
pub mod duration;
pub mod event;
pub mod file;
#[cfg(test)]
mod fuzz;
pub mod id;
pub mod layer;
pub mod limits;
pub mod pool;
pub mod problem;
pub mod process;
pub mod profile;
pub mod sandbox;
pub mod size;
pub mod snapshot;
pub mod template;
pub mod token;

pub use duration::HumanDuration;
pub use event::{Event, EventPage};
pub use file::{Entry, EntryKind, Listing};
pub use id::{ProcessId, SandboxId, SessionId, SnapshotId, TokenId};
pub use layer::{Enforcement, Layer, LayerReport, Requirement};
pub use limits::{Idle, Limits};
pub use pool::{Pool, PoolList, SetPool};
pub use problem::{Code, Problem};
pub use process::{
    ExecRequest, ExecResult, Exit, ExitReason, OutputChunk, OutputRange, Process, ProcessList, ProcessState,
    SignalRequest, StartProcess, Stream, TerminalSize,
};
pub use profile::Profile;
pub use sandbox::{CreateSandbox, Sandbox, SandboxPage, SandboxState, StateReason, WorkspaceSource};
pub use size::HumanSize;
pub use snapshot::{CreateSnapshot, Fork, Forked, Snapshot, SnapshotList};
pub use template::{Root, Template, TemplateList, User};
pub use token::{CreateToken, NewToken, Role, Token, TokenList};
