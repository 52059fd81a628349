//! A terminal's output with its timing, as asciicast v3: a header, then one event a line.
//!
//! A recording is made to be played on somebody's terminal, so its output has been through the filter for that: what acts on
//! the person who plays it is not in it. The output route has the bytes as they were.

use std::sync::Arc;

use bytes::Bytes;
use chrono::{DateTime, Utc};
use sandbar_api::{Problem, Process, TerminalSize};
use sandbar_terminal::{InputModes, Neutral, Titles};
use serde_json::{Value, json};

use super::{shown::size_at, terminal};
use crate::{Engine, Inner, problem, store::SizeChange};

const PIECE: usize = 64 << 10;

/// A place in a recording. Never holds more than a piece.
pub struct Recording {
    inner: Arc<Inner>,
    process: Process,
    offset: u64,
    end: u64,
    /// Those still to come.
    sizes: std::vec::IntoIter<SizeChange>,
    next_size: Option<SizeChange>,
    neutral: Neutral,
    /// When the last event was.
    now: DateTime<Utc>,
    header: Option<Bytes>,
    exit_told: bool,
}

impl Engine {
    /// Everything that is kept of a terminal, up to what is its end now.
    pub async fn recording(&self, sandbox: &str, process: &str) -> Result<Recording, Problem> {
        let (_, process) = terminal(&self.inner, sandbox, process).await?;
        let range = process.output;
        let sizes = self.inner.store.terminal_sizes(&process.id).await?;
        let TerminalSize { cols, rows } = size_at(&sizes, range.start);
        let later: Vec<_> = sizes.into_iter().filter(|change| change.offset > range.start).collect();
        let first = self.inner.store.read_moment(&process.id, range.start, 1).await?;
        // What was dropped is no pause.
        let now = first.filter(|_| range.start > 0).map_or(process.started_at, |chunk| chunk.at);
        let header = json!({
            "version": 3,
            "term": { "cols": cols, "rows": rows },
            "timestamp": now.timestamp(),
            "command": process.argv.join(" ").replace(char::is_control, " "),
        });
        let mut sizes = later.into_iter();
        Ok(Recording {
            inner: self.inner.clone(),
            offset: range.start,
            end: range.end,
            next_size: sizes.next(),
            sizes,
            neutral: Neutral::new(Titles::Drop, InputModes::Drop),
            now,
            header: Some(format!("{header}\n").into()),
            exit_told: false,
            process,
        })
    }
}

impl Recording {
    /// The next lines; None after the last.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Problem> {
        if let Some(header) = self.header.take() {
            return Ok(Some(header));
        }
        loop {
            if let Some(change) = self.next_size.filter(|change| change.offset <= self.offset) {
                self.next_size = self.sizes.next();
                let TerminalSize { cols, rows } = change.size;
                return Ok(Some(self.event(change.at, "r", format!("{cols}x{rows}").into())));
            }
            if self.offset >= self.end {
                return Ok(self.exit());
            }
            let until = self.next_size.map_or(self.end, |change| change.offset.min(self.end));
            let room = usize::try_from(until - self.offset).unwrap_or(usize::MAX);
            let read = self.inner.store.read_moment(&self.process.id, self.offset, PIECE.min(room)).await?;
            let chunk = read.ok_or_else(|| problem::gone(self.process.sandbox.as_str()))?;
            self.offset += chunk.data.len() as u64;
            let harmless = self.neutral.filter(&chunk.data);
            if !harmless.is_empty() {
                let text = String::from_utf8_lossy(&harmless).into_owned();
                return Ok(Some(self.event(chunk.at, "o", text.into())));
            }
        }
    }

    fn exit(&mut self) -> Option<Bytes> {
        if std::mem::replace(&mut self.exit_told, true) {
            return None;
        }
        let (exit, at) = (self.process.exit.as_ref()?, self.process.exited_at?);
        let code = exit.code.to_string();
        Some(self.event(at, "x", code.into()))
    }

    /// Times are whole microseconds, so that intervals add up.
    fn event(&mut self, at: DateTime<Utc>, code: &str, data: Value) -> Bytes {
        let micros = (at - self.now).num_microseconds().unwrap_or(0).max(0);
        self.now = self.now.max(at);
        format!("[{}.{:06},\"{code}\",{data}]\n", micros / 1_000_000, micros % 1_000_000).into()
    }
}
