//! Webhooks: who outside is told of events. For admins.

use reqwest::Method;
use sandbar_api::{CreateWebhook, NewWebhook, Webhook, WebhookList, WebhookTest};

use crate::{Client, Result};

impl Client {
    /// The answer is the only time the secret is shown.
    pub async fn add_webhook(&self, request: &CreateWebhook) -> Result<NewWebhook> {
        self.post(&["v1", "webhooks"], request).await
    }

    pub async fn webhooks(&self) -> Result<Vec<Webhook>> {
        Ok(self.get::<WebhookList>(&["v1", "webhooks"]).await?.webhooks)
    }

    /// By id or name.
    pub async fn webhook(&self, webhook: &str) -> Result<Webhook> {
        self.get(&["v1", "webhooks", webhook]).await
    }

    pub async fn remove_webhook(&self, webhook: &str) -> Result<()> {
        self.empty(self.request(Method::DELETE, &["v1", "webhooks", webhook])).await
    }

    /// Sends a notice once and waits for what becomes of it: a minute at most.
    pub async fn test_webhook(&self, webhook: &str) -> Result<WebhookTest> {
        self.json(self.request(Method::POST, &["v1", "webhooks", webhook, "test"])).await
    }
}
