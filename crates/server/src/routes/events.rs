//! The event log: read in pages, or followed live.

use axum::{
    extract::State,
    http::HeaderMap,
    response::{IntoResponse as _, Response},
};
use futures_util::{StreamExt as _, stream};
use sandbar_api::{Code, Event, EventPage, Problem};
use sandbar_engine::Engine;
use serde::Deserialize;
use tokio::sync::watch;
use utoipa::IntoParams;

use crate::{
    App,
    extract::{Query, last_event_id},
    problem::{Result, bad_request, shutting_down},
    registry::{Routes, routes},
    sse,
};

const DEFAULT_LIMIT: u32 = 100;
const MAX_LIMIT: u32 = 1000;
/// Read at once while following.
const BATCH: u32 = 256;
const MAX_KINDS: usize = 16;

pub(super) fn routes() -> Routes {
    Routes::default().routes(routes!(events))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct EventsQuery {
    /// The first sequence number wanted; the first one still kept when absent.
    from: Option<u64>,
    /// 100 when absent. Not for a live stream.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
    /// Only events about this sandbox: its id or name.
    sandbox: Option<String>,
    /// Only events whose type starts with one of these, separated by commas: `net.,llm.` or `sandbox.ready`.
    #[param(example = "net.,llm.")]
    r#type: Option<String>,
}

/// Read or follow events
///
/// A page, or with `Accept: text/event-stream` everything from there on, live: `id` is the sequence number, `event` the
/// type. Resume with `Last-Event-ID` or `from`.
#[utoipa::path(
    get, path = "/v1/events", operation_id = "events", tag = "events",
    params(EventsQuery, ("Last-Event-ID" = Option<u64>, Header, description = "Instead of `from`, for a live stream.")),
    responses(
        (status = 200, description = "The events.",
            content((EventPage = "application/json"), (Event = "text/event-stream"))),
        (status = 400, description = "`bad_request`"),
        (status = 404, description = "`unknown_sandbox`"),
        (status = 410, description = "`events_dropped`, with `first_kept`"),
    )
)]
async fn events(State(app): State<App>, Query(query): Query<EventsQuery>, headers: HeaderMap) -> Result<Response> {
    let live = sse::wanted(&headers);
    let limit = query.limit.unwrap_or(DEFAULT_LIMIT);
    if !(1..=MAX_LIMIT).contains(&limit) {
        return Err(bad_request(format!("{limit} is not a limit."), format!("Use 1 to {MAX_LIMIT}.")).into());
    }
    // A browser that connects again repeats the first URL; its Last-Event-ID is newer.
    let seen = if live { last_event_id(&headers)? } else { None };
    let after = seen.or(query.from.map(|from| from.saturating_sub(1)));
    let kinds = query.r#type.as_deref().map_or_else(|| Ok(Vec::new()), kinds)?;
    let mut log = Log::new(&app.engine, query.sandbox, kinds);
    let first = log.begin(after, if live { BATCH } else { limit }).await?;
    if !live {
        return Ok(axum::Json(EventPage { events: log.fill(first, limit).await? }).into_response());
    }
    let Batch { events: first, .. } = first;
    let rest = stream::unfold(Some(log), async |log| {
        let mut log = log?;
        match log.wait().await {
            Ok(batch) => Some((Ok(batch), Some(log))),
            Err(problem) => Some((Err(problem), None)),
        }
    });
    let frames = stream::iter([Ok(first)]).chain(rest).flat_map(|batch| {
        let (events, failed) = match batch {
            Ok(events) => (events, None),
            Err(problem) => (Vec::new(), Some(Err(problem))),
        };
        stream::iter(events.into_iter().map(|event| sse::frame(Some(event.seq), &event.kind, &event)).chain(failed))
    });
    Ok(sse::respond(frames, app.closing.clone()))
}

fn kinds(text: &str) -> std::result::Result<Vec<String>, Problem> {
    let usable = |kind: &str| {
        !kind.is_empty() && kind.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'.' || byte == b'_')
    };
    let kinds: Vec<String> = text.split(',').map(str::to_owned).collect();
    if kinds.len() > MAX_KINDS || !kinds.iter().all(|kind| usable(kind)) {
        let detail = format!("`{}` is no list of types.", text.escape_debug());
        return Err(bad_request(detail, format!("Write up to {MAX_KINDS} beginnings of types, as in `net.,llm.`.")));
    }
    Ok(kinds)
}

/// A place in the log.
pub(super) struct Log {
    engine: Engine,
    head: watch::Receiver<u64>,
    after: u64,
    sandbox: Option<String>,
    /// Beginnings of types; empty: all.
    kinds: Vec<String>,
}

/// What was read at once and is wanted.
pub(super) struct Batch {
    pub(super) events: Vec<Event>,
    /// There was nothing more to read, wanted or not.
    at_end: bool,
}

impl Log {
    pub(super) fn new(engine: &Engine, sandbox: Option<String>, kinds: Vec<String>) -> Self {
        Self { engine: engine.clone(), head: engine.head(), after: 0, sandbox, kinds }
    }

    /// The newest event's number.
    pub(super) fn end(&self) -> u64 {
        *self.head.borrow()
    }

    pub(super) async fn begin(&mut self, after: Option<u64>, limit: u32) -> std::result::Result<Batch, Problem> {
        self.after = after.unwrap_or(0);
        match self.read(limit).await {
            // Nobody asked for the dropped ones: begin with the first that is kept.
            Err(Problem { code: Code::EventsDropped, first_kept: Some(first), .. }) if after.is_none() => {
                self.after = first.saturating_sub(1);
                self.read(limit).await
            }
            other => other,
        }
    }

    /// Reads on until a page is full or the log ends: only then may a page be empty, which says that this was all.
    async fn fill(&mut self, first: Batch, limit: u32) -> std::result::Result<Vec<Event>, Problem> {
        let Batch { mut events, mut at_end } = first;
        let limit = limit as usize;
        while events.len() < limit && !at_end && !self.kinds.is_empty() {
            let more = self.read(MAX_LIMIT).await?;
            events.extend(more.events);
            at_end = more.at_end;
        }
        events.truncate(limit);
        Ok(events)
    }

    async fn read(&mut self, limit: u32) -> std::result::Result<Batch, Problem> {
        // Taken before reading: what is appended meanwhile wakes the next wait.
        let head = *self.head.borrow_and_update();
        let mut events = self.engine.events(self.after, limit, self.sandbox.as_deref()).await?;
        let at_end = events.is_empty();
        // None of those up to the head were about this sandbox: they need not be looked at again.
        self.after = events.last().map_or(self.after.max(head), |event| event.seq);
        let kinds = &self.kinds;
        events.retain(|event| kinds.is_empty() || kinds.iter().any(|kind| event.kind.starts_with(kind)));
        Ok(Batch { events, at_end })
    }

    /// The next events, at least one.
    pub(super) async fn wait(&mut self) -> std::result::Result<Vec<Event>, Problem> {
        loop {
            let batch = self.read(BATCH).await?;
            if !batch.events.is_empty() {
                return Ok(batch.events);
            }
            if batch.at_end {
                // The sender goes when the engine does.
                self.head.changed().await.map_err(|_| shutting_down())?;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_told_by_their_beginning() {
        assert_eq!(kinds("net.,llm."), Ok(vec!["net.".to_owned(), "llm.".to_owned()]));
        assert!(kinds("sandbox.ready").is_ok());
        for bad in ["", ",", "net.,", "net *", "Net.", &"a,".repeat(17)] {
            assert!(kinds(bad).is_err(), "{bad}");
        }
    }
}
