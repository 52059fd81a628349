//! Output of a process from any offset: raw bytes, or events that follow it to its end.

use std::io;

use axum::{
    body::Body,
    extract::State,
    http::{HeaderMap, HeaderName, HeaderValue, header},
    response::Response,
};
use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use sandbar_api::{Code, OutputChunk, Problem, Stream};
use sandbar_engine::{OutputItem, OutputReader};
use serde::Deserialize;
use tokio_util::sync::CancellationToken;
use utoipa::IntoParams;

use super::ProcessPath;
use crate::{
    App,
    extract::{Path, Query, last_event_id},
    problem::{Result, shutting_down},
    registry::{Routes, routes},
    sse,
};

const OUTPUT_START: HeaderName = HeaderName::from_static("sandbar-output-start");
const OUTPUT_END: HeaderName = HeaderName::from_static("sandbar-output-end");

pub(super) fn routes() -> Routes {
    Routes::default().routes(routes!(output))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct OutputQuery {
    /// The first offset wanted; the first one still kept when absent.
    from: Option<u64>,
    /// How many offsets to cover at most.
    limit: Option<u64>,
    /// Wait for more until the process ends. Events follow unless this is false, raw bytes only when it is true.
    follow: Option<bool>,
    /// Only the bytes of this stream. Offsets still count both.
    stream: Option<Stream>,
}

/// Read output
///
/// Raw bytes, or with `Accept: text/event-stream` the events `output` (an OutputChunk; its id is the offset after it),
/// `exit` (the Process) and `error` (a Problem). Resume with `Last-Event-ID` or `from`.
#[utoipa::path(
    get, path = "/v1/sandboxes/{sandbox}/processes/{process}/output", operation_id = "read_output", tag = "processes",
    params(
        ProcessPath,
        OutputQuery,
        ("Last-Event-ID" = Option<u64>, Header, description = "Instead of `from`, for events."),
    ),
    responses(
        (status = 200, description = "The output.",
            content((String = "application/octet-stream"), (OutputChunk = "text/event-stream")),
            headers(
                ("Sandbar-Output-Start" = u64, description = "Offset of the first byte covered."),
                ("Sandbar-Output-End" = u64, description = "Offset after the last byte covered; not when following."),
            )),
        (status = 400, description = "`bad_request`"),
        (status = 404, description = "`unknown_sandbox`, `unknown_process`"),
        (status = 410, description = "`output_dropped`, with `first_kept`; `sandbox_gone`"),
        (status = 416, description = "`offset_beyond`"),
    )
)]
async fn output(
    State(app): State<App>,
    Path(path): Path<ProcessPath>,
    Query(query): Query<OutputQuery>,
    headers: HeaderMap,
) -> Result<Response> {
    let events = sse::wanted(&headers);
    // A browser that connects again repeats the first URL; its Last-Event-ID is newer.
    let resumed = if events { last_event_id(&headers)? } else { None };
    let reader = app.engine.output(&path.sandbox, &path.process, resumed.or(query.from)).await?;
    let start = reader.offset();
    let follow = query.follow.unwrap_or(events);
    let mut window = Window::new(reader, follow, query.limit, query.stream);
    if events {
        let frames = stream::unfold(Some(window), async |window| {
            let mut window = window?;
            match window.next().await {
                Ok(Some(OutputItem::Chunk(chunk))) => Some((Ok(sse::output(&chunk)), Some(window))),
                Ok(Some(OutputItem::Exit(process))) => Some((sse::frame(None, "exit", &process), Some(window))),
                Ok(None) => None,
                Err(problem) => Some((Err(problem), None)),
            }
        });
        return Ok(sse::respond(frames, app.closing.clone()));
    }
    let mut head = HeaderMap::new();
    head.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    head.insert(OUTPUT_START, start.into());
    if !follow {
        // Fixed before the first byte goes out: what is written meanwhile belongs to the next request.
        let written = app.engine.process(&path.sandbox, &path.process).await?.output.end.max(start);
        let end = window.until.map_or(written, |until| until.min(written));
        (window.until, window.promised) = (Some(end), true);
        head.insert(OUTPUT_END, end.into());
        if window.only.is_none() {
            head.insert(header::CONTENT_LENGTH, (end - start).into());
        }
    }
    let mut response = Response::new(raw(window, app.closing.clone()));
    *response.headers_mut() = head;
    Ok(response)
}

