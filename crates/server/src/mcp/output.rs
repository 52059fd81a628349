//! `output`: what a process has written, from where the last look ended, and whether it still runs. Also of commands that
//! `exec` ran, whose output it had to cut.

use std::{sync::OnceLock, time::Duration};

use rmcp::model::Tool;
use sandbar_api::{ExitReason, Problem, Process, ProcessState};
use sandbar_engine::{Engine, OutputItem};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::time::{Instant, timeout_at};

use super::{
    Place,
    exec::{LONGEST, whole_characters},
    listing::{self, Effect},
    processes::found,
    progress::{Progress, Watched},
    tools::{Outcome, structured},
};

/// Of one answer.
const MOST: usize = 64 * 1024;
/// How long nothing must have come for an answer to be worth giving.
const QUIET: Duration = Duration::from_millis(250);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Ask {
    process_id: String,
    offset: Option<u64>,
    tail: Option<usize>,
    #[serde(default)]
    wait_ms: u64,
    #[serde(default)]
    until: Until,
}

#[derive(Deserialize, Default, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum Until {
    #[default]
    Output,
    Exit,
}

#[derive(Serialize)]
struct Written {
    process_id: String,
    #[serde(flatten)]
    state: State,
    output: String,
    next_offset: u64,
    /// There is more at `next_offset` already.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    more: bool,
    /// Bytes before `output` that are not kept any more.
    #[serde(skip_serializing_if = "is_zero")]
    dropped: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the shape serde wants")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// As every tool tells it.
#[derive(Serialize)]
pub(super) struct State {
    state: ProcessState,
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_code: Option<i32>,
    /// Why it ended, unless by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<ExitReason>,
}

impl State {
    pub(super) fn of(process: &Process) -> Self {
        let exit = process.exit.as_ref();
        let code = |exit: &sandbar_api::Exit| if exit.reason == ExitReason::Timeout { -1 } else { exit.code };
        Self {
            state: process.state,
            exit_code: exit.map(code),
            reason: exit.map(|exit| exit.reason).filter(|reason| *reason != ExitReason::Exited),
        }
    }

