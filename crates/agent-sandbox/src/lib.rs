//! A client for [kubernetes-sigs/agent-sandbox](https://github.com/kubernetes-sigs/agent-sandbox): sandboxes for agents
//! as pods with a stable identity, claimed from templates and warm pools.
//!
//! [`AgentSandbox`] is one namespace of a cluster. [`AgentSandbox::claim`] asks for a sandbox,
//! [`AgentSandbox::wait_ready`] waits for it by watch, and whatever keeps it from becoming ready is an [`Error`] of its
//! own. Who waits for many claims keeps a [`ClaimCache`]: one watch for all of them.

mod build;
mod cache;
mod cause;
mod claim;
mod client;
mod collection;
mod error;
pub mod exec;
mod follow;
mod forward;
mod logs;
mod name;
mod pods;
mod pool;
mod proxy;
pub mod resources;
pub mod runtime;
mod sandbox;
mod state;
mod transport;
mod wait;

pub use build::{BuildError, ClaimBuilder, PoolBuilder, SandboxBuilder, TemplateBuilder};
pub use cache::{Cache, Changed, Changes, ClaimCache, PoolCache, SandboxCache, View};
pub use claim::Claimed;
pub use client::{AgentSandbox, Origin, connect};
pub use collection::Collection;
pub use error::{Error, Result};
pub use exec::{Exec, ExecError};
pub use forward::{Listening, PortStream};
pub use logs::{LogStream, Logs};
pub use name::Name;
pub use pods::Target;
pub use resources::*;
pub use state::ClaimState;
pub use wait::{Ready, Wait};
