//! What sessions may use and have used. A session is named by its id, or by the id or name of a sandbox of it.

use chrono::{DateTime, SecondsFormat, Utc};
use reqwest::Method;
use sandbar_api::{Budget, GatewayInfo, SessionUsage, SetBudget, SwitchModel, UsageBy, UsageReport};

use crate::{Client, Result};

/// Which calls, and how to sum them up: all of the last 30 days by model, by default.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UsageQuery {
    pub by: UsageBy,
    /// Of this session.
    pub of: Option<String>,
    pub model: Option<String>,
    pub from: Option<DateTime<Utc>>,
    /// Up to this moment, without it.
    pub to: Option<DateTime<Utc>>,
}

impl Client {
    pub async fn budget(&self, session: &str) -> Result<Budget> {
        self.get(&["v1", "sessions", session, "budget"]).await
    }

    /// All limits at once: those that are absent are none.
    pub async fn set_budget(&self, session: &str, limits: &SetBudget) -> Result<Budget> {
        self.json(self.request(Method::PUT, &["v1", "sessions", session, "budget"]).json(limits)).await
    }

    /// Without a model, calls go where they say.
    pub async fn switch_model(&self, session: &str, model: Option<&str>) -> Result<Budget> {
        let request = SwitchModel { model: model.map(Into::into) };
        self.json(self.request(Method::PUT, &["v1", "sessions", session, "model"]).json(&request)).await
    }

    pub async fn usage(&self, query: &UsageQuery) -> Result<UsageReport> {
        let mut request = self.request(Method::GET, &["v1", "usage"]).query(&[("by", query.by)]);
        for (name, value) in [("of", &query.of), ("model", &query.model)] {
            if let Some(value) = value {
                request = request.query(&[(name, value)]);
            }
        }
        for (name, at) in [("from", query.from), ("to", query.to)] {
            if let Some(at) = at {
                request = request.query(&[(name, at.to_rfc3339_opts(SecondsFormat::Millis, true))]);
            }
        }
        self.json(request).await
    }

    /// In the shape kagenti's tools read.
    pub async fn session_usage(&self, session: &str) -> Result<SessionUsage> {
        self.get(&["internal", "usage", session]).await
    }

    /// Upstreams, models, prices and named sets of rules, and what is wrong with their files.
    pub async fn gateway(&self) -> Result<GatewayInfo> {
        self.get(&["v1", "gateway"]).await
    }
}
