//! Commands in a running sandbox, over the API server's WebSocket.
//!
//! [`AgentSandbox::exec`] runs one and returns what it wrote; [`AgentSandbox::exec_stream`] gives its streams, with a terminal
//! where one is asked for. The exit code is the one that the container runtime reported, never a guess: a stream that breaks
//! before that is an error.
//!
//! Kubernetes does not end a command whose stream is closed. [`Running::kill`], [`Exec::kill_on_drop`] and [`Exec::timeout`]
//! do, with every process that the command started. For that the command is started by the container's `/bin/sh`, and `cat` and
//! `/proc` are needed too; a program that cannot be run is then exit code 126 or 127 rather than [`ExecError::NotRun`]. A
//! process gets away only by leaving its session, its parent *and* its environment.
//!
//! A command with input is started by `/bin/sh` too, which keeps the outputs open for it: containerd ends the input of a command
//! that closes one of its outputs, so that the file of `cat >file` would sometimes stay empty. [`Exec::direct`] does without the
//! shell.
//!
//! ```no_run
//! # async fn example(cluster: agent_sandbox::AgentSandbox) -> Result<(), agent_sandbox::ExecError> {
//! use agent_sandbox::Exec;
//!
//! let output = cluster.exec("my-sandbox", Exec::new(["sort"]).stdin("b\na\n")).await?;
//! assert_eq!((output.code, &output.stdout[..]), (0, &b"a\nb\n"[..]));
//! # Ok(())
//! # }
//! ```

mod error;
mod kill;
mod running;
mod status;
mod wire;

use std::time::Duration;

use bytes::Bytes;
use kube::api::AttachParams;
use tokio::io::{AsyncRead, AsyncReadExt as _};

use crate::{
    AgentSandbox,
    pods::{Pods, Target},
};

pub use error::ExecError;
use kill::Starter;
pub use running::{Running, Stdin};
pub use wire::Output as OutputStream;

/// Of each stream that [`AgentSandbox::exec`] collects, unless [`Exec::max_output`] says another.
pub const MAX_OUTPUT: usize = 256 << 20;

/// A command to run.
#[derive(Clone, Debug)]
pub struct Exec {
    command: Vec<String>,
    container: Option<String>,
    stdin: Option<Bytes>,
    terminal: Option<(u16, u16)>,
    direct: bool,
    kill_on_drop: bool,
    timeout: Option<Duration>,
    max_output: usize,
}

impl Exec {
    /// A program and its arguments; no shell takes part unless it is named.
    pub fn new(command: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self {
            command: command.into_iter().map(Into::into).collect(),
            container: None,
            stdin: None,
            terminal: None,
            direct: false,
            kill_on_drop: false,
            timeout: None,
            max_output: MAX_OUTPUT,
        }
    }

    /// In this container of the pod; may be left out where there is one.
    #[must_use]
    pub fn container(self, container: impl Into<String>) -> Self {
        Self { container: Some(container.into()), ..self }
    }

    /// All of its input, after which it sees the end. [`AgentSandbox::exec_stream`] has an input in any case, and begins with this.
    ///
    /// What [`AgentSandbox::exec`] is given goes to the command's shell where the command itself ends without reading it. A
    /// [`direct`](Self::direct) command that does so may never be reported as ended, or its exit code be lost.
    #[must_use]
    pub fn stdin(self, input: impl Into<Bytes>) -> Self {
        Self { stdin: Some(input.into()), ..self }
    }

    /// On a terminal of this size. Errors then come with the output, as a terminal has only one.
    #[must_use]
    pub fn terminal(self, columns: u16, rows: u16) -> Self {
        Self { terminal: Some((columns, rows)), ..self }
    }

    /// Without `/bin/sh`. It cannot be killed then, and its input may end when it closes its output or its errors.
    #[must_use]
    pub fn direct(self) -> Self {
        Self { direct: true, ..self }
    }

    /// Kills it when its handle, or the future that waits for it, is dropped before its end.
    #[must_use]
    pub fn kill_on_drop(self) -> Self {
        Self { kill_on_drop: true, ..self }
    }

