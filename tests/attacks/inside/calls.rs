//! System calls that no workload needs and that attacks begin with.

use std::{ffi::CString, fs, io, os::fd::AsRawFd as _};

use super::{Got, reached};
use crate::sys::{
    self,
    Arg::{Buffer, N, Text},
    PAGE, call,
};

const NONE: &[i32] = &[];
/// Descriptors and pids that do not exist, as the kernel takes them.
const NOBODY: u64 = -1_i32 as u32 as u64;
const SIGCHLD: u64 = libc::SIGCHLD as u64;
const NEWUSER: u64 = libc::CLONE_NEWUSER as u64;

/// A page that begins with these words of 32 bits.
fn words(values: &[u32]) -> [u8; PAGE] {
    let mut page = [0; PAGE];
    for (place, value) in page.chunks_exact_mut(4).zip(values) {
        place.copy_from_slice(&value.to_le_bytes());
    }
    page
}

pub(super) fn named(name: &str) -> Option<Got> {
    let page = &mut [0; PAGE];
    let (number, mut arguments, past): (i64, Vec<sys::Arg<'_>>, &[i32]) = match name {
        "io_uring_setup" => (libc::SYS_io_uring_setup, vec![N(1), Buffer(page)], NONE),
        "io_uring_enter" => (libc::SYS_io_uring_enter, vec![N(NOBODY)], &[libc::EBADF]),
        "io_uring_register" => (libc::SYS_io_uring_register, vec![N(NOBODY), N(0)], &[libc::EBADF, libc::EINVAL]),
        "userfaultfd" => (libc::SYS_userfaultfd, vec![N(1)], NONE),
        "bpf" => {
            *page = words(&[2, 4, 4, 1]);
            (libc::SYS_bpf, vec![N(0), Buffer(page), N(72)], NONE)
        }
        "perf_event_open" => {
            // A software counter of this very process, without the kernel: what an ordinary user may have.
            *page = words(&[1, 112, 0, 0, 0, 0, 0, 0, 0, 0, 0b110_0000]);
            (libc::SYS_perf_event_open, vec![Buffer(page), N(0), N(u64::MAX), N(u64::MAX), N(0)], NONE)
        }
        "keyctl" => (libc::SYS_keyctl, vec![N(0), N(-2_i64 as u64), N(1)], NONE),
        "add_key" => {
            let arguments = vec![Text(c"user"), Text(c"sandbar-attack"), Text(c"x"), N(1), N(-2_i64 as u64)];
            (libc::SYS_add_key, arguments, NONE)
        }
        "request_key" => (libc::SYS_request_key, vec![Text(c"user"), Text(c"sandbar-none")], &[libc::ENOKEY]),
        // Flags that do not exist: never more than a refusal by the kernel itself.
        "kexec_load" => (libc::SYS_kexec_load, vec![N(0), N(0), N(0), N(0xff00)], &[libc::EINVAL]),
        "kexec_file_load" => {
            (libc::SYS_kexec_file_load, vec![N(NOBODY), N(NOBODY), N(0), N(0), N(0xff00)], &[libc::EINVAL, libc::EBADF])
        }
        "init_module" => (libc::SYS_init_module, vec![N(0), N(0), Text(c"")], &[libc::ENOEXEC, libc::EFAULT]),
        "finit_module" => (libc::SYS_finit_module, vec![N(NOBODY), Text(c""), N(0)], &[libc::EBADF]),
        "delete_module" => (libc::SYS_delete_module, vec![Text(c"sandbar_none"), N(0o4000)], &[libc::ENOENT]),
        // Without the magic numbers it cannot do anything.
        "reboot" => (libc::SYS_reboot, vec![N(0), N(0), N(0)], &[libc::EINVAL]),
        "swapon" => (libc::SYS_swapon, vec![Text(c"/none"), N(0)], &[libc::ENOENT]),
        "acct" => (libc::SYS_acct, vec![Text(c"/none")], &[libc::ENOENT]),
        "quotactl" => (libc::SYS_quotactl, vec![N(0x8000_0100), N(0), N(0), N(0)], &[libc::ENODEV]),
        "syslog" => (libc::SYS_syslog, vec![N(3), Buffer(page), N(PAGE as u64)], NONE),
        "iopl" => (libc::SYS_iopl, vec![N(3)], NONE),
        "ioperm" => (libc::SYS_ioperm, vec![N(0x80), N(1), N(1)], NONE),
        "modify_ldt" => (libc::SYS_modify_ldt, vec![N(0), Buffer(page), N(PAGE as u64)], NONE),
        "settimeofday" => (libc::SYS_settimeofday, vec![N(0), N(0)], NONE),
        "clock_settime" => {
            *page = words(&[0, 0, u32::MAX, u32::MAX]);
            (libc::SYS_clock_settime, vec![N(0), Buffer(page)], &[libc::EINVAL])
        }
        "adjtimex" => (libc::SYS_adjtimex, vec![Buffer(page)], NONE),
        "personality" => (libc::SYS_personality, vec![N(0x040_0000)], NONE),
        "kcmp" => (libc::SYS_kcmp, vec![N(me()), N(me()), N(0), N(0), N(1)], NONE),
        "fanotify_init" => (libc::SYS_fanotify_init, vec![N(0x200), N(0)], NONE),
        "mount" => (libc::SYS_mount, vec![Text(c"none"), Text(c"/tmp"), Text(c"tmpfs"), N(0), N(0)], NONE),
        "fsopen" => (libc::SYS_fsopen, vec![Text(c"tmpfs"), N(0)], NONE),
        "open_tree" => (libc::SYS_open_tree, vec![N(libc::AT_FDCWD as u64), Text(c"/"), N(0x8001)], NONE),
        "umount2" => (libc::SYS_umount2, vec![Text(c"/proc"), N(2)], NONE),
        "pivot_root" => (libc::SYS_pivot_root, vec![Text(c"/"), Text(c"/")], &[libc::EBUSY, libc::EINVAL]),
        "chroot" => (libc::SYS_chroot, vec![Text(c"/tmp")], NONE),
        "sethostname" => (libc::SYS_sethostname, vec![Text(c"owned"), N(5)], NONE),
        "setdomainname" => (libc::SYS_setdomainname, vec![Text(c"owned"), N(5)], NONE),
        "unshare_user" => (libc::SYS_unshare, vec![N(NEWUSER)], NONE),
        "unshare_mount" => (libc::SYS_unshare, vec![N(libc::CLONE_NEWNS as u64)], NONE),
        "unshare_net" => (libc::SYS_unshare, vec![N(libc::CLONE_NEWNET as u64)], NONE),
        "name_to_handle_at" => {
            *page = words(&[128]);
            return Some(name_to_handle(page));
        }
        "open_by_handle_at" => {
            *page = words(&[8, 1]);
            (
                libc::SYS_open_by_handle_at,
                vec![N(libc::AT_FDCWD as u64), Buffer(page), N(0)],
                &[libc::ESTALE, libc::EINVAL],
            )
        }
        "x32" => (libc::SYS_getpid | 0x4000_0000, vec![], NONE),
        "x32_ptrace" => (0x4000_0000 | 521, vec![N(0)], NONE),
        "clone3" => {
            let [low, high] = [NEWUSER as u32, 0];
            *page = words(&[low, high, 0, 0, 0, 0, 0, 0, SIGCHLD as u32]);
            return Some(child(call(libc::SYS_clone3, &mut [Buffer(page), N(64)])));
        }
        "clone_user" => return Some(child(call(libc::SYS_clone, &mut [N(NEWUSER | SIGCHLD)]))),
        // The kernel drops the upper half, and so must the filter.
        "clone_user_by_high_bits" => {
            return Some(child(call(libc::SYS_clone, &mut [N((1 << 40) | NEWUSER | SIGCHLD)])));
        }
        "setns" => return Some(setns()),
        "i386" => return Some(i386()),
        "ptrace" => return Some(traced()),
        "process_vm_readv" => return Some(read_child(libc::SYS_process_vm_readv)),
        "process_vm_writev" => return Some(read_child(libc::SYS_process_vm_writev)),
        "pidfd_getfd" => return Some(steal_descriptor()),
        "filter_on_filter" => return Some(filter_on_filter()),
        "no_new_privs" => return Some(clear_no_new_privs()),
        "capset" => return Some(capset()),
        "setuid_root" => return Some(setuid_root()),
        _ => return None,
    };
    Some(reached(call(number, &mut arguments), past))
}

