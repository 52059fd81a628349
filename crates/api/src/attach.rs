//! What goes over an attached terminal's WebSocket, besides bytes.
//!
//! Binary frames are bytes behind eight that count: to the viewer, output, behind the offset at which it ends; to the
//! server, input, behind the offset at which it begins among all that this writer types. Text frames are these, as JSON.

use serde::{Deserialize, Serialize};

use crate::{Problem, Process, ProcessId, TerminalSize};

/// Bytes before the payload of a binary frame: an offset, big-endian.
pub const ATTACH_HEADER: usize = 8;

/// Who may type.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Control {
    /// Look on.
    #[default]
    View,
    /// Control the terminal if nobody does, or a former connection of the same caller and writer.
    Free,
    /// Control it, whoever does now.
    Take,
}

/// What a viewer says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum ViewerFrame {
    /// How large the viewer's window is; the terminal has the size of its controller's.
    Resize { cols: u16, rows: u16 },
    /// Control the terminal, whoever does now.
    Take {},
    /// Control it no longer.
    Release {},
}

/// What a viewer is told.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum TerminalFrame {
    /// First of all. Output follows from `offset` on; of a viewer that controls, at least `input` bytes of this writer were
    /// taken before.
    Attached {
        process: ProcessId,
        offset: u64,
        size: TerminalSize,
        control: bool,
        controller: Option<String>,
        input: u64,
    },
    /// What the terminal shows at `offset`, as text that draws it on an empty one of `size`. Output goes on from there.
    Screen { offset: u64, size: TerminalSize, data: String },
    /// From `offset` on the terminal has this size.
    Resized { offset: u64, size: TerminalSize },
    /// Who controls it now: the owner of a token or a socket, or nobody; `held` when it is this viewer.
    Control { held: bool, controller: Option<String> },
    /// So many bytes of this writer were taken. Also comes after taking control.
    Taken { input: u64 },
    /// Retention took this output before it could be sent; a screen follows.
    Skipped { from: u64, to: u64 },
    /// The process ended; the last frame.
    Exit { process: Box<Process> },
    /// What was asked could not be done. The connection goes on, unless it is closed next.
    Error { problem: Box<Problem> },
}
