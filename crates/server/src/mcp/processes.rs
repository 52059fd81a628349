//! `start`, `input`, `stop` and `processes`: what is to run on between calls. Such a process belongs to the sandbox, not
//! to the call, the client or the server.

use std::{collections::BTreeMap, time::Duration};

use bytes::Bytes;
use rmcp::model::Tool;
use sandbar_api::{Code, Problem, Process, ProcessState, StartProcess, TerminalSize};
use sandbar_engine::{Engine, OutputItem};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::time::timeout;

use super::{
    Place,
    listing::{self, Effect},
    output::State,
    tools::{Outcome, structured},
};

const TERMINAL: TerminalSize = TerminalSize { cols: 120, rows: 40 };
/// A process that does not read its input must not hold the call.
const TAKING: Duration = Duration::from_secs(10);
const GRACE: Duration = Duration::from_secs(5);
const LONGEST_GRACE: Duration = Duration::from_secs(120);
/// From the kill to the end.
const DYING: Duration = Duration::from_secs(10);
/// Of those that have ended; every command of `exec` was one.
const MOST_ENDED: usize = 20;
const LONGEST_COMMAND: usize = 200;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Start {
    command: String,
    working_dir: Option<String>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    #[serde(default)]
    terminal: bool,
}

#[derive(Serialize)]
struct Started {
    process_id: String,
}

pub(super) fn start_listed() -> Tool {
    let tool = listing::tool(
        "start",
        "Start a process",
        "Start a shell command that runs on between calls, for example a server or a long build. `output` gets what it writes, `input` types into it, `stop` ends it.",
        &["command"],
        json!({
            "command": listing::text("Given to `sh -c`"),
            "working_dir": listing::path("The directory it runs in, /workspace if absent"),
            "env": {"type": "object", "additionalProperties": {"type": "string"},
                "description": "Environment variables, added to the sandbox's"},
            "terminal": listing::flag(
                "Run it in a terminal of 120 columns and 40 rows, for programs that want one; false if absent"),
        }),
        Effect::ChangesAnything,
    );
    listing::giving(tool, &["process_id"], json!({"process_id": listing::text("For output, input and stop")}))
}

