//! Approvals: opened, then closed exactly once.

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use sandbar_api::{Approval, ApprovalAnswer, ApprovalId, SandboxId};

use super::SqliteStore;
use crate::store::{
    Error, Result,
    gate::{ApprovalFilter, ApprovalStore, Closed, RulesAfter},
};

fn not_built() -> Error {
    Error::Unreadable("not built".into())
}

#[async_trait]
impl ApprovalStore for SqliteStore {
    async fn open_approval(&self, _approval: &Approval) -> Result<()> {
        Err(not_built())
    }

    async fn approval(&self, _id: &ApprovalId) -> Result<Option<Approval>> {
        Err(not_built())
    }

    async fn approvals(&self, _filter: &ApprovalFilter) -> Result<Vec<Approval>> {
        Err(not_built())
    }

    async fn answer_approval(
        &self,
        _id: &ApprovalId,
        _answer: ApprovalAnswer,
        _rules: Option<RulesAfter>,
    ) -> Result<Closed> {
        Err(not_built())
    }

    async fn expire_approvals(&self, _now: DateTime<Utc>) -> Result<Vec<Approval>> {
        Ok(Vec::new())
    }

    async fn next_deadline(&self) -> Result<Option<DateTime<Utc>>> {
        Ok(None)
    }

    async fn withdraw_approvals(&self, _sandbox: &SandboxId) -> Result<Vec<Approval>> {
        Ok(Vec::new())
    }

    async fn spend_approval(&self, _id: &ApprovalId) -> Result<bool> {
        Err(not_built())
    }

    async fn unspent_approvals(&self) -> Result<Vec<Approval>> {
        Ok(Vec::new())
    }
}