    /// The schema of these, with what a tool says besides.
    pub(super) fn listed(mut besides: serde_json::Value) -> serde_json::Value {
        besides["state"] =
            listing::one_of(&["running", "exited", "lost"], "`lost`: its sandbox died, and nobody saw how it ended");
        besides["exit_code"] =
            json!({"type": "integer", "description": "Of one that has ended; 128 + signal; -1 when its time was over"});
        besides["reason"] = listing::text("Why it ended, unless by itself: timeout, killed, stopped, oom and others");
        besides
    }
}

pub(super) fn listed() -> Tool {
    let tool = listing::tool(
        "output",
        "Look at the output of a process",
        "Get what a process has written to stdout and stderr, and whether it still runs. Works for processes of `start`, and for commands of `exec` whose output was cut.",
        &["process_id"],
        json!({
            "process_id": listing::text("As `start`, `exec` or `processes` told it"),
            "offset": listing::number(0, "Where to begin: next_offset of the last answer; the beginning if absent"),
            "tail": listing::number(1, "Instead of offset: only so many lines from the end"),
            "wait_ms": {"type": "integer", "minimum": 0, "maximum": 1_800_000, "description":
                "How long to wait if there is nothing new; 0 if absent"},
            "until": listing::one_of(&["output", "exit"],
                "What to wait for: new output, or the end of the process; `output` if absent"),
        }),
        Effect::Reads,
    );
    listing::giving(
        tool,
        &["process_id", "state", "output", "next_offset"],
        State::listed(json!({
            "process_id": listing::text("The process"),
            "output": listing::text("At most 64 KiB of stdout and stderr, in the order they were written"),
            "next_offset": listing::number(0, "Give this as offset for what follows"),
            "more": listing::flag("There is more at next_offset already"),
            "dropped": listing::number(1, "So many bytes that were asked for are not kept any more"),
        })),
    )
}

pub(super) async fn look(place: &Place, ask: Ask, progress: &Progress) -> Outcome {
    let (engine, sandbox) = (&place.app.engine, place.sandbox()?);
    let wait = Duration::from_millis(ask.wait_ms);
    if wait > LONGEST {
        return Err(format!("wait_ms must not be more than {}; call again to wait longer.", LONGEST.as_millis()));
    }
    let process = found(engine, sandbox, &ask.process_id).await?;
    let (id, kept) = (process.id.to_string(), process.output);
    let from = match (ask.offset, ask.tail) {
        (Some(_), Some(_)) => return Err("Give offset or tail, not both.".to_owned()),
        (_, Some(0)) => return Err("tail must be at least 1.".to_owned()),
        (Some(offset), None) if offset > kept.end => {
            return Err(format!("offset {offset} is past the end of the output of {id}, which is {} now.", kept.end));
        }
        (offset, None) => offset.unwrap_or(0),
        (None, Some(_)) => kept.end,
    };
    let failed = |problem: Problem| format!("failed to read the output of {id}: {problem}");
    if !wait.is_zero() {
        let waiting = waited(engine, sandbox, &id, from.max(kept.start), wait, ask.until);
        let watched = Watched { engine, sandbox, process: &OnceLock::from(process.id) };
        progress.during(waiting, watched).await.map_err(failed)?;
    }
    // Its state first: what had ended by then has written all it is asked for below.
    let process = found(engine, sandbox, &id).await?;
    let tail_from = process.output.end.saturating_sub(MOST as u64);
    let from = if ask.tail.is_some() { tail_from } else { from };
    let begin = from.max(process.output.start);
    let running = process.state == ProcessState::Running;
    let bytes = collected(engine, sandbox, &id, begin).await.map_err(failed)?;
    let taken = taken(&bytes, running);
    let text = String::from_utf8_lossy(taken);
    let next_offset = begin + taken.len() as u64;
    structured(&Written {
        process_id: id,
        state: State::of(&process),
        output: ask.tail.map_or(text.as_ref(), |lines| last_lines(&text, lines)).to_owned(),
        next_offset,
        more: bytes.len() > MOST || begin + (bytes.len() as u64) < process.output.end,
        dropped: if ask.tail.is_some() { 0 } else { begin - from },
    })
}

/// Until there is something at `from` and no more comes for a while, or the process has ended.
async fn waited(
    engine: &Engine,
    sandbox: &str,
    process: &str,
    from: u64,
    wait: Duration,
    until: Until,
) -> Result<(), Problem> {
    let mut reader = engine.output(sandbox, process, Some(from)).await?;
    let last = Instant::now() + wait;
    let mut patience = last;
    while let Ok(next) = timeout_at(patience, reader.next(true)).await {
        match next? {
            Some(OutputItem::Chunk(_)) if until == Until::Exit => {}
            Some(OutputItem::Chunk(chunk)) if chunk.offset + (chunk.data.len() as u64) < from + MOST as u64 => {
                patience = last.min(Instant::now() + QUIET);
            }
            _ => return Ok(()),
        }
    }
    Ok(())
}

/// Not more than fits an answer.
async fn collected(engine: &Engine, sandbox: &str, process: &str, from: u64) -> Result<Vec<u8>, Problem> {
    let mut reader = engine.output(sandbox, process, Some(from)).await?;
    let mut bytes = Vec::new();
    while bytes.len() <= MOST
        && let Some(OutputItem::Chunk(chunk)) = reader.next(false).await?
    {
        bytes.extend_from_slice(&chunk.data);
    }
    Ok(bytes)
}

/// What is told now. A character that is not complete yet comes with the next look.
fn taken(bytes: &[u8], running: bool) -> &[u8] {
    match bytes.len() > MOST {
        true => whole_characters(&bytes[..MOST]),
        false if running => whole_characters(bytes),
        false => bytes,
    }
}

fn last_lines(text: &str, count: usize) -> &str {
    let lines = text.strip_suffix('\n').unwrap_or(text);
    match lines.rmatch_indices('\n').nth(count - 1) {
        Some((at, _)) => &text[at + 1..],
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines() {
        for (text, count, want) in [
            ("a\nb\nc\n", 1, "c\n"),
            ("a\nb\nc", 2, "b\nc"),
            ("a\nb\n", 9, "a\nb\n"),
            ("a\n\n", 1, "\n"),
            ("", 1, ""),
            ("\n", 1, "\n"),
        ] {
            assert_eq!(last_lines(text, count), want, "{text:?} {count}");
        }
    }

    #[test]
    fn characters_are_not_cut() {
        let long = "é".repeat(MOST);
        let odd = format!("x{long}");
        assert_eq!(taken(odd.as_bytes(), false).len(), MOST - 1);
        assert_eq!(taken(long.as_bytes(), false).len(), MOST);
        assert_eq!(taken(&[b'a', 0xc3], true), b"a");
        assert_eq!(taken(&[b'a', 0xc3], false), [b'a', 0xc3]);
        assert_eq!(taken(&[0xff, 0xff], true), [0xff, 0xff], "what is no character is not waited for");
    }
}
