//! The kernel's attack surface: system calls, foreign system call tables, nested namespaces, socket families.

use crate::attack::{
    Attack, Class,
    Control::{self, Host, NotRun, PerUser, Template, Unshared, Without},
    act,
};
use crate::{
    attack::Finding,
    stage::{Stage, Target},
    support::Outcome,
};

const SECCOMP: Control = Without(&["seccomp"]);
const ORDINARY: Control =
    NotRun("the kernel refuses it to every ordinary user, and would judge root's by the host's capabilities");
/// Only the host's root is past the kernel's own check; the arguments are such that nothing can come of it.
const HOST_ROOT: Control = PerUser(&Host, &ORDINARY);

/// Without filter, Landlock and the reduction of capabilities, as root of the sandbox: any of them alone would do. An
/// ordinary user's sandbox has no root.
const OPEN_ROOT: Control = PerUser(&Template("profile = \"open\"\nuser = \"root\"\n"), &Unshared);

/// Stopped by the filter; each would otherwise reach kernel code that no workload needs.
const FILTERED: &[&str] = &[
    "io_uring_setup",
    "io_uring_enter",
    "io_uring_register",
    "userfaultfd",
    "perf_event_open",
    "keyctl",
    "add_key",
    "request_key",
    "quotactl",
    "modify_ldt",
    "clock_settime",
    "adjtimex",
    "personality",
    "kcmp",
    "fanotify_init",
    "name_to_handle_at",
    "ptrace",
    "process_vm_readv",
    "process_vm_writev",
    "pidfd_getfd",
    "unshare_user",
    "clone_user",
    "clone_user_by_high_bits",
    "filter_on_filter",
];

/// Stopped by the filter and by the lack of capabilities.
const PRIVILEGED: &[&str] = &[
    "bpf",
    "kexec_load",
    "kexec_file_load",
    "init_module",
    "finit_module",
    "delete_module",
    "swapon",
    "acct",
    "syslog",
    "iopl",
    "ioperm",
    "settimeofday",
    "open_by_handle_at",
    "reboot",
];

/// What root of a namespace may do to it, which nobody inside is.
const NAMESPACED: &[&str] = &[
    "mount",
    "fsopen",
    "open_tree",
    "pivot_root",
    "chroot",
    "setns",
    "sethostname",
    "setdomainname",
    "unshare_mount",
    "unshare_net",
    "remount",
];

/// Would leave a sandbox that nothing more can be tried in.
const DISRUPTIVE: &[&str] = &["umount2", "bind_over"];

/// Once more by root inside, whose few capabilities must not open any of them.
const BY_ROOT: &[&str] = &[
    "io_uring_setup",
    "ptrace",
    "process_vm_readv",
    "unshare_user",
    "mount",
    "fsopen",
    "chroot",
    "setns",
    "sethostname",
    "unshare_net",
    "remount",
    "socket_packet",
    "socket_raw_icmp",
];

const FAMILIES: &[&str] = &[
    "socket_vsock",
    "socket_alg",
    "socket_netlink_netfilter",
    "socket_netlink_xfrm",
    "socket_netlink_uevent",
    "socket_bluetooth",
    "socket_can",
    "socket_tipc",
    "socket_smc",
];

/// Answered as by a kernel without them, so that programs which try them first go on with TCP or UDP.
const PROTOCOLS: &[&str] = &[
    "socket_mptcp",
    "socket_mptcp_by_high_bits",
    "socket_mptcp_over_ipv6",
    "socket_udplite",
    "socket_sctp",
    "socket_dccp",
    "socket_l2tp",
    "socket_smc_over_ip",
    "protocol_on_tcp",
];

pub(crate) fn all() -> Vec<Attack> {
    let of = |names: &'static [&'static str], control: Control| {
        names.iter().map(move |name| Attack::probe(Class::Kernel, name, "EPERM", control))
    };
    let probe = |name, contained, control| Attack::probe(Class::Kernel, name, contained, control);
    let by_root = BY_ROOT.iter().map(|name| Attack::probe(Class::Kernel, name, "EPERM|EACCES", OPEN_ROOT).by_root());
    of(FILTERED, SECCOMP)
        .chain(of(PRIVILEGED, HOST_ROOT))
        .chain(of(NAMESPACED, OPEN_ROOT))
        .chain(of(DISRUPTIVE, Unshared))
        .chain(of(DISRUPTIVE, Unshared).map(Attack::by_root))
        .chain(of(FAMILIES, SECCOMP))
        .chain(by_root)
        .chain(PROTOCOLS.iter().map(|name| probe(name, "EPROTONOSUPPORT", SECCOMP)))
        .chain([
            // As on a kernel without it, which programs that log to it take for an answer.
            probe("socket_netlink_audit", "EPERM|EPROTONOSUPPORT", SECCOMP),
            probe("socket_packet", "EPERM", OPEN_ROOT),
            probe("socket_packet_by_high_bits", "EPERM", OPEN_ROOT),
            probe("socket_key", "EPERM", OPEN_ROOT),
            probe("socket_xdp", "EPERM", OPEN_ROOT),
            probe("socket_raw_icmp", "EPERM", OPEN_ROOT),
            // ENOSYS, so that a C library falls back to clone, whose flags the filter can read.
            probe("clone3", "ENOSYS", SECCOMP),
            probe("x32", "EPERM|ENOSYS", SECCOMP),
            probe("x32_ptrace", "EPERM|ENOSYS", SECCOMP),
            probe("i386", "SIGSYS", SECCOMP),
            probe("no_new_privs", "EINVAL", Without(&["no_new_privs"])),
            probe("capset", "EPERM", OPEN_ROOT),
            probe("setuid_root", "EPERM|EINVAL", OPEN_ROOT),
            probe("no_route_tcp", "ENETUNREACH", Control::Act("to loopback", act!(loopback))),
            probe("no_route_udp", "ENETUNREACH", Control::Act("to loopback", act!(loopback))),
        ])
        .collect()
}

async fn loopback(stage: &Stage, target: &Target) -> Outcome<Finding> {
    stage.probe(target, &["own_loopback"]).await
}
