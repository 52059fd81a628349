//! Secrets: written, never read back. A sandbox holds a placeholder; the gateway puts the value in on the way out.

use std::fmt;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::{Code, Problem};

pub const MAX_SECRET: usize = 16 * 1024;
pub const MAX_HOSTS: usize = 32;

/// The name is the environment variable that holds the placeholder inside.
pub fn check_name(name: &str) -> Result<(), Problem> {
    let good = (1..=64).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_')
        && name.as_bytes()[0].is_ascii_uppercase();
    if good {
        return Ok(());
    }
    Err(Problem::new(
        Code::BadName,
        format!("`{}` cannot be the name of a secret.", name.escape_debug()),
        "Use 1 to 64 of A-Z, 0-9 and `_`, starting with a letter: it is the variable that holds the placeholder inside.",
    ))
}

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"hosts": ["api.github.com"], "as": "header:Authorization:Bearer {}", "value": "ghp_…"}))]
pub struct SetSecret {
    /// The hosts it may go to, by exact name.
    pub hosts: Vec<String>,
    /// Where in a request it may stand: `header:NAME:FORMAT`, `basic:USER`, `query:NAME` or `body`.
    #[serde(rename = "as")]
    pub placement: String,
    /// Absent: the value stays, and hosts and place change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
}

/// Without the value: requests are logged in tests and by tracing.
impl fmt::Debug for SetSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SetSecret")
            .field("hosts", &self.hosts)
            .field("placement", &self.placement)
            .finish_non_exhaustive()
    }
}

/// All that is ever shown of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct SecretInfo {
    pub name: String,
    pub hosts: Vec<String>,
    #[serde(rename = "as")]
    pub placement: String,
    pub created_at: DateTime<Utc>,
    /// When its value was last set.
    pub changed_at: DateTime<Utc>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct SecretList {
    pub secrets: Vec<SecretInfo>,
}
