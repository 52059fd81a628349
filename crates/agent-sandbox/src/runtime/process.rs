//! Commands of sandboxd: run to their end, or followed.

use std::{collections::HashMap, time::Duration};

use bytes::Bytes;
use tokio::time::timeout;
use tonic::{
    Request, Status, Streaming,
    metadata::{Ascii, MetadataValue},
    service::{Interceptor, interceptor::InterceptedService},
    transport::Channel,
};

use super::{
    RuntimeError, Sandboxd,
    proto::{
        ExecuteRequest, ProcessConfig, Pty, ResizeTtyRequest, SendSignalRequest, StartRequest, StartResponse,
        WriteStdinRequest, process_service_client::ProcessServiceClient, start_response, write_stdin_request,
    },
};

pub(super) type Service = ProcessServiceClient<InterceptedService<Channel, Bearer>>;

/// Of one message of input.
const CHUNK: usize = 64 << 10;

/// Says who calls, where a token is needed.
#[derive(Clone)]
pub(super) struct Bearer(pub(super) Option<MetadataValue<Ascii>>);

impl Interceptor for Bearer {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(token) = &self.0 {
            request.metadata_mut().insert("authorization", token.clone());
        }
        Ok(request)
    }
}

/// A command for [`Sandboxd`].
#[derive(Clone, Debug, Default)]
pub struct Command {
    words: Vec<String>,
    env: HashMap<String, String>,
    directory: Option<String>,
    terminal: Option<(u16, u16)>,
    timeout: Option<Duration>,
}

impl Command {
    /// A program and its arguments.
    pub fn new(words: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self { words: words.into_iter().map(Into::into).collect(), ..Self::default() }
    }

    /// A line for `/bin/sh -c`.
    pub fn shell(line: impl Into<String>) -> Self {
        Self::new(["/bin/sh".to_owned(), "-c".to_owned(), line.into()])
    }

    /// A variable over those that the runtime has.
    #[must_use]
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.env.insert(name.into(), value.into());
        self
    }

    /// Where it starts, relative to the runtime's root and below it.
    #[must_use]
    pub fn directory(self, directory: impl Into<String>) -> Self {
        Self { directory: Some(directory.into()), ..self }
    }

    /// On a terminal of this size, for [`Sandboxd::start`]; all its output is [`Event::Stdout`] then.
    #[must_use]
    pub fn terminal(self, columns: u16, rows: u16) -> Self {
        Self { terminal: Some((columns, rows)), ..self }
    }

    /// Killed by the runtime after so long, and an error.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout: Some(timeout), ..self }
    }

    fn config(self) -> Result<ProcessConfig, RuntimeError> {
        if self.words.is_empty() {
            return Err(RuntimeError::NoCommand);
        }
        Ok(ProcessConfig { command: self.words, env_vars: self.env, cwd: self.directory })
    }
}

/// How a command of [`Sandboxd::execute`] ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finished {
    /// Its output.
    pub stdout: Bytes,
    /// Its errors.
    pub stderr: Bytes,
    /// Its exit code. For a death by signal n it is 128 + n, and -1 before agent-sandbox 1.0.7.
    pub code: i32,
}

/// What a [`Process`] does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// It wrote this.
    Stdout(Bytes),
    /// It wrote this as an error.
    Stderr(Bytes),
    /// It ended with this code; nothing follows.
    Exit(i32),
}

/// The signals that the service knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// SIGINT.
    Interrupt,
    /// SIGTERM.
    Terminate,
    /// SIGKILL.
    Kill,
}

/// A command of [`Sandboxd::start`]. Dropped, it is cancelled, which kills it.
pub struct Process {
    control: Control,
    events: Streaming<StartResponse>,
    ended: bool,
}

/// What can be done to a [`Process`] while somebody else follows it.
#[derive(Clone)]
pub struct Control {
    service: Service,
    id: i32,
    patience: Duration,
}

impl Sandboxd {
    /// Runs a command without input to its end. It is never sent twice.
    pub async fn execute(&self, command: Command) -> Result<Finished, RuntimeError> {
        let limit = command.timeout;
        let mut request = Request::new(ExecuteRequest { config: Some(command.config()?) });
        let mut service = self.service()?;
        let answer = match limit {
            None => service.execute(request).await,
            Some(limit) => {
                request.set_timeout(limit);
                let answered = timeout(limit, service.execute(request)).await;
                answered.unwrap_or_else(|_| Err(Status::deadline_exceeded("")))
            }
        };
        let answer = answer.map_err(|status| late(status, limit))?.into_inner();
        Ok(Finished { stdout: answer.stdout, stderr: answer.stderr, code: answer.exit_code })
    }

