//! Upstreams, models, prices and aliases, as configured.

use std::collections::BTreeMap;

use sandbar_policy::{Host, Price};

/// The wire format an upstream speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Format {
    OpenAi,
    Anthropic,
}

impl Format {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::OpenAi => "openai",
            Self::Anthropic => "anthropic",
        }
    }
}

/// The field by which an upstream's Chat Completions cap the output. Servers ignore what they do not know, so under a budget
/// only the one that is known to be obeyed is a cap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CapField {
    /// What servers that speak OpenAI's format all know.
    MaxTokens,
    /// OpenAI's own for models that reason, which refuse the other.
    MaxCompletionTokens,
}

impl CapField {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::MaxTokens => "max_tokens",
            Self::MaxCompletionTokens => "max_completion_tokens",
        }
    }

    pub fn other(self) -> Self {
        match self {
            Self::MaxTokens => Self::MaxCompletionTokens,
            Self::MaxCompletionTokens => Self::MaxTokens,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Upstream {
    pub format: Format,
    pub tls: bool,
    pub host: Host,
    pub port: u16,
    /// Before the endpoint, without a slash at its end: `/v1` for OpenAI (`/v1/chat/completions` follows as
    /// `/chat/completions`), empty for Anthropic (`/v1/messages` follows).
    pub path: String,
    /// The name of the secret that is its key; only with `tls`.
    pub secret: Option<String>,
    /// Models that are not configured are passed on too, as long as no budget in dollars needs their price.
    pub any_model: bool,
    /// For Chat Completions.
    pub cap: CapField,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Model {
    pub upstream: String,
    /// What the vendor calls it, when that is another name.
    pub vendor_name: Option<String>,
    pub price: Option<Price>,
    /// The most it can write; set where a request under a budget says nothing.
    pub max_output: Option<u64>,
    /// The most an image can count.
    pub image_tokens: u64,
}

/// Consistent by construction: every model's upstream and every alias's model exists, aliases do not shadow models.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Catalogue {
    pub upstreams: BTreeMap<String, Upstream>,
    pub models: BTreeMap<String, Model>,
    pub aliases: BTreeMap<String, String>,
}
