//! `POST /execute`: a command line taken apart into words and run without a shell. Whatever becomes of it, the answer is
//! 200 with what it wrote.

use std::time::Duration;

use axum::{
    Json,
    body::to_bytes,
    extract::Request,
    http::StatusCode,
    response::{IntoResponse as _, Response},
};
use serde::Deserialize;
use serde_json::json;
use tokio::time::Instant;

use super::{Legacy, detail, unprocessable};
use crate::{
    error::{Code, Fault},
    protocol::Exit,
    runtimes::{
        output::Collected,
        run::{Broken, Command, Run},
        words,
    },
};

const MAX_BODY: usize = 1 << 20;
/// Of a command whose time is over, as `timeout` has it.
const TIMED_OUT: i32 = 124;
/// Where nobody said how long a command may take.
const USUAL: Duration = Duration::from_secs(300);

#[derive(Deserialize)]
struct Asked {
    command: String,
    #[serde(default)]
    timeout_seconds: Option<f64>,
}

pub(super) async fn answer(legacy: &Legacy, request: Request) -> Response {
    // Before the body: as many are held as commands run.
    let _permit = match legacy.serving.collect().await {
        Ok(permit) => permit,
        Err(fault) => return told(b"", &failure(&fault.message), 1, false),
    };
    let Ok(body) = to_bytes(request.into_body(), MAX_BODY).await else {
        return detail(StatusCode::PAYLOAD_TOO_LARGE, json!("the body is too large or broke off"));
    };
    let asked: Asked = match serde_json::from_slice(&body) {
        Ok(asked) => asked,
        Err(error) => return unprocessable("command", &error.to_string()),
    };
    drop(body);
    let argv = match words::split(&asked.command) {
        Ok(argv) => argv,
        Err(error) => return told(b"", &failure(&error.to_string()), 1, false),
    };
    let Some(program) = argv.first().cloned() else {
        return told(b"", &failure("the command is empty"), 1, false);
    };
    let by = Instant::now().checked_add(legacy.longest(asked.timeout_seconds));
    let command = Command { argv, cwd: legacy.asked.root.clone(), by, ..Command::default() };
    let mut output = Collected::new(&legacy.serving.bytes);
    let outcome = match Run::start(&legacy.serving, command).await {
        Ok(mut run) => output.all(&mut run).await,
        Err(broken) => Err(broken),
    };
    let answer = match outcome {
        Ok(exit) => told(&output.stdout, &output.stderr, code(exit), false),
        Err(Broken::Late) => told(&output.stdout, &output.stderr, TIMED_OUT, true),
        Err(Broken::Fault(fault)) => told(b"", &failure(&reason(&fault, &program)), 1, false),
    };
    output.held().until_sent(answer)
}

impl Legacy {
    /// What the caller says, within what the template says.
    fn longest(&self, asked: Option<f64>) -> Duration {
        let limit = match self.asked.timeout_ms {
            0 => USUAL,
            ms => Duration::from_millis(ms),
        };
        let asked =
            asked.filter(|seconds| *seconds > 0.0).and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        asked.map_or(limit, |asked| asked.min(limit))
    }
}

/// As Python's `subprocess` has it: of a signal, its number below zero.
fn code(exit: Exit) -> i32 {
    if exit.signal > 0 { -exit.signal } else { exit.code }
}

fn failure(why: &str) -> Vec<u8> {
    format!("Failed to execute command: {why}").into_bytes()
}

/// As Python says it where it would be the one to say it.
fn reason(fault: &Fault, program: &str) -> String {
    match fault.code {
        Code::CommandNotFound => format!("[Errno 2] No such file or directory: '{program}'"),
        Code::CommandNotExecutable => format!("[Errno 13] Permission denied: '{program}'"),
        _ => fault.message.clone(),
    }
}

fn told(stdout: &[u8], stderr: &[u8], exit_code: i32, timed_out: bool) -> Response {
    let text = |bytes| String::from_utf8_lossy(bytes);
    Json(json!({ "stdout": text(stdout), "stderr": text(stderr), "exit_code": exit_code, "timed_out": timed_out }))
        .into_response()
}
