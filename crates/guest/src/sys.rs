//! System calls that rustix leaves out. Everything here relies on one fact: the guest and what it forks never have a
//! second thread, so a forked child is a complete process that may allocate and run ordinary code.

#![expect(unsafe_code, reason = "fork, execve, signal masks and close_range have no safe wrapper")]

use std::{
    ffi::{CStr, CString},
    io,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    ptr,
};

use rustix::process::Pid;
use tokio::io::{Interest, unix::AsyncFd};

pub(crate) enum Forked {
    Parent(Pid),
    Child,
}

pub(crate) fn fork() -> io::Result<Forked> {
    // SAFETY: the process has one thread, so no lock is held by a thread that the child lacks.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Forked::Child),
        pid => Pid::from_raw(pid).map(Forked::Parent).ok_or_else(|| io::Error::other("fork returned no pid")),
    }
}

/// Ends a forked child without running destructors or exit handlers, which belong to its parent.
pub(crate) fn exit(code: i32) -> ! {
    // SAFETY: `_exit` takes no pointers and does not return.
    unsafe { libc::_exit(code) }
}

/// Returns only when it failed.
pub(crate) fn execve(path: &CStr, argv: &[CString], env: &[CString]) -> rustix::io::Errno {
    let pointers = |strings: &[CString]| -> Vec<*const libc::c_char> {
        strings.iter().map(|string| string.as_ptr()).chain([ptr::null()]).collect()
    };
    let (argv, env) = (pointers(argv), pointers(env));
    // SAFETY: both arrays end with a null pointer and their strings live in the caller until the call is over.
    unsafe { libc::execve(path.as_ptr(), argv.as_ptr(), env.as_ptr()) };
    rustix::io::Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(rustix::io::Errno::INVAL)
}

/// Closes every descriptor from 3 on except `kept`. The objects that own the closed ones must never be used again.
pub(crate) fn close_all_but(kept: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut kept: Vec<u32> = kept.iter().map(|fd| fd.as_raw_fd().unsigned_abs()).filter(|fd| *fd > 2).collect();
    kept.sort_unstable();
    let mut first = 3;
    for fd in kept {
        if fd > first {
            close_range(first, fd - 1, 0)?;
        }
        first = fd + 1;
    }
    close_range(first, u32::MAX, 0)
}

/// Leaves descriptors from 3 on usable up to the next successful execve.
pub(crate) fn close_all_on_exec() -> io::Result<()> {
    close_range(3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC)
}

fn close_range(first: u32, last: u32, flags: u32) -> io::Result<()> {
    // SAFETY: no pointers; callers promise not to use what they close.
    match unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[derive(Clone, Copy)]
pub(crate) enum Mask {
    Nothing,
    Child,
    Everything,
}

pub(crate) fn block_signals(mask: Mask) -> io::Result<()> {
    let set = signal_set(mask);
    // SAFETY: `set` is initialised; the old mask is not asked for.
    match unsafe { libc::sigprocmask(libc::SIG_SETMASK, &raw const set, ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn signal_set(mask: Mask) -> libc::sigset_t {
    // SAFETY: a zeroed set is valid memory for the functions that initialise it; the signal number is a valid one.
    unsafe {
        let mut set = std::mem::zeroed();
        match mask {
            Mask::Nothing => libc::sigemptyset(&raw mut set),
            Mask::Everything => libc::sigfillset(&raw mut set),
            Mask::Child => {
                libc::sigemptyset(&raw mut set);
                libc::sigaddset(&raw mut set, libc::SIGCHLD)
            }
        };
        set
    }
}

pub(crate) fn default_signal_handlers() {
    // The kernel's struct with everything zero: the default action, no flags, nothing blocked meanwhile. The C library's
    // own function leaves out two signals that it keeps for itself, which a program would inherit as ignored.
    let default = [0_u64; 4];
    for signal in 1..=LAST_SIGNAL {
        // SAFETY: `default` is at least as large as the kernel's struct and the set in it has 8 bytes. The default
        // action runs no code of ours; KILL and STOP refuse it because they never had another.
        unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, default.as_ptr(), ptr::null_mut::<u64>(), 8) };
    }
}

pub(crate) const LAST_SIGNAL: i32 = 64;

/// A write to a pipe nobody reads is an error for whoever writes, not the end of the process.
pub(crate) fn ignore_broken_pipes() {
    // SAFETY: ignoring runs no code of ours.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
}

/// Becomes readable when a child has changed state; the caller must have SIGCHLD blocked.
pub(crate) fn child_signals() -> io::Result<OwnedFd> {
    let set = signal_set(Mask::Child);
    // SAFETY: `set` is initialised.
    let fd = unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Unlike rustix's, takes real-time signals too. Nobody left in the group is fine.
pub(crate) fn signal_group(group: Pid, signal: i32) -> io::Result<()> {
    // SAFETY: no pointers.
    match unsafe { libc::kill(-group.as_raw_pid(), signal) } {
        0 => Ok(()),
        _ => match io::Error::last_os_error() {
            gone if gone.raw_os_error() == Some(libc::ESRCH) => Ok(()),
            error => Err(error),
        },
    }
}

/// Lets the runtime wait for a descriptor.
pub(crate) fn watch(fd: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` always gives the same descriptor, and it stays open for as long as the `AsyncFd` owns it.
    Ok(unsafe { AsyncFd::register_with_interest(fd, interest) }?)
}

/// Gives freed memory back to the kernel: an idle guest's private memory is a promise.
pub(crate) fn trim_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes no pointers and may be called at any time.
    unsafe {
        libc::malloc_trim(0);
    }
}
