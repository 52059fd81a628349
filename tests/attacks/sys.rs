//! The raw system calls of the probes: what an attacker with a compiler can do and the standard library does not offer.

#![expect(unsafe_code, reason = "an attack makes the very system calls that have no safe wrapper")]

use std::{arch::asm, ffi::CStr, io};

/// An argument of a system call. Memory is given as a slice, so that it lives as long as the call.
pub(crate) enum Arg<'a> {
    N(u64),
    Text(&'a CStr),
    /// The kernel may write to it.
    Buffer(&'a mut [u8; PAGE]),
}

/// Longer than anything that the calls made here read or write through one pointer.
pub(crate) const PAGE: usize = 4096;

pub(crate) fn call(number: i64, arguments: &mut [Arg<'_>]) -> io::Result<i64> {
    let mut raw = [0_u64; 6];
    for (raw, argument) in raw.iter_mut().zip(arguments) {
        *raw = match argument {
            Arg::N(number) => *number,
            Arg::Text(text) => text.as_ptr() as u64,
            Arg::Buffer(buffer) => buffer.as_mut_ptr() as u64,
        };
    }
    let [a, b, c, d, e, f] = raw;
    // SAFETY: pointers are those of live slices of a page, or null; the callers choose calls that neither unmap memory
    // nor close descriptors of objects they own.
    match unsafe { libc::syscall(number, a, b, c, d, e, f) } {
        -1 => Err(io::Error::last_os_error()),
        value => Ok(value),
    }
}

/// `getpid` by the gate of 32-bit programs, which a filter of 64-bit calls does not see as one of them.
pub(crate) fn getpid_as_i386() -> i32 {
    let mut value: i32 = 20;
    // SAFETY: the call takes no argument and writes to no memory; every register that the gate changes is named.
    unsafe {
        asm!("int 0x80", inlateout("eax") value, out("r8") _, out("r9") _, out("r10") _, out("r11") _);
    }
    value
}

pub(crate) fn fork() -> io::Result<Option<i32>> {
    // SAFETY: the probes run in a process with one thread, so the child is a complete process.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(None),
        pid => Ok(Some(pid)),
    }
}

/// Ends a forked child without running what belongs to its parent.
pub(crate) fn exit(code: i32) -> ! {
    // SAFETY: takes no pointer and does not return.
    unsafe { libc::_exit(code) }
}

/// The wait status of a child.
pub(crate) fn wait(pid: i32) -> io::Result<i32> {
    let mut status = 0;
    // SAFETY: `status` is live and of the right size.
    match unsafe { libc::waitpid(pid, &raw mut status, 0) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(status),
    }
}

/// One instruction of a filter.
pub(crate) fn step(code: u32, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt, jf, k }
}

/// Puts a filter on this process and all it will execute.
pub(crate) fn filter(program: &mut [libc::sock_filter], flags: u64) -> io::Result<i64> {
    let length = u16::try_from(program.len()).map_err(io::Error::other)?;
    let program = libc::sock_fprog { len: length, filter: program.as_mut_ptr() };
    // SAFETY: the program is live and has as many instructions as it says.
    unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        match libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program) {
            -1 => Err(io::Error::last_os_error()),
            value => Ok(value),
        }
    }
}
