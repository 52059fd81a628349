//! Where in a request a secret may stand: `header:NAME:FORMAT`, `basic:USER`, `query:NAME`, `body`.

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{}` is no place for a secret: {cause}", .text.escape_debug())]
pub struct BadPlacement {
    pub text: String,
    pub cause: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Placement {
    /// A header whose value is the format with `{}` in the place of the secret: `header:Authorization:Bearer {}`. The
    /// format defaults to `{}`. Not Host, Content-Length, Transfer-Encoding, Connection and their like.
    Header { name: String, format: String },
    /// `Authorization: Basic` with this user and the secret as password; also found inside what a client encoded itself.
    Basic { user: String },
    /// The value of a query parameter.
    Query { name: String },
    /// Anywhere in the request's body.
    Body,
}

impl std::str::FromStr for Placement {
    type Err = BadPlacement;
    fn from_str(text: &str) -> Result<Self, BadPlacement> {
        Err(BadPlacement { text: text.to_owned(), cause: "not built".into() })
    }
}

impl TryFrom<String> for Placement {
    type Error = BadPlacement;
    fn try_from(text: String) -> Result<Self, BadPlacement> {
        text.parse()
    }
}

impl From<Placement> for String {
    fn from(placement: Placement) -> String {
        placement.to_string()
    }
}

impl std::fmt::Display for Placement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Header { name, format } => write!(f, "header:{name}:{format}"),
            Self::Basic { user } => write!(f, "basic:{user}"),
            Self::Query { name } => write!(f, "query:{name}"),
            Self::Body => f.write_str("body"),
        }
    }
}
