//! The runtime contracts of agent-sandbox that a template's sandboxes serve on their loopback.

use serde::{Deserialize, Serialize};

use crate::HumanDuration;

const ROOT: &str = "/workspace";

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Runtimes {
    /// gRPC `process.v1.ProcessService` and REST `/v1/files`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandboxd: Option<Sandboxd>,
    /// The older HTTP API.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub legacy: Option<Legacy>,
}

impl Runtimes {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Sandboxd {
    pub grpc_port: u16,
    pub rest_port: u16,
    /// What paths are below.
    pub root: String,
    /// What every call must bear. Whoever may see the template sees it; inside it is in no file and no environment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
}

impl Default for Sandboxd {
    fn default() -> Self {
        Self { grpc_port: 9090, rest_port: 8080, root: ROOT.into(), token: None }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Legacy {
    pub port: u16,
    /// What paths are below, and where commands run.
    pub root: String,
    /// Of a command.
    pub timeout: HumanDuration,
}

impl Default for Legacy {
    fn default() -> Self {
        Self { port: 8888, root: ROOT.into(), timeout: HumanDuration(std::time::Duration::from_secs(300)) }
    }
}
