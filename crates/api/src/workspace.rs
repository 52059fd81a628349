//! The workspace of a session: the sandbox its agents work in, and how they reach its tools.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{Code, Problem, SandboxId, SessionId};

/// Of a conversation's id and of a user's, in bytes.
pub const MAX_ID: usize = 512;
/// Of an agent's name with its namespace, in bytes.
pub const MAX_AGENT: usize = 253;
/// How tools are spoken to.
pub const PROTOCOL: &str = "streamable-http";

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Workspace {
    pub session: SessionId,
    /// Absent while there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox_id: Option<SandboxId>,
    /// Where the session's tools are, over MCP.
    #[schema(example = "http://127.0.0.1:7227/v1/sessions/ses-01m7fq3czq9cdte0q41wxwr4kd/mcp")]
    pub mcp_url: String,
    /// Always `streamable-http`.
    #[schema(example = "streamable-http")]
    pub protocol: String,
    /// What to send with every call of a tool: a token for this session alone, the same each time. For operators and
    /// admins.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// Whether the sandbox can be worked in now.
    pub ready: bool,
}

/// What a caller may call a conversation or a user: anything that can be shown, kept as it is.
pub fn check_id(text: &str) -> Result<(), Problem> {
    if (1..=MAX_ID).contains(&text.len()) && !text.chars().any(char::is_control) {
        return Ok(());
    }
    Err(Problem::new(
        Code::BadName,
        format!("An id of {} bytes, or with control characters, is not usable.", text.len()),
        format!("Use 1 to {MAX_ID} bytes without control characters."),
    ))
}

/// `name` or `namespace/name`.
pub fn check_agent(text: &str) -> Result<(), Problem> {
    let part = |part: &str| !part.is_empty() && !part.chars().any(|c| c.is_control() || c.is_whitespace());
    if text.len() <= MAX_AGENT && text.split('/').count() <= 2 && text.split('/').all(part) {
        return Ok(());
    }
    Err(Problem::new(
        Code::BadName,
        format!("`{}` cannot be the name of an agent.", text.escape_debug()),
        format!("Use `name` or `namespace/name`, at most {MAX_AGENT} bytes, without blanks."),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_any_text_and_agents_have_at_most_a_namespace() {
        for id in ["a", "thread/1 ü", "ctx-…", &"x".repeat(MAX_ID)] {
            assert_eq!(check_id(id), Ok(()), "{id}");
        }
        for id in ["", "a\nb", "\u{1b}[31m", &"x".repeat(MAX_ID + 1)] {
            assert_eq!(check_id(id).map_err(|problem| problem.code), Err(Code::BadName), "{id:?}");
        }
        for agent in ["coder", "kagent/coder", "a__NS__b"] {
            assert_eq!(check_agent(agent), Ok(()), "{agent}");
        }
        for agent in ["", "/", "a/", "/a", "a/b/c", "a b", "a\n", &"x".repeat(MAX_AGENT + 1)] {
            assert_eq!(check_agent(agent).map_err(|problem| problem.code), Err(Code::BadName), "{agent:?}");
        }
    }
}
