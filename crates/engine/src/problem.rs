//! The one place where errors from below (store, provider, guest) become what callers are told.

use std::error::Error as _;

use sandbar_api::{Code, Problem, ProcessId, Sandbox, SandboxState};
use sandbar_guest::protocol::CODE_KEY;
use tonic::Status;

use crate::{owner, store};

const SEE_LOG: &str = "Look at the server's log; if it happens again, report it.";
const FREE_SPACE: &str = "Free space on the disk that holds Sandbar's home, then try again.";

impl From<store::Error> for Problem {
    fn from(error: store::Error) -> Self {
        use store::Error;
        let text = error.to_string();
        match error {
            Error::NameTaken(name) => Problem::new(
                Code::NameTaken,
                format!("Another sandbox is called `{name}`."),
                "Choose another name, or delete that sandbox first.",
            ),
            Error::SessionNameTaken(name) => Problem::new(
                Code::NameTaken,
                format!("Another session is called `{name}`."),
                "Choose another name, or delete that session first.",
            ),
            Error::SessionEnded(id) => session_ended(id.as_str()),
            Error::KeyReused => Problem::new(
                Code::IdempotencyMismatch,
                "This Idempotency-Key came with a different request before.",
                "Send the very same body to repeat a request, or a new key for a new one.",
            ),
            Error::Dropped { from, first_kept } => Problem::new(
                Code::OutputDropped,
                format!("Output from offset {from} is no longer kept; the first byte kept is {first_kept}."),
                format!("Read from {first_kept}; raise the template's output_retention to keep more."),
            )
            .with_first_kept(first_kept),
            Error::Beyond { from, end } => offset_beyond(from, end),
            Error::DiskFull => Problem::new(Code::DiskFull, "The disk is full; nothing was changed.", FREE_SPACE),
            Error::Illegal { .. } => Problem::new(Code::WrongState, format!("{text}."), "Look at its state and retry."),
            Error::Missing(_)
            | Error::Database(_)
            | Error::Migrate(_)
            | Error::Output(_)
            | Error::Unreadable(_)
            | Error::Unusable { .. } => {
                tracing::error!(error = &error as &dyn std::error::Error, "the store failed");
                Problem::new(Code::Internal, format!("The store failed: {text}."), SEE_LOG)
            }
        }
    }
}

pub(crate) fn offset_beyond(from: u64, end: u64) -> Problem {
    Problem::new(
        Code::OffsetBeyond,
        format!("Offset {from} is past the end of the output, which is {end}."),
        format!("Read from {end} or below; follow to wait for more."),
    )
}

pub(crate) fn would_lose_files(name: &str) -> Problem {
    Problem::new(
        Code::Declined,
        format!("The sandbox `{name}` cannot be stopped: its files are in its pod, and would be lost."),
        "Delete it, or use a template with `kubernetes.storage = \"persistent\"`.",
    )
}

pub(crate) fn has_lost_files(name: &str) -> Problem {
    Problem::new(
        Code::Declined,
        format!("The sandbox `{name}` cannot be started again: its files were in its pod, and are lost."),
        "Delete it and create another; with `kubernetes.storage = \"persistent\"` in its template files stay.",
    )
}

pub(crate) fn from_provider(error: sandbar_provider::Error) -> Problem {
    use sandbar_provider::Error;
    let text = error.to_string();
    match error {
        Error::NotEnforceable { fix, .. } => Problem::new(Code::NotEnforceable, format!("{text}."), fix),
        Error::BadSpec { fix, .. } => Problem::new(Code::BadPath, format!("{text}."), fix),
        Error::BadTemplate { fix, .. } => Problem::new(Code::BadTemplate, format!("{text}."), fix),
        Error::DiskFull { .. } => Problem::new(Code::DiskFull, format!("{text}."), FREE_SPACE),
        Error::Unreachable { .. } => unreachable(text),
        Error::NoRoom { fix, .. } => Problem::new(Code::TooMany, format!("{text}."), fix),
        Error::Cluster { fix, .. } => {
            tracing::error!(error = %text, "the cluster failed");
            Problem::new(Code::ClusterFailed, format!("{text}."), fix)
        }
        Error::Declined { .. } => {
            Problem::new(Code::Declined, format!("{text}."), "Use a template of a provider that can.")
        }
        Error::Unknown(_) | Error::Io { .. } => {
            let cause = error.source().map(|source| format!(": {source}")).unwrap_or_default();
            tracing::error!(error = %text, cause, "the provider failed");
            Problem::new(Code::Internal, format!("{text}{cause}."), SEE_LOG)
        }
    }
}

