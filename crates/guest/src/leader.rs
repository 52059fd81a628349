//! The child side of a start: from a fork of the minder to the workload's program. The child may borrow the minder's
//! memory and be killed at any point, by whoever has its user: `spawn` readies everything, and after the clone there are
//! system calls only, on failure too.

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
    workload::{Apply, Workload},
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
            // How `Apply` says that it looked, and something was missing.
            (Step::Confine, libc::EIO) => Fault::new(
                Code::NotEnforceable,
                "A layer of the fence that is required is not in force in the new process, so it was not started.",
            ),
            (Step::Confine, _) => Fault::internal("confine the process")(error),
        }
    }
}

/// Forks the leader. Its failure to become the program comes through the returned pipe, which just ends when it did.
pub(crate) fn spawn(plan: &Plan, workload: &Workload) -> Result<(Pid, OwnedFd), Failure> {
    let (ready, report) = Ready::new(plan, workload)?;
    Ok((ready.spawn()?, report))
}

/// All that the child needs, made before there is a child.
struct Ready<'a> {
    plan: &'a Plan,
    argv: Strings<'a>,
    env: Strings<'a>,
    workload: &'a Workload,
    confine: Box<dyn Apply + 'a>,
    reporter: OwnedFd,
}

impl<'a> Ready<'a> {
    fn new(plan: &'a Plan, workload: &'a Workload) -> Result<(Self, OwnedFd), Failure> {
        let confine = workload.prepare()?;
        let (report, reporter) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
            .map_err(|errno| Failure::new(Step::Fork, &errno.into()))?;
        let (argv, env) = (Strings::new(&plan.command.argv), Strings::new(&plan.command.env));
        Ok((Self { plan, argv, env, workload, confine, reporter }, report))
    }

    fn spawn(&self) -> Result<Pid, Failure> {
        self.workload.spawn(&|| {
            let failure = self.become_program();
            // Nobody is left to tell if this fails too; the exit code still says that it did not start.
            let _ = rustix::io::write(&self.reporter, &failure.to_bytes());
        })
    }

    fn become_program(&self) -> Failure {
        if let Err(failure) = self.workload.join() {
            return failure;
        }
        if let Err(error) = open_session(self.plan) {
            return Failure::new(Step::Session, &error);
        }
        if let Err(errno) = self.confine.apply() {
            return Failure::new(Step::Confine, &errno.into());
        }
        // As the workload's user: what it may not enter, we do not enter for it.
        if let Err(errno) = rustix::process::chdir(&self.plan.command.cwd) {
            return Failure::new(Step::Directory, &errno.into());
        }
        // Last, so that a key typed or a terminal hung up at once ends the program's process and not half a workload.
        if let Err(error) = sys::block_signals(sys::Mask::Nothing) {
            return Failure::new(Step::Session, &error);
        }
        execute(&self.plan.command, &self.argv, &self.env)
    }
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
    // Not closed yet, because what is applied next may own some of them.
    sys::close_all_on_exec()?;
    sys::heed_broken_pipes();
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

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use std::io::Write;

    use rustix::{
        process::{Signal, WaitOptions, WaitStatus},
        termios::Winsize,
    };

    use super::*;
    use crate::{command::User, protocol::StartRequest, stdio, workload::Confine};

    /// How a start went.
    struct Start {
        /// How often the child, which borrows our memory, changed the heap.
        changes: u64,
        failure: Option<Failure>,
        status: WaitStatus,
    }

    fn user() -> User {
        let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
        User { uid, gid, name: "test".into(), home: "/".into(), env: Default::default() }
    }

