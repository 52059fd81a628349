//! Exec: one call that runs a command to its end, collected or live. The command belongs to the call: when the caller
//! goes away its process tree is killed.

use std::time::Duration;

use axum::{
    extract::State,
    http::HeaderMap,
    response::{IntoResponse as _, Response},
};
use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use sandbar_api::{Code, ExecRequest, ExecResult, Problem, Process, ProcessId, StartProcess};
use sandbar_engine::{Engine, OutputItem, OutputReader};
use tokio::{
    task::{JoinError, JoinHandle},
    time::sleep,
};
use tokio_util::sync::CancellationToken;

use super::SandboxPath;
use crate::{
    App,
    extract::{Json, Path},
    problem::{Result, shutting_down},
    registry::{Routes, routes},
    sse,
};

pub(super) fn routes() -> Routes {
    Routes::default().routes(routes!(exec))
}

/// Run a command
///
/// Answers with its exit and its output up to `max_output`. With `Accept: text/event-stream` the output comes live, as
/// the events `started` (the Process), `output` (an OutputChunk; its id is the offset after it), `exit` (the Process)
/// and `error` (a Problem). Disconnecting kills the process tree.
#[utoipa::path(
    post, path = "/v1/sandboxes/{sandbox}/exec", operation_id = "exec", tag = "processes",
    params(SandboxPath), request_body = ExecRequest,
    responses(
        (status = 200, description = "It ran; its exit code may be anything.",
            content((ExecResult = "application/json"), (sandbar_api::OutputChunk = "text/event-stream"))),
        (status = 400, description = "`bad_json`, `bad_command`, `bad_env`, `bad_path`, `bad_duration`"),
        (status = 403, description = "`file_forbidden`: the `cwd`"),
        (status = 404, description = "`unknown_sandbox`; `unknown_file`: the `cwd`"),
        (status = 409, description = "`wrong_state`; `wrong_file_kind`: the `cwd`"),
        (status = 410, description = "`sandbox_gone`"),
        (status = 413, description = "`too_large`"),
        (status = 422, description = "`command_not_found`, `command_not_executable`"),
        (status = 502, description = "`guest_unreachable`"),
    )
)]
async fn exec(
    State(app): State<App>,
    Path(path): Path<SandboxPath>,
    headers: HeaderMap,
    Json(request): Json<ExecRequest>,
) -> Result<Response> {
    if !sse::wanted(&headers) {
        return Ok(axum::Json(collected(&app, path.sandbox, request, |_| ()).await?).into_response());
    }
    let ExecRequest { argv, env, cwd, timeout, stdin, max_output: _ } = request;
    let command = StartProcess { argv, env, cwd, timeout, ..StartProcess::default() };
    let (process, items) = live(&app, path.sandbox, command, stdin.map(Bytes::from)).await?;
    let frames = items.map(|item| match item? {
        OutputItem::Chunk(chunk) => Ok(sse::output(&chunk)),
        OutputItem::Exit(process) => sse::frame(None, "exit", &process),
    });
    let first = stream::iter([sse::frame(None, "started", &process)]);
    Ok(sse::respond(first.chain(frames), app.closing.clone()))
}

/// Starts a command that is killed, all of it, when what follows is dropped before its exit came.
pub(crate) async fn live(
    app: &App,
    sandbox: String,
    command: StartProcess,
    stdin: Option<Bytes>,
) -> std::result::Result<(Process, impl stream::Stream<Item = Item> + Send + 'static + use<>), Problem> {
    let starting = start(app.engine.clone(), sandbox, command, stdin, app.closing.clone());
    // On its own task: if the caller goes away while the process is being started, the guard is still made, and kills.
    let (process, live, input) = tokio::spawn(starting).await.map_err(|error| failed(&error))??;
    let over = CancellationToken::new();
    let input =
        stream::once(input).filter_map(async |failed| failed.map(Err)).take_until(over.clone().cancelled_owned());
    let output = stream::unfold((live, over.drop_guard()), async |(mut live, over)| {
        live.next().await.map(|item| (item, (live, over)))
    });
    Ok((process, stream::select(Box::pin(output), Box::pin(input))))
}

