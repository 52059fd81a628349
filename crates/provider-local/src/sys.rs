//! The system calls that rustix does not have. All `unsafe` of this crate is here.
#![expect(unsafe_code, reason = "raw system calls, each with its own argument")]

use std::{
    io,
    os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd},
};

use rustix::io::Errno;
use seccompiler::sock_filter;
use tokio::io::{Interest, unix::AsyncFd};

/// What `clone3` made: nothing to do for the child, a handle for the parent.
pub(crate) enum Cloned {
    Child,
    Parent { pid: i32, pidfd: OwnedFd },
}

const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// Forks into new namespaces, and into a control group. Like `fork`, but the kernel does it all in the same step.
pub(crate) fn clone_into(namespaces: u64, group: Option<&OwnedFd>) -> io::Result<Cloned> {
    let mut pidfd: libc::c_int = -1;
    // SAFETY: all-zero is a valid `clone_args`; every field is a plain integer.
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.flags = namespaces | libc::CLONE_PIDFD as u64;
    args.pidfd = &raw mut pidfd as u64;
    args.exit_signal = libc::SIGCHLD as u64;
    if let Some(group) = group {
        args.flags |= CLONE_INTO_CGROUP;
        args.cgroup = group.as_raw_fd() as u64;
    }
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

/// Like `clone_into`, as another user of the host, without giving up any capability: what the kernel counts per user,
/// such as watchers of files, then counts against the owner of the new namespace and not against root.
pub(crate) fn clone_as(user: Option<u32>, namespaces: u64, group: Option<&OwnedFd>) -> Result<Cloned, NotCloned> {
    let Some(user) = user else { return clone_into(namespaces, group).map_err(NotCloned::Clone) };
    let own = rustix::process::geteuid().as_raw();
    let cloned = match effective(user) {
        Ok(()) => clone_into(namespaces, group).map_err(NotCloned::Clone),
        Err(error) => Err(NotCloned::User(error)),
    };
    // The child is nobody in its namespace until its users are mapped, and then becomes whom it needs to be. We go on as
    // whom we were, or not at all.
    if !matches!(cloned, Ok(Cloned::Child)) && (effective(own).is_err() && rustix::process::geteuid().as_raw() != own) {
        exit(1);
    }
    cloned
}

/// What failed of `clone_as`.
pub(crate) enum NotCloned {
    User(io::Error),
    Clone(io::Error),
}

fn effective(user: u32) -> io::Result<()> {
    let sets = rustix::thread::capabilities(None)?;
    // SAFETY: no pointers; -1 leaves the real and the saved user as they are. The raw call, for this one thread.
    if unsafe { libc::syscall(libc::SYS_setresuid, -1, user, -1) } == -1 {
        return Err(io::Error::last_os_error());
    }
    // Leaving root clears the effective set.
    Ok(rustix::thread::set_capabilities(None, sets)?)
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
    watch_for(fd, Interest::READABLE)
}

pub(crate) fn watch_for(fd: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: the AsyncFd owns the descriptor, and an OwnedFd stays the same open descriptor as long as it lives.
    unsafe { AsyncFd::register_with_interest(fd, interest) }.map_err(|error| error.into_parts().1)
}

/// Enters the namespaces of a process. The caller is a fresh fork with one thread.
pub(crate) fn enter(process: &OwnedFd, namespaces: i32) -> io::Result<()> {
    // SAFETY: no pointers; the caller has no other thread whose view would be left behind.
    let result = unsafe { libc::setns(process.as_raw_fd(), namespaces) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Puts a seccomp filter on the calling process. Unlike seccompiler's own function it does not set no_new_privs.
/// Allocates nothing.
pub(crate) fn install_filter(filter: &[sock_filter]) -> Result<(), Errno> {
    // What the kernel says of a filter that is too long.
    let length = u16::try_from(filter.len()).map_err(|_| Errno::INVAL)?;
    // The kernel's struct: an instruction has the same layout in both crates.
    let program = libc::sock_fprog { len: length, filter: filter.as_ptr().cast::<libc::sock_filter>().cast_mut() };
    // SAFETY: `program` points at `length` instructions, which the kernel only reads, during the call.
    let result = unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program) };
    if result == -1 { Err(last_errno()) } else { Ok(()) }
}

/// Puts a Landlock ruleset on the calling process. Unlike the landlock crate's own function it frees nothing.
pub(crate) fn restrict_self(rules: &OwnedFd) -> Result<(), Errno> {
    // SAFETY: no pointers.
    let result = unsafe { libc::syscall(libc::SYS_landlock_restrict_self, rules.as_raw_fd(), 0) };
    if result == -1 { Err(last_errno()) } else { Ok(()) }
}

fn last_errno() -> Errno {
    Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::INVAL)
}