    /// Kills it when [`AgentSandbox::exec`] has waited for so long.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout: Some(timeout), ..self }
    }

    /// How much [`AgentSandbox::exec`] collects of each stream before it gives up.
    #[must_use]
    pub fn max_output(self, bytes: usize) -> Self {
        Self { max_output: bytes, ..self }
    }

    fn parameters(&self, stdin: bool) -> AttachParams {
        AttachParams {
            container: self.container.clone(),
            stdin,
            stdout: true,
            stderr: self.terminal.is_none(),
            tty: self.terminal.is_some(),
            ..AttachParams::default()
        }
    }

    async fn collect(self, pods: &Pods, target: &Target) -> Result<Output, ExecError> {
        let killable = self.kill_on_drop || self.timeout.is_some();
        if killable && self.direct {
            return Err(ExecError::NotKillable);
        }
        let (timeout, limit, stdin) = (self.timeout, self.max_output, self.stdin.is_some());
        let starter = match stdin {
            _ if self.direct => Starter::Runtime,
            // A terminal's input has no end.
            true if self.terminal.is_none() => Starter::DrainingShell,
            false if !killable => Starter::Runtime,
            _ => Starter::Shell,
        };
        let mut running = Running::start(pods, target, &self, stdin, starter).await?;
        let collected = match timeout {
            None => running.collect(limit).await,
            Some(timeout) => {
                let collected = tokio::time::timeout(timeout, running.collect(limit)).await;
                collected.unwrap_or(Err(ExecError::TimedOut(timeout)))
            }
        };
        // Nobody waits any more for the end of what failed on this side; it may also have ended without a report.
        if collected.is_err() && killable {
            match running.kill().await {
                Ok(()) | Err(ExecError::NothingToKill) => {}
                Err(error) => return Err(error),
            }
        }
        collected
    }
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExitStatus {
    /// Its exit code; 128 + n for a death by signal n.
    pub code: i32,
}

impl ExitStatus {
    /// Whether the code is 0.
    pub fn success(self) -> bool {
        self.code == 0
    }
}

/// What a command wrote, and how it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// Its output; on a terminal its errors too.
    pub stdout: Vec<u8>,
    /// Its errors.
    pub stderr: Vec<u8>,
    /// Its exit code; 128 + n for a death by signal n.
    pub code: i32,
}

impl Output {
    /// Whether the exit code is 0.
    pub fn success(&self) -> bool {
        self.code == 0
    }
}

impl Running {
    async fn collect(&mut self, limit: usize) -> Result<Output, ExecError> {
        // The input is what it began with.
        self.stdin = None;
        let (stdout, stderr) = (self.stdout.take(), self.stderr.take());
        match tokio::try_join!(all(stdout, limit), all(stderr, limit)) {
            Ok((stdout, stderr)) => {
                let ExitStatus { code } = self.wait().await?;
                Ok(Output { stdout, stderr, code })
            }
            Err(Unread::TooMuch) => Err(ExecError::TooMuchOutput(limit)),
            // The stream itself knows why it was lost.
            Err(Unread::Lost) => Err(self.wait().await.err().unwrap_or(ExecError::Lost { source: None })),
        }
    }
}

enum Unread {
    TooMuch,
    Lost,
}

async fn all(stream: Option<impl AsyncRead + Unpin>, limit: usize) -> Result<Vec<u8>, Unread> {
    let mut bytes = vec![];
    if let Some(stream) = stream {
        let one_more = u64::try_from(limit).unwrap_or(u64::MAX).saturating_add(1);
        stream.take(one_more).read_to_end(&mut bytes).await.map_err(|_| Unread::Lost)?;
    }
    if bytes.len() > limit { Err(Unread::TooMuch) } else { Ok(bytes) }
}

impl AgentSandbox {
    /// Runs a command to its end and returns what it wrote. Needs `create` and `get` on `pods/exec`.
    pub async fn exec(&self, target: impl Into<Target>, exec: Exec) -> Result<Output, ExecError> {
        exec.collect(&self.pods(), &target.into()).await
    }

    /// Runs a command and gives its streams.
    pub async fn exec_stream(&self, target: impl Into<Target>, exec: Exec) -> Result<Running, ExecError> {
        if exec.direct && exec.kill_on_drop {
            return Err(ExecError::NotKillable);
        }
        let starter = if exec.direct { Starter::Runtime } else { Starter::Shell };
        Running::start(&self.pods(), &target.into(), &exec, true, starter).await
    }
}
