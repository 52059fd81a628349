//! The network of a sandbox: its rules and the secrets it may use; and secrets themselves, which nothing gives back.

use reqwest::Method;
use sandbar_api::{AddRules, Network, SecretInfo, SecretList, SetSecret};

use crate::{Client, Result};

impl Client {
    /// The rules in force and the names of the secrets it may use.
    pub async fn network(&self, sandbox: &str) -> Result<Network> {
        self.get(&["v1", "sandboxes", sandbox, "network"]).await
    }

    /// For the sandbox's next request. Look at the findings of what is returned.
    pub async fn add_rules(&self, sandbox: &str, request: &AddRules) -> Result<Network> {
        self.post(&["v1", "sandboxes", sandbox, "network", "rules"], request).await
    }

    /// One of the sandbox's own; a template's stay.
    pub async fn remove_rule(&self, sandbox: &str, rule: &str) -> Result<Network> {
        let request = self.request(Method::DELETE, &["v1", "sandboxes", sandbox, "network", "rules"]);
        self.json(request.query(&[("rule", rule)])).await
    }

    /// Lets the sandbox use a secret that it never sees.
    pub async fn grant_secret(&self, sandbox: &str, secret: &str) -> Result<Network> {
        self.json(self.request(Method::PUT, &["v1", "sandboxes", sandbox, "secrets", secret])).await
    }

    pub async fn revoke_secret(&self, sandbox: &str, secret: &str) -> Result<Network> {
        self.json(self.request(Method::DELETE, &["v1", "sandboxes", sandbox, "secrets", secret])).await
    }

    /// Without their values.
    pub async fn secrets(&self) -> Result<Vec<SecretInfo>> {
        Ok(self.get::<SecretList>(&["v1", "secrets"]).await?.secrets)
    }

    /// Makes or replaces it. Without a value the one it has stays.
    pub async fn set_secret(&self, name: &str, request: &SetSecret) -> Result<SecretInfo> {
        self.json(self.request(Method::PUT, &["v1", "secrets", name]).json(request)).await
    }

    pub async fn remove_secret(&self, name: &str) -> Result<()> {
        self.empty(self.request(Method::DELETE, &["v1", "secrets", name])).await
    }
}
