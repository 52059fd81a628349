//! Templates: named recipes for sandboxes, as TOML files in the home's `templates/` and as resources.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::HumanDuration;

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
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
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
    /// For every process of the sandbox.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Deleted this long after creation, unless the request says otherwise.
    #[serde(default)]
    pub ttl: Option<HumanDuration>,
    /// Output kept of each process; older segments go first.
    #[serde(default = "gibibyte")]
    pub output_retention: u64,
    /// The largest file that may be uploaded, in bytes.
    #[serde(default = "max_file")]
    pub max_file: u64,
}

fn local() -> String {
    "local".into()
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
            env: BTreeMap::new(),
            ttl: None,
            output_retention: gibibyte(),
            max_file: max_file(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct TemplateList {
    pub templates: Vec<Template>,
}
