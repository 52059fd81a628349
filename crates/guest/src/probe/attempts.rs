//! What a workload must be refused, tried for real.
//!
//! | `try.` | attempt |
//! | --- | --- |
//! | `ptrace` | to trace the guest |
//! | `bpf`, `io_uring`, `perf_event`, `keyctl`, `userfaultfd`, `clone3` | the system call of that name, asking for something harmless |
//! | `write_proc` | to open `/proc/self/comm` for writing, which only Landlock forbids; not tried on a kernel without it |
//! | `write_root`, `write_usr` | to make a file in `/` and `/usr` |
//! | `exec_tmp` | to map a file of `/tmp` as code |
//! | `mknod` | to make a character device in `/tmp` |
//! | `tiocsti` | to type into the own terminal |
//! | `mount` | to mount a tmpfs on `/tmp` |
//! | `setuid_root` | to become uid 0 |
//! | `unshare_user` | to make a user namespace |
//!
//! An attempt that works is undone as far as it reaches beyond this process, which is about to end.

use std::{
    fs::{self, File},
    io,
    os::fd::AsFd,
    path::Path,
};

use rustix::{
    fs::{CWD, FileType, Mode, OFlags},
    mount::{MountFlags, UnmountFlags},
    process::{DumpableBehavior, Uid},
    pty::OpenptFlags,
};

use super::{Facts, outcome};
use crate::sys::{self, Attempt};

/// The last two change who we are, so nothing comes after them.
pub(super) fn make() -> Facts {
    [
        ("ptrace", outcome(sys::attempt(Attempt::Ptrace))),
        ("bpf", outcome(sys::attempt(Attempt::Bpf))),
        ("io_uring", outcome(sys::attempt(Attempt::IoUring))),
        ("perf_event", outcome(sys::attempt(Attempt::PerfEvent))),
        ("keyctl", outcome(sys::attempt(Attempt::Keyctl))),
        ("userfaultfd", outcome(sys::attempt(Attempt::Userfaultfd))),
        ("clone3", outcome(sys::attempt(Attempt::Clone3))),
        ("write_proc", outcome(write_proc())),
        ("write_root", outcome(make_file("/.sandbar-probe"))),
        ("write_usr", outcome(make_file("/usr/.sandbar-probe"))),
        ("exec_tmp", outcome(map_file_of_tmp())),
        ("mknod", outcome(make_device())),
        ("tiocsti", outcome(type_into_terminal())),
        ("mount", outcome(mount_tmpfs())),
        ("setuid_root", outcome(become_root())),
        ("unshare_user", outcome(sys::attempt(Attempt::UnshareUser))),
    ]
    .into_iter()
    .map(|(name, outcome)| (format!("try.{name}"), outcome))
    .collect()
}

fn write_proc() -> io::Result<()> {
    // Without Landlock nothing forbids it, and nothing would keep other workloads of our uid from a process that is
    // dumpable and has the guest's memory.
    if sys::landlock_abi().is_err() {
        return Err(io::Error::other("there is no Landlock"));
    }
    // As a fork of the guest we are not dumpable, so /proc/self is root's; a program that was executed owns its own.
    rustix::process::set_dumpable_behavior(DumpableBehavior::Dumpable)?;
    let opened = File::options().write(true).open("/proc/self/comm");
    // What we say must not be writable by other workloads for longer than this.
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    opened.map(drop)
}

fn make_file(path: &str) -> io::Result<()> {
    File::options().write(true).create_new(true).open(path)?;
    fs::remove_file(path)
}

/// A name that no other probe uses at the same time.
fn place_in_tmp(what: &str) -> String {
    format!("/tmp/.sandbar-probe-{what}-{}", rustix::process::getpid().as_raw_pid())
}

fn map_file_of_tmp() -> io::Result<()> {
    let place = place_in_tmp("code");
    let file = File::options().read(true).write(true).create_new(true).open(&place)?;
    fs::remove_file(&place)?;
    file.set_len(4096)?;
    sys::map_executable(file.as_fd())
}

fn make_device() -> io::Result<()> {
    let place = place_in_tmp("device");
    let null = rustix::fs::makedev(1, 3);
    rustix::fs::mknodat(CWD, Path::new(&place), FileType::CharacterDevice, Mode::from_raw_mode(0o600), null)?;
    fs::remove_file(&place)
}

/// A terminal that is ours in every way: what refuses this is not a lack of ownership.
fn type_into_terminal() -> io::Result<()> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let master = rustix::fs::open("/dev/ptmx", OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::pty::unlockpt(&master)?;
    let terminal = rustix::pty::ioctl_tiocgptpeer(&master, flags)?;
    rustix::process::ioctl_tiocsctty(&terminal)?;
    sys::fake_input(terminal.as_fd())
}

fn mount_tmpfs() -> io::Result<()> {
    rustix::mount::mount("tmpfs", "/tmp", "tmpfs", MountFlags::empty(), c"size=4k")?;
    Ok(rustix::mount::unmount("/tmp", UnmountFlags::DETACH)?)
}

fn become_root() -> io::Result<()> {
    Ok(rustix::thread::set_thread_res_uid(Uid::ROOT, Uid::ROOT, Uid::ROOT)?)
}
