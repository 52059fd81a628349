//! Sessions: create, list, look at, restart, delete. One is named by its id or name, or by the id or name of a sandbox of it.

use std::collections::{BTreeMap, VecDeque};

use futures_util::{Stream, stream};
use reqwest::Method;
use sandbar_api::{CreateSession, Process, RestartSession, Session, SessionPage, Workspace};

use crate::{Client, Result};

#[derive(Debug, Clone, PartialEq)]
pub struct Begun {
    pub session: Session,
    /// The same request with the same Idempotency-Key had made it before.
    pub replayed: bool,
}

/// Which sessions; all that have not ended by default.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SessionQuery {
    /// All of these labels.
    pub labels: BTreeMap<String, String>,
    /// Also those that have ended.
    pub ended: bool,
    /// How many on one page.
    pub limit: Option<u32>,
    pub cursor: Option<String>,
}

/// How a workspace is asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WorkspaceAsk {
    /// Whether the session is begun if there is none of that name.
    pub create: bool,
    /// Of a session that is begun: whose configuration holds.
    pub agent: Option<String>,
    /// Answer after this many seconds, ready or not.
    pub wait: Option<u64>,
}

impl Client {
    /// The place where a session's agents work, found, brought back or made; however many ask, there is one. It is ready
    /// unless the request says how long it waits.
    pub async fn workspace(&self, session: &str, ask: &WorkspaceAsk) -> Result<Workspace> {
        let mut request = self.request(Method::POST, &["v1", "sessions", session, "sandbox"]);
        if ask.create {
            request = request.query(&[("create", true)]);
        }
        if let Some(agent) = &ask.agent {
            request = request.query(&[("agent", agent)]);
        }
        if let Some(wait) = ask.wait {
            request = request.query(&[("wait", wait)]);
        }
        self.json(request).await
    }

    /// As it is now; nothing is made.
    pub async fn workspace_now(&self, session: &str) -> Result<Workspace> {
        self.get(&["v1", "sessions", session, "sandbox"]).await
    }

    /// Its sandbox with all files; the session stays, and repeating it is fine.
    pub async fn delete_workspace(&self, session: &str) -> Result<()> {
        self.empty(self.request(Method::DELETE, &["v1", "sessions", session, "sandbox"])).await
    }

    /// Returns when its sandbox is ready and its command runs; what fails leaves nothing behind. Repeating it with the same
    /// key returns the same session.
    pub async fn create_session(&self, request: &CreateSession, key: Option<&str>) -> Result<Begun> {
        let mut http = self.request(Method::POST, &["v1", "sessions"]).json(request);
        if let Some(key) = key {
            http = http.header("Idempotency-Key", key);
        }
        let response = self.send(http).await?;
        let replayed = response.headers().get("idempotency-replayed").is_some_and(|value| value == "true");
        Ok(Begun { session: self.decode(response).await?, replayed })
    }

    /// Starts a command again that had a restart policy and does not run.
    pub async fn restart_session(&self, session: &str, request: &RestartSession) -> Result<Process> {
        self.post(&["v1", "sessions", session, "restart"], request).await
    }

    pub async fn session_page(&self, query: &SessionQuery) -> Result<SessionPage> {
        let mut request = self.request(Method::GET, &["v1", "sessions"]);
        for (key, value) in &query.labels {
            request = request.query(&[("label", format!("{key}={value}"))]);
        }
        if query.ended {
            request = request.query(&[("ended", true)]);
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
    pub fn sessions(&self, query: SessionQuery) -> impl Stream<Item = Result<Session>> + Send + use<> {
        struct Pages {
            client: Client,
            query: SessionQuery,
            page: VecDeque<Session>,
            more: bool,
        }
        let pages = Pages { client: self.clone(), query, page: VecDeque::new(), more: true };
        stream::try_unfold(pages, |mut pages| async move {
            while pages.page.is_empty() && pages.more {
                let page = pages.client.session_page(&pages.query).await?;
                pages.page = page.sessions.into();
                pages.more = page.next_cursor.is_some();
                pages.query.cursor = page.next_cursor;
            }
            Ok(pages.page.pop_front().map(|session| (session, pages)))
        })
    }

    pub async fn session(&self, session: &str) -> Result<Session> {
        self.get(&["v1", "sessions", session]).await
    }

    /// With all its sandboxes; returns when they are gone, and repeating it is fine.
    pub async fn delete_session(&self, session: &str) -> Result<()> {
        self.empty(self.request(Method::DELETE, &["v1", "sessions", session])).await
    }
}
