//! Sessions: create, list, look at, delete. One is named by its id or name, or by the id or name of a sandbox of it.

use std::collections::{BTreeMap, VecDeque};

use futures_util::{Stream, stream};
use reqwest::Method;
use sandbar_api::{CreateSession, Session, SessionPage};

use crate::{Client, Result};

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

impl Client {
    /// Returns when its sandbox is ready and its command runs; what fails leaves nothing behind.
    pub async fn create_session(&self, request: &CreateSession) -> Result<Session> {
        self.json(self.request(Method::POST, &["v1", "sessions"]).json(request)).await
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
