//! The handle of a command that runs.

use std::{
    io::{self, Cursor},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWrite, DuplexStream},
    runtime::Handle,
    sync::mpsc,
};
use tokio_util::task::AbortOnDropHandle;

use super::{
    Exec, ExecError, ExitStatus, OutputStream,
    kill::{self, Mark, Starter},
    wire::{self, Ends, Size},
};
use crate::pods::{Pods, Target};

/// Input that waits to be sent.
const INPUT: usize = 64 << 10;

/// A command that was started. Dropped, its streams are closed, which ends the command only with
/// [`kill_on_drop`](super::Exec::kill_on_drop).
pub struct Running {
    /// Its input; shut down or dropped, the command sees the end.
    pub stdin: Option<Stdin>,
    /// Its output; on a terminal its errors too.
    pub stdout: Option<OutputStream>,
    /// Its errors; none on a terminal.
    pub stderr: Option<OutputStream>,
    sizes: Option<mpsc::Sender<Size>>,
    carried: AbortOnDropHandle<Result<ExitStatus, ExecError>>,
    ended: Option<Result<ExitStatus, ExecError>>,
    place: Arc<Place>,
    kill_on_drop: bool,
}

/// Where its processes are.
struct Place {
    pods: Pods,
    target: Target,
    container: Option<String>,
    mark: Option<Mark>,
}

impl Running {
    pub(super) async fn start(
        pods: &Pods,
        target: &Target,
        exec: &Exec,
        stdin: bool,
        starter: Starter,
    ) -> Result<Self, ExecError> {
        if exec.command.is_empty() {
            return Err(ExecError::NoCommand);
        }
        let (command, mark) = starter.start(&exec.command);
        let parameters = exec.parameters(stdin);
        let opened = pods.connect(|pods| pods.exec(target.pod(), command, &parameters)).await;
        let refused = |error| ExecError::Api { pod: target.pod().to_owned(), source: Arc::new(error) };
        let connection = opened.map_err(refused)?;

        let first = Cursor::new(exec.stdin.clone().unwrap_or_default());
        let (stdin, rest) = if stdin { Some(tokio::io::duplex(INPUT)).unzip() } else { (None, None) };
        let input = rest.map(|rest| first.chain(rest));
        let (out, stdout) = wire::output();
        let (err, stderr) = if parameters.stderr { Some(wire::output()).unzip() } else { (None, None) };
        let (sizes, wanted) = mpsc::channel(4);
        let ends = Ends { stdin: input, sizes: wanted, stdout: out, stderr: err };
        if let Some((columns, rows)) = exec.terminal {
            let _has_room = sizes.try_send(Size(columns, rows));
        }
        let by_shell = mark.is_some();
        let carried = async move { wire::carry(connection, ends).await.map_err(|error| explained(error, by_shell)) };
        Ok(Self {
            stdin: stdin.map(Stdin),
            stdout: Some(stdout),
            stderr,
            sizes: exec.terminal.is_some().then_some(sizes),
            carried: AbortOnDropHandle::new(tokio::spawn(carried)),
            ended: None,
            place: Arc::new(Place {
                pods: pods.clone(),
                target: target.clone(),
                container: exec.container.clone(),
                mark,
            }),
            kill_on_drop: exec.kill_on_drop,
        })
    }

    /// Tells its terminal another size.
    pub async fn resize(&self, columns: u16, rows: u16) -> Result<(), ExecError> {
        let sizes = self.sizes.as_ref().ok_or(ExecError::NoTerminal)?;
        sizes.send(Size(columns, rows)).await.map_err(|_| ExecError::NoTerminal)
    }

    /// Waits for its end. The streams that were not taken from the handle are closed first: the command sees the end of its
    /// input, and what it writes is dropped.
    pub async fn wait(&mut self) -> Result<ExitStatus, ExecError> {
        (self.stdin, self.stdout, self.stderr) = (None, None, None);
        if self.ended.is_none() {
            let carried = (&mut self.carried).await;
            self.ended = Some(carried.unwrap_or(Err(ExecError::Cancelled)));
        }
        self.ended.clone().unwrap_or(Err(ExecError::Cancelled))
    }

    /// Whether its end was reported, or that it never began.
    fn is_over(&self) -> bool {
        matches!(self.ended, Some(Ok(_) | Err(ExecError::NotRun { .. })))
    }

    /// Kills it and everything it started, and returns when all of them are dead. Its output can still be read, and
    /// [`wait`](Self::wait) tells its exit code, 137.
    pub async fn kill(&mut self) -> Result<(), ExecError> {
        let carried = &self.carried;
        if self.is_over() {
            return Ok(());
        }
        self.place.kill(|| carried.is_finished()).await
    }
}

/// Who named another program may wonder about a shell.
fn explained(error: ExecError, by_shell: bool) -> ExecError {
    match error {
        ExecError::NotRun { reason, message } if by_shell => {
            let message = format!("{message} (the container's /bin/sh starts commands, but for those with `direct`)");
            ExecError::NotRun { reason, message }
        }
        error => error,
    }
}

impl Place {
    async fn kill(&self, ended: impl FnMut() -> bool) -> Result<(), ExecError> {
        let mark = self.mark.as_ref().ok_or(ExecError::NotKillable)?;
        kill::kill(&self.pods, &self.target, self.container.as_deref(), mark, ended).await
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.kill_on_drop || self.is_over() {
            return;
        }
        let place = Arc::clone(&self.place);
        let killed = async move {
            if let Err(error) = place.kill(|| false).await
                && !matches!(error, ExecError::NothingToKill)
            {
                tracing::warn!(pod = place.target.pod(), %error, "a dropped command was not killed");
            }
        };
        match Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn(killed)),
            Err(_) => {
                tracing::warn!(pod = self.place.target.pod(), "a command dropped outside of a runtime is not killed")
            }
        }
    }
}

/// The input of a command.
pub struct Stdin(DuplexStream);

impl AsyncWrite for Stdin {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_that_is_not_there_is_explained() {
        let failed = || ExecError::NotRun { reason: "InternalError".to_owned(), message: "no /bin/sh".to_owned() };
        assert!(
            explained(failed(), true)
                .to_string()
                .ends_with("no /bin/sh (the container's /bin/sh starts commands, but for those with `direct`)")
        );
        assert_eq!(explained(failed(), false).to_string(), failed().to_string());
    }
}
