//! What a terminal has shown, as lines to read and search.

use chrono::{DateTime, Utc};
use sandbar_api::{Code, Problem, ProcessState, Transcript, TranscriptLine};
use sandbar_terminal::{Line, Lines};

use super::terminal;
use crate::{Engine, problem, store};

const DEFAULT_LINES: u32 = 1000;
const MOST_LINES: u32 = 10_000;
/// An answer with more text than this is continued.
const MOST_TEXT: usize = 1 << 20;
/// As much output as one call looks at: a search without a find must not keep the caller waiting.
const MOST_READ: u64 = 16 << 20;
const PIECE: usize = 64 << 10;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TranscriptQuery {
    /// The first byte of output wanted; the first one kept when absent.
    pub from: Option<u64>,
    /// Where to stop; at the end when absent.
    pub to: Option<u64>,
    /// Only lines that contain this.
    pub grep: Option<String>,
    pub ignore_case: bool,
    pub limit: Option<u32>,
}

impl Engine {
    pub async fn transcript(
        &self,
        sandbox: &str,
        process: &str,
        query: &TranscriptQuery,
    ) -> Result<Transcript, Problem> {
        let (_, process) = terminal(&self.inner, sandbox, process).await?;
        let limit = limit(query.limit)?;
        let range = process.output;
        let from = query.from.unwrap_or(range.start);
        if from > range.end {
            return Err(problem::offset_beyond(from, range.end));
        }
        if from < range.start {
            return Err(store::Error::Dropped { from, first_kept: range.start }.into());
        }
        let end = query.to.map_or(range.end, |to| to.clamp(from, range.end));
        let mut wanted = Wanted { query, limit, text: 0, lines: Vec::new() };
        let (mut lines, mut offset, mut found) = (Lines::new(from), from, Vec::new());
        while offset < end {
            if offset - from >= MOST_READ && lines.place() > from {
                return Ok(Transcript { lines: wanted.lines, next: lines.place(), more: true });
            }
            let room = usize::try_from(end - offset).unwrap_or(usize::MAX);
            let Some(chunk) = self.inner.store.read_moment(&process.id, offset, PIECE.min(room)).await? else { break };
            offset += chunk.data.len() as u64;
            lines.feed(&chunk.data, chunk.at, &mut found);
            for line in found.drain(..) {
                let next = line.offset;
                if !wanted.take(line) {
                    return Ok(Transcript { lines: wanted.lines, next, more: true });
                }
            }
            tokio::task::yield_now().await;
        }
        let last = lines.unfinished();
        let next = if process.state == ProcessState::Running { lines.place() } else { end };
        if let Some(last) = last {
            let again = last.offset;
            if !wanted.take(last) {
                return Ok(Transcript { lines: wanted.lines, next: again, more: true });
            }
        }
        Ok(Transcript { lines: wanted.lines, next, more: false })
    }
}

fn limit(asked: Option<u32>) -> Result<usize, Problem> {
    match asked.unwrap_or(DEFAULT_LINES) {
        limit @ 1..=MOST_LINES => Ok(limit as usize),
        limit => Err(Problem::new(
            Code::BadRequest,
            format!("A transcript cannot be limited to {limit} lines."),
            format!("Use 1 to {MOST_LINES}; `next` says where to go on."),
        )),
    }
}

struct Wanted<'q> {
    query: &'q TranscriptQuery,
    limit: usize,
    text: usize,
    lines: Vec<TranscriptLine>,
}

impl Wanted<'_> {
    /// False when the answer is full and the line is for the next one.
    fn take(&mut self, line: Line<DateTime<Utc>>) -> bool {
        let matches = match &self.query.grep {
            None => true,
            Some(grep) if self.query.ignore_case => line.text.to_lowercase().contains(&grep.to_lowercase()),
            Some(grep) => line.text.contains(grep.as_str()),
        };
        if !matches {
            return true;
        }
        if self.lines.len() >= self.limit || self.text >= MOST_TEXT {
            return false;
        }
        self.text += line.text.len();
        self.lines.push(TranscriptLine { offset: line.offset, at: line.tag, text: line.text });
        true
    }
}
