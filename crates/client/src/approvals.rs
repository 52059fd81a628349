//! Approvals: questions to people, listed, waited for and answered.

use std::time::Duration;

use reqwest::Method;
use sandbar_api::{AnswerApproval, Approval, ApprovalList, ApprovalState, HumanDuration};

use crate::{Client, Result};

/// Which approvals; all by default.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ApprovalQuery {
    /// Any of these states.
    pub states: Vec<ApprovalState>,
    /// Of this sandbox, by id or name.
    pub sandbox: Option<String>,
    /// The newest so many.
    pub limit: Option<u32>,
}

impl Client {
    /// Newest last.
    pub async fn approvals(&self, query: &ApprovalQuery) -> Result<Vec<Approval>> {
        let mut request = self.request(Method::GET, &["v1", "approvals"]);
        for state in &query.states {
            request = request.query(&[("state", state.as_str())]);
        }
        if let Some(sandbox) = &query.sandbox {
            request = request.query(&[("sandbox", sandbox)]);
        }
        if let Some(limit) = query.limit {
            request = request.query(&[("limit", limit)]);
        }
        Ok(self.json::<ApprovalList>(request).await?.approvals)
    }

    /// Waits up to `wait`, and no more than a minute, for it to be closed; without one it is returned as it is.
    pub async fn approval(&self, id: &str, wait: Option<Duration>) -> Result<Approval> {
        let mut request = self.request(Method::GET, &["v1", "approvals", id]);
        if let Some(wait) = wait {
            request = request.query(&[("wait", HumanDuration(wait).to_string())]);
        }
        self.json(request).await
    }

    /// Exactly one answer counts; every other one gets `approval_closed`.
    pub async fn answer_approval(&self, id: &str, request: &AnswerApproval) -> Result<Approval> {
        self.post(&["v1", "approvals", id, "answer"], request).await
    }
}
