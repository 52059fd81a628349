//! `exec`: a shell command, to its end or its timeout. The command belongs to the call: one that is cancelled takes along
//! all it started.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use rmcp::model::Tool;
use sandbar_api::{ExecRequest, ExecResult, ExitReason, HumanDuration, Problem, ProcessId, Stream, bytes};
use sandbar_engine::{Engine, OutputItem};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{
    Place,
    listing::{self, Effect},
    progress::{Progress, Watched},
    tools::{Outcome, structured},
};
use crate::routes::exec::collected;

const DEFAULT: Duration = Duration::from_secs(120);
pub(super) const LONGEST: Duration = Duration::from_secs(30 * 60);
/// Of each stream; what is longer keeps a half of it at either end.
const MOST: usize = 64 * 1024;
/// How far back the ends of both streams are looked for.
const LOOK_BACK: u64 = 1024 * 1024;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Ask {
    command: String,
    timeout_ms: Option<i64>,
    working_dir: Option<String>,
}

#[derive(Serialize)]
struct Ran {
    stdout: String,
    stderr: String,
    exit_code: i32,
    /// Why it ended, unless by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<ExitReason>,
    /// Whose output is kept whole, if it was cut here.
    #[serde(skip_serializing_if = "Option::is_none")]
    truncated: Option<ProcessId>,
}

pub(super) fn listed() -> Tool {
    let tool = listing::tool(
        "exec",
        "Run a command",
        "Execute a shell command in the sandbox",
        &["command"],
        json!({
            "command": listing::text("Given to `sh -c`. More than 64 KiB of stdout or stderr is cut in the middle. What is to run on is for `start`"),
            "timeout_ms": {"type": "integer", "description":
                "When everything the command started is killed and exit_code is -1: 120000 if absent, at most 1800000, which 0 and less stand for too"},
            "working_dir": listing::path("The directory it runs in, /workspace if absent"),
        }),
        Effect::ChangesAnything,
    );
    listing::giving(
        tool,
        &["stdout", "stderr", "exit_code"],
        json!({
            "stdout": listing::text("What it wrote; U+FFFD stands for what is not UTF-8"),
            "stderr": listing::text("Likewise"),
            "exit_code": {"type": "integer", "description": "Its exit status, 128 + signal, or -1 when its time was over"},
            "reason": listing::text("Why it ended, unless by itself: timeout, killed, stopped, oom and others"),
            "truncated": listing::text("The id of the process, if its output was cut here: `output` has all of it"),
        }),
    )
}

pub(super) async fn run(place: &Place, ask: Ask, progress: &Progress) -> Outcome {
    if ask.command.trim().is_empty() {
        return Err("command must not be empty".to_owned());
    }
    let timeout = HumanDuration(timeout(ask.timeout_ms)?);
    let sandbox = place.sandbox()?;
    let request = ExecRequest {
        argv: ["sh", "-c", &ask.command].map(str::to_owned).to_vec(),
        env: Default::default(),
        cwd: ask.working_dir.filter(|directory| !directory.is_empty()),
        timeout: Some(timeout),
        stdin: None,
        // One more tells what is longer from what just fits.
        max_output: MOST as u64 + 1,
    };
    let engine = &place.app.engine;
    let process = Arc::new(OnceLock::new());
    let begun = process.clone();
    let running = collected(&place.app, sandbox.to_owned(), request, move |id| _ = begun.set(id.clone()));
    let watched = Watched { engine, sandbox, process: &process };
    let ran = progress.during(running, watched).await.map_err(|problem| format!("failed to run command: {problem}"))?;
    structured(&shown(engine, sandbox, ran).await)
}

/// As kagent reads the number, but that nothing runs without any limit.
fn timeout(asked: Option<i64>) -> Result<Duration, String> {
    let Some(asked) = asked else { return Ok(DEFAULT) };
    let asked = u64::try_from(asked).ok().filter(|asked| *asked > 0).map_or(LONGEST, Duration::from_millis);
    if asked > LONGEST {
        let most = LONGEST.as_millis();
        return Err(format!("timeout_ms must not be more than {most}; run what takes longer with start"));
    }
    Ok(asked)
}