fn me() -> u64 {
    u64::from(std::process::id())
}

/// A call that forks: the child ends at once.
fn child(got: io::Result<i64>) -> Got {
    match got? {
        0 => sys::exit(0),
        pid => {
            sys::wait(i32::try_from(pid).map_err(io::Error::other)?)?;
            Ok("a process in a user namespace of its own".into())
        }
    }
}

fn name_to_handle(page: &mut [u8; PAGE]) -> Got {
    let mut mount = [0; PAGE];
    let at = N(libc::AT_FDCWD as u64);
    reached(call(libc::SYS_name_to_handle_at, &mut [at, Text(c"/tmp"), Buffer(page), Buffer(&mut mount), N(0)]), NONE)
}

fn setns() -> Got {
    let space = fs::File::open("/proc/self/ns/uts")?;
    reached(call(libc::SYS_setns, &mut [N(space.as_raw_fd() as u64), N(0)]), NONE)
}

fn i386() -> Got {
    match sys::getpid_as_i386() {
        pid if pid > 0 => Ok(format!("getpid said {pid}")),
        error => Err(io::Error::from_raw_os_error(-error)),
    }
}

/// A child that asks to be traced and stops.
fn traced() -> Got {
    match sys::fork()? {
        None => {
            let traced = call(libc::SYS_ptrace, &mut [N(0)]);
            sys::exit(traced.map_or_else(|error| error.raw_os_error().unwrap_or(1), |_| 0))
        }
        Some(pid) => match sys::wait(pid)? >> 8 {
            0 => Ok("a process is traced".into()),
            error => Err(io::Error::from_raw_os_error(error)),
        },
    }
}

