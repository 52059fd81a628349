//! What makes a fork of the guest a workload: the cgroups it lives in, then the fence. Leaders and the probe go through
//! both; minders and file workers stay outside the groups, so that nothing freezes or limits those who keep order.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::{io::Errno, process::Pid};

use crate::{
    leader::{Failure, Step},
    sys::{self, Forked},
};

/// The cgroups of a sandbox's workload. The descriptors must be closed on exec.
pub struct Group {
    /// A cgroup v2 directory in which workload processes are born.
    pub directory: Option<OwnedFd>,
    /// `cgroup.procs` files that a workload process writes itself into before it is confined: those of v1 controllers,
    /// or the v2 one when there is no directory. Each such move may take the kernel several milliseconds.
    pub joins: Vec<OwnedFd>,
}

/// How a process is turned into a workload: uid and gid, capabilities, no_new_privs, limits, Landlock, seccomp.
pub trait Confine {
    /// Opens and allocates all that it takes. Called for every process anew, in a single-threaded process that stays as
    /// it is; what is returned is then applied by a child of it.
    fn prepare(&self) -> io::Result<Box<dyn Apply + '_>>;
}

/// What a process does to itself, which cannot be undone.
pub trait Apply {
    /// Makes system calls and nothing else: it allocates and frees nothing, takes no lock and does not panic. The memory
    /// may be that of an unconfined process that goes on afterwards, and workloads may kill the caller at any point.
    /// `EIO` says that everything was applied, and something is not in force all the same.
    fn apply(&self) -> Result<(), Errno>;
}

impl<F: Fn() -> Result<(), Errno>> Apply for F {
    fn apply(&self) -> Result<(), Errno> {
        self()
    }
}

/// With nothing to prepare.
impl<F: Fn() -> Result<(), Errno>> Confine for F {
    fn prepare(&self) -> io::Result<Box<dyn Apply + '_>> {
        Ok(Box::new(self))
    }
}

pub(crate) struct Workload {
    pub(crate) group: Option<Group>,
    pub(crate) confine: Box<dyn Confine>,
}

impl Workload {
    /// Forks the calling process into the group's directory, if there is one.
    pub(crate) fn fork(&self) -> Result<Forked, Failure> {
        self.directory().map_or_else(sys::fork, sys::fork_into).map_err(|error| self.unborn(&error))
    }

    /// Like `fork`, for a body that is to execute a program: see `sys::spawn`.
    pub(crate) fn spawn(&self, body: &dyn Fn()) -> Result<Pid, Failure> {
        sys::spawn(self.directory(), body).map_err(|error| self.unborn(&error))
    }

    fn directory(&self) -> Option<BorrowedFd<'_>> {
        self.group.as_ref()?.directory.as_ref().map(AsFd::as_fd)
    }

    fn unborn(&self, error: &io::Error) -> Failure {
        // These say that there is no room for one more process, all others that the group does not take it.
        let full = matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::ENOMEM));
        Failure::new(if full || self.directory().is_none() { Step::Fork } else { Step::Group }, error)
    }

    /// Completes the membership of the calling process, which the above made. It cannot leave once it is confined.
    pub(crate) fn join(&self) -> Result<(), Failure> {
        for group in self.group.iter().flat_map(|group| &group.joins) {
            rustix::io::write(group, b"0").map_err(|errno| Failure::new(Step::Group, &errno.into()))?;
        }
        Ok(())
    }

    /// For a child that has yet to be made.
    pub(crate) fn prepare(&self) -> Result<Box<dyn Apply + '_>, Failure> {
        self.confine.prepare().map_err(|error| Failure::new(Step::Confine, &error))
    }

    /// Confines the calling process, whose memory must be its own.
    pub(crate) fn confine(&self) -> Result<(), Failure> {
        self.prepare()?.apply().map_err(|errno| Failure::new(Step::Confine, &errno.into()))
    }
}
