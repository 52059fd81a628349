//! The event log: page by page, or followed.

use futures_util::Stream;
use reqwest::{Method, RequestBuilder};
use sandbar_api::{Event, EventPage};

use crate::{
    Client, Result,
    sse::Frame,
    subscription::{self, Source, subscribe},
};

/// Which events; all by default.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EventFilter {
    /// About this sandbox, by id or name.
    pub sandbox: Option<String>,
    /// Of types that start with one of these: `net.`, `approval.opened`.
    pub kinds: Vec<String>,
}

impl EventFilter {
    fn about(sandbox: Option<&str>) -> Self {
        Self { sandbox: sandbox.map(Into::into), kinds: Vec::new() }
    }
}

impl Client {
    /// Events from `from` on (inclusive; the first kept, when absent), at most `limit`; an empty page is the end for now.
    pub async fn event_page(
        &self,
        from: impl Into<Option<u64>>,
        limit: Option<u32>,
        sandbox: Option<&str>,
    ) -> Result<Vec<Event>> {
        self.event_page_matching(from, limit, &EventFilter::about(sandbox)).await
    }

    pub async fn event_page_matching(
        &self,
        from: impl Into<Option<u64>>,
        limit: Option<u32>,
        filter: &EventFilter,
    ) -> Result<Vec<Event>> {
        let mut request = request(self, from.into(), filter);
        if let Some(limit) = limit {
            request = request.query(&[("limit", limit)]);
        }
        Ok(self.json::<EventPage>(request).await?.events)
    }

    /// Every event from `from` on (the first kept, when absent), and those to come. A broken connection is taken up
    /// again after the last event: none is missing, none comes twice.
    pub fn events(&self, from: Option<u64>, sandbox: Option<&str>) -> impl Stream<Item = Result<Event>> + Send + use<> {
        self.events_matching(from, EventFilter::about(sandbox))
    }

    pub fn events_matching(
        &self,
        from: Option<u64>,
        filter: EventFilter,
    ) -> impl Stream<Item = Result<Event>> + Send + use<> {
        subscribe(self, EventSource { next: from, filter })
    }
}

fn request(client: &Client, from: Option<u64>, filter: &EventFilter) -> RequestBuilder {
    let mut request = client.request(Method::GET, &["v1", "events"]);
    if let Some(from) = from {
        request = request.query(&[("from", from)]);
    }
    if let Some(sandbox) = &filter.sandbox {
        request = request.query(&[("sandbox", sandbox)]);
    }
    if !filter.kinds.is_empty() {
        request = request.query(&[("type", filter.kinds.join(","))]);
    }
    request
}

struct EventSource {
    next: Option<u64>,
    filter: EventFilter,
}

impl Source for EventSource {
    type Item = Event;

    fn request(&self, client: &Client) -> RequestBuilder {
        request(client, self.next, &self.filter)
    }

    fn take(&mut self, frame: &Frame, client: &Client) -> Result<Option<Event>> {
        if frame.event == "error" {
            return Err(subscription::problem(frame, client));
        }
        let event: Event = subscription::data(frame, client)?;
        if self.next.is_some_and(|next| event.seq < next) {
            return Ok(None);
        }
        self.next = Some(event.seq + 1);
        Ok(Some(event))
    }

    fn is_over(&self) -> bool {
        false
    }

    fn is_complete(&self) -> bool {
        false
    }
}