async fn shown(engine: &Engine, sandbox: &str, ran: ExecResult) -> Ran {
    let exact = |text: String, base64: Option<String>| {
        base64.as_deref().and_then(bytes::decode).unwrap_or_else(|| text.into_bytes())
    };
    let stdout = exact(ran.stdout, ran.stdout_base64);
    let stderr = exact(ran.stderr, ran.stderr_base64);
    let cut = stdout.len() > MOST || stderr.len() > MOST;
    let ends = if cut { ends(engine, sandbox, &ran.process).await } else { Ok(Ends::default()) };
    let (stdout_end, stderr_end) = match &ends {
        Ok(ends) => (Ok(ends.stdout.as_slice()), Ok(ends.stderr.as_slice())),
        Err(problem) => (Err(problem), Err(problem)),
    };
    let timed_out = ran.exit.reason == ExitReason::Timeout;
    Ran {
        stdout: fit(&stdout, stdout_end, &ran.process),
        stderr: fit(&stderr, stderr_end, &ran.process),
        exit_code: if timed_out { -1 } else { ran.exit.code },
        reason: Some(ran.exit.reason).filter(|reason| *reason != ExitReason::Exited),
        truncated: cut.then_some(ran.process),
    }
}

#[derive(Default)]
struct Ends {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
}

/// The last of each stream.
async fn ends(engine: &Engine, sandbox: &str, process: &ProcessId) -> Result<Ends, Problem> {
    let kept = engine.process(sandbox, process.as_str()).await?.output;
    let from = kept.end.saturating_sub(LOOK_BACK).max(kept.start);
    let mut reader = engine.output(sandbox, process.as_str(), Some(from)).await?;
    let mut ends = Ends::default();
    while let Some(OutputItem::Chunk(chunk)) = reader.next(false).await? {
        let end = match chunk.stream {
            Stream::Stdout => &mut ends.stdout,
            Stream::Stderr => &mut ends.stderr,
        };
        end.extend_from_slice(&chunk.data);
        end.drain(..end.len().saturating_sub(MOST / 2));
    }
    Ok(ends)
}

/// All of it, or its beginning and its end with what is between them told.
fn fit(begin: &[u8], end: Result<&[u8], &Problem>, process: &ProcessId) -> String {
    if begin.len() <= MOST {
        return String::from_utf8_lossy(begin).into_owned();
    }
    let head = String::from_utf8_lossy(whole_characters(&begin[..MOST / 2]));
    let (tail, lost) = match end {
        Ok(end) => {
            let broken = end.iter().take(3).take_while(|byte| **byte & 0xc0 == 0x80).count();
            (String::from_utf8_lossy(&end[broken..]), String::new())
        }
        Err(problem) => ("".into(), format!(" Its end cannot be read: {problem}")),
    };
    format!(
        "{head}\n[… cut here: longer than {MOST} bytes. The tool output has all of it for process_id {process}.{lost} …]\n{tail}"
    )
}

/// Without a character that the cut went through.
pub(super) fn whole_characters(bytes: &[u8]) -> &[u8] {
    match bytes.utf8_chunks().last() {
        Some(last) if !last.invalid().is_empty() && std::str::from_utf8(last.invalid()).is_err_and(unfinished) => {
            &bytes[..bytes.len() - last.invalid().len()]
        }
        _ => bytes,
    }
}

fn unfinished(error: std::str::Utf8Error) -> bool {
    error.error_len().is_none()
}

#[cfg(test)]
mod tests {
    use sandbar_api::Code;

    use super::*;

    fn process() -> ProcessId {
        "prc-01m7fq3czq9cdte0q41wxwr4kd".parse().unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn nothing_runs_without_a_limit() {
        assert_eq!(timeout(None), Ok(DEFAULT));
        assert_eq!(timeout(Some(1)), Ok(Duration::from_millis(1)));
        assert_eq!(timeout(Some(1_800_000)), Ok(LONGEST));
        for without in [0, -1, i64::MIN] {
            assert_eq!(timeout(Some(without)), Ok(LONGEST), "{without}");
        }
        assert!(timeout(Some(1_800_001)).is_err_and(|text| text.contains("1800000")));
    }

    #[test]
    fn output_is_cut_in_the_middle_between_characters() {
        let fits = vec![b'x'; MOST];
        assert_eq!(fit(&fits, Ok(b""), &process()).len(), MOST);
        let long = "é".repeat(MOST);
        // An odd beginning puts every cut into a character.
        let begin = format!("x{long}").into_bytes();
        let end = &begin[begin.len() - MOST / 2 - 1..];
        let shown = fit(&begin[..=MOST], Ok(end), &process());
        assert!(shown.starts_with("xé") && shown.ends_with('é') && !shown.contains('\u{fffd}'));
        assert!(shown.contains("The tool output has all of it for process_id prc-01m7fq3czq9cdte0q41wxwr4kd."));
        assert!(shown.len() <= MOST + 200, "{}", shown.len());
    }

    #[test]
    fn an_end_that_is_gone_is_told() {
        let gone = Problem::new(Code::OutputDropped, "Gone.", "Too late.");
        assert!(fit(&vec![b'x'; MOST + 1], Err(&gone), &process()).contains("Its end cannot be read: Gone. Too late."));
    }
}
