//! The fence. Seccomp, no_new_privs and a bounding set are put on the guest once, for all it will ever fork: the kernel
//! takes most of a millisecond to check a filter. Landlock, user and capabilities follow for each workload process
//! between fork and exec, by system calls alone: it may still live in its parent's memory and be killed at any point. It
//! then looks whether all of it is in force. Not for the guest: it needs its capabilities, and a landlocked process does
//! not see mounts made later.

use std::{collections::BTreeMap, io, os::fd::OwnedFd, path::Path};

use landlock::{
    ABI, Access, AccessFs, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreated,
    RulesetCreatedAttr,
};
use rustix::{
    io::Errno,
    process::{Gid, Resource, Rlimit, Uid},
    thread::{CapabilitySet, CapabilitySets},
};
use sandbar_api::{Layer, Requirement, User};
use sandbar_guest::{Apply, Confine};
use seccompiler::BpfProgram;

use crate::{
    filter::{self, BadFilter},
    step::{Failure, Step},
    sys,
    uids::{Uids, WORKLOAD},
};

const FILTERS: &str = include_str!("../fence/seccomp.json");

const WORKSPACE: &str = "/workspace";
/// Where a workload may write, as far as its user may. Elsewhere it reads and executes: /etc and /proc are not its own.
const WRITABLE: &[&str] = &["/home", "/root", "/tmp", "/var", "/run", "/opt", "/srv", "/mnt", "/media", "/dev"];
/// And where root inside may: package managers write there. Never /proc.
const WRITABLE_BY_ROOT: &[&str] = &["/usr", "/etc", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/boot"];

/// What root inside keeps: to own files, whoever they belong to inside, and to become another user inside.
const ROOT_CAPABILITIES: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETUID);

/// The least that is required: with it truncating and renaming are judged too (kernel 6.2).
const REQUIRED: ABI = ABI::V3;
/// What is handled where the kernel knows it: ioctls on devices.
const WANTED: ABI = ABI::V5;

/// The compiled filters, shared by all sandboxes forked from here.
pub(crate) struct Fence {
    workload: BpfProgram,
    /// Of two that refuse, the one installed later says how; so these come after the first.
    answers: [BpfProgram; 2],
    no_exec: BpfProgram,
    absent: BpfProgram,
}

/// What is asked of a fence.
pub(crate) struct Wanted<'a> {
    pub uids: Uids,
    pub user: User,
    pub layers: &'a BTreeMap<Layer, Requirement>,
    pub open_files: Option<u32>,
    /// Where workloads may write besides.
    pub writable: &'a [String],
}

/// What a process does to itself on its way to the workload's program.
struct Workload {
    uids: Uids,
    user: User,
    asked: [Requirement; 3],
    capabilities: Option<CapabilitySet>,
    landlock: Option<RulesetCreated>,
    absent: Option<BpfProgram>,
    open_files: Option<u32>,
}

/// A workload process to be: nothing is left to open or to allocate.
struct Prepared<'a> {
    workload: &'a Workload,
    rules: Option<OwnedFd>,
}

impl Fence {
    pub(crate) fn compile() -> Result<Self, BadFilter> {
        Ok(Self {
            workload: filter::compile(FILTERS, "workload")?,
            answers: [filter::compile(FILTERS, "unsupported")?, filter::compile(FILTERS, "pretended")?],
            no_exec: filter::compile(FILTERS, "no_exec")?,
            absent: filter::compile(FILTERS, "absent")?,
        })
    }

    /// Fences a guest whose view is finished; what is returned does the rest to each workload process.
    pub(crate) fn arm(&self, wanted: &Wanted<'_>) -> Result<Box<dyn Confine>, Failure> {
        let asked = |layer| wanted.layers.get(&layer).copied().unwrap_or(Requirement::Off);
        let kept = match (asked(Layer::Capabilities), wanted.user) {
            (Requirement::Off, _) => None,
            (_, User::Agent) => Some(CapabilitySet::empty()),
            (_, User::Root) => Some(ROOT_CAPABILITIES),
        };
        if let Some(kept) = kept {
            // The guest executes nothing itself, so it keeps what it has; what it executes has nothing more to gain.
            let bounded = bound(kept).map_err(Failure::at(Step::Capabilities, "reduce the bounding set"));
            or_without(asked(Layer::Capabilities), bounded)?;
        }
        let landlock = match asked(Layer::Landlock) {
            Requirement::Off => None,
            requirement => {
                let built = ruleset(wanted).map_err(Failure::at(Step::Landlock, "build the ruleset"));
                or_without(requirement, built)?
            }
        };
        if asked(Layer::NoNewPrivs) != Requirement::Off {
            let set = rustix::thread::set_no_new_privs(true);
            let set = set.map_err(|errno| Failure::at(Step::NoNewPrivs, "set no_new_privs")(errno.into()));
            or_without(asked(Layer::NoNewPrivs), set)?;
        }
        let mut absent = None;
        if asked(Layer::Seccomp) != Requirement::Off {
            let no_exec = (asked(Layer::NoExec) != Requirement::Off).then_some(&self.no_exec);
            let mut filters = [&self.workload].into_iter().chain(&self.answers).chain(no_exec);
            let installed = filters.try_for_each(|filter| sys::install_filter(filter));
            let installed = installed.map_err(|errno| Failure::at(Step::Seccomp, "install the filters")(errno.into()));
            absent = or_without(asked(Layer::Seccomp), installed)?.map(|()| self.absent.clone());
        }
        Ok(Box::new(Workload {
            uids: wanted.uids,
            user: wanted.user,
            asked: [Layer::Capabilities, Layer::NoNewPrivs, Layer::Seccomp].map(asked),
            capabilities: kept,
            landlock,
            absent,
            open_files: wanted.open_files,
        }))
    }
}

