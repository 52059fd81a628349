//! `process.v1.ProcessService`: sandboxd's processes. The codes and the texts are the contract's.

use std::{pin::Pin, sync::Arc, time::Duration};

use futures_util::{Stream, stream};
use tokio::time::Instant;
use tonic::{Code as Grpc, Request, Response, Status, metadata::MetadataMap};

use super::{
    output::Collected,
    place::{self, Misplaced},
    run::{Broken, Command, Event, Run},
    serving::Serving,
};
use crate::{
    command::terminal_size,
    error::{Code, Fault},
    files::below::{Ask, Below, ESCAPES},
    input,
    process::{Order, Process},
    protocol::{
        EntryKind, ExitReason, Stream as Output, TerminalSize, WriteInputRequest,
        process::{
            ExecuteRequest, ExecuteResponse, ExitEvent, InitEvent, ProcessConfig, Pty, ResizeTtyRequest,
            ResizeTtyResponse, SendSignalRequest, SendSignalResponse, Signal, StartRequest, StartResponse,
            WriteStdinRequest, WriteStdinResponse, process_service_server::ProcessService, start_response,
            write_stdin_request::Payload,
        },
    },
};

/// For a terminal that says nothing of its size.
const USUAL: TerminalSize = TerminalSize { cols: 80, rows: 24 };

pub(super) struct Processes {
    pub(super) serving: Arc<Serving>,
    pub(super) root: String,
}

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl ProcessService for Processes {
    type StartStream = Pin<Box<dyn Stream<Item = Result<StartResponse, Status>> + Send>>;

    async fn start(&self, request: Request<StartRequest>) -> Answer<Self::StartStream> {
        let by = deadline(request.metadata())?;
        let StartRequest { config, pty } = request.into_inner();
        let terminal = pty.map(|Pty { cols, rows }| TerminalSize {
            cols: if cols == 0 { USUAL.cols } else { cols },
            rows: if rows == 0 { USUAL.rows } else { rows },
        });
        let command = Command { terminal, stdin: true, by, ..self.command(config).await? };
        let run = Run::start(&self.serving, command).await.map_err(broken)?;
        Ok(Response::new(events(run)))
    }

    async fn execute(&self, request: Request<ExecuteRequest>) -> Answer<ExecuteResponse> {
        let by = deadline(request.metadata())?;
        let command = Command { by, ..self.command(request.into_inner().config).await? };
        let mut output = Collected::new(&self.serving.bytes);
        let mut run = Run::start(&self.serving, command).await.map_err(broken)?;
        let exit = output.all(&mut run).await.map_err(broken)?;
        let (stdout, stderr) = (std::mem::take(&mut output.stdout).into(), std::mem::take(&mut output.stderr).into());
        let mut answer = Response::new(ExecuteResponse { exit_code: exit.code, stdout, stderr });
        // For whoever sends it.
        answer.extensions_mut().insert(output.held());
        Ok(answer)
    }

    async fn write_stdin(&self, request: Request<WriteStdinRequest>) -> Answer<WriteStdinResponse> {
        let WriteStdinRequest { process_id, payload } = request.into_inner();
        let process = self.process(process_id)?;
        let Some(payload) = payload else { return Err(Status::invalid_argument("input or eof is required")) };
        let request = match payload {
            Payload::Input(data) => WriteInputRequest { data, ..WriteInputRequest::default() },
            Payload::Eof(()) => WriteInputRequest { eof: true, ..WriteInputRequest::default() },
        };
        input::write(&process, request).await.map_err(|fault| status(&fault))?;
        Ok(Response::new(WriteStdinResponse {}))
    }

    async fn send_signal(&self, request: Request<SendSignalRequest>) -> Answer<SendSignalResponse> {
        let SendSignalRequest { process_id, signal } = request.into_inner();
        let signal = match Signal::try_from(signal) {
            Ok(Signal::Unspecified) => return Err(Status::invalid_argument("signal is required")),
            Err(_) => return Err(Status::invalid_argument(format!("signal {signal} is not supported"))),
            Ok(signal) => signal,
        };
        let process = self.process(process_id)?;
        let sent = match signal {
            Signal::Sigkill => process.kill(ExitReason::Killed).await,
            signal => process.order(|reply| Order::Signal(signal.into(), reply)).await,
        };
        sent.map_err(|fault| status(&fault))?;
        Ok(Response::new(SendSignalResponse {}))
    }

    async fn resize_tty(&self, request: Request<ResizeTtyRequest>) -> Answer<ResizeTtyResponse> {
        let ResizeTtyRequest { process_id, cols, rows } = request.into_inner();
        let process = self.process(process_id)?;
        process.demand_terminal().map_err(|fault| status(&fault))?;
        let size = terminal_size(&TerminalSize { cols, rows }).map_err(|fault| status(&fault))?;
        process.order(|reply| Order::Resize(size, reply)).await.map_err(|fault| status(&fault))?;
        Ok(Response::new(ResizeTtyResponse {}))
    }
}

impl Processes {
    fn process(&self, id: i32) -> Result<Arc<Process>, Status> {
        let unknown = |_| Status::not_found(format!("process {id} not found"));
        self.serving.table.get(&id.to_string()).map_err(unknown)
    }

