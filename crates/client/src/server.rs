//! The server itself: templates, profiles, pools, tokens, what its host can enforce, health.

use reqwest::Method;
use sandbar_api::{
    ClusterCheck, ClusterReport, CreateToken, NewToken, Pool, PoolList, Profile, SetPool, SignInLink, Template,
    TemplateList, Token, TokenList, profile::ProfileList,
};
use serde::Deserialize;

use crate::{Client, Result};

#[derive(Deserialize)]
struct Host {
    reports: Vec<serde_json::Value>,
}

#[derive(Deserialize)]
struct Health {
    url: Option<String>,
}

impl Client {
    pub async fn templates(&self) -> Result<Vec<Template>> {
        Ok(self.get::<TemplateList>(&["v1", "templates"]).await?.templates)
    }

    pub async fn template(&self, name: &str) -> Result<Template> {
        self.get(&["v1", "templates", name]).await
    }

    /// The isolation profiles that templates choose from.
    pub async fn profiles(&self) -> Result<Vec<Profile>> {
        Ok(self.get::<ProfileList>(&["v1", "profiles"]).await?.profiles)
    }

    pub async fn pools(&self) -> Result<Vec<Pool>> {
        Ok(self.get::<PoolList>(&["v1", "pools"]).await?.pools)
    }

    /// Keeps this many sandboxes of a template warm; returns before they are.
    pub async fn set_pool(&self, template: &str, size: u32) -> Result<Pool> {
        self.json(self.request(Method::PUT, &["v1", "pools", template]).json(&SetPool { size })).await
    }

    pub async fn delete_pool(&self, template: &str) -> Result<()> {
        self.empty(self.request(Method::DELETE, &["v1", "pools", template])).await
    }

    /// The answer is the only time the secret is shown.
    pub async fn create_token(&self, request: &CreateToken) -> Result<NewToken> {
        self.post(&["v1", "tokens"], request).await
    }

    /// Signs one browser in, once. For the owner of the Unix socket.
    pub async fn sign_in_link(&self) -> Result<SignInLink> {
        self.json(self.request(Method::POST, &["v1", "sign-in-links"])).await
    }

    pub async fn tokens(&self) -> Result<Vec<Token>> {
        Ok(self.get::<TokenList>(&["v1", "tokens"]).await?.tokens)
    }

    pub async fn revoke_token(&self, id: &str) -> Result<()> {
        self.empty(self.request(Method::DELETE, &["v1", "tokens", id])).await
    }

    /// What each provider found its host able to enforce. Shaped by the providers, so JSON here.
    pub async fn host(&self) -> Result<Vec<serde_json::Value>> {
        Ok(self.get::<Host>(&["v1", "host"]).await?.reports)
    }

    /// Whether the server's cluster can hold sandboxes; may take minutes, because pods are started for it.
    pub async fn kubernetes_check(&self, asked: &ClusterCheck) -> Result<ClusterReport> {
        self.json(self.request(Method::GET, &["v1", "kubernetes", "check"]).query(asked)).await
    }

    /// The server is alive.
    pub async fn health(&self) -> Result<()> {
        self.empty(self.request(Method::GET, &["healthz"])).await
    }

    /// Where the server listens on TCP, if it does; known to callers over its socket alone.
    pub async fn url(&self) -> Result<Option<String>> {
        Ok(self.get::<Health>(&["healthz"]).await?.url)
    }

    /// The server can take work.
    pub async fn ready(&self) -> Result<()> {
        self.empty(self.request(Method::GET, &["readyz"])).await
    }

    /// In the OpenMetrics text format.
    pub async fn metrics(&self) -> Result<String> {
        let response = self.send(self.request(Method::GET, &["metrics"])).await?;
        response.text().await.map_err(|error| self.transport(error))
    }

    pub async fn openapi(&self) -> Result<serde_json::Value> {
        self.get(&["openapi.json"]).await
    }
}
