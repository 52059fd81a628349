//! Webhooks and their cursors.

use async_trait::async_trait;
use sandbar_api::{Webhook, WebhookId, WebhookState};
use serde_json::{Value, json};
use sqlx::Row as _;

use super::{
    DbRow, This,
    columns::{self, from_json, parse, signed, small, text, time, unsigned},
    events::NewEvent,
    writer::{
        Need::{Essential, Ordinary},
        Transaction,
    },
};
use crate::store::{
    Error, Result,
    webhook::{WebhookMark, WebhookRow, WebhookStore},
};

#[async_trait]
impl WebhookStore for This {
    async fn add_webhook(&self, webhook: &Webhook, sealed: &[u8], place: &str) -> Result<WebhookRow> {
        let (webhook, sealed, place) = (webhook.clone(), sealed.to_vec(), place.to_owned());
        self.writer
            .write(Ordinary, move |transaction| {
                Box::pin(add(transaction, webhook.clone(), sealed.clone(), place.clone()))
            })
            .await
    }

    async fn webhooks(&self) -> Result<Vec<WebhookRow>> {
        let rows = sqlx::query("SELECT * FROM webhooks ORDER BY id").fetch_all(&self.readers).await?;
        rows.iter().map(decode).collect()
    }

    async fn webhook(&self, id: &WebhookId) -> Result<Option<WebhookRow>> {
        let row =
            sqlx::query("SELECT * FROM webhooks WHERE id = $1").bind(id.as_str()).fetch_optional(&self.readers).await?;
        row.as_ref().map(decode).transpose()
    }

    async fn mark_webhook(&self, id: &WebhookId, mark: WebhookMark) -> Result<WebhookRow> {
        let id = id.clone();
        // What was delivered and is not written down is delivered again.
        let need = if matches!(mark, WebhookMark::Passed { .. }) { Ordinary } else { Essential };
        self.writer.write(need, move |transaction| Box::pin(self::mark(transaction, id.clone(), mark.clone()))).await
    }

    async fn remove_webhook(&self, id: &WebhookId) -> Result<()> {
        let id = id.clone();
        self.writer.write(Essential, move |transaction| Box::pin(remove(transaction, id.clone()))).await
    }
}

async fn add(transaction: &mut Transaction, webhook: Webhook, sealed: Vec<u8>, place: String) -> Result<WebhookRow> {
    let taken = sqlx::query("SELECT 1 FROM webhooks WHERE name = $1")
        .bind(text(&webhook.name))
        .fetch_optional(&mut transaction.connection)
        .await?;
    if taken.is_some() {
        return Err(Error::NameTaken(webhook.name));
    }
    let data = json!({ "name": webhook.name, "host": place, "kinds": webhook.kinds });
    tell(transaction, "webhook.added", &webhook.id, data).await?;
    let row = sqlx::query(
        "INSERT INTO webhooks (id, name, url, kinds, sealed, created_at, cursor)
         VALUES ($1, $2, $3, $4, $5, $6, $7) RETURNING *",
    )
    .bind(webhook.id.as_str())
    .bind(text(&webhook.name))
    .bind(text(&webhook.url))
    .bind(columns::json(&webhook.kinds)?)
    .bind(sealed)
    .bind(webhook.created_at.timestamp_micros())
    .bind(transaction.seq.map(signed))
    .fetch_one(&mut transaction.connection)
    .await?;
    decode(&row)
}

const PASSED: &str =
    "UPDATE webhooks SET cursor = CASE WHEN cursor < $3 THEN $3 ELSE cursor END WHERE id = $1 RETURNING *";
const DELIVERED: &str = "
    UPDATE webhooks SET cursor = CASE WHEN cursor < $3 THEN $3 ELSE cursor END, delivered_at = $2, failing_since = NULL, attempts = 0,
        first_failed_at = NULL, last_error = NULL
    WHERE id = $1 RETURNING *";
const FAILED: &str = "
    UPDATE webhooks SET attempts = attempts + 1, failing_since = coalesce(failing_since, $2),
        first_failed_at = coalesce(first_failed_at, $2), last_error = $4
    WHERE id = $1 RETURNING *";
