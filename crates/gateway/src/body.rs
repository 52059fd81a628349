//! The bodies that pass through: streamed, counted, never gathered.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::{Buf as _, Bytes};
use http_body_util::{BodyExt as _, Empty, Full, combinators::UnsyncBoxBody};
use hyper::{
    Request,
    body::{Body as HttpBody, Frame, Incoming, SizeHint},
    header::EXPECT,
};

use crate::headers;

/// The most that is read of a request that is refused, and how long.
const DRAINED: usize = 1 << 20;
const DRAIN: Duration = Duration::from_secs(1);

pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// What every part of the gateway answers with and sends.
pub(crate) type Body = UnsyncBoxBody<Bytes, BoxError>;

pub(crate) fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

pub(crate) fn empty() -> Body {
    Empty::new().map_err(|never| match never {}).boxed_unsync()
}

/// Any streaming body as ours.
pub(crate) fn stream<B>(body: B) -> Body
where
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    body.map_err(Into::into).boxed_unsync()
}

/// Reads on for a moment before a refusal is given: many clients take an answer that overtakes their request for a broken
/// connection. Who asked whether to send the body at all has not begun, and is not encouraged.
pub(crate) async fn drain(request: Request<Incoming>) {
    if request.headers().contains_key(EXPECT) {
        return;
    }
    let (mut body, mut left) = (request.into_body(), DRAINED);
    let reading = async {
        while let Some(Ok(frame)) = body.frame().await
            && left > 0
        {
            left = left.saturating_sub(frame.data_ref().map_or(0, Bytes::len));
        }
    };
    // what is longer is cut off
    let _ = tokio::time::timeout(DRAIN, reading).await;
}

/// A server's body, whose trailers say nothing in the gateway's name.
pub(crate) struct FromServer<B>(pub(crate) B);

impl<B> HttpBody for FromServer<B>
where
    B: HttpBody<Data = Bytes> + Unpin,
{
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let mut polled = Pin::new(&mut self.0).poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &mut polled
            && let Some(trailers) = frame.trailers_mut()
        {
            headers::strip_own(trailers);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.size_hint()
    }
}

/// Counts the bytes of a body, and keeps `held` until it ended, failed or was dropped.
pub(crate) struct Counted<B, H> {
    inner: B,
    count: Arc<AtomicU64>,
    held: Option<H>,
    finish: Option<fn(&mut H, End)>,
}

/// How a body came to its end.
pub(crate) enum End {
    Whole,
    Broken(String),
}

impl<B, H> Counted<B, H> {
    /// `finish` is told how it ended; a body that is dropped before its end only drops `held`.
    pub(crate) fn new(inner: B, count: Arc<AtomicU64>, held: H, finish: fn(&mut H, End)) -> Self {
        Self { inner, count, held: Some(held), finish: Some(finish) }
    }

    fn end(&mut self, end: End) {
        if let (Some(mut held), Some(finish)) = (self.held.take(), self.finish.take()) {
            finish(&mut held, end);
        }
    }
}

impl<B, H> HttpBody for Counted<B, H>
where
    B: HttpBody<Data = Bytes> + Unpin,
    B::Error: std::fmt::Display,
    H: Unpin,
{
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let polled = Pin::new(&mut self.inner).poll_frame(cx);
        match &polled {
            Poll::Ready(Some(Ok(frame))) => {
                if let Some(data) = frame.data_ref() {
                    self.count.fetch_add(data.remaining() as u64, Ordering::Relaxed);
                }
                // hyper does not poll on after the last frame of a body whose length it knows
                if self.inner.is_end_stream() {
                    self.end(End::Whole);
                }
            }
            Poll::Ready(Some(Err(error))) => {
                let cause = error.to_string();
                self.end(End::Broken(cause));
            }
            Poll::Ready(None) => self.end(End::Whole),
            Poll::Pending => {}
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