/// How long a command that runs while the server shuts down may still take to be answered.
const LAST_ANSWER: Duration = Duration::from_secs(3);

/// On its own task, which is ended with the call, unless it is the server that goes: what runs in sandboxes outlives it.
pub(crate) async fn collected(
    app: &App,
    sandbox: String,
    request: ExecRequest,
    begun: impl FnOnce(&ProcessId) + Send + 'static,
) -> std::result::Result<ExecResult, Problem> {
    let engine = app.engine.clone();
    let running = tokio::spawn(async move { engine.exec_telling(&sandbox, request, begun).await });
    let mut running = EndWithCall { running, closing: app.closing.clone() };
    tokio::select! {
        result = &mut running.running => result.unwrap_or_else(|error| Err(failed(&error))),
        () = async { app.closing.cancelled().await; sleep(LAST_ANSWER).await } => Err(shutting_down()),
    }
}

struct EndWithCall {
    running: JoinHandle<std::result::Result<ExecResult, Problem>>,
    closing: CancellationToken,
}

impl Drop for EndWithCall {
    fn drop(&mut self) {
        if !self.closing.is_cancelled() {
            self.running.abort();
        }
    }
}

fn failed(error: &JoinError) -> Problem {
    Problem::new(Code::Internal, format!("Running the command failed: {error}."), "Look into the server's log.")
}

pub(crate) type Item = std::result::Result<OutputItem, Problem>;

type Input = std::pin::Pin<Box<dyn Future<Output = Option<Problem>> + Send>>;

async fn start(
    engine: Engine,
    sandbox: String,
    command: StartProcess,
    stdin: Option<Bytes>,
    closing: CancellationToken,
) -> std::result::Result<(Process, Live, Input), Problem> {
    let command = StartProcess { stdin: stdin.is_some(), ..command };
    let process = engine.start_process(&sandbox, command).await?;
    let guard = KillOnDrop { engine: engine.clone(), process: process.clone(), closing, armed: true };
    let reader = engine.output(&sandbox, process.id.as_str(), Some(0)).await?;
    let input: Input = match stdin {
        Some(data) => Box::pin(write_input(engine, process.clone(), data)),
        None => Box::pin(async { None }),
    };
    Ok((process, Live { reader, guard }, input))
}

/// A command that ends, or closes its input, without reading all of it is no failure of the call.
async fn write_input(engine: Engine, process: Process, data: Bytes) -> Option<Problem> {
    let (sandbox, id) = (process.sandbox.as_str(), process.id.as_str());
    let written = engine.write_input(sandbox, id, Some(0), data, true).await;
    written.err().filter(|problem| problem.code != Code::NoStdin && !is_over(problem))
}

/// Of a process that we started: once it has ended it may also be forgotten, or gone with its sandbox.
fn is_over(problem: &Problem) -> bool {
    matches!(problem.code, Code::ProcessOver | Code::UnknownProcess | Code::SandboxGone)
}

struct Live {
    reader: OutputReader,
    guard: KillOnDrop,
}

impl Live {
    async fn next(&mut self) -> Option<Item> {
        let item = self.reader.next(true).await.transpose()?;
        if let Ok(OutputItem::Exit(_)) = item {
            self.guard.armed = false;
        }
        Some(item)
    }
}

/// Ends the process tree when nobody listens any more. Not when it is the server that goes: what runs in sandboxes
/// outlives it.
struct KillOnDrop {
    engine: Engine,
    process: Process,
    closing: CancellationToken,
    armed: bool,
}

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        if !self.armed || self.closing.is_cancelled() {
            return;
        }
        let (engine, process) = (self.engine.clone(), self.process.clone());
        tokio::spawn(async move {
            let killed = engine.signal(process.sandbox.as_str(), process.id.as_str(), "KILL").await;
            if let Err(problem) = killed
                && !is_over(&problem)
            {
                tracing::warn!(process = %process.id, %problem, "cannot kill the command of a caller that went away");
            }
        });
    }
}