/// A layer that is optional may be missing; the report will say so.
fn or_without<T>(requirement: Requirement, applied: Result<T, Failure>) -> Result<Option<T>, Failure> {
    match applied {
        Ok(applied) => Ok(Some(applied)),
        Err(_) if requirement == Requirement::Optional => Ok(None),
        Err(failure) => Err(failure),
    }
}

impl Confine for Workload {
    fn prepare(&self) -> io::Result<Box<dyn Apply + '_>> {
        let rules = self.landlock.as_ref().map(with_workspace).transpose()?;
        Ok(Box::new(Prepared { workload: self, rules }))
    }
}

impl Apply for Prepared<'_> {
    /// Landlock and the last filter come before the capabilities go: without no_new_privs, which the guest has set, they
    /// need one.
    fn apply(&self) -> Result<(), Errno> {
        let workload = self.workload;
        if let Some(open_files) = workload.open_files {
            limit_open_files(open_files.into())?;
        }
        if let Some(rules) = &self.rules {
            sys::restrict_self(rules)?;
        }
        if let Some(absent) = &workload.absent {
            sys::install_filter(absent)?;
        }
        workload.become_user()?;
        workload.verify()
    }
}

impl Workload {
    fn become_user(&self) -> Result<(), Errno> {
        if let (Uids::Range(_), User::Agent) = (self.uids, self.user) {
            let (uid, gid) = (Uid::from_raw(WORKLOAD), Gid::from_raw(WORKLOAD));
            rustix::thread::set_thread_groups(&[])?;
            rustix::thread::set_thread_res_gid(gid, gid, gid)?;
            rustix::thread::set_thread_res_uid(uid, uid, uid)?;
        }
        let Some(kept) = self.capabilities else { return Ok(()) };
        rustix::thread::clear_ambient_capability_set()?;
        let none = CapabilitySet::empty();
        rustix::thread::set_capabilities(None, CapabilitySets { effective: kept, permitted: kept, inheritable: none })
    }

    /// What was applied is looked at, in this very process: a kernel that says yes and does nothing must not pass.
    fn verify(&self) -> Result<(), Errno> {
        let [capabilities, no_new_privs, seccomp] = self.asked.map(|asked| asked == Requirement::Required);
        let reduced = match self.capabilities {
            Some(kept) if capabilities => kept.contains(rustix::thread::capabilities(None)?.permitted),
            _ => true,
        };
        let in_force =
            reduced && (!no_new_privs || rustix::thread::no_new_privs()?) && (!seccomp || sys::is_filtered());
        if in_force { Ok(()) } else { Err(Errno::IO) }
    }
}

/// Named for each process anew: a rule holds for the directory that was there, and a workspace may be bound late.
fn with_workspace(rules: &RulesetCreated) -> io::Result<OwnedFd> {
    let mut rules = rules.try_clone()?;
    // A pod that serves runtimes alone may have none, and then nobody writes there.
    if Path::new(WORKSPACE).exists() {
        let workspace = PathFd::new(WORKSPACE).map_err(io::Error::other)?;
        let workspace = PathBeneath::new(workspace, AccessFs::from_all(WANTED));
        rules = rules.add_rule(workspace).map_err(io::Error::other)?;
    }
    Option::from(rules).ok_or_else(|| io::Error::other("landlock is not in force"))
}

/// Never more than there was.
fn limit_open_files(wanted: u64) -> Result<(), Errno> {
    let now = rustix::process::getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
    let limit = Some(wanted.min(now));
    rustix::process::setrlimit(Resource::Nofile, Rlimit { current: limit, maximum: limit })
}

fn bound(kept: CapabilitySet) -> io::Result<()> {
    for number in 0..64 {
        let one = CapabilitySet::from_bits_retain(1 << number);
        if kept.contains(one) {
            continue;
        }
        match rustix::thread::capability_is_in_bounding_set(one) {
            // To remove one takes a capability; whoever has none has often nothing to remove either.
            Ok(true) => rustix::thread::remove_capability_from_bounding_set(one)?,
            Ok(false) => {}
            // One past the last capability this kernel knows.
            Err(Errno::INVAL) => return Ok(()),
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

fn ruleset(wanted: &Wanted<'_>) -> io::Result<RulesetCreated> {
    let open = |path: &str| PathFd::new(path).map_err(io::Error::other);
    let by_root = if wanted.user == User::Root { WRITABLE_BY_ROOT } else { &[] };
    let besides = wanted.writable.iter().map(String::as_str);
    let writable: Vec<PathFd> = WRITABLE
        .iter()
        .chain(by_root)
        .copied()
        .chain(besides)
        .filter(|path| Path::new(path).exists())
        .map(open)
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