    /// Starts a command and follows it. It is never sent twice.
    pub async fn start(&self, command: Command) -> Result<Process, RuntimeError> {
        let (limit, terminal, patience) = (command.timeout, command.terminal, self.patience());
        let pty = terminal.map(|(cols, rows)| Pty { cols: cols.into(), rows: rows.into() });
        let mut request = Request::new(StartRequest { config: Some(command.config()?), pty });
        if let Some(limit) = limit {
            request.set_timeout(limit);
        }
        let mut service = self.service()?;
        let begun = async {
            let mut events = service.start(request).await?.into_inner();
            let first = events.message().await?.and_then(|message| message.event);
            Ok::<_, Status>((events, first))
        };
        let begun = timeout(patience, begun).await.map_err(|_| RuntimeError::TimedOut(patience))?;
        match begun.map_err(|status| late(status, limit))? {
            (events, Some(start_response::Event::Init(init))) => {
                let control = Control { service, id: init.process_id, patience };
                Ok(Process { control, events, ended: false })
            }
            (_, other) => Err(RuntimeError::BadAnswer(format!("a process began with {other:?}"))),
        }
    }
}

fn late(status: Status, limit: Option<Duration>) -> RuntimeError {
    match (status.code(), limit) {
        // The second is how the transport itself says it.
        (tonic::Code::DeadlineExceeded | tonic::Code::Cancelled, Some(limit)) => RuntimeError::TimedOut(limit),
        _ => status.into(),
    }
}

impl Process {
    /// The service's number for it.
    pub fn id(&self) -> i32 {
        self.control.id
    }

    /// For use beside [`next`](Self::next).
    pub fn control(&self) -> Control {
        self.control.clone()
    }

    /// The next thing it does; none after its exit. A stream that ends before is an error.
    pub async fn next(&mut self) -> Result<Option<Event>, RuntimeError> {
        while !self.ended {
            let message = self.events.message().await?;
            let message = message.ok_or_else(|| RuntimeError::BadAnswer("it ended before the process".to_owned()))?;
            match message.event {
                Some(start_response::Event::Stdout(bytes)) => return Ok(Some(Event::Stdout(bytes))),
                Some(start_response::Event::Stderr(bytes)) => return Ok(Some(Event::Stderr(bytes))),
                Some(start_response::Event::Exit(exit)) => {
                    self.ended = true;
                    return Ok(Some(Event::Exit(exit.exit_code)));
                }
                // Something newer than this crate.
                Some(start_response::Event::Init(_)) | None => {}
            }
        }
        Ok(None)
    }
}

impl Control {
    /// Writes to its input.
    pub async fn write(&self, input: impl Into<Bytes>) -> Result<(), RuntimeError> {
        let mut input = input.into();
        while !input.is_empty() {
            let chunk = input.split_to(input.len().min(CHUNK));
            self.payload(write_stdin_request::Payload::Input(chunk)).await?;
        }
        Ok(())
    }

    /// Ends its input.
    pub async fn close(&self) -> Result<(), RuntimeError> {
        self.payload(write_stdin_request::Payload::Eof(())).await
    }

    async fn payload(&self, payload: write_stdin_request::Payload) -> Result<(), RuntimeError> {
        let request = WriteStdinRequest { process_id: self.id, payload: Some(payload) };
        // However long: a process that does not read its input makes the writer wait.
        Ok(self.service.clone().write_stdin(request).await.map(drop)?)
    }

    /// Sends a signal to it and the processes of its group.
    pub async fn signal(&self, signal: Signal) -> Result<(), RuntimeError> {
        let signal = match signal {
            Signal::Interrupt => super::proto::Signal::Sigint,
            Signal::Terminate => super::proto::Signal::Sigterm,
            Signal::Kill => super::proto::Signal::Sigkill,
        };
        let request = SendSignalRequest { process_id: self.id, signal: signal.into() };
        let mut service = self.service.clone();
        self.soon(service.send_signal(request)).await
    }

    /// Tells its terminal another size.
    pub async fn resize(&self, columns: u16, rows: u16) -> Result<(), RuntimeError> {
        let request = ResizeTtyRequest { process_id: self.id, cols: columns.into(), rows: rows.into() };
        let mut service = self.service.clone();
        self.soon(service.resize_tty(request)).await
    }

    async fn soon<T>(&self, call: impl Future<Output = Result<T, Status>>) -> Result<(), RuntimeError> {
        timeout(self.patience, call).await.map_err(|_| RuntimeError::TimedOut(self.patience))??;
        Ok(())
    }
}
