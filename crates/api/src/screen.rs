//! What a terminal shows, and what it has shown, for whoever looks without attaching.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::{ProcessId, TerminalSize};

/// Where the cursor is, from 0. The column equals the width when the next letter would begin a new row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct CursorView {
    pub row: u16,
    pub col: u16,
    pub visible: bool,
}

/// The screen of a terminal as a person would see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ScreenView {
    pub process: ProcessId,
    pub size: TerminalSize,
    /// One for each row, without blanks at the end.
    pub lines: Vec<String>,
    pub cursor: CursorView,
    /// As the program set it; text of the sandbox's, without control characters.
    pub title: String,
    /// A full-screen program has taken over.
    pub alternate_screen: bool,
    /// How much of the output is shown: all bytes before this offset.
    pub offset: u64,
    pub ended: bool,
}

impl ScreenView {
    /// The rows as one text, without empty ones at the end.
    pub fn text(&self) -> String {
        self.lines.join("\n").trim_end_matches('\n').to_owned()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ScreenFormat {
    Json,
    /// The rows.
    Text,
    /// The rows with their colours, and nothing else that a terminal would obey.
    Ansi,
}

/// A line that a terminal has shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct TranscriptLine {
    /// Where in the output it begins.
    pub offset: u64,
    /// When its beginning was written, to a tenth of a second.
    pub at: DateTime<Utc>,
    /// Without escape sequences; what was overwritten is not in it.
    pub text: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Transcript {
    /// The last one may be unfinished while the process runs.
    pub lines: Vec<TranscriptLine>,
    /// Where to go on with `from`: after the last whole line that was looked at.
    pub next: u64,
    /// There is more to look at now.
    pub more: bool,
}
