//! The wire types of Sandbar: requests, resources, events and errors, with their validation.
//! Shared by server, engine and client, so that they cannot drift. Never does I/O.

pub mod bytes;
pub mod check;
pub mod duration;
pub mod event;
pub mod file;
pub mod id;
pub mod problem;
pub mod process;
pub mod sandbox;
pub mod template;
pub mod token;

pub use duration::HumanDuration;
pub use event::{Event, EventPage};
pub use file::{Entry, EntryKind, Listing};
pub use id::{ProcessId, SandboxId, SessionId, TokenId};
pub use problem::{Code, Problem};
pub use process::{
    ExecRequest, ExecResult, Exit, ExitReason, OutputChunk, OutputRange, Process, ProcessList, ProcessState,
    SignalRequest, StartProcess, Stream, TerminalSize,
};
pub use sandbox::{CreateSandbox, Sandbox, SandboxPage, SandboxState, StateReason, WorkspaceSource};
pub use template::{Root, Template, TemplateList};
pub use token::{CreateToken, NewToken, Role, Token, TokenList};