/// A guest's answer. One with our code is meant for the caller; one without is the transport's.
pub(crate) fn from_status(status: &Status) -> Problem {
    if let Some(code) = guest_code(status) {
        return Problem::new(code, status.message(), fix(code));
    }
    match status.code() {
        tonic::Code::Unimplemented => Problem::new(
            Code::Internal,
            "The sandbox was started by an older version that cannot do this.",
            "Stop and start the sandbox, then try again.",
        ),
        tonic::Code::Unavailable | tonic::Code::Unknown | tonic::Code::Cancelled | tonic::Code::DeadlineExceeded => {
            unreachable(status.message())
        }
        code => {
            tracing::error!(?code, message = status.message(), "the guest answered what it never should");
            Problem::new(Code::Internal, format!("The sandbox failed: {}.", status.message()), SEE_LOG)
        }
    }
}

/// The API's code in a guest's answer, if the guest itself answered.
pub(crate) fn guest_code(status: &Status) -> Option<Code> {
    let text = status.metadata().get(CODE_KEY)?.to_str().ok()?;
    Code::ALL.iter().copied().find(|code| code.as_str() == text)
}

fn unreachable(cause: impl std::fmt::Display) -> Problem {
    Problem::new(
        Code::GuestUnreachable,
        format!("The sandbox does not answer: {cause}."),
        "Try again; if it stays so, stop and start the sandbox.",
    )
}

/// The guest tells what happened; what to do about it depends on the kind alone.
fn fix(code: Code) -> &'static str {
    match code {
        Code::NotEnforceable => "`sandbar doctor` shows what this host lacks.",
        Code::CommandNotFound => "Check the spelling, give its full path, or use a template that has the program.",
        Code::CommandNotExecutable => "Make it executable (chmod +x) and check its interpreter and architecture.",
        Code::BadRequest => "Correct what it names, and send it again.",
        Code::BadCommand => {
            "Keep both together below a quarter of the stack's limit, usually 2 MiB, at eight bytes more for each of them; pass more on standard input or in a file."
        }
        Code::BadPath | Code::PathOutside => "Give a path inside the sandbox, for example /workspace/file.",
        Code::UnknownFile => "Check the path; it is one inside the sandbox, for example /workspace/file.",
        Code::FileForbidden => {
            "Use a path that the sandbox's user may use, such as /workspace or /tmp, or change the file's mode first."
        }
        Code::WrongFileKind => "List the parent directory to see what it is.",
        Code::DirectoryNotEmpty => "Delete recursively to remove what is in it.",
        Code::UnknownProcess => "List the sandbox's processes.",
        Code::ProcessOver => "Start a new process.",
        Code::NoStdin => "Start the process with `stdin: true` and write before its input was ended.",
        Code::NoTerminal => "Start the process with a `terminal` size.",
        Code::BadArchive => "Send a tar archive of files, directories and links that stay inside the directory.",
        Code::OffsetBeyond => "Use an offset at or below the end.",
        Code::DiskFull => "Delete files in the sandbox, or free space on the host.",
        Code::TooLarge => "Ask for less, or send less.",
        Code::TooMany => "Wait until some have ended, then try again.",
        Code::PortClosed => "Start a server on that port inside, on 127.0.0.1 or on all addresses, then connect again.",
        Code::GuestUnreachable => "Try again; if it stays so, stop and start the sandbox.",
        _ => SEE_LOG,
    }
}

pub(crate) fn unknown_sandbox(text: &str) -> Problem {
    Problem::new(
        Code::UnknownSandbox,
        format!("There is no sandbox `{}`.", text.escape_debug()),
        "`sandbar ls` shows those there are.",
    )
}

pub(crate) fn gone(text: &str) -> Problem {
    Problem::new(
        Code::SandboxGone,
        format!("The sandbox `{}` was deleted.", text.escape_debug()),
        "Create another one.",
    )
}

pub(crate) fn unknown_session(text: &str) -> Problem {
    Problem::new(
        Code::UnknownSession,
        format!("There is no session `{}`.", text.escape_debug()),
        "`sandbar session ls` shows those there are.",
    )
}

pub(crate) fn session_ended(text: &str) -> Problem {
    Problem::new(
        Code::SessionEnded,
        format!("The session `{}` was deleted.", text.escape_debug()),
        "Begin another one.",
    )
}

pub(crate) fn unknown_snapshot(text: &str) -> Problem {
    Problem::new(
        Code::UnknownSnapshot,
        format!("There is no snapshot `{}`.", text.escape_debug()),
        "`sandbar snapshots` shows those there are.",
    )
}

pub(crate) fn snapshot_taken(name: &str) -> Problem {
    Problem::new(
        Code::NameTaken,
        format!("Another snapshot is called `{name}`."),
        "Choose another name, or delete that snapshot first.",
    )
}

/// What the store says of a snapshot.
pub(crate) fn of_snapshot(error: store::Error) -> Problem {
    match error {
        store::Error::NameTaken(name) => snapshot_taken(&name),
        error => error.into(),
    }
}

pub(crate) fn unknown_process(sandbox: &str, text: &str) -> Problem {
    Problem::new(
        Code::UnknownProcess,
        format!("There is no process `{}` in the sandbox `{sandbox}`.", text.escape_debug()),
        format!("`sandbar ps {sandbox}` shows those there are."),
    )
}