/// Whether the calling process is under a seccomp filter.
pub(crate) fn is_filtered() -> bool {
    // SAFETY: no pointers.
    unsafe { libc::prctl(libc::PR_GET_SECCOMP, 0, 0, 0, 0) == libc::SECCOMP_MODE_FILTER as i32 }
}

/// `struct btrfs_ioctl_vol_args` and, with two words used, `struct btrfs_ioctl_vol_args_v2`: both are one page.
#[repr(C)]
struct Volume {
    fd: i64,
    words: [u64; 6],
    name: [u8; 4040],
}

const SUBVOLUME_CREATE: libc::c_ulong = 0x5000_940e;
const SNAPSHOT_DESTROY: libc::c_ulong = 0x5000_940f;
const SNAPSHOT_CREATE_V2: libc::c_ulong = 0x5000_9417;
const SNAPSHOT_READ_ONLY: u64 = 1 << 1;

/// In the first version the name follows the descriptor at once.
fn volume(directory: &impl AsFd, request: libc::c_ulong, name: &str) -> io::Result<()> {
    let mut page = [0_u8; 4096];
    page[8..8 + name.len()].copy_from_slice(name.as_bytes());
    // SAFETY: the request takes a `btrfs_ioctl_vol_args`, which is one page with a NUL-terminated name from byte 8 on.
    let result = unsafe { libc::ioctl(directory.as_fd().as_raw_fd(), request, page.as_ptr()) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Finding one there already is fine.
pub(crate) fn make_subvolume(directory: &impl AsFd, name: &str) -> io::Result<()> {
    match volume(directory, SUBVOLUME_CREATE, name) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

/// Nothing there, or nothing that is a subvolume, is fine.
pub(crate) fn remove_subvolume(directory: &impl AsFd, name: &str) -> io::Result<()> {
    match volume(directory, SNAPSHOT_DESTROY, name) {
        Err(error)
            if [libc::ENOENT, libc::ENOTTY, libc::EINVAL, libc::ENOTDIR]
                .contains(&error.raw_os_error().unwrap_or(0)) =>
        {
            Ok(())
        }
        other => other,
    }
}

/// Keeps a subvolume as it is now, read-only, under a name in another directory.
pub(crate) fn snapshot_subvolume(subvolume: &impl AsFd, directory: &impl AsFd, name: &str) -> io::Result<()> {
    let fd = i64::from(subvolume.as_fd().as_raw_fd());
    let mut volume = Volume { fd, words: [0; 6], name: [0; 4040] };
    volume.words[1] = SNAPSHOT_READ_ONLY;
    volume.name[..name.len()].copy_from_slice(name.as_bytes());
    // SAFETY: the request takes a `btrfs_ioctl_vol_args_v2`, which `Volume` lays out.
    let result = unsafe { libc::ioctl(directory.as_fd().as_raw_fd(), SNAPSHOT_CREATE_V2, &raw const volume) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// `struct loop_config` with the `loop_info64` in it.
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    device: [u64; 5],
    number: u32,
    encryption: [u32; 2],
    flags: u32,
    names: [u8; 160],
    rest: [u64; 10],
}

const LOOP_GET_FREE: libc::c_ulong = 0x4c82;
const LOOP_CONFIGURE: libc::c_ulong = 0x4c0a;
const LOOP_AUTOCLEAR: u32 = 4;

/// Puts a loop device over an image, to be freed with its last user, of which the returned file is one. `EBUSY`: somebody
/// else took the device first.
pub(crate) fn loop_device(image: &OwnedFd) -> io::Result<(String, OwnedFd)> {
    let open = |path: &str| std::fs::File::options().read(true).write(true).open(path);
    let control = open("/dev/loop-control")?;
    // SAFETY: the request takes no argument.
    let number = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_GET_FREE) };
    if number == -1 {
        return Err(io::Error::last_os_error());
    }
    let path = format!("/dev/loop{number}");
    let device = open(&path)?;
    let config = LoopConfig {
        fd: image.as_raw_fd() as u32,
        block_size: 0,
        device: [0; 5],
        number: 0,
        encryption: [0; 2],
        flags: LOOP_AUTOCLEAR,
        names: [0; 160],
        rest: [0; 10],
    };
    // SAFETY: the request takes a `loop_config`, which `LoopConfig` lays out.
    let result = unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE, &raw const config) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok((path, device.into())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structs_have_the_kernels_sizes() {
        assert_eq!(size_of::<Volume>(), 4096);
        assert_eq!(size_of::<LoopConfig>(), 304);
        assert_eq!(size_of::<sock_filter>(), size_of::<libc::sock_filter>());
    }
}
