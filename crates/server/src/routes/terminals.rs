//! Terminals looked at without attaching: screen, transcript, recording.

use std::io;

use axum::{
    body::Body,
    extract::State,
    http::{HeaderMap, HeaderValue, header},
    response::{IntoResponse as _, Response},
};
use futures_util::stream;
use sandbar_api::{ScreenFormat, ScreenView, Transcript};
use sandbar_engine::{Engine, Look};
use serde::Deserialize;
use utoipa::IntoParams;

use super::ProcessPath;
use crate::{
    extract::{Path, Query},
    problem::Result,
    registry::{Routes, routes},
};

const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const RECORDING: HeaderValue = HeaderValue::from_static("application/x-asciicast");

pub(super) fn routes() -> Routes {
    Routes::default().routes(routes!(screen)).routes(routes!(transcript)).routes(routes!(recording))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ScreenQuery {
    /// Instead of what `Accept` says.
    format: Option<ScreenFormat>,
}

/// Look at a terminal's screen
///
/// What it shows now, or showed when its process ended. As JSON, as plain text (`Accept: text/plain` or `format=text`), or
/// as text with colours (`format=ansi`). Looking disturbs nobody and takes no input.
#[utoipa::path(
    get, path = "/v1/sandboxes/{sandbox}/processes/{process}/screen", operation_id = "get_screen", tag = "processes",
    params(ProcessPath, ScreenQuery),
    responses(
        (status = 200, description = "The screen.", content((ScreenView = "application/json"), (String = "text/plain"))),
        (status = 400, description = "`bad_request`"),
        (status = 404, description = "`unknown_sandbox`, `unknown_process`"),
        (status = 409, description = "`no_terminal`"),
        (status = 410, description = "`sandbox_gone`"),
    )
)]
async fn screen(
    State(engine): State<Engine>,
    Path(path): Path<ProcessPath>,
    Query(query): Query<ScreenQuery>,
    headers: HeaderMap,
) -> Result<Response> {
    let Look { view, ansi } = engine.screen(&path.sandbox, &path.process).await?;
    let format = query.format.unwrap_or(if wants_text(&headers) { ScreenFormat::Text } else { ScreenFormat::Json });
    let text = match format {
        ScreenFormat::Json => return Ok(axum::Json(view).into_response()),
        ScreenFormat::Text => view.text(),
        ScreenFormat::Ansi => ansi,
    };
    Ok(([(header::CONTENT_TYPE, TEXT)], text + "\n").into_response())
}

/// Whether text is named before JSON.
fn wants_text(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let mut kinds = accepted
        .flat_map(|list| list.split(','))
        .filter_map(|range| range.split(';').next())
        .map(|kind| kind.trim().to_ascii_lowercase());
    kinds
        .find(|kind| matches!(kind.as_str(), "text/plain" | "text/*" | "application/json" | "*/*" | "application/*"))
        .is_some_and(|kind| kind.starts_with("text/"))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct TranscriptQuery {
    /// The first byte of output wanted; the first one still kept when absent.
    from: Option<u64>,
    /// The byte to stop before; the end when absent.
    to: Option<u64>,
    /// Only lines that contain this text.
    grep: Option<String>,
    /// Whether `grep` finds capitals and small letters alike.
    #[serde(default)]
    ignore_case: bool,
    /// How many lines at most.
    #[param(minimum = 1, maximum = 10000)]
    limit: Option<u32>,
}

/// Read what a terminal has shown
///
/// Lines of text without escape sequences and without what was overwritten, each with its offset and time. A long transcript
/// comes in parts: while `more` is true, go on with `from` = `next`.
#[utoipa::path(
    get, path = "/v1/sandboxes/{sandbox}/processes/{process}/transcript", operation_id = "read_transcript",
    tag = "processes", params(ProcessPath, TranscriptQuery),
    responses(
        (status = 200, description = "The lines.", body = Transcript),
        (status = 400, description = "`bad_request`"),
        (status = 404, description = "`unknown_sandbox`, `unknown_process`"),
        (status = 409, description = "`no_terminal`"),
        (status = 410, description = "`output_dropped`, with `first_kept`; `sandbox_gone`"),
        (status = 416, description = "`offset_beyond`"),
    )
)]
async fn transcript(
    State(engine): State<Engine>,
    Path(path): Path<ProcessPath>,
    Query(query): Query<TranscriptQuery>,
) -> Result<axum::Json<Transcript>> {
    let TranscriptQuery { from, to, grep, ignore_case, limit } = query;
    let query = sandbar_engine::TranscriptQuery { from, to, grep, ignore_case, limit };
    Ok(axum::Json(engine.transcript(&path.sandbox, &path.process, &query).await?))
}

/// Get a recording of a terminal
///
/// Everything that is kept of it with its timing, as asciicast v3. Escape sequences that act on whoever plays it (clipboard,
/// titles, links, queries) are not in it; the output route has the bytes as they were.
#[utoipa::path(
    get, path = "/v1/sandboxes/{sandbox}/processes/{process}/recording", operation_id = "get_recording",
    tag = "processes", params(ProcessPath),
    responses(
        (status = 200, description = "The recording, one JSON value a line.",
            content((String = "application/x-asciicast"))),
        (status = 404, description = "`unknown_sandbox`, `unknown_process`"),
        (status = 409, description = "`no_terminal`"),
        (status = 410, description = "`sandbox_gone`"),
    )
)]
async fn recording(State(engine): State<Engine>, Path(path): Path<ProcessPath>) -> Result<Response> {
    let recording = engine.recording(&path.sandbox, &path.process).await?;
    let lines = stream::unfold(Some(recording), async |recording| {
        let mut recording = recording?;
        match recording.next().await {
            Ok(Some(lines)) => Some((Ok(lines), Some(recording))),
            Ok(None) => None,
            // Breaks the connection off: an orderly end would say that this was all.
            Err(problem) => Some((Err(io::Error::other(problem)), None)),
        }
    });
    let mut response = Response::new(Body::from_stream(lines));
    response.headers_mut().insert(header::CONTENT_TYPE, RECORDING);
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_given_to_who_asks_for_it_first() {
        for (accept, want) in [
            ("text/plain", true),
            ("text/plain;q=0.9, */*", true),
            ("TEXT/Plain", true),
            ("application/json, text/plain", false),
            ("*/*", false),
            ("image/png", false),
            ("text/html, application/json", false),
        ] {
            let headers = HeaderMap::from_iter([(header::ACCEPT, HeaderValue::from_static(accept))]);
            assert_eq!(wants_text(&headers), want, "{accept}");
        }
        assert!(!wants_text(&HeaderMap::new()));
    }
}
