//! The wire types of Sandbar: requests, resources, events and errors, with their validation.
//! Shared by server, engine and client, so that they cannot drift. Never does I/O.

pub mod approval;
pub mod attach;
pub mod budget;
pub mod bytes;
pub mod check;
pub mod duration;
pub mod event;
pub mod file;
#[cfg(test)]
mod fuzz;
pub mod id;
pub mod kubernetes;
pub mod layer;
pub mod limits;
pub mod network;
pub mod pool;
pub mod ports;
pub mod problem;
pub mod process;
pub mod profile;
pub mod quarantine;
pub mod sandbox;
pub mod screen;
pub mod secret;
pub mod session;
pub mod size;
pub mod snapshot;
pub mod template;
pub mod token;
pub mod webhook;
pub mod workspace;

pub use approval::{
    AnswerApproval, Approval, ApprovalAnswer, ApprovalKind, ApprovalList, ApprovalState, Choice, Delivery,
};
pub use attach::{ATTACH_HEADER, Control, TerminalFrame, ViewerFrame};
pub use budget::{
    Budget, GatewayInfo, ModelInfo, SessionUsage, SessionUsageModel, SetBudget, SwitchModel, UpstreamInfo, UsageBy,
    UsageReport, UsageRow,
};
pub use duration::HumanDuration;
pub use event::{Event, EventPage};
pub use file::{Entry, EntryKind, Listing};
pub use id::{ApprovalId, InstanceId, ProcessId, SandboxId, SessionId, SnapshotId, TokenId, WebhookId};
pub use kubernetes::{ClusterCheck, ClusterFinding, ClusterReport, Verdict};
pub use layer::{Enforcement, Layer, LayerReport, Requirement};
pub use limits::{Idle, Limits};
pub use network::{AddRules, Network, NetworkPolicy, NetworkRule};
pub use pool::{Pool, PoolList, SetPool};
pub use ports::{CreatePreview, CreateRouterToken, Preview, RouterToken};
pub use problem::{Code, Problem};
pub use process::{
    ExecRequest, ExecResult, Exit, ExitReason, OutputChunk, OutputRange, Process, ProcessList, ProcessState, Restart,
    SignalRequest, StartProcess, Stream, TerminalSize,
};
pub use profile::Profile;
pub use quarantine::{AdoptQuarantined, Adopted, QuarantineKind, QuarantineList, Quarantined};
pub use sandbar_policy::{Effect, Source};
pub use sandbox::{CreateSandbox, Sandbox, SandboxPage, SandboxState, StateReason, WorkspaceSource};
pub use screen::{CursorView, ScreenFormat, ScreenView, Transcript, TranscriptLine};
pub use secret::{SecretInfo, SecretList, SetSecret};
pub use session::{
    CrashLoop, CreateSession, RestartSession, Restarting, Session, SessionBudget, SessionPage, SessionState,
    SessionTerminal,
};
pub use size::HumanSize;
pub use snapshot::{CreateSnapshot, Fork, Forked, Snapshot, SnapshotList};
pub use template::{Kubernetes, Legacy, Root, Runtimes, Sandboxd, Storage, Template, TemplateList, User};
pub use token::{CreateToken, NewToken, Role, SignInLink, Token, TokenList};
pub use webhook::{CreateWebhook, NewWebhook, Webhook, WebhookList, WebhookState, WebhookTest};
pub use workspace::Workspace;