pub(crate) fn process_over(text: &str) -> Problem {
    Problem::new(Code::ProcessOver, format!("The process `{text}` has ended."), "Start a new process.")
}

/// Of those who would start the next of several processes that follow one another one was first.
pub(crate) fn already_running() -> Problem {
    Problem::new(
        Code::AlreadyRunning,
        "The command runs already, or is not to be started again.",
        "Look at it with `sandbar session show`; end it first with `sandbar kill` if it hangs.",
    )
}

/// It is started while its record is written: when that fails, it has run for a moment.
pub(crate) fn unrecorded(error: store::Error) -> Problem {
    const KILLED: &str = "The process had been started and was killed; what it did by then stays.";
    match error {
        store::Error::DiskFull => Problem::new(Code::DiskFull, format!("The disk is full. {KILLED}"), FREE_SPACE),
        error => {
            let problem = Problem::from(error);
            Problem { detail: format!("{} {KILLED}", problem.detail), ..problem }
        }
    }
}

/// Its output and its end wait for room, and whoever waits for them has waited long enough.
pub(crate) fn no_room_for(process: &ProcessId) -> Problem {
    let detail = format!("The disk is full; what the process `{process}` wrote, or how it ended, is not recorded yet.");
    Problem::new(Code::DiskFull, detail, FREE_SPACE)
}

pub(crate) fn shutting_down() -> Problem {
    Problem::new(Code::ShuttingDown, "The server is shutting down.", "Try again when it is back; sandboxes go on.")
}

/// The sandbox cannot do this now; says which verb makes it able to.
pub(crate) fn wrong_state(sandbox: &Sandbox) -> Problem {
    let name = &sandbox.name;
    let why = sandbox.reason.as_ref().map(|reason| format!(" {}", reason.detail)).unwrap_or_default();
    let fix = match sandbox.state {
        SandboxState::Deleted => return gone(name),
        _ if sandbox.reason.as_ref().is_some_and(owner::is_deleting) => {
            format!("`sandbar rm {name}` finishes its deletion.")
        }
        SandboxState::Creating => "Wait until it is ready.".to_owned(),
        SandboxState::Stopping => format!("Wait until it has stopped, then `sandbar start {name}`."),
        SandboxState::Stopped | SandboxState::Failed => {
            format!("`sandbar start {name}` brings it back with its files.")
        }
        SandboxState::Paused => format!("`sandbar resume {name}` lets it go on."),
        SandboxState::Ready => format!("`sandbar stop {name}` first."),
    };
    let state = sandbox.state.as_str();
    Problem::new(Code::WrongState, format!("The sandbox `{name}` is {state}.{why}"), fix)
}

/// For those who may look at a sandbox and not start it.
pub(crate) fn asleep(sandbox: &Sandbox) -> Problem {
    let name = &sandbox.name;
    Problem::new(
        Code::WrongState,
        format!("The sandbox `{name}` was put away because nobody used it, and a viewer's token does not start it."),
        "Use a token with the role operator or admin, whose request brings it back.",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guests_code_is_kept_and_has_a_fix() {
        let mut status = Status::not_found("There is no file /a.");
        let value = "unknown_file".parse().unwrap_or_else(|error| panic!("{error}"));
        status.metadata_mut().insert(CODE_KEY, value);
        let problem = from_status(&status);
        assert_eq!((problem.code, problem.detail.as_str()), (Code::UnknownFile, "There is no file /a."));
        assert!(!problem.fix.is_empty());
    }

    #[test]
    fn transport_failures_and_invented_codes_are_the_servers_to_explain() {
        assert_eq!(from_status(&Status::unavailable("connection refused")).code, Code::GuestUnreachable);
        assert_eq!(from_status(&Status::unimplemented("")).code, Code::Internal);
        let mut status = Status::internal("x");
        let value = "made_up".parse().unwrap_or_else(|error| panic!("{error}"));
        status.metadata_mut().insert(CODE_KEY, value);
        assert_eq!(from_status(&status).code, Code::Internal);
    }

    #[test]
    fn store_errors_keep_what_programs_need() {
        let problem = Problem::from(store::Error::Dropped { from: 1, first_kept: 7 });
        assert_eq!((problem.code, problem.first_kept), (Code::OutputDropped, Some(7)));
        assert_eq!(Problem::from(store::Error::DiskFull).code, Code::DiskFull);
        assert_eq!(Problem::from(store::Error::KeyReused).code, Code::IdempotencyMismatch);
    }

    #[test]
    fn a_missing_layer_names_its_fix() {
        let problem = from_provider(sandbar_provider::Error::NotEnforceable {
            layer: "user namespaces",
            cause: "EPERM".into(),
            fix: "sysctl x".into(),
        });
        assert_eq!((problem.code, problem.fix.as_str()), (Code::NotEnforceable, "sysctl x"));
    }
}