    fn start(program: &str, cwd: &str, stdio: Inner, confine: impl Confine + 'static) -> io::Result<Start> {
        let request = StartRequest { argv: vec![program.into()], cwd: cwd.into(), ..StartRequest::default() };
        let command = Command::parse(&request, &user()).map_err(|fault| io::Error::other(fault.message))?;
        let (plan, workload) = (Plan { command, stdio }, Workload { group: None, confine: Box::new(confine) });
        let failed = |failure: Failure| io::Error::from_raw_os_error(failure.errno);
        let (ready, report) = Ready::new(&plan, &workload).map_err(failed)?;
        // As in the minder.
        sys::block_signals(sys::Mask::Everything)?;
        let before = sys::heap_changes();
        let spawned = ready.spawn();
        let changes = sys::heap_changes() - before;
        sys::block_signals(sys::Mask::Nothing)?;
        let pid = spawned.map_err(failed)?;
        drop(ready);
        let ended = rustix::process::waitpid(Some(pid), WaitOptions::empty())?;
        let (_, status) = ended.ok_or_else(|| io::Error::other("nothing was waited for"))?;
        let mut bytes = [0; 5];
        let failure = match rustix::io::read(&report, &mut bytes)? {
            5 => Failure::from_bytes(bytes),
            _ => None,
        };
        Ok(Start { changes, failure, status })
    }

    /// Whether the child shares our counter, which a fork would not.
    fn memory_is_borrowed(name: &str) -> io::Result<bool> {
        let allocates = || {
            std::hint::black_box(Box::new(1));
            Ok(())
        };
        let borrowed = start("true", "/", stdio::pipes(false)?.0, allocates)?.changes > 0;
        if !borrowed {
            sandbar_test_harness::not_run(name, "children do not borrow memory on this host");
        }
        Ok(borrowed)
    }

    #[test]
    fn a_child_leaves_the_heap_alone() -> io::Result<()> {
        if !memory_is_borrowed("a_child_leaves_the_heap_alone")? {
            return Ok(());
        }
        let script = tempfile::NamedTempFile::new()?;
        writeln!(script.as_file(), "#!/nowhere")?;
        rustix::fs::chmod(script.path(), Mode::from_raw_mode(0o755))?;
        // Running a file that somebody has open for writing is refused.
        let script = script.into_temp_path();
        let script = script.to_str().ok_or_else(|| io::Error::other("not a name"))?;
        let fine = || Ok(());
        let refused = || Err(Errno::PERM);
        let none = stdio::pipes(true)?;
        let screen = stdio::terminal(Winsize { ws_col: 80, ws_row: 24, ws_xpixel: 0, ws_ypixel: 0 }, &user())?;
        for (expected, started) in [
            (None, start("true", "/", none.0, fine)?),
            (None, start("true", "/", screen.0, fine)?),
            (Some((Step::Confine, libc::EPERM)), start("true", "/", stdio::pipes(false)?.0, refused)?),
            (Some((Step::Directory, libc::ENOENT)), start("true", "/nowhere", stdio::pipes(false)?.0, fine)?),
            (Some((Step::Execute, libc::ENOENT)), start("no-such-program", "/", stdio::pipes(false)?.0, fine)?),
            (Some((Step::Interpreter, libc::ENOENT)), start(script, "/", stdio::pipes(false)?.0, fine)?),
        ] {
            assert_eq!(started.failure.map(|failure| (failure.step, failure.errno)), expected);
            assert_eq!(started.status.exit_status(), Some(if expected.is_some() { 127 } else { 0 }));
            assert_eq!(started.changes, 0, "{expected:?}");
        }
        Ok(())
    }

    #[test]
    fn signals_wait_until_all_is_applied() -> io::Result<()> {
        // As the guest does when it starts: whoever started this program may ignore some of them.
        sys::default_signal_handlers();
        let interrupt = || rustix::process::kill_process(rustix::process::getpid(), Signal::INT);
        let interrupted = move || interrupt().and(Err(Errno::PERM));
        let started = start("true", "/", stdio::pipes(false)?.0, interrupted)?;
        assert_eq!(started.failure, Some(Failure { step: Step::Confine, errno: libc::EPERM }));
        assert_eq!(started.status.exit_status(), Some(127));
        let started = start("true", "/", stdio::pipes(false)?.0, interrupt)?;
        assert_eq!((started.failure, started.status.terminating_signal()), (None, Some(libc::SIGINT)));
        Ok(())
    }
}
