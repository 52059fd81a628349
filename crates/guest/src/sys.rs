//! System calls that rustix leaves out. Everything here relies on one fact: the guest and what it forks never have a
//! second thread, so a forked child is a complete process that may allocate and run ordinary code. One that borrows
//! memory, see `spawn`, may not.

#![expect(unsafe_code, reason = "fork, execve, signal masks and close_range have no safe wrapper")]

use std::{
    ffi::{CStr, CString},
    io,
    marker::PhantomData,
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

/// Like `fork`, but the child is born in a cgroup: moving it there later would wait for the whole host.
pub(crate) fn fork_into(cgroup: BorrowedFd<'_>) -> io::Result<Forked> {
    clone3(&clone_args(Some(cgroup)))
}

fn clone_args(cgroup: Option<BorrowedFd<'_>>) -> libc::clone_args {
    /// Wider than the C library's type for flags.
    const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;
    // SAFETY: all-zero is a valid `clone_args`; every field is a plain integer.
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.exit_signal = libc::SIGCHLD as u64;
    if let Some(cgroup) = cgroup {
        args.flags = CLONE_INTO_CGROUP;
        args.cgroup = u64::from(cgroup.as_raw_fd().unsigned_abs());
    }
    args
}

/// Runs `body`, which is to execute a program, in a child, in a cgroup if one is given. Where it can be, the child
/// borrows our memory and we stand still until it has executed or ended: nothing is copied just to be thrown away. But
/// what shares the child's user may kill it between any two instructions, and we go on with what it left. So `body`
/// makes system calls and writes to its own stack: it allocates and frees nothing, takes no lock and does not panic.
/// All else that it writes is the C library's errno, which is whole at any time.
pub(crate) fn spawn(cgroup: Option<BorrowedFd<'_>>, body: &dyn Fn()) -> io::Result<Pid> {
    #[cfg(target_arch = "x86_64")]
    match borrow_memory(cgroup, body) {
        // What runs containers may pretend that the call does not exist.
        Err(error) if error.raw_os_error() == Some(libc::ENOSYS) && cgroup.is_none() => {}
        spawned => return spawned,
    }
    match cgroup.map_or_else(fork, fork_into)? {
        Forked::Parent(pid) => Ok(pid),
        Forked::Child => enter(body),
    }
}

fn enter(body: &dyn Fn()) -> ! {
    // Unwinding further would run the parent's code a second time.
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
    exit(127)
}

#[cfg(target_arch = "x86_64")]
fn borrow_memory(cgroup: Option<BorrowedFd<'_>>, body: &dyn Fn()) -> io::Result<Pid> {
    const STACK: usize = 256 * 1024;
    const GUARD: usize = 4096;
    extern "C" fn entry(body: &&dyn Fn()) -> ! {
        enter(*body)
    }
    let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_STACK | libc::MAP_NORESERVE;
    // SAFETY: a new mapping at a place the kernel chooses; its lowest page is never touched, which stops an overflow.
    let stack = unsafe {
        let place = libc::mmap(ptr::null_mut(), STACK, libc::PROT_READ | libc::PROT_WRITE, kind, -1, 0);
        if place == libc::MAP_FAILED || libc::mprotect(place, GUARD, libc::PROT_NONE) != 0 {
            return Err(io::Error::last_os_error());
        }
        place
    };
    let mut args = clone_args(cgroup);
    args.flags |= (libc::CLONE_VM | libc::CLONE_VFORK) as u64;
    args.stack = stack as u64;
    args.stack_size = STACK as u64;
    let outcome: i64;
    // SAFETY: the child runs on a stack of its own and never returns here. Until it has executed or ended, the kernel
    // keeps us, the only other thread, where we are, so nobody else touches our memory and `body` outlives it. The call
    // itself changes only the registers named.
    unsafe {
        std::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, r12",
            "call r13",
            "ud2",
            "2:",
            inlateout("rax") libc::SYS_clone3 => outcome,
            in("rdi") &raw const args,
            in("rsi") size_of::<libc::clone_args>(),
            in("r12") &raw const body,
            in("r13") entry as extern "C" fn(&&dyn Fn()) -> !,
            lateout("rcx") _,
            lateout("r11") _,
        );
        libc::munmap(stack, STACK);
    }
    match i32::try_from(outcome) {
        Ok(pid) if pid > 0 => Pid::from_raw(pid).ok_or_else(|| io::Error::other("clone3 returned no pid")),
        Ok(errno) => Err(io::Error::from_raw_os_error(-errno)),
        Err(_) => Err(io::Error::other("clone3 returned no pid")),
    }
}

