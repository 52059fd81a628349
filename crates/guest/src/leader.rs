//! The child side of a start: from a fork of the minder to the workload's program.

use std::{
    ffi::CString,
    io,
    os::fd::{AsFd, OwnedFd},
};

use rustix::{
    fs::{Access, Mode},
    io::Errno,
    process::Pid,
};

use crate::{
    command::Command,
    error::{Code, Fault},
    stdio::Inner,
    sys::{self, Strings},
    workload::Workload,
};

pub(crate) struct Plan {
    pub(crate) command: Command,
    pub(crate) stdio: Inner,
}

/// Where a start failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Step {
    Fork = 1,
    Session,
    Confine,
    Directory,
    Execute,
    /// The program is there, but the interpreter or loader it names is not.
    Interpreter,
    /// The cgroups of the sandbox.
    Group,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) step: Step,
    pub(crate) errno: i32,
}

impl Failure {
    pub(crate) fn new(step: Step, error: &io::Error) -> Self {
        Self { step, errno: error.raw_os_error().unwrap_or(libc::EIO) }
    }

    pub(crate) fn to_bytes(self) -> [u8; 5] {
        let [a, b, c, d] = self.errno.to_le_bytes();
        [self.step as u8, a, b, c, d]
    }

    pub(crate) fn from_bytes(bytes: [u8; 5]) -> Option<Self> {
        let [step, a, b, c, d] = bytes;
        let step = match step {
            1 => Step::Fork,
            2 => Step::Session,
            3 => Step::Confine,
            4 => Step::Directory,
            5 => Step::Execute,
            6 => Step::Interpreter,
            7 => Step::Group,
            _ => return None,
        };
        Some(Self { step, errno: i32::from_le_bytes([a, b, c, d]) })
    }

    pub(crate) fn fault(self, program: &str, cwd: &str) -> Fault {
        let error = io::Error::from_raw_os_error(self.errno);
        match (self.step, self.errno) {
            (Step::Directory, _) => Fault::file(&format!("enter the directory `{cwd}`"), &error),
            (Step::Execute, libc::ENOENT | libc::ENOTDIR) if program.contains('/') => {
                Fault::new(Code::CommandNotFound, format!("There is no file `{program}` to run."))
            }
            (Step::Execute, libc::ENOENT | libc::ENOTDIR) => {
                Fault::new(Code::CommandNotFound, format!("No directory in PATH has a command `{program}`."))
            }
            (Step::Interpreter, _) => Fault::new(
                Code::CommandNotExecutable,
                format!("`{program}` names an interpreter or loader that does not exist."),
            ),
            (Step::Execute, libc::ENOEXEC) => Fault::new(
                Code::CommandNotExecutable,
                format!("`{program}` is neither a program nor a script with a `#!` line."),
            ),
            (Step::Execute, libc::E2BIG) => {
                Fault::new(Code::BadCommand, "The arguments and environment are too long together.")
            }
            (Step::Execute, libc::ENOMEM | libc::EAGAIN) => {
                Fault::new(Code::TooMany, format!("`{program}` cannot be executed: {error}."))
            }
            (Step::Execute, _) => {
                Fault::new(Code::CommandNotExecutable, format!("`{program}` cannot be executed: {error}."))
            }
            (Step::Fork, _) => Fault::internal("fork the process")(error),
            (Step::Session, _) => Fault::internal("set up the process's session and streams")(error),
            (Step::Group, _) => Fault::internal("put the process into its cgroup")(error),
            (Step::Confine, _) => Fault::internal("confine the process")(error),
        }
    }
}

/// Forks the leader. Its failure to become the program comes through the returned pipe, which just ends when it did.
pub(crate) fn spawn(plan: &Plan, workload: &Workload) -> Result<(Pid, OwnedFd), Failure> {
    let (report, reporter) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
        .map_err(|errno| Failure::new(Step::Fork, &errno.into()))?;
    let (argv, env) = (Strings::new(&plan.command.argv), Strings::new(&plan.command.env));
    let pid = workload.spawn(&|| {
        let failure = become_program(plan, &argv, &env, workload);
        // Nobody is left to tell if this fails too; the exit code still says that it did not start.
        let _ = rustix::io::write(&reporter, &failure.to_bytes());
    })?;
    Ok((pid, report))
}

fn become_program(plan: &Plan, argv: &Strings<'_>, env: &Strings<'_>, workload: &Workload) -> Failure {
    if let Err(failure) = workload.join() {
        return failure;
    }
    if let Err(error) = open_session(plan) {
        return Failure::new(Step::Session, &error);
    }
    if let Err(failure) = workload.confine() {
        return failure;
    }
    // As the workload's user: what it may not enter, we do not enter for it.
    if let Err(error) = rustix::process::chdir(&plan.command.cwd) {
        return Failure::new(Step::Directory, &error.into());
    }
    execute(&plan.command, argv, env)
}

fn open_session(plan: &Plan) -> io::Result<()> {
    rustix::process::setsid()?;
    let (stdin, stdout, stderr) = match &plan.stdio {
        Inner::Pipes { stdin, stdout, stderr } => (stdin, stdout, stderr),
        Inner::Terminal(terminal) => {
            rustix::process::ioctl_tiocsctty(terminal)?;
            (terminal, terminal, terminal)
        }
    };
    rustix::stdio::dup2_stdin(stdin.as_fd())?;
    rustix::stdio::dup2_stdout(stdout.as_fd())?;
    rustix::stdio::dup2_stderr(stderr.as_fd())?;
    // Not closed yet, because `confine` may own some of them.
    sys::close_all_on_exec()?;
    sys::heed_broken_pipes();
    sys::block_signals(sys::Mask::Nothing)?;
    rustix::process::umask(Mode::from_raw_mode(0o022));
    Ok(())
}

/// The lookup of execvp, but with the request's PATH and without handing unknown files to a shell.
fn execute(command: &Command, argv: &Strings<'_>, env: &Strings<'_>) -> Failure {
    let mut failure = Failure { step: Step::Execute, errno: libc::ENOENT };
    for candidate in &command.candidates {
        match sys::execve(candidate, argv, env) {
            Errno::NOENT if exists(candidate) => {
                return Failure { step: Step::Interpreter, errno: libc::ENOENT };
            }
            Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG => {}
            Errno::ACCESS => failure.errno = libc::EACCES,
            errno => return Failure { step: Step::Execute, errno: errno.raw_os_error() },
        }
    }
    failure
}

fn exists(path: &CString) -> bool {
    rustix::fs::access(path, Access::EXISTS).is_ok()
}