/// Bytes as they come. A failure, or the server's end while following, breaks the connection off: an orderly end would
/// say that this was all.
fn raw(window: Window, closing: CancellationToken) -> Body {
    let pieces = stream::unfold(Some(window), async |window| {
        let mut window = window?;
        loop {
            match window.next().await {
                Ok(Some(OutputItem::Chunk(chunk))) => return Some((Ok(Bytes::from(chunk.data)), Some(window))),
                Ok(Some(OutputItem::Exit(_))) => {}
                Ok(None) => return None,
                Err(problem) => return Some((Err(io::Error::other(problem)), None)),
            }
        }
    });
    let ended = async move {
        closing.cancelled_owned().await;
        Err(io::Error::other(shutting_down()))
    };
    Body::from_stream(until_ended(pieces, ended))
}

/// The stream, or what `ended` gives if that comes first.
fn until_ended<T>(
    items: impl stream::Stream<Item = T> + Send,
    ended: impl Future<Output = T> + Send,
) -> impl stream::Stream<Item = T> + Send {
    stream::unfold(Some((Box::pin(items), Box::pin(ended))), async |state| {
        let (mut items, mut ended) = state?;
        tokio::select! {
            biased;
            item = items.next() => item.map(|item| (item, Some((items, ended)))),
            last = &mut ended => Some((last, None)),
        }
    })
}

/// A reader cut to what was asked for.
pub(crate) struct Window {
    reader: OutputReader,
    follow: bool,
    /// Not at or after this offset.
    until: Option<u64>,
    /// Everything below `until` is written and was announced.
    promised: bool,
    only: Option<Stream>,
}

impl Window {
    pub(crate) fn new(reader: OutputReader, follow: bool, limit: Option<u64>, only: Option<Stream>) -> Self {
        let until = limit.map(|limit| reader.offset().saturating_add(limit));
        Self { reader, follow, until, promised: false, only }
    }

    pub(crate) async fn next(&mut self) -> std::result::Result<Option<OutputItem>, Problem> {
        loop {
            if self.until.is_some_and(|until| self.reader.offset() >= until) {
                return Ok(None);
            }
            let mut item = self.reader.next(self.follow).await?;
            if item.is_none() && self.promised {
                // The store can be a moment ahead of what the reader was told.
                item = self.reader.next(true).await?;
            }
            match item {
                Some(OutputItem::Chunk(chunk)) if self.only.is_some_and(|only| only != chunk.stream) => {}
                Some(OutputItem::Chunk(mut chunk)) => {
                    cut(&mut chunk, self.until);
                    return Ok(Some(OutputItem::Chunk(chunk)));
                }
                None if self.promised => {
                    let detail = "The output went away while it was read: its sandbox was deleted.";
                    return Err(Problem::new(Code::SandboxGone, detail, "There is nothing left to read."));
                }
                other => return Ok(other),
            }
        }
    }
}

fn cut(chunk: &mut OutputChunk, until: Option<u64>) {
    if let Some(keep) = until.and_then(|until| usize::try_from(until.saturating_sub(chunk.offset)).ok()) {
        chunk.data.truncate(keep);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_is_cut_at_the_limit() {
        for (until, want) in
            [(None, "abcd"), (Some(12), "ab"), (Some(14), "abcd"), (Some(u64::MAX), "abcd"), (Some(10), "")]
        {
            let mut chunk = OutputChunk { offset: 10, stream: Stream::Stdout, data: b"abcd".to_vec() };
            cut(&mut chunk, until);
            assert_eq!(chunk.data, want.as_bytes(), "{until:?}");
        }
    }

    #[tokio::test]
    async fn the_end_comes_after_what_was_there() {
        let items: Vec<_> = until_ended(stream::iter([1, 2]).chain(stream::pending()), async { 0 }).collect().await;
        assert_eq!(items, [1, 2, 0]);
    }
}
