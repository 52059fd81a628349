//! The event log: page by page, or followed.

use futures_util::Stream;
use reqwest::{Method, RequestBuilder};
use sandbar_api::{Event, EventPage};

use crate::{
    Client, Result,
    sse::Frame,
    subscription::{self, Source, subscribe},
};

impl Client {
    /// Events from `from` on (inclusive; the first kept, when absent), at most `limit`; an empty page is the end for now.
    pub async fn event_page(
        &self,
        from: impl Into<Option<u64>>,
        limit: Option<u32>,
        sandbox: Option<&str>,
    ) -> Result<Vec<Event>> {
        let mut request = request(self, from.into(), sandbox);
        if let Some(limit) = limit {
            request = request.query(&[("limit", limit)]);
        }
        Ok(self.json::<EventPage>(request).await?.events)
    }

    /// Every event from `from` on (the first kept, when absent), and those to come. A broken connection is taken up
    /// again after the last event: none is missing, none comes twice.
    pub fn events(&self, from: Option<u64>, sandbox: Option<&str>) -> impl Stream<Item = Result<Event>> + Send + use<> {
        subscribe(self, EventSource { next: from, sandbox: sandbox.map(Into::into) })
    }
}

fn request(client: &Client, from: Option<u64>, sandbox: Option<&str>) -> RequestBuilder {
    let mut request = client.request(Method::GET, &["v1", "events"]);
    if let Some(from) = from {
        request = request.query(&[("from", from)]);
    }
    if let Some(sandbox) = sandbox {
        request = request.query(&[("sandbox", sandbox)]);
    }
    request
}

struct EventSource {
    next: Option<u64>,
    sandbox: Option<String>,
}

impl Source for EventSource {
    type Item = Event;

    fn request(&self, client: &Client) -> RequestBuilder {
        request(client, self.next, self.sandbox.as_deref())
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
