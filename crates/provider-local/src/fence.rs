//! The fence. Seccomp, no_new_privs and an empty bounding set are put on the guest once, for all it will ever fork:
//! the kernel takes most of a millisecond to check a filter. User, capabilities and Landlock follow for each workload
//! process between fork and exec. Not for the guest: it needs its capabilities, and a landlocked process does not see
//! mounts made later.

use std::io;

use landlock::{
    ABI, Access, AccessFs, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreated,
    RulesetCreatedAttr, RulesetStatus,
};
use rustix::{
    io::Errno,
    process::{Gid, Uid},
    thread::{CapabilitySet, CapabilitySets},
};
use seccompiler::BpfProgram;

use crate::{
    filter::{self, BadFilter},
    step::{Failure, Step},
    uids::{Uids, WORKLOAD},
};

const FILTERS: &str = include_str!("../fence/seccomp.json");

/// Where a workload may write, as far as its user may. Elsewhere it reads and executes: /etc and /proc are not its own.
const WRITABLE: &[&str] =
    &["/workspace", "/home", "/root", "/tmp", "/var", "/run", "/opt", "/srv", "/mnt", "/media", "/dev"];

/// The least that is required: with it truncating and renaming are judged too (kernel 6.2).
const REQUIRED: ABI = ABI::V3;
/// What is handled where the kernel knows it: ioctls on devices.
const WANTED: ABI = ABI::V5;

/// The compiled filters, shared by all sandboxes forked from here.
pub(crate) struct Fence {
    workload: BpfProgram,
    absent: BpfProgram,
}

impl Fence {
    pub(crate) fn compile() -> Result<Self, BadFilter> {
        Ok(Self { workload: filter::compile(FILTERS, "workload")?, absent: filter::compile(FILTERS, "absent")? })
    }

    /// Fences a guest whose view is finished; what is returned does the rest to the process that calls it.
    pub(crate) fn arm(&self, uids: Uids) -> Result<Box<dyn Fn() -> io::Result<()>>, Failure> {
        // The guest executes nothing itself, so it keeps what it has; whatever it executes starts with nothing to gain.
        drop_bounding_set().map_err(Failure::at(Step::Capabilities, "empty the bounding set"))?;
        let landlock = ruleset().map_err(Failure::at(Step::Landlock, "build the ruleset"))?;
        rustix::thread::set_no_new_privs(true)
            .map_err(|errno| Failure::at(Step::Capabilities, "set no_new_privs")(errno.into()))?;
        for filter in [&self.absent, &self.workload] {
            seccompiler::apply_filter(filter)
                .map_err(|error| Failure::at(Step::Seccomp, "install the filter")(io::Error::other(error)))?;
        }
        Ok(Box::new(move || {
            become_workload(uids)?;
            let status = landlock.try_clone()?.restrict_self().map_err(io::Error::other)?;
            if status.ruleset == RulesetStatus::NotEnforced || !status.no_new_privs {
                return Err(io::Error::other("landlock is not in force"));
            }
            Ok(())
        }))
    }
}

fn become_workload(uids: Uids) -> io::Result<()> {
    if let Uids::Range(_) = uids {
        let (uid, gid) = (Uid::from_raw(WORKLOAD), Gid::from_raw(WORKLOAD));
        rustix::thread::set_thread_groups(&[])?;
        rustix::thread::set_thread_res_gid(gid, gid, gid)?;
        rustix::thread::set_thread_res_uid(uid, uid, uid)?;
    }
    let none = CapabilitySet::empty();
    rustix::thread::clear_ambient_capability_set()?;
    rustix::thread::set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })?;
    Ok(())
}

fn drop_bounding_set() -> io::Result<()> {
    for number in 0..64 {
        match rustix::thread::remove_capability_from_bounding_set(CapabilitySet::from_bits_retain(1 << number)) {
            Ok(()) => {}
            // One past the last capability this kernel knows.
            Err(Errno::INVAL) => return Ok(()),
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

fn ruleset() -> io::Result<RulesetCreated> {
    let open = |path: &str| PathFd::new(path).map_err(io::Error::other);
    let writable: Vec<PathFd> = WRITABLE
        .iter()
        .filter(|path| std::path::Path::new(path).exists())
        .map(|path| open(path))
        .collect::<Result<_, _>>()?;
    let root = open("/")?;
    let made = || -> Result<RulesetCreated, landlock::RulesetError> {
        let read = AccessFs::from_read(WANTED);
        let all = AccessFs::from_all(WANTED);
        let mut rules = Ruleset::default()
            .set_compatibility(CompatLevel::HardRequirement)
            .handle_access(AccessFs::from_all(REQUIRED))?
            .set_compatibility(CompatLevel::BestEffort)
            .handle_access(all)?
            .create()?
            .add_rule(PathBeneath::new(root, read))?;
        for place in writable {
            rules = rules.add_rule(PathBeneath::new(place, all))?;
        }
        Ok(rules)
    };
    made().map_err(io::Error::other)
}
