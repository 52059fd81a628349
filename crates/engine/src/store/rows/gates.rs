//! Gates: a sandbox's own rules and certificate authority, and the events of what happens at it.

use async_trait::async_trait;
use sandbar_api::{NetworkRule, SandboxId};
use serde_json::Value;
use sqlx::Row as _;

use super::{
    This,
    columns::{self, from_json, text},
    events::NewEvent,
    scripts,
    writer::{
        Need::{Essential, Ordinary},
        Transaction,
    },
};
use crate::store::{
    Error, Result,
    gate::{FactRow, GateRow, GateStore, RulesAfter},
};

#[async_trait]
impl GateStore for This {
    async fn gate(&self, sandbox: &SandboxId) -> Result<Option<GateRow>> {
        let row = sqlx::query("SELECT rules, secrets, certificate, key FROM gates WHERE sandbox = $1")
            .bind(sandbox.as_str())
            .fetch_optional(&self.readers)
            .await?;
        let Some(row) = row else { return Ok(None) };
        Ok(Some(GateRow {
            rules: from_json(row.try_get("rules")?)?,
            secrets: from_json(row.try_get("secrets")?)?,
            certificate: row.try_get("certificate")?,
            key: row.try_get("key")?,
        }))
    }

    async fn add_gate(&self, sandbox: &SandboxId, gate: &GateRow) -> Result<()> {
        let (sandbox, gate) = (sandbox.clone(), gate.clone());
        self.writer.write(Ordinary, move |transaction| Box::pin(add(transaction, sandbox.clone(), gate.clone()))).await
    }

    async fn set_network(
        &self,
        sandbox: &SandboxId,
        rules: &[NetworkRule],
        secrets: &[String],
        change: Value,
    ) -> Result<()> {
        let (rules, secrets) = (rules.to_vec(), secrets.to_vec());
        let after = RulesAfter { sandbox: sandbox.clone(), rules, secrets, change };
        // A person's word, and often the one that takes something away.
        self.writer.write(Essential, move |transaction| Box::pin(set(transaction, after.clone()))).await
    }

    async fn append_facts(&self, facts: Vec<FactRow>) -> Result<()> {
        if facts.is_empty() {
            return Ok(());
        }
        self.writer
            .write(Ordinary, move |transaction| Box::pin(scripts::append_facts(transaction, facts.clone())))
            .await
    }
}

async fn add(transaction: &mut Transaction, sandbox: SandboxId, gate: GateRow) -> Result<()> {
    sqlx::query(
        "INSERT INTO gates (sandbox, rules, secrets, certificate, key) VALUES ($1, $2, $3, $4, $5)
         ON CONFLICT (sandbox) DO UPDATE SET certificate = excluded.certificate, key = excluded.key",
    )
    .bind(sandbox.as_str())
    .bind(columns::json(&gate.rules)?)
    .bind(columns::json(&gate.secrets)?)
    .bind(text(&gate.certificate))
    .bind(gate.key.as_slice())
    .execute(&mut transaction.connection)
    .await?;
    Ok(())
}

pub(super) async fn set(transaction: &mut Transaction, after: RulesAfter) -> Result<()> {
    let RulesAfter { sandbox, rules, secrets, change } = after;
    let set = sqlx::query("UPDATE gates SET rules = $2, secrets = $3 WHERE sandbox = $1")
        .bind(sandbox.as_str())
        .bind(columns::json(&rules)?)
        .bind(columns::json(&secrets)?)
        .execute(&mut transaction.connection)
        .await?;
    if set.rows_affected() == 0 {
        return Err(Error::Missing(format!("gate of {sandbox}")));
    }
    let event = NewEvent { kind: "net.changed", sandbox: Some(sandbox.as_str()), process: None, data: change };
    transaction.append(event).await
}
