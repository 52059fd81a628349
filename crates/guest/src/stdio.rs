//! Both ends of a process's standard streams: pipes, or a terminal of the sandbox's own devpts.

use std::{io, os::fd::OwnedFd};

use rustix::{
    fs::{Gid, Mode, OFlags, Uid},
    io::{Errno, fcntl_dupfd_cloexec},
    pipe::{PipeFlags, pipe_with},
    pty::OpenptFlags,
    termios::Winsize,
};

use crate::command::User;

/// What the leader gets.
pub(crate) enum Inner {
    Pipes { stdin: OwnedFd, stdout: OwnedFd, stderr: OwnedFd },
    Terminal(OwnedFd),
}

/// What the guest keeps; everything nonblocking.
pub(crate) struct Outer {
    /// For a terminal its only output is here and `stderr` is absent.
    pub(crate) stdout: OwnedFd,
    pub(crate) stderr: Option<OwnedFd>,
    pub(crate) stdin: Option<OwnedFd>,
    pub(crate) terminal: bool,
}

pub(crate) fn null() -> io::Result<OwnedFd> {
    Ok(rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?)
}

pub(crate) fn pipes(with_stdin: bool) -> io::Result<(Inner, Outer)> {
    // Only our ends are nonblocking: the flag belongs to an end, and programs expect theirs to block.
    let (stdout, inner_stdout) = pipe_with(PipeFlags::CLOEXEC)?;
    let (stderr, inner_stderr) = pipe_with(PipeFlags::CLOEXEC)?;
    let (inner_stdin, stdin) = if with_stdin {
        let (inner, outer) = pipe_with(PipeFlags::CLOEXEC)?;
        rustix::io::ioctl_fionbio(&outer, true)?;
        (inner, Some(outer))
    } else {
        (null()?, None)
    };
    rustix::io::ioctl_fionbio(&stdout, true)?;
    rustix::io::ioctl_fionbio(&stderr, true)?;
    let inner = Inner::Pipes { stdin: inner_stdin, stdout: inner_stdout, stderr: inner_stderr };
    Ok((inner, Outer { stdout, stderr: Some(stderr), stdin, terminal: false }))
}

/// The one inside the terminals' own filesystem, where nobody can put anything else. Hosts whose /dev is not ours may
/// keep it for root, as it comes without a mount option; there the usual name is the right one.
fn open_master() -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    match rustix::fs::open("/dev/pts/ptmx", flags, Mode::empty()) {
        Ok(master) => Ok(master),
        Err(Errno::ACCESS | Errno::NOENT) => {
            Ok(rustix::pty::openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?)
        }
        Err(errno) => Err(errno.into()),
    }
}

pub(crate) fn terminal(size: Winsize, user: &User) -> io::Result<(Inner, Outer)> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let outer = open_master()?;
    rustix::pty::unlockpt(&outer)?;
    // By descriptor, not by name: what `/dev/pts` shows is the workload's business.
    let inner = rustix::pty::ioctl_tiocgptpeer(&outer, flags)?;
    rustix::fs::fchown(&inner, Some(Uid::from_raw(user.uid)), Some(Gid::from_raw(user.gid)))?;
    rustix::fs::fchmod(&inner, Mode::from_raw_mode(0o620))?;
    rustix::termios::tcsetwinsize(&outer, size)?;
    rustix::io::ioctl_fionbio(&outer, true)?;
    let stdin = fcntl_dupfd_cloexec(&outer, 3)?;
    Ok((Inner::Terminal(inner), Outer { stdout: outer, stderr: None, stdin: Some(stdin), terminal: true }))
}
