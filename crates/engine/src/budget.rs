//! Budgets, models and usage, as surfaces ask for them.

use chrono::{DateTime, Utc};
use sandbar_api::{Budget, GatewayInfo, Problem, SessionUsage, SetBudget, SwitchModel, UsageBy, UsageReport};

use crate::{Caller, Engine};

#[derive(Debug, Clone, Default)]
pub struct UsageAsked {
    pub by: UsageBy,
    /// A session's id, or a sandbox by id or name.
    pub of: Option<String>,
    pub model: Option<String>,
    /// The last 30 days when absent.
    pub from: Option<DateTime<Utc>>,
    pub to: Option<DateTime<Utc>>,
}

impl Engine {
    /// `of` is a session's id, or a sandbox by id or name.
    pub async fn budget(&self, caller: &Caller, of: &str) -> Result<Budget, Problem> {
        let (_, _) = (caller, of);
        Err(crate::problem::shutting_down())
    }

    /// For the next call. Limits below what was used are fine: nothing more is let through.
    pub async fn set_budget(&self, of: &str, limits: SetBudget) -> Result<Budget, Problem> {
        let (_, _) = (of, limits);
        Err(crate::problem::shutting_down())
    }

    pub async fn switch_model(&self, of: &str, request: SwitchModel) -> Result<Budget, Problem> {
        let (_, _) = (of, request);
        Err(crate::problem::shutting_down())
    }

    pub async fn usage(&self, caller: &Caller, asked: UsageAsked) -> Result<UsageReport, Problem> {
        let (_, _) = (caller, asked);
        Err(crate::problem::shutting_down())
    }

    /// In kagenti's shape.
    pub async fn session_usage(&self, caller: &Caller, session: &str) -> Result<SessionUsage, Problem> {
        let (_, _) = (caller, session);
        Err(crate::problem::shutting_down())
    }

    pub async fn gateway_info(&self) -> Result<GatewayInfo, Problem> {
        Err(crate::problem::shutting_down())
    }
}
