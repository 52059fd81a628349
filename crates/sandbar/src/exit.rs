//! How a verb fails: what is told, and the exit code that scripts rely on.

use std::io;

use sandbar_api::{Code, Problem};
use sandbar_client::Error;

/// The command, or we, did what was asked.
pub(crate) const OK: u8 = 0;
pub(crate) const FAILED: u8 = 1;
pub(crate) const USAGE: u8 = 2;
pub(crate) const UNREACHABLE: u8 = 3;
pub(crate) const NOT_FOUND: u8 = 4;
pub(crate) const CONFLICT: u8 = 5;
pub(crate) const REFUSED: u8 = 6;
pub(crate) const NOT_ENFORCEABLE: u8 = 7;
/// Sandbar's own failures in `run` and `exec`, where small codes belong to the command.
pub(crate) const SANDBAR: u8 = 125;
pub(crate) const NOT_EXECUTABLE: u8 = 126;
pub(crate) const COMMAND_NOT_FOUND: u8 = 127;

pub(crate) const HELP: &str = "\
Exit codes:
    0  done
    1  the operation failed
    2  bad usage
    3  no server answers
    4  there is no such thing (or no longer)
    5  conflict, or the wrong state for this
    6  refused: token missing, wrong or too weak
    7  this host cannot enforce what the sandbox requires
  125  run, exec, attach: Sandbar failed, the command did not run or was lost
  126  run, exec: the command cannot be executed
  127  run, exec: there is no such command in the sandbox
    n  run, exec, attach: the command's own code; 128 + signal if one ended it";

/// The server's own advice is about headers.
const TOKEN_FIX: &str =
    "Make a token with `sandbar token create` where the server runs, and put it into SANDBAR_TOKEN.";

#[derive(Debug)]
pub(crate) enum Failure {
    Told {
        code: u8,
        what: String,
        fix: Option<String>,
        problem: Option<Box<Problem>>,
    },
    /// There is nobody to tell, or it has been told.
    Quiet(u8),
}

impl Failure {
    pub(crate) fn new(code: u8, what: impl Into<String>) -> Self {
        Self::Told { code, what: what.into(), fix: None, problem: None }
    }

    pub(crate) fn usage(what: impl Into<String>) -> Self {
        Self::new(USAGE, what)
    }

    /// An operating system's error, in one sentence with what we were doing.
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |error| Self::new(FAILED, format!("{what}: {error}"))
    }

    #[must_use]
    pub(crate) fn hint(mut self, text: impl Into<String>) -> Self {
        if let Self::Told { fix, .. } = &mut self {
            *fix = Some(text.into());
        }
        self
    }

    pub(crate) fn code(&self) -> u8 {
        match self {
            Self::Told { code, .. } | Self::Quiet(code) => *code,
        }
    }

    #[must_use]
    pub(crate) fn with_code(mut self, new: u8) -> Self {
        match &mut self {
            Self::Told { code, .. } | Self::Quiet(code) => *code = new,
        }
        self
    }

    /// In `run` and `exec` small codes are the command's, so ours become 125.
    #[must_use]
    pub(crate) fn beside_a_command(self) -> Self {
        match &self {
            Self::Told { code, .. } if *code < SANDBAR && *code != USAGE => self.with_code(SANDBAR),
            _ => self,
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let code = match &error {
            Error::Problem(problem) => of(problem.code),
            Error::Unreachable { .. } => UNREACHABLE,
            Error::BadAddress { .. } | Error::Insecure { .. } => USAGE,
            _ => FAILED,
        };
        let fix = match error.code() {
            Some(Code::Unauthenticated) => Some(TOKEN_FIX.to_owned()),
            _ => error.fix(),
        };
        let what = match &error {
            // What lies between is about HTTP, which helps nobody here.
            Error::Unreachable { source, .. } | Error::Transport { source, .. } => {
                format!("{error}: {}", innermost(source))
            }
            error => chain(error),
        };
        let problem = match error {
            Error::Problem(problem) => Some(problem),
            _ => None,
        };
        Self::Told { code, what, fix, problem }
    }
}

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Self {
        Error::from(problem).into()
    }
}

