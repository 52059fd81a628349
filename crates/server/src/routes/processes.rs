//! Processes: start, list, get, input, signals, size. Their output has its own file.

use axum::{
    body::Body,
    extract::State,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse as _, Response},
};
use bytes::Bytes;
use futures_util::StreamExt as _;
use sandbar_api::{Problem, Process, ProcessList, SignalRequest, StartProcess, TerminalSize};
use sandbar_engine::Engine;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::{ProcessPath, SandboxPath};
use crate::{
    extract::{Json, Path, Query},
    problem::Result,
    registry::{Routes, routes},
    upload,
};

/// One message to the guest.
const PIECE: usize = 64 * 1024;

pub(super) fn routes() -> Routes {
    Routes::default()
        .routes(routes!(start, list))
        .routes(routes!(get))
        .routes(routes!(stdin))
        .routes(routes!(signal))
        .routes(routes!(resize))
}

/// Start a process
///
/// It runs on when the caller goes away, and its output is kept.
#[utoipa::path(
    post, path = "/v1/sandboxes/{sandbox}/processes", operation_id = "start_process", tag = "processes",
    params(SandboxPath), request_body = StartProcess,
    responses(
        (status = 201, description = "Started.", body = Process, headers(("Location" = String, description = "Its path."))),
        (status = 400, description = "`bad_json`, `bad_command`, `bad_env`, `bad_path`, `bad_duration`"),
        (status = 403, description = "`file_forbidden`: the `cwd`"),
        (status = 404, description = "`unknown_sandbox`; `unknown_file`: the `cwd`"),
        (status = 409, description = "`wrong_state`; `wrong_file_kind`: the `cwd`"),
        (status = 410, description = "`sandbox_gone`"),
        (status = 422, description = "`command_not_found`, `command_not_executable`"),
        (status = 502, description = "`guest_unreachable`"),
    )
)]
async fn start(
    State(engine): State<Engine>,
    Path(path): Path<SandboxPath>,
    Json(request): Json<StartProcess>,
) -> Result<Response> {
    let process = engine.start_process(&path.sandbox, request).await?;
    let location = format!("/v1/sandboxes/{}/processes/{}", process.sandbox, process.id);
    let mut response = (StatusCode::CREATED, axum::Json(process)).into_response();
    if let Ok(location) = HeaderValue::from_str(&location) {
        response.headers_mut().insert(header::LOCATION, location);
    }
    Ok(response)
}

/// List processes
///
/// Newest last, those that have ended too.
#[utoipa::path(
    get, path = "/v1/sandboxes/{sandbox}/processes", operation_id = "list_processes", tag = "processes",
    params(SandboxPath),
    responses(
        (status = 200, description = "The processes.", body = ProcessList),
        (status = 404, description = "`unknown_sandbox`"),
    )
)]
async fn list(State(engine): State<Engine>, Path(path): Path<SandboxPath>) -> Result<axum::Json<ProcessList>> {
    Ok(axum::Json(ProcessList { processes: engine.processes(&path.sandbox).await? }))
}

