//! Events: appended, numbered facts.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Event {
    /// 1, 2, 3, … without gaps.
    pub seq: u64,
    pub at: DateTime<Utc>,
    /// For example `sandbox.created`, `sandbox.ready`, `process.exited`.
    #[serde(rename = "type")]
    #[schema(example = "sandbox.ready")]
    pub kind: String,
    /// The sandbox it is about, if one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<String>,
    pub data: serde_json::Value,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct EventPage {
    pub events: Vec<Event>,
}
