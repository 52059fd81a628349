//! Budgets of sessions, what they used, and the models they may use.

use chrono::{DateTime, NaiveDate, Utc};
use serde::{Deserialize, Serialize};

use crate::{Code, Problem, SessionId};

/// More is a slip, and would not be exact in millionths.
const MOST_USD: f64 = 1e9;

/// What a session may use; an absent limit is none. A session's calls count for its parents too.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"tokens": 2_000_000, "usd": 5.0, "per_minute": 100_000}))]
pub struct SetBudget {
    /// Input and output together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usd: Option<f64>,
    /// Tokens in any 60 seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_minute: Option<u64>,
}

impl SetBudget {
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Each limit that is stated here takes the place of the other's.
    pub fn over(&self, other: &Self) -> Self {
        Self {
            tokens: self.tokens.or(other.tokens),
            usd: self.usd.or(other.usd),
            per_minute: self.per_minute.or(other.per_minute),
        }
    }

    pub fn check(&self) -> Result<(), Problem> {
        match self.usd.filter(|usd| !(0.0..=MOST_USD).contains(usd)) {
            Some(usd) => Err(Problem::new(
                Code::BadBudget,
                format!("{usd} is not a budget in dollars."),
                format!("Use 0 to {MOST_USD}; leave it out for no limit."),
            )),
            None => Ok(()),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Budget {
    pub session: SessionId,
    /// Its own limits; those of its parents hold too.
    pub limits: SetBudget,
    pub tokens_used: u64,
    /// Held by calls under way.
    pub tokens_reserved: u64,
    pub usd_used: f64,
    pub usd_reserved: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<SessionId>,
    /// The model it was switched to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SwitchModel {
    /// A configured model or alias of the same wire format; absent: as the calls say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum UsageBy {
    #[default]
    Model,
    Session,
    Day,
}

/// Sums of calls. `estimated` counts those for which no usage was reported: their reservation stands in for it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct UsageRow {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub day: Option<NaiveDate>,
    pub calls: u64,
    pub estimated: u64,
    pub input_tokens: u64,
    pub cached_input_tokens: u64,
    pub output_tokens: u64,
    pub total_tokens: u64,
    pub usd: f64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct UsageReport {
    pub by: UsageBy,
    pub from: DateTime<Utc>,
    pub to: DateTime<Utc>,
    pub rows: Vec<UsageRow>,
    pub total: UsageRow,
}

/// One model of `/internal/usage/{session}`, in the shape kagenti's tools read.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct SessionUsageModel {
    pub model: String,
    pub prompt_tokens: u64,
    pub completion_tokens: u64,
    pub total_tokens: u64,
    pub cost: f64,
    pub num_calls: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct SessionUsage {
    pub session_id: String,
    pub total_tokens: u64,
    pub prompt_tokens: u64,
    pub completion_tokens: u64,
    pub call_count: u64,
    /// Most tokens first.
    pub models: Vec<SessionUsageModel>,
}

/// What `gateway.toml` and `sets.toml` say, as far as it can be shown.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct GatewayInfo {
    pub upstreams: Vec<UpstreamInfo>,
    pub models: Vec<ModelInfo>,
    pub aliases: std::collections::BTreeMap<String, String>,
    /// Named sets of rules.
    pub sets: std::collections::BTreeMap<String, Vec<String>>,
    /// What is wrong with the files as they are now; what was read before holds until that is corrected.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct UpstreamInfo {
    pub name: String,
    /// `openai` or `anthropic`.
    pub format: String,
    pub url: String,
    /// The secret that is its key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
    /// Whether there is such a secret and it may go to that host.
    pub usable: bool,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ModelInfo {
    pub name: String,
    pub upstream: String,
    pub format: String,
    /// Dollars for a million tokens; absent: no price is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_usd: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_usd: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_output: Option<u64>,
}
