//! The ledger: sessions' budgets, and every LLM call from its reservation to its end.

use async_trait::async_trait;
use sandbar_api::{SessionId, SetBudget, UsageRow};

use super::SqliteStore;
use crate::store::{
    Error, Result,
    gate::{CallRow, LedgerEntry, LedgerStore, SessionRow, UsageQuery},
};

fn not_built() -> Error {
    Error::Unreadable("not built".into())
}

#[async_trait]
impl LedgerStore for SqliteStore {
    async fn session(&self, _id: &SessionId) -> Result<Option<SessionRow>> {
        Err(not_built())
    }

    async fn set_budget(&self, _session: &SessionId, _limits: &SetBudget) -> Result<()> {
        Err(not_built())
    }

    async fn set_model(&self, _session: &SessionId, _model: Option<&str>) -> Result<()> {
        Err(not_built())
    }

    async fn write_ledger(&self, _entries: Vec<LedgerEntry>) -> Result<()> {
        Err(not_built())
    }

    async fn held_calls(&self) -> Result<Vec<CallRow>> {
        Ok(Vec::new())
    }

    async fn used(&self, _session: &SessionId) -> Result<(u64, u64)> {
        Err(not_built())
    }

    async fn usage(&self, _query: &UsageQuery) -> Result<Vec<UsageRow>> {
        Err(not_built())
    }
}
