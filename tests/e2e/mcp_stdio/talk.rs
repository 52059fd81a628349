//! A client that says exactly what a test wants, line by line.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    process::{Child, ChildStdin, Command, Stdio},
    sync::{
        LazyLock,
        mpsc::{Receiver, channel},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::support::{Outcome, Server};

const PATIENCE: Duration = Duration::from_secs(300);

pub(crate) static HELLO: LazyLock<Value> = LazyLock::new(|| {
    let params =
        json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "0"}});
    json!({"jsonrpc": "2.0", "id": "hello", "method": "initialize", "params": params})
});

/// A request of the revision without a handshake.
pub(crate) fn stateless(id: impl Into<Value>, method: &str, mut params: Value) -> Value {
    params["_meta"] = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "0"},
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    json!({"jsonrpc": "2.0", "id": id.into(), "method": method, "params": params})
}

pub(crate) fn exec(id: impl Into<Value>, command: &str) -> Value {
    stateless(id, "tools/call", json!({"name": "exec", "arguments": {"command": command}}))
}

/// The same of those with one.
pub(crate) fn plain_exec(id: i32, command: &str) -> Value {
    let params = json!({"name": "exec", "arguments": {"command": command}});
    json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params})
}

/// `sandbar mcp`, killed when dropped.
pub(crate) struct Talk {
    process: Child,
    input: Option<ChildStdin>,
    said: Receiver<String>,
    warned: Option<JoinHandle<String>>,
}

impl Talk {
    pub(crate) fn start(server: &Server, arguments: &[&str]) -> Outcome<Self> {
        Self::spawn(server.command(&["mcp"]).args(arguments))
    }

    pub(crate) fn spawn(command: &mut Command) -> Outcome<Self> {
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let stdout = process.stdout.take().ok_or("no stdout")?;
        let stderr = process.stderr.take().ok_or("no stderr")?;
        let (to, said) = channel();
        thread::spawn(move || BufReader::new(stdout).lines().map_while(Result::ok).try_for_each(|line| to.send(line)));
        let warned = thread::spawn(move || {
            let lines = BufReader::new(stderr).lines().map_while(Result::ok);
            lines.inspect(|line| eprintln!("{line}")).collect::<Vec<_>>().join("\n")
        });
        Ok(Self { input: process.stdin.take(), process, said, warned: Some(warned) })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    pub(crate) fn line(&mut self, line: &[u8]) -> Outcome {
        let input = self.input.as_mut().ok_or("its input is closed")?;
        input.write_all(line)?;
        Ok(input.write_all(b"\n")?)
    }

    pub(crate) fn send(&mut self, message: &Value) -> Outcome {
        self.line(message.to_string().as_bytes())
    }

    /// The next line, which must be a message.
    pub(crate) fn next(&mut self) -> Outcome<Value> {
        let line = self.said.recv_timeout(PATIENCE).map_err(|_| "it says nothing")?;
        let message: Value = serde_json::from_str(&line)?;
        assert_eq!(message["jsonrpc"], "2.0", "{line}");
        Ok(message)
    }

    /// Passes over notifications and the answers to others.
    pub(crate) fn answer(&mut self, id: impl Into<Value>) -> Outcome<Value> {
        let id = id.into();
        loop {
            let message = self.next()?;
            if message["id"] == id {
                return Ok(message);
            }
        }
    }

    /// The handshake of the revisions that have one.
    pub(crate) fn introduce(&mut self) -> Outcome {
        self.send(&HELLO)?;
        assert_eq!(self.answer("hello")?["result"]["protocolVersion"], "2025-06-18");
        self.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}))
    }

    pub(crate) fn close_input(&mut self) {
        self.input = None;
    }

    pub(crate) fn wait(&mut self) -> Outcome {
        let status = self.process.wait()?;
        if status.success() { Ok(()) } else { Err(format!("it ended with {status}").into()) }
    }

    /// Whether it could tell the server that it leaves: it waits for half a second, and says so where that was too short.
    pub(crate) fn told_the_server(&mut self) -> bool {
        let warned = self.warned.take().and_then(|reading| reading.join().ok()).unwrap_or_default();
        !warned.contains("the server was not told that this client is gone")
    }

    /// How long it took to leave.
    pub(crate) fn close(&mut self) -> Outcome<Duration> {
        self.close_input();
        let begin = Instant::now();
        self.wait()?;
        Ok(begin.elapsed())
    }

    /// It has nothing more to say.
    pub(crate) fn end(mut self) -> Outcome {
        self.close()?;
        match self.said.recv_timeout(PATIENCE) {
            Ok(line) => Err(format!("it also said {line}").into()),
            Err(_) => Ok(()),
        }
    }
}

impl Drop for Talk {
    fn drop(&mut self) {
        let _ended = self.process.kill();
        let _reaped = self.process.wait();
    }
}