/// No flag that shares memory may be set.
fn clone3(args: &libc::clone_args) -> io::Result<Forked> {
    // SAFETY: without CLONE_VM the child gets a copy of our memory, as with fork, and we have one thread; `args` lives
    // across the call.
    match unsafe { libc::syscall(libc::SYS_clone3, ptr::from_ref(args), size_of::<libc::clone_args>()) } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Forked::Child),
        pid => {
            let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
            pid.map(Forked::Parent).ok_or_else(|| io::Error::other("clone3 returned no pid"))
        }
    }
}

/// Ends a forked child without running destructors or exit handlers, which belong to its parent.
pub(crate) fn exit(code: i32) -> ! {
    // SAFETY: `_exit` takes no pointers and does not return.
    unsafe { libc::_exit(code) }
}

/// Strings as execve takes them, made ready beforehand.
pub(crate) struct Strings<'a> {
    pointers: Vec<*const libc::c_char>,
    strings: PhantomData<&'a [CString]>,
}

impl<'a> Strings<'a> {
    pub(crate) fn new(strings: &'a [CString]) -> Self {
        let pointers = strings.iter().map(|string| string.as_ptr()).chain([ptr::null()]).collect();
        Self { pointers, strings: PhantomData }
    }
}

/// Returns only when it failed.
pub(crate) fn execve(path: &CStr, argv: &Strings<'_>, env: &Strings<'_>) -> rustix::io::Errno {
    // SAFETY: both arrays end with a null pointer and borrow their strings.
    unsafe { libc::execve(path.as_ptr(), argv.pointers.as_ptr(), env.pointers.as_ptr()) };
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
    /// And those that ask us to end.
    ChildAndEnding,
    Everything,
}

pub(crate) fn block_signals(mask: Mask) -> io::Result<()> {
    let set = signal_set(mask);
    // The C library's own function leaves out two signals that it keeps for itself, which would end who got them.
    // SAFETY: the kernel's set has 8 bytes; the old mask is not asked for.
    match unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            libc::SIG_SETMASK,
            &raw const set,
            ptr::null_mut::<u64>(),
            size_of_val(&set),
        )
    } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

const ENDING: u64 = 1 << (libc::SIGTERM - 1) | 1 << (libc::SIGINT - 1);

/// As the kernel has it: a bit for each signal.
fn signal_set(mask: Mask) -> u64 {
    match mask {
        Mask::Nothing => 0,
        Mask::Child => 1 << (libc::SIGCHLD - 1),
        Mask::ChildAndEnding => signal_set(Mask::Child) | ENDING,
        Mask::Everything => u64::MAX,
    }
}

/// Once, for everything forked later: what it starts must inherit nothing that is ignored or handled.
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

/// The only disposition that `ignore_broken_pipes` leaves a workload to undo.
pub(crate) fn heed_broken_pipes() {
    // SAFETY: the default action runs no code of ours.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
}

/// Becomes readable when a child has changed state; the caller must have SIGCHLD blocked.
pub(crate) fn child_signals() -> io::Result<OwnedFd> {
    signals(signal_set(Mask::Child))
}

/// Becomes readable when we are asked to end, and tells by whom; the caller must have those signals blocked.
pub(crate) fn ending_signals() -> io::Result<OwnedFd> {
    signals(ENDING)
}

fn signals(set: u64) -> io::Result<OwnedFd> {
    let flags = libc::SFD_CLOEXEC | libc::SFD_NONBLOCK;
    // SAFETY: the kernel's set has 8 bytes.
    let fd = unsafe { libc::syscall(libc::SYS_signalfd4, -1, &raw const set, size_of_val(&set), flags) };
    let fd = i32::try_from(fd).ok().filter(|fd| *fd >= 0).ok_or_else(io::Error::last_os_error)?;
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

/// Calls that a workload must be refused, made so that nothing is left of one that works.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Attempt {
    /// To trace our parent, without stopping it.
    Ptrace,
    Bpf,
    IoUring,
    PerfEvent,
    Keyctl,
    Userfaultfd,
    Clone3,
    UnshareUser,
}

