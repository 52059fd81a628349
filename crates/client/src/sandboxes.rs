//! Sandboxes: create, list, look at, stop, start, pause, resume, delete.

use std::collections::{BTreeMap, VecDeque};

use futures_util::{Stream, stream};
use reqwest::Method;
use sandbar_api::{CreateSandbox, Enforcement, Sandbox, SandboxPage, SandboxState};

use crate::{Client, Result};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Created {
    pub sandbox: Sandbox,
    /// The same request with the same Idempotency-Key had made it before.
    pub replayed: bool,
}

/// Which sandboxes; all that are not deleted by default.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SandboxQuery {
    /// All of these labels.
    pub labels: BTreeMap<String, String>,
    /// Any of these states.
    pub states: Vec<SandboxState>,
    /// How many on one page.
    pub limit: Option<u32>,
    pub cursor: Option<String>,
}

impl Client {
    /// Returns when the sandbox is ready. Repeating it with the same key returns the same sandbox.
    pub async fn create(&self, request: &CreateSandbox, key: Option<&str>) -> Result<Created> {
        let mut http = self.request(Method::POST, &["v1", "sandboxes"]).json(request);
        if let Some(key) = key {
            http = http.header("Idempotency-Key", key);
        }
        let response = self.send(http).await?;
        let replayed = response.headers().get("idempotency-replayed").is_some_and(|value| value == "true");
        Ok(Created { sandbox: self.decode(response).await?, replayed })
    }

    pub async fn sandbox_page(&self, query: &SandboxQuery) -> Result<SandboxPage> {
        let mut request = self.request(Method::GET, &["v1", "sandboxes"]);
        for (key, value) in &query.labels {
            request = request.query(&[("label", format!("{key}={value}"))]);
        }
        for state in &query.states {
            request = request.query(&[("state", state.as_str())]);
        }
        if let Some(limit) = query.limit {
            request = request.query(&[("limit", limit)]);
        }
        if let Some(cursor) = &query.cursor {
            request = request.query(&[("cursor", cursor)]);
        }
        self.json(request).await
    }

    /// Page after page, as they are consumed.
    pub fn sandboxes(&self, query: SandboxQuery) -> impl Stream<Item = Result<Sandbox>> + Send + use<> {
        struct Pages {
            client: Client,
            query: SandboxQuery,
            page: VecDeque<Sandbox>,
            more: bool,
        }
        let pages = Pages { client: self.clone(), query, page: VecDeque::new(), more: true };
        stream::try_unfold(pages, |mut pages| async move {
            while pages.page.is_empty() && pages.more {
                let page = pages.client.sandbox_page(&pages.query).await?;
                pages.page = page.sandboxes.into();
                pages.more = page.next_cursor.is_some();
                pages.query.cursor = page.next_cursor;
            }
            Ok(pages.page.pop_front().map(|sandbox| (sandbox, pages)))
        })
    }

    /// By id or name, like every call that takes a sandbox.
    pub async fn sandbox(&self, sandbox: &str) -> Result<Sandbox> {
        self.get(&["v1", "sandboxes", sandbox]).await
    }

    /// Returns when it is gone; deleting what is deleted is fine.
    pub async fn delete(&self, sandbox: &str) -> Result<()> {
        self.empty(self.request(Method::DELETE, &["v1", "sandboxes", sandbox])).await
    }

    /// Ends its processes and keeps its files.
    pub async fn stop(&self, sandbox: &str) -> Result<Sandbox> {
        self.json(self.request(Method::POST, &["v1", "sandboxes", sandbox, "stop"])).await
    }

    pub async fn start(&self, sandbox: &str) -> Result<Sandbox> {
        self.json(self.request(Method::POST, &["v1", "sandboxes", sandbox, "start"])).await
    }

    /// Holds every process still; returns when they stand.
    pub async fn pause(&self, sandbox: &str) -> Result<Sandbox> {
        self.json(self.request(Method::POST, &["v1", "sandboxes", sandbox, "pause"])).await
    }

    pub async fn resume(&self, sandbox: &str) -> Result<Sandbox> {
        self.json(self.request(Method::POST, &["v1", "sandboxes", sandbox, "resume"])).await
    }

    /// What is in force, as a probe inside the running sandbox sees it.
    pub async fn enforcement(&self, sandbox: &str) -> Result<Enforcement> {
        self.get(&["v1", "sandboxes", sandbox, "enforcement"]).await
    }
}
