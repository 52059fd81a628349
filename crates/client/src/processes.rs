//! Processes: start, list, look at, signal, resize; and exec in one call.

use reqwest::Method;
use sandbar_api::{ExecRequest, ExecResult, Process, ProcessList, SignalRequest, StartProcess, TerminalSize};

use crate::{Client, Result};

impl Client {
    /// Starts a command, waits, and returns what it wrote (up to a cap). Dropping the future kills its whole tree.
    pub async fn exec(&self, sandbox: &str, request: &ExecRequest) -> Result<ExecResult> {
        self.post(&["v1", "sandboxes", sandbox, "exec"], request).await
    }

    /// Starts a process that goes on without us.
    pub async fn start_process(&self, sandbox: &str, request: &StartProcess) -> Result<Process> {
        self.post(&["v1", "sandboxes", sandbox, "processes"], request).await
    }

    pub async fn processes(&self, sandbox: &str) -> Result<Vec<Process>> {
        Ok(self.get::<ProcessList>(&["v1", "sandboxes", sandbox, "processes"]).await?.processes)
    }

    pub async fn process(&self, sandbox: &str, process: &str) -> Result<Process> {
        self.get(&["v1", "sandboxes", sandbox, "processes", process]).await
    }

    /// `TERM`, `SIGTERM` or `15`. `KILL` ends the whole tree.
    pub async fn signal(&self, sandbox: &str, process: &str, signal: &str) -> Result<()> {
        let body = SignalRequest { signal: signal.to_owned() };
        let route = ["v1", "sandboxes", sandbox, "processes", process, "signal"];
        self.empty(self.request(Method::POST, &route).json(&body)).await
    }

    pub async fn resize(&self, sandbox: &str, process: &str, size: TerminalSize) -> Result<()> {
        let route = ["v1", "sandboxes", sandbox, "processes", process, "resize"];
        self.empty(self.request(Method::POST, &route).json(&size)).await
    }
}
