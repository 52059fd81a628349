//! Gates: a sandbox's own rules and certificate authority, and the events of what happens at it.

use async_trait::async_trait;
use sandbar_api::{NetworkRule, SandboxId};
use serde_json::Value;

use super::SqliteStore;
use crate::store::{
    Error, Result,
    gate::{FactRow, GateRow, GateStore},
};

#[async_trait]
impl GateStore for SqliteStore {
    async fn gate(&self, _sandbox: &SandboxId) -> Result<Option<GateRow>> {
        Err(Error::Unreadable("not built".into()))
    }

    async fn add_gate(&self, _sandbox: &SandboxId, _gate: &GateRow) -> Result<()> {
        Err(Error::Unreadable("not built".into()))
    }

    async fn set_network(
        &self,
        _sandbox: &SandboxId,
        _rules: &[NetworkRule],
        _secrets: &[String],
        _change: Value,
    ) -> Result<()> {
        Err(Error::Unreadable("not built".into()))
    }

    async fn append_facts(&self, _facts: Vec<FactRow>) -> Result<()> {
        Err(Error::Unreadable("not built".into()))
    }
}
