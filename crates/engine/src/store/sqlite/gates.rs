//! Gates: a sandbox's own rules and certificate authority, and the events of what happens at it.

use async_trait::async_trait;
use sandbar_api::{NetworkRule, SandboxId};
use serde_json::{Value, json};
use sqlx::Row as _;

use super::{
    SqliteStore,
    columns::{self, from_json, signed},
    events::NewEvent,
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
impl GateStore for SqliteStore {
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
        self.writer.write(Ordinary, move |transaction| Box::pin(append(transaction, facts.clone()))).await
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
    .bind(&gate.certificate)
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

// One trip to the database's thread for all of them.
const APPEND: &str = "
    UPDATE event_counter SET seq = seq + $1 WHERE one = 1;
    INSERT INTO events (seq, at, kind, sandbox, process, data)
    SELECT counter.seq - $1 + 1 + fact.key, $2, fact.value ->> 'kind', fact.value ->> 'sandbox', NULL, fact.value -> 'data'
    FROM event_counter AS counter, json_each($3) AS fact WHERE counter.one = 1 ORDER BY fact.key;
    SELECT seq FROM event_counter WHERE one = 1";

async fn append(transaction: &mut Transaction, facts: Vec<FactRow>) -> Result<()> {
    let told = |fact: &FactRow| json!({ "kind": fact.kind, "sandbox": fact.sandbox.as_str(), "data": fact.data });
    let all: Vec<Value> = facts.iter().map(told).collect();
    let seq = sqlx::query_scalar(APPEND)
        .bind(signed(all.len() as u64))
        .bind(transaction.now.timestamp_micros())
        .bind(columns::json(&all)?)
        .fetch_all(&mut transaction.connection)
        .await?;
    seq.last().map_or(Ok(()), |seq| transaction.appended(*seq))
}
