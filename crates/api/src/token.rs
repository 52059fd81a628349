//! Tokens: who may call over TCP.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::{HumanDuration, TokenId};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// May read everything, change nothing.
    Viewer,
    /// May create, use and delete sandboxes.
    Operator,
    /// May also manage tokens and bind directories of the host.
    Admin,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"name": "ci", "role": "operator", "ttl": "30d"}))]
pub struct CreateToken {
    /// What it is for, to recognise it in the list.
    pub name: String,
    pub role: Role,
    /// Stops working this long after creation; never when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl: Option<HumanDuration>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Token {
    pub id: TokenId,
    pub name: String,
    pub role: Role,
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

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct TokenList {
    pub tokens: Vec<Token>,
}