/// The one table from problems to exit codes.
pub(crate) fn of(code: Code) -> u8 {
    match code {
        Code::BadRequest
        | Code::BadName
        | Code::BadLabel
        | Code::BadEnv
        | Code::BadCommand
        | Code::BadPath
        | Code::BadDuration
        | Code::PathOutside
        | Code::BadRule
        | Code::BadSecret
        | Code::BadWebhook
        | Code::BadBudget
        | Code::BadAnswer
        | Code::OffsetBeyond => USAGE,
        Code::SandboxGone | Code::SessionEnded | Code::OutputDropped | Code::EventsDropped => NOT_FOUND,
        Code::IdempotencyMismatch => CONFLICT,
        // The sandbox's own permissions, not the token's.
        Code::FileForbidden => FAILED,
        Code::NotEnforceable => NOT_ENFORCEABLE,
        Code::CommandNotFound => COMMAND_NOT_FOUND,
        Code::CommandNotExecutable => NOT_EXECUTABLE,
        code => match code.status() {
            401 | 403 => REFUSED,
            404 => NOT_FOUND,
            409 => CONFLICT,
            _ => FAILED,
        },
    }
}

fn innermost<'a>(error: &'a (dyn std::error::Error + 'static)) -> &'a (dyn std::error::Error + 'static) {
    std::iter::successors(Some(error), |error| error.source()).last().unwrap_or(error)
}

/// An error and what caused it, in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{}: {cause_text}", text.trim_end_matches('.'));
        }
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_an_exit_code_of_the_documented_ones() {
        for code in Code::ALL {
            let exit = of(*code);
            assert!(exit != OK, "{} would look like success", code.as_str());
            assert!(HELP.lines().any(|line| line.split_whitespace().next() == Some(&exit.to_string())), "{exit}");
        }
    }

    #[test]
    fn problems_map_to_what_scripts_expect() {
        for (code, exit) in [
            (Code::UnknownSandbox, NOT_FOUND),
            (Code::SandboxGone, NOT_FOUND),
            (Code::UnknownSession, NOT_FOUND),
            (Code::SessionEnded, NOT_FOUND),
            (Code::NameTaken, CONFLICT),
            (Code::WrongState, CONFLICT),
            (Code::Unauthenticated, REFUSED),
            (Code::Forbidden, REFUSED),
            (Code::FileForbidden, FAILED),
            (Code::NotEnforceable, NOT_ENFORCEABLE),
            (Code::BadRequest, USAGE),
            (Code::BadName, USAGE),
            (Code::BadRule, USAGE),
            (Code::UnknownRule, NOT_FOUND),
            (Code::ApprovalClosed, CONFLICT),
            (Code::CommandNotFound, COMMAND_NOT_FOUND),
            (Code::CommandNotExecutable, NOT_EXECUTABLE),
            (Code::DiskFull, FAILED),
            (Code::Internal, FAILED),
        ] {
            assert_eq!(Failure::from(Problem::new(code, "x", "y")).code(), exit, "{}", code.as_str());
        }
    }

    #[test]
    fn beside_a_command_small_codes_are_the_commands() {
        let failure = |code| Failure::from(Problem::new(code, "x", "y")).beside_a_command().code();
        assert_eq!(failure(Code::UnknownSandbox), SANDBAR);
        assert_eq!(failure(Code::NotEnforceable), SANDBAR);
        assert_eq!(failure(Code::CommandNotFound), COMMAND_NOT_FOUND);
        assert_eq!(failure(Code::CommandNotExecutable), NOT_EXECUTABLE);
        assert_eq!(Failure::usage("x").beside_a_command().code(), USAGE);
    }
}
