//! The steps of making a sandbox that can fail, and what each failure means to a person.

use std::io;

use sandbar_provider::Error;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Step {
    Listen,
    Namespaces,
    UidMap,
    Idmap,
    Identity,
    Mounts,
    Programs,
    Root,
    Proc,
    Dev,
    Workspace,
    Skills,
    Disk,
    Layers,
    ReadOnly,
    NoExec,
    Bind,
    Keep,
    Pivot,
    Hostname,
    Loopback,
    Capabilities,
    NoNewPrivs,
    Landlock,
    Seccomp,
}

/// A step that failed, small enough to cross from the launcher or the booting guest to the server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Failure {
    pub step: Step,
    pub errno: Option<i32>,
    pub detail: String,
}

impl Failure {
    pub(crate) fn at(step: Step, detail: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let detail = detail.into();
        move |error| Self { step, errno: error.raw_os_error(), detail: format!("{detail}: {error}") }
    }

    pub(crate) fn into_error(self) -> Error {
        let (layer, fix) = match self.step {
            // Not layers: what fails there is ours, or the disk's.
            Step::Keep if matches!(self.errno, Some(libc::ENOSPC | libc::EDQUOT)) => {
                return Error::DiskFull { path: "the snapshot".into() };
            }
            Step::Listen | Step::Bind | Step::Keep => {
                let source = self.errno.map_or_else(|| io::Error::other("unknown"), io::Error::from_raw_os_error);
                return Error::Io { action: self.detail, source };
            }
            Step::Namespaces => ("user namespaces", namespaces_fix(self.errno)),
            Step::UidMap | Step::Identity => {
                ("uid separation", "Run as root, or as an ordinary user outside of a container that forbids uid maps.")
            }
            Step::Idmap => (
                "idmapped mounts",
                "Keep Sandbar's home, images, bound workspaces and skills on ext4, xfs, btrfs or tmpfs (kernel 6.3 or newer).",
            ),
            Step::Mounts | Step::Pivot => (
                "mount view",
                "Allow mounts in user namespaces: sysctl -w kernel.apparmor_restrict_unprivileged_userns=0 (Ubuntu), or run outside the container that forbids them.",
            ),
            Step::Programs => (
                "mount view",
                "Keep /usr on a filesystem that can be an overlay's lower layer (not one that is itself an overlay on an overlay), and Sandbar's home outside of it.",
            ),
            Step::Root => (
                "root overlay",
                "Use kernel 5.11 or newer, and keep Sandbar's home on a filesystem that can be an overlay's upper layer (ext4, xfs, btrfs, tmpfs).",
            ),
            Step::Proc => (
                "private /proc",
                "A container that masks parts of /proc forbids a fresh one: run outside it, or with its /proc unmasked.",
            ),
            Step::Dev => ("private /dev", "The host's /dev must have null, zero, full, random, urandom and tty."),
            Step::Workspace => (
                "workspace",
                "The workspace must be a directory that the server may read, with nothing mounted below it.",
            ),
            Step::Skills => (
                "skills",
                "Skills must be a directory that the server may read, with nothing mounted below it; and a root that was written to before must have a directory at /skills, or nothing.",
            ),
            Step::Disk => (
                "disk limit",
                "Use a kernel with loop devices and ext4, and run the server as root; or leave the limit out of the template.",
            ),
            Step::Layers => {
                ("snapshot layers", "Use kernel 6.7 or newer, and keep Sandbar's home on ext4, xfs, btrfs or tmpfs.")
            }
            Step::ReadOnly => ("read-only root", "Use kernel 5.12 or newer."),
            Step::NoExec => ("no execution outside the workspace", "Use kernel 5.12 or newer."),
            Step::NoNewPrivs => ("no_new_privs", "Use kernel 3.5 or newer."),
            Step::Hostname => ("uts namespace", "The host name must be accepted by the kernel."),
            Step::Loopback => ("network namespace", "Use a kernel with network namespaces and IPv4."),
            Step::Capabilities => ("capabilities", "Use a kernel that lets a process drop its capabilities."),
            Step::Landlock => {
                ("landlock", "Use kernel 6.2 or newer with landlock in the `lsm=` list (CONFIG_SECURITY_LANDLOCK).")
            }
            Step::Seccomp => ("seccomp", "Use a kernel with CONFIG_SECCOMP_FILTER."),
        };
        Error::NotEnforceable { layer, cause: self.detail, fix: fix.to_owned() }
    }
}

/// Which sysctl it is depends on how the kernel refused.
pub(crate) fn namespaces_fix(errno: Option<i32>) -> &'static str {
    match errno {
        Some(libc::ENOSPC | libc::EUSERS) => "Raise the limit: sysctl -w user.max_user_namespaces=65536",
        Some(libc::EPERM | libc::EACCES) => {
            "Allow them: sysctl -w kernel.unprivileged_userns_clone=1 (Debian) or kernel.apparmor_restrict_unprivileged_userns=0 (Ubuntu); inside a container, its seccomp profile must allow clone3."
        }
        Some(libc::EINVAL | libc::ENOSYS) => {
            "Use kernel 5.12 or newer with CONFIG_USER_NS, CONFIG_PID_NS, CONFIG_NET_NS, CONFIG_IPC_NS, CONFIG_UTS_NS and CONFIG_CGROUPS."
        }
        _ => "See `sandbar doctor`.",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_without_user_namespaces_is_told_its_sysctl() {
        let failure =
            |errno| Failure { step: Step::Namespaces, errno: Some(errno), detail: "clone3".into() }.into_error();
        for (errno, sysctl) in [(libc::ENOSPC, "user.max_user_namespaces"), (libc::EPERM, "unprivileged_userns_clone")]
        {
            let Error::NotEnforceable { layer, fix, .. } = failure(errno) else { panic!("another error") };
            assert_eq!(layer, "user namespaces");
            assert!(fix.contains(sysctl), "{fix}");
        }
    }
}