pub(crate) fn attempt(call: Attempt) -> io::Result<()> {
    let zero: libc::c_long = 0;
    let outcome = match call {
        Attempt::Ptrace => {
            let parent = rustix::process::getppid().map_or(1, Pid::as_raw_pid);
            // SAFETY: seizing takes no pointers; the kernel lets the parent go when we end.
            unsafe { libc::syscall(libc::SYS_ptrace, libc::c_long::from(PTRACE_SEIZE), parent, zero, zero) }
        }
        Attempt::Bpf => {
            // An array of one four-byte value: type, key size, value size, entries.
            let map: [u32; 16] = [2, 4, 4, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
            // SAFETY: the kernel reads as many bytes as it is told from an array that outlives the call.
            opened(unsafe { libc::syscall(libc::SYS_bpf, zero, map.as_ptr(), size_of_val(&map)) })
        }
        Attempt::IoUring => {
            let mut parameters = [0_u64; 15];
            // SAFETY: the kernel's struct has 120 bytes, which it fills in.
            opened(unsafe { libc::syscall(libc::SYS_io_uring_setup, 1 as libc::c_long, parameters.as_mut_ptr()) })
        }
        Attempt::PerfEvent => {
            // A counter that counts nothing, of ourselves: software (type 1, 64 bytes), dummy, user space only.
            let event: [u64; 8] = [1 | 64 << 32, 9, 0, 0, 0, 1 << 5, 0, 0];
            let ourselves = (zero, -1 as libc::c_long, -1 as libc::c_long);
            // SAFETY: the struct's own size says how much the kernel reads, and the array has as much.
            let fd = unsafe {
                libc::syscall(
                    libc::SYS_perf_event_open,
                    event.as_ptr(),
                    ourselves.0,
                    ourselves.1,
                    ourselves.2,
                    libc::c_long::from(8),
                )
            };
            opened(fd)
        }
        // Asks for the session keyring, and makes none.
        // SAFETY: no pointers.
        Attempt::Keyctl => unsafe { libc::syscall(libc::SYS_keyctl, zero, -3 as libc::c_long, zero) },
        Attempt::Userfaultfd => {
            // The flag 1 asks for faults of user space only, which needs no privilege.
            let flags = libc::c_long::from(libc::O_CLOEXEC | 1);
            // SAFETY: no pointers.
            opened(unsafe { libc::syscall(libc::SYS_userfaultfd, flags) })
        }
        // SAFETY: no pointers, and we have one thread.
        Attempt::UnshareUser => unsafe { libc::unshare(libc::CLONE_NEWUSER) }.into(),
        Attempt::Clone3 => match clone3(&clone_args(None))? {
            Forked::Child => exit(0),
            Forked::Parent(pid) => {
                rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty())?;
                0
            }
        },
    };
    if outcome == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

const PTRACE_SEIZE: i32 = 0x4206;

/// Closes the descriptor that an attempt opened; a failure passes with its errno untouched.
fn opened(outcome: libc::c_long) -> libc::c_long {
    match i32::try_from(outcome) {
        Ok(fd) if fd >= 0 => {
            // SAFETY: the descriptor is new and nobody else's.
            drop(unsafe { OwnedFd::from_raw_fd(fd) });
            0
        }
        _ => -1,
    }
}

/// Maps one page of a file as code.
pub(crate) fn map_executable(file: BorrowedFd<'_>) -> io::Result<()> {
    const PAGE: usize = 4096;
    let protection = libc::PROT_READ | libc::PROT_EXEC;
    // SAFETY: a new private mapping at a place the kernel chooses, unmapped before anything could point into it.
    unsafe {
        let place = libc::mmap(ptr::null_mut(), PAGE, protection, libc::MAP_PRIVATE, file.as_raw_fd(), 0);
        if place == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        libc::munmap(place, PAGE);
    }
    Ok(())
}

/// Types a character into a terminal as if a person had.
pub(crate) fn fake_input(terminal: BorrowedFd<'_>) -> io::Result<()> {
    let key = b'x';
    // SAFETY: the call reads one byte, which outlives it.
    match unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCSTI, &raw const key) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

pub(crate) fn landlock_abi() -> io::Result<i64> {
    let (no_rules, no_size, version): (*const u8, usize, libc::c_long) = (ptr::null(), 0, 1);
    // SAFETY: asked for its version, the call takes neither rules nor a size.
    match unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, no_rules, no_size, version) } {
        -1 => Err(io::Error::last_os_error()),
        abi => Ok(abi),
    }
}

/// How many units of time, as `/proc` counts it, a second has.
pub(crate) fn clock_ticks() -> u64 {
    // SAFETY: takes no pointers.
    let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    u64::try_from(ticks).ok().filter(|ticks| *ticks > 0).unwrap_or(100)
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

/// Counts for each thread how often it, or a child on its memory, touched the heap.
#[cfg(test)]
struct Counting;

#[cfg(test)]
#[global_allocator]
static COUNTING: Counting = Counting;

#[cfg(test)]
thread_local! {
    static HEAP_CHANGES: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

#[cfg(test)]
pub(crate) fn heap_changes() -> u64 {
    HEAP_CHANGES.get()
}

// SAFETY: the system's allocator does it all; a cell without a destructor is there as long as its thread.
#[cfg(test)]
unsafe impl std::alloc::GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: std::alloc::Layout) -> *mut u8 {
        HEAP_CHANGES.set(HEAP_CHANGES.get() + 1);
        // SAFETY: the caller promises what it promises us.
        unsafe { std::alloc::System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: std::alloc::Layout) {
        HEAP_CHANGES.set(HEAP_CHANGES.get() + 1);
        // SAFETY: as above.
        unsafe { std::alloc::System.dealloc(place, layout) }
    }
}