/// Memory of a child, which has the same addresses as ours.
fn read_child(number: i64) -> Got {
    let pid = asleep()?;
    let mut local = [0; PAGE];
    let address = local.as_ptr() as u64 + 2048;
    local[..8].copy_from_slice(&address.to_le_bytes());
    local[8..16].copy_from_slice(&8_u64.to_le_bytes());
    let mut remote = local;
    let got = call(number, &mut [N(u64::from(pid)), Buffer(&mut local), N(1), Buffer(&mut remote), N(1), N(0)]);
    end(pid)?;
    reached(got, NONE)
}

fn steal_descriptor() -> Got {
    let pid = asleep()?;
    let handle = call(libc::SYS_pidfd_open, &mut [N(u64::from(pid)), N(0)])?;
    let got = call(libc::SYS_pidfd_getfd, &mut [N(handle as u64), N(1), N(0)]);
    end(pid)?;
    reached(got, NONE)
}

fn asleep() -> io::Result<u32> {
    match sys::fork()? {
        None => loop {
            std::thread::park();
        },
        Some(pid) => u32::try_from(pid).map_err(io::Error::other),
    }
}

fn end(pid: u32) -> io::Result<()> {
    call(libc::SYS_kill, &mut [N(u64::from(pid)), N(9)])?;
    sys::wait(pid as i32).map(drop)
}

/// Filters only ever add up: one that allows everything must not open what another closed.
fn filter_on_filter() -> Got {
    let mut everything = [sys::step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW)];
    sys::filter(&mut everything, libc::SECCOMP_FILTER_FLAG_TSYNC)?;
    reached(call(libc::SYS_io_uring_setup, &mut [N(1), Buffer(&mut [0; PAGE])]), NONE)
}

fn clear_no_new_privs() -> Got {
    let refused = call(libc::SYS_prctl, &mut [N(libc::PR_SET_NO_NEW_PRIVS as u64), N(0), N(0), N(0), N(0)]);
    let status = fs::read_to_string("/proc/self/status")?;
    if status.contains("NoNewPrivs:\t0") {
        return Ok("a program may gain privileges".into());
    }
    refused.map(|value| format!("prctl said {value}"))
}

/// Every capability there is.
fn capset() -> Got {
    let mut header = words(&[0x2008_0522, 0]);
    let mut sets = words(&[u32::MAX, u32::MAX, 0, 0x1ff, 0x1ff, 0]);
    call(libc::SYS_capget, &mut [Buffer(&mut header), Buffer(&mut [0; PAGE])])?;
    match call(libc::SYS_capset, &mut [Buffer(&mut header), Buffer(&mut sets)]) {
        Ok(_) => Ok("every capability".into()),
        Err(error) => {
            let status = fs::read_to_string("/proc/self/status")?;
            let held = status.lines().find_map(|line| line.strip_prefix("CapPrm:\t")).unwrap_or_default();
            match held.trim_start_matches('0') {
                "" => Err(error),
                held => Ok(format!("it holds {held}")),
            }
        }
    }
}

fn setuid_root() -> Got {
    if rustix::process::geteuid().is_root() {
        return Ok("it is root already".into());
    }
    reached(call(libc::SYS_setresuid, &mut [N(0), N(0), N(0)]), NONE)
}

pub(super) fn text(path: &str) -> io::Result<CString> {
    CString::new(path).map_err(io::Error::other)
}
