//! A stream of server-sent events that outlives its connections: when one breaks, the next begins where it ended.

use futures_util::{Stream, stream};
use reqwest::{RequestBuilder, Response, header};
use sandbar_api::Problem;
use serde::de::DeserializeOwned;

use crate::{
    Client, Error, Result,
    patience::Backoff,
    sse::{Frame, Parser},
};

/// What is read, and where to go on.
pub(crate) trait Source: Send {
    type Item: Send;

    /// The request for what comes after everything taken so far.
    fn request(&self, client: &Client) -> RequestBuilder;

    /// `None` for what is no news.
    fn take(&mut self, frame: &Frame, client: &Client) -> Result<Option<Self::Item>>;

    /// Whether nothing more is expected after the server ended the stream properly.
    fn is_over(&self) -> bool;

    /// Whether nothing more is expected even after a broken connection.
    fn is_complete(&self) -> bool;
}

/// One connection.
pub(crate) struct Live {
    response: Response,
    parser: Parser,
}

impl Live {
    pub(crate) async fn open(client: &Client, request: RequestBuilder) -> Result<Self> {
        let response = client.send_once(request.header(header::ACCEPT, "text/event-stream")).await?;
        let kind = response.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        if !kind.is_some_and(|kind| kind.starts_with("text/event-stream")) {
            return Err(client.foreign(response.status().as_u16(), "it is no event stream"));
        }
        Ok(Self { response, parser: Parser::new() })
    }

    /// `None` when the server ended the stream properly.
    pub(crate) async fn next(&mut self, client: &Client, backoff: &mut Backoff) -> Result<Option<Frame>> {
        loop {
            if let Some(frame) = self.parser.next_frame() {
                return Ok(Some(frame));
            }
            match self.response.chunk().await.map_err(|error| client.transport(error))? {
                Some(bytes) => {
                    // Heartbeats count: a quiet stream is not a failing one.
                    backoff.progress();
                    self.parser.feed(&bytes).map_err(|error| client.foreign(200, error))?;
                }
                None => return Ok(None),
            }
        }
    }
}

pub(crate) fn data<T: DeserializeOwned>(frame: &Frame, client: &Client) -> Result<T> {
    serde_json::from_str(&frame.data).map_err(|error| client.foreign(200, error))
}

/// The server's way of failing in the middle of a stream.
pub(crate) fn problem(frame: &Frame, client: &Client) -> Error {
    match data::<Problem>(frame, client) {
        Ok(problem) => problem.into(),
        Err(error) => error,
    }
}

struct Subscription<S> {
    client: Client,
    source: S,
    live: Option<Live>,
    backoff: Backoff,
    ended: bool,
}

impl<S: Source> Subscription<S> {
    async fn next(&mut self) -> Result<Option<S::Item>> {
        loop {
            match self.advance().await {
                Ok(Some(item)) => return Ok(Some(item)),
                Ok(None) if self.source.is_over() => return Ok(None),
                Err(_) if self.source.is_complete() => return Ok(None),
                Err(error) if !error.is_passing() => return Err(error),
                broken => {
                    self.live = None;
                    if !self.client.wait(&mut self.backoff).await {
                        return Err(broken.err().unwrap_or_else(|| {
                            Error::Problem(Box::new(Problem::new(
                                sandbar_api::Code::ShuttingDown,
                                "The server ended the stream and does not take it up again.",
                                "Look into its log, then try again.",
                            )))
                        }));
                    }
                }
            }
        }
    }

    /// `None`: the server ended the stream properly.
    async fn advance(&mut self) -> Result<Option<S::Item>> {
        let live = match &mut self.live {
            Some(live) => live,
            None => {
                let live = Live::open(&self.client, self.source.request(&self.client)).await?;
                // From here on a failure means a restart, not an absent server.
                if self.backoff.is_refusing() {
                    self.backoff = self.client.backoff();
                }
                self.live.insert(live)
            }
        };
        while let Some(frame) = live.next(&self.client, &mut self.backoff).await? {
            if let Some(item) = self.source.take(&frame, &self.client)? {
                return Ok(Some(item));
            }
        }
        Ok(None)
    }
}

/// Ends after the first error.
pub(crate) fn subscribe<S: Source>(client: &Client, source: S) -> impl Stream<Item = Result<S::Item>> + Send + use<S> {
    let backoff = client.backoff();
    let subscription = Subscription { client: client.clone(), source, live: None, backoff, ended: false };
    stream::unfold(subscription, |mut subscription| async move {
        if subscription.ended {
            return None;
        }
        match subscription.next().await {
            Ok(None) => None,
            Ok(Some(item)) => Some((Ok(item), subscription)),
            Err(error) => {
                subscription.ended = true;
                Some((Err(error), subscription))
            }
        }
    })
}
