//! Processes of a sandbox, their output numbered by byte offset, and one-call exec.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::{HumanDuration, ProcessId, SandboxId, bytes};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"cols": 80, "rows": 24}))]
pub struct TerminalSize {
    #[schema(minimum = 1, maximum = 9999)]
    pub cols: u16,
    #[schema(minimum = 1, maximum = 9999)]
    pub rows: u16,
}

impl TerminalSize {
    pub fn is_usable(self) -> bool {
        (1..=9999).contains(&self.cols) && (1..=9999).contains(&self.rows)
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"argv": ["sh", "-c", "echo hello"], "timeout": "1m"}))]
pub struct StartProcess {
    /// The program and its arguments; no shell in between.
    #[schema(example = json!(["sh", "-c", "echo hello"]))]
    pub argv: Vec<String>,
    /// Added to the sandbox's.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// `/workspace` when absent; relative paths start there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// Run in a terminal of this size: one output stream, input echoed and cooked by the kernel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terminal: Option<TerminalSize>,
    /// Keep standard input open for the stdin route; otherwise it is empty. A terminal always takes input.
    #[serde(default)]
    pub stdin: bool,
    /// The whole process tree is killed when it is over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<HumanDuration>,
    /// Whether another one like it is started when it has ended; `never` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart: Option<Restart>,
}

/// When a process that has ended is followed by another one like it. One that a person killed, or that ended with its
/// sandbox, is not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Restart {
    Never,
    /// Its exit status was not 0, or a limit ended it.
    OnFailure,
    Always,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ProcessState {
    Running,
    Exited,
    /// It ended without anybody seeing how: its sandbox died.
    Lost,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ExitReason {
    /// By itself, or by a signal from inside.
    Exited,
    /// Its timeout was over.
    Timeout,
    /// Somebody asked: the signal route, or an exec call that was cancelled.
    Killed,
    /// Its sandbox was stopped or deleted.
    Stopped,
    /// The kernel killed it, or something it started, because the sandbox's memory limit was reached.
    Oom,
    /// It was killed because it had reached the sandbox's process limit.
    PidsLimit,
    /// It failed while the sandbox's disk limit was reached.
    DiskLimit,
    /// It was killed because it wrote more output than the sandbox's limit.
    OutputLimit,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Exit {
    /// The exit status, or 128 + signal.
    pub code: i32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    pub reason: ExitReason,
}

/// Which output is kept: bytes `start..end` of everything the process wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct OutputRange {
    /// The first byte still kept.
    pub start: u64,
    /// One past the last byte written so far.
    pub end: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Process {
    pub id: ProcessId,
    pub sandbox: SandboxId,
    pub argv: Vec<String>,
    pub cwd: String,
    pub terminal: bool,
    pub state: ProcessState,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit: Option<Exit>,
    pub started_at: DateTime<Utc>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exited_at: Option<DateTime<Utc>>,
    pub output: OutputRange,
    /// When another one like it follows; absent: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart: Option<Restart>,
    /// The first of those that it follows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart_of: Option<ProcessId>,
    /// How many came before it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub restarts: u32,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ProcessList {
    pub processes: Vec<Process>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Stream {
    Stdout,
    Stderr,
}

/// A piece of output. Offsets count the bytes of both streams together, in the order they were read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct OutputChunk {
    pub offset: u64,
    pub stream: Stream,
    /// Base64.
    #[serde(with = "bytes")]
    #[schema(value_type = String)]
    pub data: Vec<u8>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SignalRequest {
    /// `TERM`, `INT`, `KILL`, … `KILL` ends the whole process tree, the others reach the process group.
    #[schema(example = "TERM")]
    pub signal: String,
}

/// One call: start, wait, collect.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"argv": ["sh", "-c", "echo hello"], "timeout": "1m"}))]
pub struct ExecRequest {
    #[schema(example = json!(["sh", "-c", "echo hello"]))]
    pub argv: Vec<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// The whole process tree is killed when it is over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<HumanDuration>,
    /// Given to the command on standard input, which then ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin: Option<String>,
    /// Bytes of each stream that are returned, 1 MiB when absent; the rest is kept and readable by the process's output
    /// route.
    #[serde(default = "default_output_cap")]
    #[schema(maximum = 67_108_864)]
    pub max_output: u64,
}

pub const MAX_OUTPUT_CAP: u64 = 64 * 1024 * 1024;

pub fn default_output_cap() -> u64 {
    1024 * 1024
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ExecResult {
    pub process: ProcessId,
    pub exit: Exit,
    /// As UTF-8; where the bytes were not, U+FFFD stands, and `stdout_base64` has them exactly.
    pub stdout: String,
    pub stderr: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdout_base64: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stderr_base64: Option<String>,
    /// More was written than `max_output`; the process's output route has it all.
    pub truncated: bool,
}