pub(super) async fn start(place: &Place, ask: Start) -> Outcome {
    if ask.command.trim().is_empty() {
        return Err("command must not be empty".to_owned());
    }
    let request = StartProcess {
        argv: ["sh", "-c", &ask.command].map(str::to_owned).to_vec(),
        env: ask.env,
        cwd: ask.working_dir.filter(|directory| !directory.is_empty()),
        terminal: ask.terminal.then_some(TERMINAL),
        stdin: true,
        ..StartProcess::default()
    };
    let started = place.app.engine.start_process(place.sandbox()?, request).await;
    let started = started.map_err(|problem| format!("failed to start the command: {problem}"))?;
    structured(&Started { process_id: started.id.to_string() })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Input {
    process_id: String,
    #[serde(default)]
    text: String,
    #[serde(default)]
    eof: bool,
}

#[derive(Serialize)]
struct Taken {
    ok: bool,
}

pub(super) fn input_listed() -> Tool {
    let tool = listing::tool(
        "input",
        "Type into a process",
        "Write text to the standard input of a process that `start` started.",
        &["process_id"],
        json!({
            "process_id": listing::text("As `start` told it"),
            "text": listing::text("Written as it is: a line needs its \\n; in a terminal \\u0003 is Ctrl-C"),
            "eof": listing::flag("End the input after the text; false if absent"),
        }),
        Effect::ChangesAnything,
    );
    listing::giving(tool, &["ok"], json!({"ok": listing::flag("Always true: a failure is an error")}))
}

pub(super) async fn input(place: &Place, ask: Input) -> Outcome {
    let (engine, sandbox) = (&place.app.engine, place.sandbox()?);
    if ask.text.is_empty() && !ask.eof {
        return Err("text must not be empty, unless eof is true".to_owned());
    }
    let process = found(engine, sandbox, &ask.process_id).await?;
    let id = process.id.as_str();
    if process.state != ProcessState::Running {
        return Err(ended(&process));
    }
    match timeout(TAKING, engine.write_input(sandbox, id, None, Bytes::from(ask.text), ask.eof)).await {
        Ok(Ok(_)) => structured(&Taken { ok: true }),
        Ok(Err(problem)) if problem.code == Code::NoStdin => Err(format!(
            "failed to write to {id}: it takes no input, because it ended, was run by exec, or its input was ended before."
        )),
        Ok(Err(problem)) if problem.code == Code::ProcessOver => Err(ended(&process)),
        Ok(Err(problem)) => Err(format!("failed to write to {id}: {problem}")),
        Err(_) => Err(format!(
            "failed to write to {id}: it did not read all of it for {} s, and may have got a part. Look with output what it is doing.",
            TAKING.as_secs()
        )),
    }
}

fn ended(process: &Process) -> String {
    format!(
        "The process {} has ended and takes no input. output tells what it wrote; start starts another.",
        process.id
    )
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Stop {
    process_id: String,
    signal: Option<String>,
    grace_ms: Option<u64>,
}

#[derive(Serialize)]
struct Stopped {
    process_id: String,
    #[serde(flatten)]
    state: State,
}

pub(super) fn stop_listed() -> Tool {
    let tool = listing::tool(
        "stop",
        "Stop a process",
        "End a process: with a signal first, and after some time with KILL. Everything it started ends with it.",
        &["process_id"],
        json!({
            "process_id": listing::text("As `start` or `processes` told it"),
            "signal": listing::text("The first signal, for example INT; TERM if absent"),
            "grace_ms": {"type": "integer", "minimum": 0, "maximum": 120_000, "description":
                "How long it may take to end by itself after the signal; 5000 if absent, with 0 it is killed at once"},
        }),
        Effect::Replaces,
    );
    listing::giving(tool, &["process_id", "state"], State::listed(json!({"process_id": listing::text("The process")})))
}

pub(super) async fn stop(place: &Place, ask: Stop) -> Outcome {
    let (engine, sandbox) = (&place.app.engine, place.sandbox()?);
    let grace = ask.grace_ms.map_or(GRACE, Duration::from_millis);
    if grace > LONGEST_GRACE {
        return Err(format!("grace_ms must not be more than {}", LONGEST_GRACE.as_millis()));
    }
    let process = found(engine, sandbox, &ask.process_id).await?;
    let id = process.id.as_str();
    let failed = |problem: Problem| format!("failed to stop {id}: {problem}");
    let signal = ask.signal.as_deref().unwrap_or("TERM");
    if process.state == ProcessState::Running && !grace.is_zero() {
        send(engine, sandbox, id, signal).await.map_err(failed)?;
        over(engine, sandbox, &process, grace).await.map_err(failed)?;
    }
    // Also after one that ended by itself: what it started may not have.
    send(engine, sandbox, id, "KILL").await.map_err(failed)?;
    over(engine, sandbox, &process, DYING).await.map_err(failed)?;
    let process = found(engine, sandbox, id).await?;
    structured(&Stopped { process_id: process.id.to_string(), state: State::of(&process) })
}

async fn send(engine: &Engine, sandbox: &str, process: &str, signal: &str) -> Result<(), Problem> {
    match engine.signal(sandbox, process, signal).await {
        Err(problem) if problem.code == Code::ProcessOver => Ok(()),
        sent => sent,
    }
}

/// Returns when it has ended, or when that took too long.
async fn over(engine: &Engine, sandbox: &str, process: &Process, within: Duration) -> Result<(), Problem> {
    let mut reader = engine.output(sandbox, process.id.as_str(), Some(process.output.end)).await?;
    let ended = async {
        while let Some(OutputItem::Chunk(_)) = reader.next(true).await? {}
        Ok(())
    };
    timeout(within, ended).await.unwrap_or(Ok(()))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct All {}

#[derive(Serialize)]
struct Running {
    processes: Vec<Shown>,
}

#[derive(Serialize)]
struct Shown {
    process_id: String,
    command: String,
    #[serde(flatten)]
    state: State,
    started_at: String,
    output_bytes: u64,
}

pub(super) fn all_listed() -> Tool {
    let tool = listing::tool(
        "processes",
        "List processes",
        "List the processes of the sandbox: those that run, and the last 20 that have ended; the newest first.",
        &[],
        json!({}),
        Effect::Reads,
    );
    let process = State::listed(json!({
        "process_id": listing::text("For output, input and stop"),
        "command": listing::text("Its beginning"),
        "started_at": listing::text("RFC 3339"),
        "output_bytes": listing::number(0, "How much it has written"),
    }));
    let required = ["process_id", "command", "state", "started_at", "output_bytes"];
    listing::giving(tool, &["processes"], json!({"processes": listing::list(&required, process)}))
}

pub(super) async fn all(place: &Place, _: All) -> Outcome {
    let processes = place.app.engine.processes(place.sandbox()?).await;
    let processes = processes.map_err(|problem| format!("failed to list processes: {problem}"))?;
    structured(&Running { processes: newest(&processes).map(shown).collect() })
}

fn newest(processes: &[Process]) -> impl Iterator<Item = &Process> {
    let mut room = MOST_ENDED;
    processes.iter().rev().filter(move |process| {
        let ended = process.state != ProcessState::Running;
        let fits = !ended || room > 0;
        room -= usize::from(ended && fits);
        fits
    })
}

fn shown(process: &Process) -> Shown {
    let command = match process.argv.as_slice() {
        [shell, dash_c, command] if shell == "sh" && dash_c == "-c" => command.clone(),
        argv => argv.join(" "),
    };
    let mut shown: String = command.chars().take(LONGEST_COMMAND).collect();
    if shown.len() < command.len() {
        shown.push('…');
    }
    Shown {
        process_id: process.id.to_string(),
        command: shown,
        state: State::of(process),
        started_at: process.started_at.to_rfc3339_opts(chrono::SecondsFormat::Secs, true),
        output_bytes: process.output.end,
    }
}

/// A process of this sandbox, or what to tell the model. Another sandbox's is as unknown as one that never was.
pub(super) async fn found(engine: &Engine, sandbox: &str, process: &str) -> Result<Process, String> {
    engine.process(sandbox, process).await.map_err(|problem| match problem.code {
        Code::UnknownProcess => format!(
            "There is no process `{}` in this sandbox. processes lists those there are.",
            process.chars().take(64).collect::<String>().escape_debug()
        ),
        _ => format!("failed to look at the process: {problem}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(number: usize, running: bool) -> Process {
        let state = if running { "running" } else { "exited" };
        let value = json!({
            "id": format!("prc-{number:026}"), "sandbox": "sbx-00000000000000000000000000",
            "argv": ["sh", "-c", "x".repeat(300)], "cwd": "/", "terminal": false, "state": state,
            "started_at": "2026-07-28T00:00:00Z", "output": {"start": 0, "end": 7},
        });
        serde_json::from_value(value).unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn all_that_run_and_the_last_that_ended() {
        let processes: Vec<_> = (0..30).map(|number| process(number, number % 10 == 0)).collect();
        let shown: Vec<_> = newest(&processes).map(|process| process.state).collect();
        assert_eq!(shown.iter().filter(|state| **state == ProcessState::Running).count(), 3);
        assert_eq!(shown.len(), 3 + MOST_ENDED);
        assert_eq!(newest(&processes).next().map(|process| process.id.clone()), Some(processes[29].id.clone()));
    }

    #[test]
    fn commands_are_shown_without_their_shell() {
        let shown = shown(&process(1, true));
        assert_eq!(shown.command, format!("{}…", "x".repeat(LONGEST_COMMAND)));
        assert_eq!((shown.started_at.as_str(), shown.output_bytes), ("2026-07-28T00:00:00Z", 7));
    }
}
