//! Approvals: questions to people, listed, waited for and answered.

use std::time::Duration;

use futures_util::Stream;
use reqwest::{Method, RequestBuilder};
use sandbar_api::{AnswerApproval, Approval, ApprovalList, ApprovalState, HumanDuration};

use crate::{
    Client, Result,
    sse::Frame,
    subscription::{self, Source, subscribe},
};

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

fn request(client: &Client, query: &ApprovalQuery) -> RequestBuilder {
    let mut request = client.request(Method::GET, &["v1", "approvals"]);
    for state in &query.states {
        request = request.query(&[("state", state.as_str())]);
    }
    if let Some(sandbox) = &query.sandbox {
        request = request.query(&[("sandbox", sandbox)]);
    }
    if let Some(limit) = query.limit {
        request = request.query(&[("limit", limit)]);
    }
    request
}

struct ApprovalSource {
    query: ApprovalQuery,
    /// The id of the last event.
    last: Option<String>,
}

impl Source for ApprovalSource {
    type Item = Approval;

    fn request(&self, client: &Client) -> RequestBuilder {
        let request = request(client, &self.query);
        match &self.last {
            Some(last) => request.header("last-event-id", last),
            None => request,
        }
    }

    fn take(&mut self, frame: &Frame, client: &Client) -> Result<Option<Approval>> {
        if frame.event == "error" {
            return Err(subscription::problem(frame, client));
        }
        let approval = subscription::data(frame, client)?;
        self.last = frame.id.clone().or_else(|| self.last.take());
        Ok(Some(approval))
    }

    fn is_over(&self) -> bool {
        false
    }

    fn is_complete(&self) -> bool {
        false
    }
}

impl Client {
    /// Newest last.
    pub async fn approvals(&self, query: &ApprovalQuery) -> Result<Vec<Approval>> {
        Ok(self.json::<ApprovalList>(request(self, query)).await?.approvals)
    }

    /// Those that are open, then each one whenever something happens to it, as it is by then. A broken connection is taken
    /// up again: nothing is missed, and something may be told twice.
    pub fn follow_approvals(&self, sandbox: Option<String>) -> impl Stream<Item = Result<Approval>> + Send + use<> {
        let query = ApprovalQuery { sandbox, ..ApprovalQuery::default() };
        subscribe(self, ApprovalSource { query, last: None })
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
