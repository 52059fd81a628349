//! Rules as people write them: `HOST[:PORTS] [METHODS] [PATH]`, and named sets of them.
//!
//! `api.github.com` · `*.example.org` (any depth below, not itself) · `*` (any host) · `10.1.2.3` · `[2001:db8::1]`
//! `registry.internal:5000` · `example.org:443,8443` · `example.org:*`; without ports: 443 and 80
//! `api.github.com GET,HEAD /repos/**` (methods upper-case; `*` within a path segment, `**` across; conditions need TLS to be
//! terminated) · `@python` (the rules of a set, which may not name other sets)

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::Host;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    Deny,
    Ask,
    Allow,
}

/// Where a rule comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    Template,
    Sandbox,
    Approval,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{}` is not a rule: {cause}", .text.escape_debug())]
pub struct BadRule {
    pub text: String,
    /// One clause without a full stop, with what to do about it.
    pub cause: String,
}

/// Named sets, each a list of rules' texts. The name without `@`: 1 to 63 of a-z 0-9 `-`.
pub type Sets = BTreeMap<String, Vec<String>>;

/// One rule, parsed. A set's name parses to `Rule::Set`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// As written, with blanks made single and the host lower-case: equal rules have equal texts.
    pub text: String,
    // The parsed parts are this file's own business.
}

impl Rule {
    pub fn parse(text: &str) -> Result<Self, BadRule> {
        Err(BadRule { text: text.to_owned(), cause: "not built".into() })
    }

    /// The set it names, if it does.
    pub fn set(&self) -> Option<&str> {
        self.text.strip_prefix('@')
    }

    /// A rule for exactly this host and port, as an approval makes it.
    pub fn exactly(host: &Host, port: u16) -> Self {
        Self { text: format!("{host}:{port}") }
    }
}
