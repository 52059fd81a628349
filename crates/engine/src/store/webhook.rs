//! What the store keeps of webhooks: who is told, and how far in the event log each has been told. Part of the one `Store`.

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use sandbar_api::{Webhook, WebhookId};

use super::Result;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WebhookRow {
    pub webhook: Webhook,
    /// Its signing secret.
    pub sealed: Vec<u8>,
    /// The number of the last event that needs nothing more.
    pub cursor: u64,
    /// When the notice whose turn it is was first tried in vain.
    pub first_failed_at: Option<DateTime<Utc>>,
}

/// What happened to a webhook. All but `Failed` and `Disabled` move its cursor, which never goes back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WebhookMark {
    /// Nothing up to there was for it.
    Passed { to: u64 },
    /// The event of that number was told.
    Delivered { seq: u64 },
    /// It was tried in vain, and is tried again.
    Failed { error: String },
    /// It is not tried any more. Event `webhook.given_up`.
    GivenUp { seq: u64, kind: String },
    /// Events were pruned before they were looked at. Event `webhook.missed`.
    Missed { from: u64, to: u64 },
    /// Its target is gone. Event `webhook.disabled`.
    Disabled { error: String },
}

#[async_trait]
pub trait WebhookStore: Send + Sync {
    /// Event `webhook.added` (with `place`, never the URL), whose number is its first cursor. `NameTaken`.
    async fn add_webhook(&self, webhook: &Webhook, sealed: &[u8], place: &str) -> Result<WebhookRow>;
    /// Newest last.
    async fn webhooks(&self) -> Result<Vec<WebhookRow>>;
    async fn webhook(&self, id: &WebhookId) -> Result<Option<WebhookRow>>;
    /// As it is afterwards. `Missing` if there is none any more.
    async fn mark_webhook(&self, id: &WebhookId, mark: WebhookMark) -> Result<WebhookRow>;
    /// Event `webhook.removed`. `Missing` if there is none.
    async fn remove_webhook(&self, id: &WebhookId) -> Result<()>;
}