    async fn command(&self, config: Option<ProcessConfig>) -> Result<Command, Status> {
        let ProcessConfig { command, env_vars, cwd } = config.unwrap_or_default();
        if command.first().is_none_or(String::is_empty) {
            return Err(Status::invalid_argument("command is required"));
        }
        let cwd = self.directory(cwd.unwrap_or_default()).await?;
        Ok(Command { argv: command, env: env_vars, cwd, ..Command::default() })
    }

    /// Where a command is to run, which must be below the root now. That is a promise to callers, no fence: the command
    /// may go where it likes.
    async fn directory(&self, cwd: String) -> Result<String, Status> {
        let path = place::below(cwd.as_bytes()).map_err(|misplaced| match misplaced {
            Misplaced::Escapes => Status::permission_denied(ESCAPES),
            Misplaced::Nonsense => Status::invalid_argument("cwd is not a path"),
        })?;
        if path.as_os_str().is_empty() {
            return Ok(self.root.clone());
        }
        let below = Below { root: self.root.clone().into(), path, ask: Ask::Look };
        let entry = self.serving.look(below).await.map_err(|fault| match fault.code {
            Code::UnknownFile | Code::WrongFileKind => Status::not_found(format!("directory {cwd} does not exist")),
            _ => status(&fault),
        })?;
        if entry.kind() != EntryKind::Directory {
            return Err(Status::not_found(format!("{cwd} is not a directory")));
        }
        Ok(entry.target)
    }
}

fn events(run: Run) -> <Processes as ProcessService>::StartStream {
    let init = start_response::Event::Init(InitEvent { process_id: run.id });
    let rest = stream::unfold(Some(run), |run| async {
        let mut run = run?;
        match run.next().await {
            Ok(Some(Event::Output(Output::Stdout, data))) => Some((Ok(start_response::Event::Stdout(data)), Some(run))),
            Ok(Some(Event::Output(Output::Stderr, data))) => Some((Ok(start_response::Event::Stderr(data)), Some(run))),
            Ok(Some(Event::Exit(exit))) => {
                Some((Ok(start_response::Event::Exit(ExitEvent { exit_code: exit.code })), Some(run)))
            }
            Ok(None) => None,
            Err(why) => Some((Err(broken(why)), None)),
        }
    });
    let all = futures_util::StreamExt::chain(stream::iter([Ok(init)]), rest);
    Box::pin(futures_util::StreamExt::map(all, |event| event.map(|event| StartResponse { event: Some(event) })))
}

fn broken(why: Broken) -> Status {
    match why {
        Broken::Late => Status::deadline_exceeded("the deadline is over and the process was killed"),
        Broken::Fault(fault) => status(&fault),
    }
}

fn status(fault: &Fault) -> Status {
    let code = match fault.code {
        Code::BadRequest | Code::BadCommand | Code::BadEnv | Code::BadPath | Code::TooLarge => Grpc::InvalidArgument,
        Code::FileForbidden | Code::CommandNotExecutable => Grpc::PermissionDenied,
        Code::UnknownFile | Code::UnknownProcess | Code::CommandNotFound => Grpc::NotFound,
        Code::NoStdin | Code::NoTerminal | Code::ProcessOver => Grpc::FailedPrecondition,
        Code::TooMany | Code::DiskFull => Grpc::ResourceExhausted,
        Code::GuestUnreachable => Grpc::Unavailable,
        _ => Grpc::Internal,
    };
    Status::new(code, fault.message.clone())
}

/// When a caller stops waiting, as it says itself: it may be cut off and unable to cancel.
fn deadline(metadata: &MetadataMap) -> Result<Option<Instant>, Status> {
    let Some(text) = metadata.get("grpc-timeout") else { return Ok(None) };
    let timeout = text.to_str().ok().and_then(timeout);
    let timeout = timeout.ok_or_else(|| Status::invalid_argument("grpc-timeout is not a time"))?;
    Ok(Instant::now().checked_add(timeout))
}

fn timeout(text: &str) -> Option<Duration> {
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if number.is_empty() || number.len() > 8 || !number.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let number: u64 = number.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(number * 3600),
        "M" => Duration::from_secs(number * 60),
        "S" => Duration::from_secs(number),
        "m" => Duration::from_millis(number),
        "u" => Duration::from_micros(number),
        "n" => Duration::from_nanos(number),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_grpc() {
        for (text, wanted) in [
            ("1S", Some(Duration::from_secs(1))),
            ("250m", Some(Duration::from_millis(250))),
            ("99999999H", Some(Duration::from_secs(99_999_999 * 3600))),
            ("3M", Some(Duration::from_secs(180))),
            ("7u", Some(Duration::from_micros(7))),
            ("7n", Some(Duration::from_nanos(7))),
            ("", None),
            ("S", None),
            ("1", None),
            ("-1S", None),
            ("+1S", None),
            ("100000000S", None),
            ("1s", None),
            ("1é", None),
        ] {
            assert_eq!(timeout(text), wanted, "{text}");
        }
    }
}
