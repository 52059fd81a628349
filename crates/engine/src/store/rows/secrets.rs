//! Secrets, sealed.

use async_trait::async_trait;
use sandbar_api::SecretInfo;
use serde_json::json;
use sqlx::Row as _;

use super::{
    DbRow, This,
    columns::{self, from_json, text, time},
    events::NewEvent,
    writer::{
        Need::{Essential, Ordinary},
        Transaction,
    },
};
use crate::store::{
    Error, Result,
    gate::{SecretRow, SecretStore},
};

#[async_trait]
impl SecretStore for This {
    async fn set_secret(&self, row: &SecretRow) -> Result<()> {
        let row = row.clone();
        self.writer.write(Ordinary, move |transaction| Box::pin(set(transaction, row.clone()))).await
    }

    async fn secrets(&self) -> Result<Vec<SecretRow>> {
        let rows = sqlx::query("SELECT * FROM secrets ORDER BY name").fetch_all(&self.readers).await?;
        rows.iter().map(decode).collect()
    }

    async fn remove_secret(&self, name: &str) -> Result<()> {
        let name = name.to_owned();
        self.writer.write(Essential, move |transaction| Box::pin(remove(transaction, name.clone()))).await
    }
}

async fn set(transaction: &mut Transaction, row: SecretRow) -> Result<()> {
    let info = &row.info;
    sqlx::query(
        "INSERT INTO secrets (name, hosts, placement, sealed, created_at, changed_at) VALUES ($1, $2, $3, $4, $5, $6)
         ON CONFLICT (name) DO UPDATE SET hosts = excluded.hosts, placement = excluded.placement,
             sealed = excluded.sealed, created_at = excluded.created_at, changed_at = excluded.changed_at",
    )
    .bind(text(&info.name))
    .bind(columns::json(&info.hosts)?)
    .bind(text(&info.placement))
    .bind(row.sealed.as_slice())
    .bind(info.created_at.timestamp_micros())
    .bind(info.changed_at.timestamp_micros())
    .execute(&mut transaction.connection)
    .await?;
    let data = json!({ "name": info.name, "hosts": info.hosts, "as": info.placement });
    transaction.append(NewEvent { kind: "secret.set", sandbox: None, process: None, data }).await
}

async fn remove(transaction: &mut Transaction, name: String) -> Result<()> {
    let removed = sqlx::query("DELETE FROM secrets WHERE name = $1")
        .bind(text(&name))
        .execute(&mut transaction.connection)
        .await?;
    if removed.rows_affected() == 0 {
        return Err(Error::Missing(format!("secret {name}")));
    }
    let data = json!({ "name": name });
    transaction.append(NewEvent { kind: "secret.removed", sandbox: None, process: None, data }).await
}

fn decode(row: &DbRow) -> Result<SecretRow> {
    let info = SecretInfo {
        name: row.try_get("name")?,
        hosts: from_json(row.try_get("hosts")?)?,
        placement: row.try_get("placement")?,
        created_at: time(row.try_get("created_at")?)?,
        changed_at: time(row.try_get("changed_at")?)?,
    };
    Ok(SecretRow { info, sealed: row.try_get("sealed")? })
}
