//! When a call ends that does not end by itself: its deadline passes, its token is revoked, the server goes.
//!
//! What a stream holds is given up at that moment, also if its reader stands still: a command is killed, a keyboard is let
//! go. The reader is told why as soon as it reads on.

use std::{
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    body::Body,
    extract::{Request, State},
    http::HeaderMap,
    middleware::Next,
    response::{IntoResponse as _, Response},
};
use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use sandbar_api::{Code, Problem};
use sandbar_engine::Caller;
use tokio::{task::JoinHandle, time::sleep};
use tonic::Status;

use super::status;
use crate::{
    App,
    access::unauthenticated,
    problem::{Refused, bad_request, shutting_down},
};

#[derive(Clone)]
pub(super) struct Bounds {
    pub(super) app: App,
    /// It lasts as long as either side likes.
    pub(super) streams: bool,
}

pub(super) async fn hold(State(bounds): State<Bounds>, request: Request, next: Next) -> Response {
    if !status::is_spoken(request.headers()) {
        return Refused(Problem::new(
            Code::UnsupportedMedia,
            "This is a method of the gRPC API, and the call is not gRPC.",
            "Call it with a gRPC client, or use the REST API; see /docs.",
        ))
        .into_response();
    }
    let left = match deadline(request.headers()) {
        Ok(left) => left,
        Err(problem) => return Refused(problem).into_response(),
    };
    let caller = request.extensions().get::<Caller>().cloned();
    let streams = bounds.streams;
    let mut end = Box::pin(ended(bounds, left, caller));
    let response = tokio::select! {
        response = next.run(request) => status::coded(response),
        status = &mut end => return status::refusal(&status, &HeaderMap::new()),
    };
    // Of a refusal there is no body to end.
    if !streams || response.headers().contains_key("grpc-status") {
        return response;
    }
    response.map(|body| {
        let inner = Arc::new(Mutex::new(Some(body)));
        let given_up = inner.clone();
        let end = tokio::spawn(async move {
            let status = end.await;
            let body = lock(&given_up).take();
            drop(body);
            status
        });
        Body::new(Held { inner, end: Some(end) })
    })
}

async fn ended(bounds: Bounds, left: Option<Duration>, caller: Option<Caller>) -> Status {
    let Bounds { app, streams } = bounds;
    let late = async {
        match left {
            Some(left) => sleep(left).await,
            None => std::future::pending().await,
        }
    };
    let closing = async {
        // Calls that end by themselves are waited for.
        if streams { app.closing.cancelled().await } else { std::future::pending().await }
    };
    let turned_away = async {
        match caller {
            Some(caller) if streams => app.engine.turned_away(&caller).await,
            _ => std::future::pending().await,
        }
    };
    tokio::select! {
        () = late => Status::deadline_exceeded("The call took longer than its deadline."),
        () = closing => status::of(shutting_down()),
        turned = turned_away => match turned {
            Ok(()) => status::of(unauthenticated("The token was revoked, or has expired.")),
            Err(problem) => status::of(problem),
        },
    }
}

/// How long the caller wants to wait: up to eight digits and a unit.
fn deadline(headers: &HeaderMap) -> Result<Option<Duration>, Problem> {
    let Some(value) = headers.get("grpc-timeout") else { return Ok(None) };
    let parsed = value.to_str().ok().and_then(|text| {
        let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
        let usable = (1..=8).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit());
        let number: u64 = digits.parse().ok().filter(|_| usable)?;
        match unit {
            "H" => Some(Duration::from_secs(number * 3600)),
            "M" => Some(Duration::from_secs(number * 60)),
            "S" => Some(Duration::from_secs(number)),
            "m" => Some(Duration::from_millis(number)),
            "u" => Some(Duration::from_micros(number)),
            "n" => Some(Duration::from_nanos(number)),
            _ => None,
        }
    });
    parsed.map(Some).ok_or_else(|| {
        bad_request("The metadata `grpc-timeout` is not a time.", "Send up to eight digits and one of H M S m u n.")
    })
}

type Inner = Arc<Mutex<Option<Body>>>;

fn lock(inner: &Inner) -> MutexGuard<'_, Option<Body>> {
    inner.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The body of a stream: as it comes, or given up, and then the status that says why.
struct Held {
    inner: Inner,
    /// None when its status was told.
    end: Option<JoinHandle<Status>>,
}

impl HttpBody for Held {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let Some(end) = &mut self.end else { return Poll::Ready(None) };
        if let Poll::Ready(status) = Pin::new(end).poll(cx) {
            self.end = None;
            let status = status.unwrap_or_else(|error| Status::internal(error.to_string()));
            let mut trailers = HeaderMap::new();
            return Poll::Ready(Some(match status.add_header(&mut trailers) {
                Ok(()) => Ok(Frame::trailers(trailers)),
                Err(status) => Err(axum::Error::new(status)),
            }));
        }
        match &mut *lock(&self.inner) {
            Some(body) => Pin::new(body).poll_frame(cx),
            // Given up just now: its status wakes us.
            None => Poll::Pending,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.end.is_none() || lock(&self.inner).as_ref().is_some_and(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(end) = &self.end {
            end.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn deadlines_are_read_or_refused() {
        let read = |text: &'static str| {
            let name = axum::http::HeaderName::from_static("grpc-timeout");
            deadline(&HeaderMap::from_iter([(name, HeaderValue::from_static(text))]))
        };
        for (text, want) in [
            ("1H", Duration::from_secs(3600)),
            ("2M", Duration::from_secs(120)),
            ("3S", Duration::from_secs(3)),
            ("250m", Duration::from_millis(250)),
            ("99999999u", Duration::from_micros(99_999_999)),
            ("0n", Duration::ZERO),
        ] {
            assert_eq!(read(text), Ok(Some(want)), "{text}");
        }
        for text in ["", "S", "1", "1s", "-1S", "+1S", "123456789S", "1.5S", " 1S"] {
            assert!(read(text).is_err(), "{text}");
        }
        assert_eq!(deadline(&HeaderMap::new()), Ok(None));
    }
}
