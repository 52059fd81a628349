//! The system calls that rustix does not have. All `unsafe` of this crate is here.
#![expect(unsafe_code, reason = "raw system calls, each with its own argument")]

use std::{
    io,
    os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd},
};

use tokio::io::{Interest, unix::AsyncFd};

/// What `clone3` made: nothing to do for the child, a handle for the parent.
pub(crate) enum Cloned {
    Child,
    Parent { pid: i32, pidfd: OwnedFd },
}

/// Forks into new namespaces. Like `fork`, but the kernel makes the namespaces in the same step.
pub(crate) fn clone_into(namespaces: u64) -> io::Result<Cloned> {
    let mut pidfd: libc::c_int = -1;
    // SAFETY: all-zero is a valid `clone_args`; every field is a plain integer.
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.flags = namespaces | libc::CLONE_PIDFD as u64;
    args.pidfd = &raw mut pidfd as u64;
    args.exit_signal = libc::SIGCHLD as u64;
    // SAFETY: without CLONE_VM the child gets a copy of our memory, as with fork; the caller has a single thread, so
    // no lock can be left held in the copy. `args` and `pidfd` live across the call.
    let pid = unsafe { libc::syscall(libc::SYS_clone3, &raw const args, size_of::<libc::clone_args>()) };
    match pid {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Cloned::Child),
        pid => {
            // SAFETY: the kernel has just stored a new descriptor there, which nobody else owns.
            let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
            Ok(Cloned::Parent { pid: pid as i32, pidfd })
        }
    }
}

/// How far attributes of a mount reach.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    Alone,
    /// And every mount below it.
    Below,
}

/// Sets attributes on a mount; `idmap` also shifts who owns its files.
pub(crate) fn mount_setattr(tree: impl AsFd, set: u64, reach: Reach, idmap: Option<&OwnedFd>) -> io::Result<()> {
    let attributes = libc::mount_attr {
        attr_set: set | if idmap.is_some() { libc::MOUNT_ATTR_IDMAP } else { 0 },
        attr_clr: 0,
        propagation: 0,
        userns_fd: idmap.map_or(0, |userns| userns.as_raw_fd() as u64),
    };
    // SAFETY: the path is a NUL-terminated literal and `attributes` outlives the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_fd().as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH | if reach == Reach::Below { libc::AT_RECURSIVE } else { 0 },
            &raw const attributes,
            size_of::<libc::mount_attr>(),
        )
    };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Brings the loopback interface of the current network namespace up.
pub(crate) fn loopback_up() -> io::Result<()> {
    let socket = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::DGRAM, None)?;
    // SAFETY: all-zero is a valid `ifreq`.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo\0") {
        *to = *from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: SIOCSIFFLAGS reads an `ifreq`, which `request` is.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS as _, &raw const request) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Takes over descriptors that this process was started with. Only for the launcher's `main`, before anything else.
pub(crate) fn inherited(fd: i32) -> OwnedFd {
    // SAFETY: the parent passed exactly this descriptor at this number, and nothing else has run that could own it.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// Children are reaped by the kernel: nobody here asks for their status.
pub(crate) fn ignore_children() {
    // SAFETY: setting a disposition to SIG_IGN installs no handler.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
}

/// Undoes `ignore_children`, which would make `wait` of later forks fail.
pub(crate) fn default_children() {
    // SAFETY: setting a disposition to SIG_DFL installs no handler.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
}

/// Ends a forked child without running anything that belongs to the parent it was copied from.
pub(crate) fn exit(code: i32) -> ! {
    // SAFETY: `_exit` takes any number and never returns.
    unsafe { libc::_exit(code) }
}

/// Closes every descriptor but standard input, output, error and those to keep: what was copied from the launcher
/// (the server's channel, other sandboxes' handles) must not live on in a guest.
pub(crate) fn keep_only(keep: &[std::os::fd::BorrowedFd<'_>]) -> io::Result<()> {
    let mut numbers: Vec<u32> = keep.iter().map(|fd| fd.as_raw_fd() as u32).collect();
    numbers.sort_unstable();
    let mut first = 3;
    for number in numbers.into_iter().chain([u32::MAX]) {
        if first < number {
            // SAFETY: the caller is a fresh fork that never again uses, or drops, an owner of what is closed here.
            let result = unsafe { libc::syscall(libc::SYS_close_range, first, number - 1, 0) };
            if result == -1 {
                return Err(io::Error::last_os_error());
            }
        }
        first = number.saturating_add(1);
    }
    Ok(())
}

/// Lets tokio tell when a descriptor becomes readable.
pub(crate) fn watch(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: the AsyncFd owns the descriptor, and an OwnedFd stays the same open descriptor as long as it lives.
    unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }.map_err(|error| error.into_parts().1)
}
