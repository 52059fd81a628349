//! Bodies on their way: the one inward tells when it is sent, the one outward holds the connection it comes over.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use axum::body::Body;
use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use tokio::{
    sync::{Notify, oneshot},
    task::JoinHandle,
    time::sleep,
};

use super::Until;

/// For the end of a connection whose answer was read to its end.
const LINGER: Duration = Duration::from_secs(5);

/// Tells by being dropped, or read to its end, that nothing more is sent.
pub(super) struct Told {
    body: Body,
    left: Option<oneshot::Sender<()>>,
}

impl Told {
    pub(super) fn new(body: Body) -> (Self, impl Future<Output = ()>) {
        let (left, sent) = oneshot::channel();
        let left = Some(left).filter(|_| !body.is_end_stream());
        (Self { body, left }, async { drop(sent.await) })
    }
}

impl HttpBody for Told {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        if matches!(polled, Poll::Ready(None | Some(Err(_)))) || self.body.is_end_stream() {
            self.left = None;
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The task of a connection inward. It is broken off with whoever waits for its answer, unless that was read to its end.
pub(super) struct Line {
    task: JoinHandle<()>,
    whole: bool,
    over: Arc<Notify>,
}

impl Line {
    pub(super) fn new(connection: impl Future<Output = hyper::Result<()>> + Send + 'static) -> Self {
        let over = Arc::new(Notify::new());
        let ended = over.clone();
        let task = tokio::spawn(async move {
            tokio::select! {
                ended = connection => if let Err(error) = ended {
                    tracing::debug!(%error, "a connection inward broke");
                },
                () = async { ended.notified().await; sleep(LINGER).await } => {}
            }
        });
        Self { task, whole: false, over }
    }

    /// It ends by itself.
    pub(super) fn keep(&mut self) {
        self.whole = true;
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        if self.whole { self.over.notify_one() } else { self.task.abort() }
    }
}

#[derive(Debug, thiserror::Error)]
pub(super) enum Cut {
    #[error("what the caller was let in for is over")]
    Over,
    #[error("the server inside broke off")]
    Inside(#[source] hyper::Error),
}

/// An answer's body. When it breaks the status is long gone: so is the connection then, and nobody takes the part for the
/// whole.
pub(super) struct Passed {
    body: Incoming,
    line: Line,
    until: Until,
}

impl Passed {
    pub(super) fn new(body: Incoming, mut line: Line, until: Until) -> Self {
        line.whole = body.is_end_stream();
        Self { body, line, until }
    }
}

impl HttpBody for Passed {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        if self.until.as_mut().poll(cx).is_ready() {
            self.line.whole = false;
            return Poll::Ready(Some(Err(Cut::Over)));
        }
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        match &polled {
            Poll::Ready(None) => self.line.whole = true,
            Poll::Ready(Some(Ok(_))) => self.line.whole = self.body.is_end_stream(),
            Poll::Ready(Some(Err(_))) | Poll::Pending => {}
        }
        polled.map(|frame| frame.map(|frame| frame.map_err(Cut::Inside)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
