//! An answer that takes long without anything being sent before it would look dead to proxies and to clients: it becomes
//! an event stream, in which comments say that somebody is still there.

use std::{pin::Pin, time::Duration};

use axum::{
    body::{Body, to_bytes},
    http::{HeaderValue, header},
    response::Response,
};
use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use tokio::{sync::Notify, time::sleep};

/// From when a tool begins to the head of the answer, and between comments.
const SILENCE: Duration = Duration::from_secs(10);
const EVENTS: &str = "text/event-stream";

pub(super) type Answering = Pin<Box<dyn Future<Output = Response> + Send>>;

/// `begun`: what is refused, or still arriving, is answered as it is.
pub(super) async fn answered(mut answering: Answering, begun: &Notify) -> Response {
    let long = async {
        begun.notified().await;
        sleep(SILENCE).await;
    };
    tokio::select! {
        biased;
        answer = &mut answering => answer,
        () = long => streamed(answering),
    }
}

/// Dropping it cancels the call, as dropping what it waits for does.
fn streamed(answering: Answering) -> Response {
    let waiting = stream::unfold(Some(answering), |waiting| async {
        let mut answering = waiting?;
        let comment = Body::from(":\n\n");
        tokio::select! {
            biased;
            answer = &mut answering => Some((event(answer).await, None)),
            () = sleep(SILENCE) => Some((comment, Some(answering))),
        }
    });
    // The first at once, so that the head goes out with something.
    let bodies = stream::iter([Body::from(":\n\n")]).chain(waiting);
    let mut response = Response::new(Body::from_stream(bodies.flat_map(|body| body.into_data_stream())));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(EVENTS));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// The late answer as it goes into the stream: JSON as an event, events as they are.
async fn event(answer: Response) -> Body {
    let (head, body) = answer.into_parts();
    let kind = head.headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    if kind.starts_with(EVENTS.as_bytes()) {
        return body;
    }
    let json = kind.starts_with(b"application/json");
    match to_bytes(body, usize::MAX).await {
        // JSON as it is written here has no line ends.
        Ok(body) if json => Body::from(Bytes::from([b"data: ", body.as_ref(), b"\n\n"].concat())),
        Ok(body) => {
            tracing::debug!(body = %String::from_utf8_lossy(&body), "a call ended without an answer");
            Body::empty()
        }
        Err(error) => {
            tracing::debug!(%error, "an answer broke off");
            Body::empty()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(wait: Duration, kind: &'static str, body: &'static str) -> Answering {
        Box::pin(async move {
            sleep(wait).await;
            let mut response = Response::new(Body::from(body));
            response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
            response
        })
    }

    async fn text(response: Response) -> (String, String) {
        let kind = response.headers()[header::CONTENT_TYPE].to_str().unwrap_or_default().to_owned();
        let body = to_bytes(response.into_body(), usize::MAX).await.unwrap_or_default();
        (kind, String::from_utf8_lossy(&body).into_owned())
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_quick_or_not_begun_is_left_alone() {
        let begun = Notify::new();
        begun.notify_one();
        let quick = answered(after(Duration::from_secs(9), "application/json", "{}"), &begun).await;
        assert_eq!(text(quick).await, ("application/json".to_owned(), "{}".to_owned()));
        let arriving = answered(after(Duration::from_secs(99), "text/plain", "no"), &Notify::new()).await;
        assert_eq!(text(arriving).await.1, "no");
    }

    #[tokio::test(start_paused = true)]
    async fn what_takes_long_becomes_events() {
        for (kind, body, want) in [
            ("application/json", "{}", ":\n\n:\n\n:\n\ndata: {}\n\n"),
            ("text/event-stream", "data: 1\n\n", ":\n\n:\n\n:\n\ndata: 1\n\n"),
            ("text/plain", "shut down", ":\n\n:\n\n:\n\n"),
        ] {
            let begun = Notify::new();
            begun.notify_one();
            let late = answered(after(Duration::from_secs(35), kind, body), &begun).await;
            assert_eq!(text(late).await, (EVENTS.to_owned(), want.to_owned()), "{kind}");
        }
    }
}