/// Get a process
#[utoipa::path(
    get, path = "/v1/sandboxes/{sandbox}/processes/{process}", operation_id = "get_process", tag = "processes",
    params(ProcessPath),
    responses(
        (status = 200, description = "The process.", body = Process),
        (status = 404, description = "`unknown_sandbox`, `unknown_process`"),
    )
)]
async fn get(State(engine): State<Engine>, Path(path): Path<ProcessPath>) -> Result<axum::Json<Process>> {
    Ok(axum::Json(engine.process(&path.sandbox, &path.process).await?))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct StdinQuery {
    /// Where the body starts in the input; what was taken already is skipped, so that a repeat types nothing twice.
    /// Appended when absent.
    offset: Option<u64>,
    /// End the input after the body.
    #[serde(default)]
    eof: bool,
}

#[derive(Serialize, ToSchema)]
struct InputTaken {
    /// Bytes of input taken since the process started.
    offset: u64,
}

/// Write to standard input
///
/// The body is passed on as it arrives and may stay open; the answer comes when it has ended and all of it was taken.
#[utoipa::path(
    post, path = "/v1/sandboxes/{sandbox}/processes/{process}/stdin", operation_id = "write_stdin", tag = "processes",
    params(ProcessPath, StdinQuery),
    request_body(content = String, content_type = "application/octet-stream", description = "Raw bytes."),
    responses(
        (status = 200, description = "Taken.", body = InputTaken),
        (status = 404, description = "`unknown_sandbox`, `unknown_process`"),
        (status = 409, description = "`process_over`, `no_stdin`, `wrong_state`"),
        (status = 410, description = "`sandbox_gone`"),
        (status = 416, description = "`offset_beyond`"),
    )
)]
async fn stdin(
    State(engine): State<Engine>,
    Path(path): Path<ProcessPath>,
    Query(query): Query<StdinQuery>,
    body: Body,
) -> Result<axum::Json<InputTaken>> {
    let mut pieces = body.into_data_stream();
    let write = async |offset: Option<u64>, data: Bytes, eof: bool| {
        engine.write_input(&path.sandbox, &path.process, offset, data, eof).await
    };
    let mut position = query.offset;
    let mut taken = None;
    while let Some(piece) = pieces.next().await {
        let mut rest = piece.map_err(upload::broke_off)?;
        while !rest.is_empty() {
            let data = rest.split_to(rest.len().min(PIECE));
            let length = data.len() as u64;
            let end = match write(position, data, false).await {
                Ok(end) => end,
                Err(problem) => return Err(refused(problem, &mut pieces).await.into()),
            };
            // Of a repeat only a part may be new: the next piece stands where this one ended, not where the input does.
            position = Some(position.map_or(end, |position| position + length));
            taken = Some(end);
        }
    }
    let offset = match taken {
        Some(end) if !query.eof => end,
        // Also when nothing came: it ends the input, or says where it stands.
        _ => write(position, Bytes::new(), query.eof).await?,
    };
    Ok(axum::Json(InputTaken { offset }))
}

async fn refused(problem: Problem, rest: &mut axum::body::BodyDataStream) -> Problem {
    upload::drain(rest).await;
    problem
}

/// Send a signal
///
/// `KILL` ends the whole process tree; others reach the process group.
#[utoipa::path(
    post, path = "/v1/sandboxes/{sandbox}/processes/{process}/signal", operation_id = "signal_process",
    tag = "processes", params(ProcessPath), request_body = SignalRequest,
    responses(
        (status = 204, description = "Sent."),
        (status = 400, description = "`bad_json`, `bad_request`"),
        (status = 404, description = "`unknown_sandbox`, `unknown_process`"),
        (status = 409, description = "`process_over`, `wrong_state`"),
        (status = 410, description = "`sandbox_gone`"),
    )
)]
async fn signal(
    State(engine): State<Engine>,
    Path(path): Path<ProcessPath>,
    Json(request): Json<SignalRequest>,
) -> Result<StatusCode> {
    engine.signal(&path.sandbox, &path.process, &request.signal).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Resize a terminal
#[utoipa::path(
    post, path = "/v1/sandboxes/{sandbox}/processes/{process}/resize", operation_id = "resize_terminal",
    tag = "processes", params(ProcessPath), request_body = TerminalSize,
    responses(
        (status = 204, description = "Resized."),
        (status = 400, description = "`bad_json`, `bad_request`"),
        (status = 404, description = "`unknown_sandbox`, `unknown_process`"),
        (status = 409, description = "`process_over`, `no_terminal`, `wrong_state`"),
        (status = 410, description = "`sandbox_gone`"),
    )
)]
async fn resize(
    State(engine): State<Engine>,
    Path(path): Path<ProcessPath>,
    Json(size): Json<TerminalSize>,
) -> Result<StatusCode> {
    engine.resize(&path.sandbox, &path.process, size).await?;
    Ok(StatusCode::NO_CONTENT)
}
