//! Templates: named recipes for sandboxes, as TOML files in the home's `templates/` and as resources.

mod document;
mod fields;
mod kubernetes;
mod meaning;
mod parse;
mod runtimes;
#[cfg(test)]
mod tests;
mod written;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{HumanDuration, Idle, Layer, Limits, NetworkPolicy, Profile, Requirement, SetBudget, profile};

pub use kubernetes::{Kubernetes, Storage};
pub use parse::{parse, parse_for};
pub use runtimes::{Legacy, Runtimes, Sandboxd};

/// What is wrong with a template's file, and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}{cause}", .line.map(|line| format!("line {line}: ")).unwrap_or_default())]
pub struct BadTemplate {
    /// Counted from 1; absent when the file's name is what is wrong.
    pub line: Option<usize>,
    /// One clause without a full stop, with what to do about it.
    pub cause: String,
}

/// What `/` is made of.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Root {
    /// The host's `/usr`, read-only, and an `/etc` of harmless files, under a private writable overlay.
    #[default]
    Host,
    /// A private writable overlay over an unpacked image.
    Image {
        /// Absolute path of the unpacked image on the server's host.
        path: String,
    },
    /// An image that a container runtime fetches.
    Oci {
        /// As a registry names it.
        image: String,
    },
}

/// Who workloads are inside.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum User {
    /// An ordinary user without any capability.
    #[default]
    Agent,
    /// Root of the sandbox's own user namespace, with the few capabilities that package managers need.
    Root,
}

impl User {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Agent => "agent",
            Self::Root => "root",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Template {
    /// The file's name without `.toml`.
    #[serde(default)]
    pub name: String,
    #[serde(default)]
    pub description: String,
    #[serde(default = "local")]
    pub provider: String,
    #[serde(default)]
    pub root: Root,
    /// How tight: `open`, `standard` or `hardened`.
    #[serde(default = "standard")]
    pub profile: String,
    /// Where this template asks something else of a layer than its profile does.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub layers: BTreeMap<Layer, Requirement>,
    #[serde(default)]
    pub user: User,
    #[serde(default)]
    pub limits: Limits,
    /// What a session that begins with a sandbox of it may use of language models.
    #[serde(default, skip_serializing_if = "SetBudget::is_empty")]
    pub budget: SetBudget,
    #[serde(default)]
    pub idle: Idle,
    /// For every process of the sandbox.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Where its sandboxes may talk to.
    #[serde(default, skip_serializing_if = "NetworkPolicy::is_empty")]
    pub network: NetworkPolicy,
    /// Names of secrets its sandboxes may use.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<String>,
    /// Deleted this long after creation, unless the request says otherwise.
    #[serde(default)]
    pub ttl: Option<HumanDuration>,
    /// Output kept of each process; older segments go first.
    #[serde(default = "gibibyte")]
    pub output_retention: u64,
    /// The largest file that may be uploaded, in bytes.
    #[serde(default = "max_file")]
    pub max_file: u64,
    /// Directory of the server's host whose skills are found at `/skills` inside, read-only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skills: Option<String>,
    /// Contracts of agent-sandbox that its sandboxes serve.
    #[serde(default, skip_serializing_if = "Runtimes::is_empty")]
    pub runtimes: Runtimes,
    /// For sandboxes on a cluster.
    #[serde(default, skip_serializing_if = "Kubernetes::is_default")]
    pub kubernetes: Kubernetes,
}

fn local() -> String {
    "local".into()
}

fn standard() -> String {
    profile::DEFAULT.into()
}

fn gibibyte() -> u64 {
    1 << 30
}

fn max_file() -> u64 {
    16 << 30
}

impl Default for Template {
    fn default() -> Self {
        Self {
            name: "default".into(),
            description: "The host's programs, an empty workspace, no network.".into(),
            provider: local(),
            root: Root::Host,
            profile: standard(),
            layers: BTreeMap::new(),
            user: User::Agent,
            limits: Limits::default(),
            budget: SetBudget::default(),
            idle: Idle::default(),
            env: BTreeMap::new(),
            network: NetworkPolicy::default(),
            secrets: Vec::new(),
            ttl: None,
            output_retention: gibibyte(),
            max_file: max_file(),
            skills: None,
            runtimes: Runtimes::default(),
            kubernetes: Kubernetes::default(),
        }
    }
}

impl Template {
    /// What is asked of each layer but the limits: the profile's word, unless the template has one of its own.
    pub fn requirements(&self) -> BTreeMap<Layer, Requirement> {
        let mut asked = Profile::named(&self.profile).map(|profile| profile.layers).unwrap_or_default();
        asked.extend(&self.layers);
        asked
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct TemplateList {
    pub templates: Vec<Template>,
}
