//! Server-sent events: how a frame looks, and a response that pulls one frame at a time, so that a slow reader holds
//! one chunk and no more.

use std::{convert::Infallible, fmt::Write as _, pin::pin, time::Duration};

use axum::{
    body::Body,
    http::{HeaderMap, HeaderValue, header},
    response::Response,
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use futures_util::{Stream, StreamExt as _, stream};
use sandbar_api::{Code, OutputChunk, Problem};
use serde::Serialize;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::problem::shutting_down;

/// Below the idle timeouts of common proxies, and how long a vanished reader can stay unnoticed.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

pub(crate) type Frames = std::result::Result<Bytes, Problem>;

/// Whether the caller asked for events.
pub(crate) fn wanted(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    accepted.flat_map(|list| list.split(',')).any(|range| {
        let mut parts = range.split(';').map(str::trim);
        let named = parts.next().is_some_and(|essence| essence.eq_ignore_ascii_case("text/event-stream"));
        named && !parts.any(|parameter| matches!(parameter, "q=0" | "q=0.0" | "q=0.00" | "q=0.000"))
    })
}

/// JSON has no raw line breaks, so data is always one line.
pub(crate) fn frame(id: Option<u64>, event: &str, data: &impl Serialize) -> Frames {
    let json = serde_json::to_string(data).map_err(|error| {
        Problem::new(Code::Internal, format!("An event could not be written: {error}."), "Report it.")
    })?;
    let mut text = String::with_capacity(json.len() + event.len() + 48);
    // Writing to a String cannot fail.
    if let Some(id) = id {
        let _ = writeln!(text, "id: {id}");
    }
    let _ = write!(text, "event: {event}\ndata: {json}\n\n");
    Ok(text.into())
}

/// The frame of an [`OutputChunk`], base64 written straight into it: this is where large output spends its time.
pub(crate) fn output(chunk: &OutputChunk) -> Bytes {
    let end = chunk.offset + chunk.data.len() as u64;
    let stream = match chunk.stream {
        sandbar_api::Stream::Stdout => "stdout",
        sandbar_api::Stream::Stderr => "stderr",
    };
    let mut text = String::with_capacity(chunk.data.len().div_ceil(3) * 4 + 160);
    let offset = chunk.offset;
    // Writing to a String cannot fail.
    let _ = write!(text, "id: {end}\nevent: output\ndata: {{\"offset\":{offset},\"stream\":\"{stream}\",\"data\":\"");
    STANDARD.encode_string(&chunk.data, &mut text);
    text.push_str("\"}\n\n");
    text.into()
}

fn error(problem: &Problem) -> Bytes {
    // A problem is strings and numbers and always serialises; an empty comment is the least wrong alternative.
    frame(None, "error", problem).unwrap_or_else(|_| Bytes::from_static(b":\n\n"))
}

/// Sends frames as they come, comments while none come, and `error` as the last frame when they fail or the server
/// shuts down.
pub(crate) fn respond(frames: impl Stream<Item = Frames> + Send + 'static, closing: CancellationToken) -> Response {
    let body = Body::from_stream(paced(frames, closing).map(Ok::<_, Infallible>));
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    // Proxies that collect answers would turn a live stream into a late one.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

fn paced(frames: impl Stream<Item = Frames> + Send + 'static, closing: CancellationToken) -> impl Stream<Item = Bytes> {
    stream::unfold(Some((Box::pin(frames), closing)), |state| async move {
        let (mut frames, closing) = state?;
        let next = {
            let closed = pin!(closing.cancelled());
            tokio::select! {
                biased;
                () = closed => Some(Err(shutting_down())),
                next = timeout(KEEP_ALIVE, frames.next()) => next.unwrap_or(Some(Ok(Bytes::from_static(b":\n\n")))),
            }
        };
        match next? {
            Ok(frame) => Some((frame, Some((frames, closing)))),
            Err(problem) => Some((error(&problem), None)),
        }
    })
}

#[cfg(test)]
mod tests {
    use sandbar_api::Stream as Source;

    use super::*;

    #[test]
    fn an_output_frame_reads_back_as_the_chunk() {
        for data in [vec![], b"a\nb\r\n\n".to_vec(), (0..=255).collect(), vec![7; 65_536]] {
            let chunk = OutputChunk { offset: 9, stream: Source::Stderr, data };
            let quick = output(&chunk);
            let plain = frame(Some(9 + chunk.data.len() as u64), "output", &chunk);
            assert_eq!(Ok(quick), plain);
        }
    }

    #[test]
    fn a_frame_is_id_event_data() {
        let text = frame(Some(3), "sandbox.ready", &serde_json::json!({"a": "x\ny"}));
        assert_eq!(text, Ok("id: 3\nevent: sandbox.ready\ndata: {\"a\":\"x\\ny\"}\n\n".into()));
    }

    #[test]
    fn accept_is_understood() {
        for (accept, want) in [
            ("text/event-stream", true),
            ("application/json, text/event-stream;q=0.9", true),
            ("Text/Event-Stream", true),
            ("text/event-stream;q=0", false),
            ("application/json", false),
            ("*/*", false),
        ] {
            let headers = HeaderMap::from_iter([(header::ACCEPT, HeaderValue::from_static(accept))]);
            assert_eq!(wanted(&headers), want, "{accept}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn silence_is_filled_and_the_end_is_told() {
        let closing = CancellationToken::new();
        let first = stream::iter([Ok(Bytes::from_static(b"one"))]);
        let mut frames = Box::pin(paced(first.chain(stream::pending()), closing.clone()));
        assert_eq!(frames.next().await.as_deref(), Some(&b"one"[..]));
        assert_eq!(frames.next().await.as_deref(), Some(&b":\n\n"[..]));
        closing.cancel();
        let last = frames.next().await.unwrap_or_default();
        assert!(last.starts_with(b"event: error\n") && last.windows(13).any(|w| w == b"shutting_down"));
        assert_eq!(frames.next().await, None);
    }
}
