//! The Rust SDK: every route of the server as a typed async method, over its Unix socket or over TCP.
//! Streams survive a restart of the server: they reconnect at the exact byte or event where they broke.
//!
//! ```no_run
//! # async fn example() -> Result<(), sandbar_client::Error> {
//! use sandbar_api::{CreateSandbox, ExecRequest};
//!
//! let client = sandbar_client::Client::unix("/var/lib/sandbar/sandbar.sock")?;
//! let sandbox = client.create(&CreateSandbox::default(), None).await?.sandbox;
//! let request = ExecRequest {
//!     argv: vec!["uname".into()],
//!     env: Default::default(),
//!     cwd: None,
//!     timeout: None,
//!     stdin: None,
//!     max_output: 1024,
//! };
//! let result = client.exec(sandbox.id.as_str(), &request).await?;
//! assert_eq!(result.stdout, "Linux\n");
//! client.delete(sandbox.id.as_str()).await
//! # }
//! ```

mod approvals;
mod attach;
mod budgets;
mod client;
mod error;
mod events;
mod files;
mod input;
mod mcp;
mod network;
mod output;
mod patience;
mod ports;
mod processes;
mod quarantine;
mod sandboxes;
mod server;
mod sessions;
mod snapshots;
pub mod sse;
mod subscription;
mod terminals;
mod webhooks;

pub use approvals::ApprovalQuery;
pub use attach::{AttachEvent, AttachOptions, Attachment, Standing, Typist};
pub use budgets::UsageQuery;
pub use client::Client;
pub use error::{Error, Result};
pub use events::EventFilter;
pub use files::{Download, FileInfo};
pub use mcp::{McpAnswer, McpEra, McpReply, McpSession};
pub use output::{ExecItem, OutputBytes, OutputItem, OutputQuery};
pub use patience::Patience;
pub use sandboxes::{Created, SandboxQuery};
pub use sessions::{Begun, SessionQuery, WorkspaceAsk};
pub use terminals::TranscriptQuery;
