//! How running a command can fail, apart from the command's own exit code.

use std::{sync::Arc, time::Duration};

use tokio_tungstenite::tungstenite;

/// Why a command was not run to its end, or not ended.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExecError {
    /// The API server did not open the stream: no such pod, no permission (`create` on `pods/exec`), or it is not there.
    #[error("failed to start a command in pod {pod}")]
    Api {
        /// The pod.
        pod: String,
        /// What the API server said.
        source: Arc<crate::Error>,
    },
    /// The command is empty.
    #[error("a command needs at least the name of a program")]
    NoCommand,
    /// The container runtime could not run it: no such program, no such container.
    #[error("the command could not be run ({reason}): {message}")]
    NotRun {
        /// The reason of the status frame.
        reason: String,
        /// Its message.
        message: String,
    },
    /// The status frame makes no sense.
    #[error("the end of the command was reported in a way that is not understood: {0}")]
    BadStatus(String),
    /// The stream ended before the command's end was reported; the command may still be running.
    #[error("the stream to the command was lost before its end was reported")]
    Lost {
        /// Why, where the stream said so.
        source: Option<Arc<tungstenite::Error>>,
    },
    /// Nothing came for so long that nobody can be there; the command may still be running.
    #[error("the stream to the command was silent for {0:?}, although it was asked")]
    Silent(Duration),
    /// The API server speaks `v4.channel.k8s.io`, which has no end of input.
    #[error("this API server cannot tell a command that its input ended: it needs v5.channel.k8s.io (Kubernetes 1.30)")]
    NoHalfClose,
    /// The input could not be read.
    #[error("failed to pass on the input of the command: {0}")]
    Input(Arc<std::io::Error>),
    /// It wrote more than [`max_output`](super::Exec::max_output).
    #[error("the command wrote more than {0} bytes to one stream; raise max_output, or use exec_stream")]
    TooMuchOutput(usize),
    /// It ran longer than [`timeout`](super::Exec::timeout), and was killed.
    #[error("the command ran longer than {0:?} and was killed")]
    TimedOut(Duration),
    /// The command was started with [`direct`](super::Exec::direct).
    #[error("the command was started directly, so nobody knows its processes: leave out `direct`")]
    NotKillable,
    /// What is needed to kill is missing in the container.
    #[error("the command cannot be killed: {0}")]
    CannotKill(String),
    /// No process of the command was found, and its end was not reported either.
    #[error("no process of the command was found to kill, and its end was not reported")]
    NothingToKill,
    /// Some of its processes are alive, although they were killed again and again.
    #[error("processes of the command survive SIGKILL: they belong to another user, or hang in the kernel")]
    Survived,
    /// The terminal's size cannot be changed.
    #[error("the command has no terminal, or has ended")]
    NoTerminal,
    /// The program that waits is shutting down.
    #[error("the task that follows the command was cancelled")]
    Cancelled,
}
