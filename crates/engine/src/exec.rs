//! One call: start a command, give it its input, wait for its end, return what it wrote.

use bytes::Bytes;
use sandbar_api::{
    Code, ExecRequest, ExecResult, Problem, ProcessId, StartProcess, Stream, bytes as base64, process::MAX_OUTPUT_CAP,
};
use sandbar_provider::Guest;

use crate::{
    Engine, problem,
    process::{self, Outcome},
};

/// The first bytes of each stream, up to a cap.
#[derive(Debug)]
pub(crate) struct Collector {
    cap: usize,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    truncated: bool,
}

impl Collector {
    fn new(cap: usize) -> Self {
        Self { cap, stdout: Vec::new(), stderr: Vec::new(), truncated: false }
    }

    pub(crate) fn push(&mut self, stream: Stream, data: &[u8]) {
        let kept = match stream {
            Stream::Stdout => &mut self.stdout,
            Stream::Stderr => &mut self.stderr,
        };
        let room = self.cap - kept.len();
        kept.extend_from_slice(&data[..data.len().min(room)]);
        self.truncated |= data.len() > room;
    }
}

impl Engine {
    /// Dropping the future kills the process and all it started.
    pub async fn exec(&self, sandbox: &str, request: ExecRequest) -> Result<ExecResult, Problem> {
        self.exec_telling(sandbox, request, |_| ()).await
    }

    /// The same, for one who wants to know of the process while it runs.
    pub async fn exec_telling(
        &self,
        sandbox: &str,
        request: ExecRequest,
        begun: impl FnOnce(&ProcessId) + Send,
    ) -> Result<ExecResult, Problem> {
        let cap = usize::try_from(request.max_output).ok().filter(|_| request.max_output <= MAX_OUTPUT_CAP);
        let cap = cap.ok_or_else(|| {
            Problem::new(
                Code::BadRequest,
                format!("max_output is {}, which is more than {MAX_OUTPUT_CAP}.", request.max_output),
                "Ask for less; the process's output route has it all.",
            )
        })?;
        let start = StartProcess {
            argv: request.argv,
            env: request.env,
            cwd: request.cwd,
            terminal: None,
            stdin: request.stdin.is_some(),
            timeout: request.timeout,
            restart: None,
        };
        let handle = self.inner.handle(sandbox).await?;
        let _waiting = handle.waiting.token();
        let launch = process::launch(&self.inner, &handle, start, Some(Collector::new(cap))).await?;
        let cancelled = launch.live.kill.clone().drop_guard();
        let started = launch.started.await.unwrap_or_else(|_| Err(problem::shutting_down()))?;
        begun(&started.id);

        let mut progress = launch.live.progress.subscribe();
        let feed = async {
            if let Some(input) = request.stdin {
                feed(launch.guest.clone(), &started.id, input.into()).await;
            }
            // A command may end without reading all its input; only its end ends the call.
            std::future::pending::<()>().await
        };
        let outcome = tokio::select! {
            ended = progress.wait_for(|progress| progress.outcome.is_some() || progress.disk_full) => {
                let progress = ended.map_err(|_| problem::shutting_down())?;
                if progress.outcome.is_none() {
                    return Err(problem::no_room_for(&started.id));
                }
                progress.outcome.clone()
            }
            () = feed => None,
            () = self.inner.closing.cancelled() => None,
        };
        let exit = match outcome {
            Some(Outcome::Exited(exit)) => exit,
            Some(Outcome::Lost) => {
                return Err(Problem::new(
                    Code::GuestUnreachable,
                    format!("The sandbox died while {} ran in it.", started.id),
                    format!("`sandbar start {}` brings it back with its files.", handle.name()),
                ));
            }
            None => {
                // Commands outlive the server; its output route has the rest when the server is back.
                cancelled.disarm();
                return Err(problem::shutting_down());
            }
        };
        cancelled.disarm();
        let collected = launch.live.collector.as_ref().map(|collector| {
            let mut collector = collector.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            // What descendants write from here on is not collected any more.
            std::mem::replace(&mut *collector, Collector::new(0))
        });
        let Collector { stdout, stderr, truncated, .. } = collected.unwrap_or_else(|| Collector::new(0));
        let (stdout, stdout_base64) = text(stdout);
        let (stderr, stderr_base64) = text(stderr);
        Ok(ExecResult { process: started.id, exit, stdout, stderr, stdout_base64, stderr_base64, truncated })
    }
}

async fn feed(mut guest: Guest, process: &ProcessId, input: Bytes) {
    if let Err(problem) = process::write_input(&mut guest, process, Some(0), input, true).await {
        // As in a pipe: a command that closed its input or ended does not take the rest, and that is its business.
        tracing::debug!(%process, %problem, "a command did not take all its input");
    }
}

/// As text, and exactly if it is none.
fn text(bytes: Vec<u8>) -> (String, Option<String>) {
    match String::from_utf8(bytes) {
        Ok(text) => (text, None),
        Err(error) => {
            let exact = base64::encode(error.as_bytes());
            (String::from_utf8_lossy(error.as_bytes()).into_owned(), Some(exact))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_stream_has_its_own_cap() {
        let mut collector = Collector::new(4);
        collector.push(Stream::Stdout, b"abcd");
        collector.push(Stream::Stderr, b"xy");
        assert!(!collector.truncated);
        collector.push(Stream::Stdout, b"e");
        collector.push(Stream::Stderr, b"zwv");
        assert!(collector.truncated);
        assert_eq!((collector.stdout.as_slice(), collector.stderr.as_slice()), (&b"abcd"[..], &b"xyzw"[..]));
    }

    #[test]
    fn bytes_that_are_no_text_are_kept_exactly() {
        assert_eq!(text(b"ok".to_vec()), ("ok".into(), None));
        let (lossy, exact) = text(vec![b'a', 0xff]);
        assert_eq!(lossy, "a\u{fffd}");
        assert_eq!(exact.as_deref().and_then(base64::decode), Some(vec![b'a', 0xff]));
    }
}
