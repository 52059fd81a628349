//! Approvals: questions to a person, the one mechanism for everything that asks.

use std::time::Duration;

use sandbar_api::{AnswerApproval, Approval, ApprovalState, Problem};
use sandbar_gateway::{Answer, Question};

use crate::{Caller, Engine, handle::Handle};

#[derive(Debug, Clone, Default)]
pub struct ApprovalQuery {
    /// Empty: all.
    pub states: Vec<ApprovalState>,
    /// By id or name.
    pub sandbox: Option<String>,
    pub limit: Option<u32>,
}

/// Those who wait, by approval. In `Inner`.
#[derive(Default)]
pub(crate) struct Approvals {}

impl Approvals {
    /// Asks about a connection, and waits. One open approval per sandbox, host and port, however many wait.
    pub(crate) async fn ask(&self, inner: &crate::Inner, handle: &Handle, question: Question) -> Answer {
        let (_, _, _) = (inner, handle, question);
        Answer::Deny("not built".into())
    }
}

impl Engine {
    /// An agent's caller sees those of its own session.
    pub async fn approvals(&self, caller: &Caller, query: ApprovalQuery) -> Result<Vec<Approval>, Problem> {
        let (_, _) = (caller, query);
        Ok(Vec::new())
    }

    /// Waits up to `wait` for it to be closed, if it is open.
    pub async fn approval(&self, caller: &Caller, id: &str, wait: Duration) -> Result<Approval, Problem> {
        let (_, _, _) = (caller, id, wait);
        Err(crate::problem::shutting_down())
    }

    /// Exactly one answer counts. `approval_closed` for every other, `forbidden` for an agent or a role below the one asked.
    pub async fn answer_approval(&self, caller: &Caller, id: &str, request: AnswerApproval) -> Result<Approval, Problem> {
        let (_, _, _) = (caller, id, request);
        Err(crate::problem::shutting_down())
    }
}
