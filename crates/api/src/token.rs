//! Tokens: who may call over TCP.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::{HumanDuration, SessionId, TokenId};

/// Bytes of a token's name.
pub const MAX_NAME: usize = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// An agent's: may use the tools of its own session, look at it, its budget, usage and approvals, and nothing else;
    /// answers nothing.
    Agent,
    /// May read everything, change nothing.
    Viewer,
    /// May create, use and delete sandboxes.
    Operator,
    /// May also manage tokens and bind directories of the host.
    Admin,
}

impl Role {
    pub const ALL: [Self; 4] = [Self::Agent, Self::Viewer, Self::Operator, Self::Admin];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Agent => "agent",
            Self::Viewer => "viewer",
            Self::Operator => "operator",
            Self::Admin => "admin",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"name": "ci", "role": "operator", "ttl": "30d"}))]
pub struct CreateToken {
    /// What it is for, to recognise it in the list.
    pub name: String,
    pub role: Role,
    /// The session an agent's token is bound to; required for `agent`, refused for the others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionId>,
    /// Stops working this long after creation; never when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl: Option<HumanDuration>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Token {
    pub id: TokenId,
    pub name: String,
    pub role: Role,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionId>,
    pub created_at: DateTime<Utc>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<DateTime<Utc>>,
}

/// The only time the secret is shown: it is stored hashed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct NewToken {
    #[serde(flatten)]
    pub token: Token,
    pub secret: String,
}

/// A link that signs one browser in, once. Whoever opens it is an admin.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct SignInLink {
    /// Its code is in the fragment, which browsers keep to themselves.
    #[schema(example = "http://sandbar.localhost:7227/#code=…")]
    pub url: String,
    /// When the link stops working. A browser that was signed in stays so for seven days.
    pub expires_at: DateTime<Utc>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct TokenList {
    pub tokens: Vec<Token>,
}