// What failed is behind it, that it fails is not.
const GIVEN_UP: &str = "
    UPDATE webhooks SET cursor = CASE WHEN cursor < $3 THEN $3 ELSE cursor END, attempts = 0, first_failed_at = NULL WHERE id = $1 RETURNING *";
const DISABLED: &str = "UPDATE webhooks SET disabled_at = $2, last_error = $4 WHERE id = $1 RETURNING *";

async fn mark(transaction: &mut Transaction, id: WebhookId, mark: WebhookMark) -> Result<WebhookRow> {
    let (sql, to, error) = match &mark {
        WebhookMark::Passed { to } | WebhookMark::Missed { to, .. } => (PASSED, Some(*to), None),
        WebhookMark::Delivered { seq } => (DELIVERED, Some(*seq), None),
        WebhookMark::GivenUp { seq, .. } => (GIVEN_UP, Some(*seq), None),
        WebhookMark::Failed { error } => (FAILED, None, Some(error)),
        WebhookMark::Disabled { error } => (DISABLED, None, Some(error)),
    };
    let row = sqlx::query(sql)
        .bind(id.as_str())
        .bind(transaction.now.timestamp_micros())
        .bind(to.map(signed))
        .bind(error.map(|error| text(error)))
        .fetch_optional(&mut transaction.connection)
        .await?
        .ok_or_else(|| Error::Missing(format!("webhook {id}")))?;
    let row = decode(&row)?;
    let (kind, mut data) = match mark {
        WebhookMark::Passed { .. } | WebhookMark::Delivered { .. } | WebhookMark::Failed { .. } => return Ok(row),
        WebhookMark::GivenUp { seq, kind } => {
            ("webhook.given_up", json!({ "seq": seq, "kind": kind, "reason": row.webhook.last_error }))
        }
        WebhookMark::Missed { from, to } => ("webhook.missed", json!({ "from": from, "to": to })),
        WebhookMark::Disabled { error } => ("webhook.disabled", json!({ "reason": error })),
    };
    data["name"] = row.webhook.name.as_str().into();
    tell(transaction, kind, &id, data).await?;
    Ok(row)
}

async fn remove(transaction: &mut Transaction, id: WebhookId) -> Result<()> {
    let row = sqlx::query("DELETE FROM webhooks WHERE id = $1 RETURNING name")
        .bind(id.as_str())
        .fetch_optional(&mut transaction.connection)
        .await?
        .ok_or_else(|| Error::Missing(format!("webhook {id}")))?;
    let data = json!({ "name": row.try_get::<&str, _>("name")? });
    tell(transaction, "webhook.removed", &id, data).await
}

async fn tell(transaction: &mut Transaction, kind: &str, id: &WebhookId, mut data: Value) -> Result<()> {
    data["webhook"] = id.as_str().into();
    transaction.append(NewEvent { kind, sandbox: None, process: None, data }).await
}

fn decode(row: &DbRow) -> Result<WebhookRow> {
    let at = |name: &str| row.try_get::<Option<i64>, _>(name)?.map(time).transpose();
    let failing_since = at("failing_since")?;
    let state = match (at("disabled_at")?, failing_since) {
        (Some(_), _) => WebhookState::Disabled,
        (None, Some(_)) => WebhookState::Failing,
        (None, None) => WebhookState::Ok,
    };
    let webhook = Webhook {
        id: parse(row.try_get("id")?)?,
        name: row.try_get("name")?,
        url: row.try_get("url")?,
        kinds: from_json(row.try_get("kinds")?)?,
        state,
        created_at: time(row.try_get("created_at")?)?,
        delivered_at: at("delivered_at")?,
        failing_since,
        attempts: small(row.try_get("attempts")?)?,
        last_error: row.try_get("last_error")?,
    };
    Ok(WebhookRow {
        webhook,
        sealed: row.try_get("sealed")?,
        cursor: unsigned(row.try_get("cursor")?)?,
        first_failed_at: at("first_failed_at")?,
    })
}
