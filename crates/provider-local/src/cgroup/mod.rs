//! Control groups of sandboxes. The unified hierarchy (v2), wherever it is mounted, is where a sandbox's workload
//! processes are kept together, frozen and counted; limits go to its controllers, or to those of the old hierarchies (v1)
//! where the host still has them. The guest stays outside: it is neither frozen nor limited.

mod find;
mod limit;
mod watch;

use std::{
    collections::BTreeSet,
    fs, io,
    os::{
        fd::OwnedFd,
        unix::{ffi::OsStrExt, fs::chown},
    },
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::fs::{Mode, OFlags};
use sandbar_api::{Limits, SandboxId};
use sandbar_provider::{Counters, Error};
use serde::{Deserialize, Serialize};

use crate::uids::Uids;

pub(crate) use find::Controller;
pub(crate) use limit::wanted;

/// The group of the workload's processes, below the sandbox's own.
const WORK: &str = "work";
/// The guest's, where the sandbox's own may not have processes because it hands controllers down.
const GUEST: &str = "guest";
const TOP: &str = "sandbar";
/// Who waits for a disk cannot stand still before it has answered, and a busy one takes its time.
const FREEZING: Duration = Duration::from_secs(20);

/// The kernel lets go of a group's last member a moment after its end was seen: between two looks, in milliseconds.
const PAUSES: [u64; 9] = [1, 2, 5, 10, 20, 50, 100, 200, 500];
/// And on a busy host.
const MORE: [u64; 20] = [1000; 20];

/// How soon a sandbox that has run into its process limit is noticed.
const LOOK: Duration = Duration::from_millis(100);

/// The groups of one home's sandboxes.
#[derive(Debug)]
pub(crate) struct Groups {
    /// Of the unified hierarchy: this home's directory in it; or why there is none.
    unified: Result<PathBuf, String>,
    /// What the unified hierarchy can limit.
    unified_controllers: BTreeSet<Controller>,
    /// What an old hierarchy can limit, and this home's directory there.
    old: Vec<(Controller, PathBuf)>,
}

/// What a launch needs of a sandbox's groups.
#[derive(Debug)]
pub(crate) struct Opened {
    /// Where the guest is born.
    pub guest: OwnedFd,
    /// Where workload processes are born.
    pub work: OwnedFd,
    /// Groups they enter by themselves.
    pub joins: Vec<OwnedFd>,
}

/// Which descriptors of a launch belong to groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Shape {
    pub joins: usize,
}

/// A limit that the kernel has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct InForce {
    /// Set in the unified hierarchy, or in the controller's own.
    pub unified: bool,
    pub file: &'static str,
    pub value: String,
}

impl Groups {
    /// Finds the hierarchies and makes this home's directory in the unified one.
    pub(crate) fn open(directory: &Path) -> Self {
        let home = name(directory);
        let found = find::Hierarchies::read();
        let root = rustix::process::geteuid().is_root();
        let unified = match found.unified(root) {
            Some(top) => {
                let path = top.join(TOP).join(&home);
                sweep(&top.join(TOP));
                fs::create_dir_all(&path).map(|()| path).map_err(|error| format!("{}: {error}", top.display()))
            }
            None => Err("no cgroup v2 hierarchy is mounted".into()),
        };
        let unified_controllers =
            unified.as_ref().map(|path| limit::hand_down(path, &found.mount())).unwrap_or_default();
        for (_, top) in found.old(root) {
            sweep(&top.join(TOP));
        }
        let old =
            found.old(root).into_iter().map(|(controller, top)| (controller, top.join(TOP).join(&home))).collect();
        Self { unified, unified_controllers, old }
    }

    pub(crate) fn can_freeze(&self) -> Result<(), &str> {
        self.unified.as_ref().map(|_| ()).map_err(String::as_str)
    }

    /// Where a controller's limits would be set, for people.
    pub(crate) fn can_limit(&self, controller: Controller) -> Result<&'static str, String> {
        if self.unified_controllers.contains(&controller) {
            return Ok("cgroup v2");
        }
        let Some((_, path)) = self.old.iter().find(|(known, _)| *known == controller) else {
            return Err(format!("no cgroup hierarchy has the {} controller", controller.as_str()));
        };
        fs::create_dir_all(path).map(|()| "cgroup v1").map_err(|error| format!("{}: {error}", path.display()))
    }

    /// Makes the groups of a sandbox that is about to start, with its limits; finds them again if they are there.
    /// `None` where the host lets us make none and no limit is stated.
    pub(crate) fn make(&self, id: &SandboxId, limits: &Limits, uids: Uids) -> Result<Option<Opened>, Error> {
        let wanted = limit::wanted(limits);
        for (controller, _) in &wanted {
            self.can_limit(*controller).map_err(|cause| limit::refused(*controller, cause))?;
        }
        let Ok(home) = &self.unified else {
            let joins = self.make_old(id, &wanted)?;
            // Limits without the unified hierarchy would leave nothing to find the processes by.
            return if joins.is_empty() {
                Ok(None)
            } else {
                Err(limit::refused(wanted[0].0, "cgroup v2 is not mounted".into()))
            };
        };
        let own = home.join(id.as_str());
        let failed = |error| Error::io(format!("make the cgroup {}", own.display()))(error);
        let unified: Vec<_> =
            wanted.iter().filter(|(controller, _)| self.unified_controllers.contains(controller)).cloned().collect();
        // With its parent: another server may have swept that away while it was empty.
        fs::create_dir_all(&own).map_err(failed)?;
        let guest = if unified.is_empty() { own.clone() } else { own.join(GUEST) };
        directory(&guest).map_err(failed)?;
        if !unified.is_empty() {
            // Handed down again: one that was swept away and made anew hands down nothing.
            limit::enable(home, unified.iter().map(|(controller, _)| *controller)).map_err(failed)?;
            limit::enable(&own, unified.iter().map(|(controller, _)| *controller)).map_err(failed)?;
        }
        let work = own.join(WORK);
        directory(&work).map_err(failed)?;
        // One that was found again may stand still since its last sandbox was paused.
        fs::write(work.join("cgroup.freeze"), "0").map_err(failed)?;
        for (controller, value) in &unified {
            limit::set_unified(&work, *controller, value)
                .map_err(|error| limit::refused(*controller, error.to_string()))?;
        }
        if let Some(root) = uids.root_on_host() {
            // The guest moves its own children between these two and nothing else.
            for path in [&own, &work] {
                chown(path.join("cgroup.procs"), Some(root), Some(root)).map_err(failed)?;
            }
        }
        let joins = self.make_old(id, &wanted)?;
        Ok(Some(Opened { guest: open(&guest).map_err(failed)?, work: open(&work).map_err(failed)?, joins }))
    }

    fn make_old(&self, id: &SandboxId, wanted: &[(Controller, String)]) -> Result<Vec<OwnedFd>, Error> {
        let mut joins = Vec::new();
        for (controller, value) in wanted {
            if self.unified_controllers.contains(controller) {
                continue;
            }
            let Some((_, home)) = self.old.iter().find(|(known, _)| known == controller) else { continue };
            let own = home.join(id.as_str());
            let made = fs::create_dir_all(&own)
                .and_then(|()| limit::set_old(&own, *controller, value))
                .and_then(|()| fs::File::options().write(true).open(own.join("cgroup.procs")));
            joins.push(made.map_err(|error| limit::refused(*controller, error.to_string()))?.into());
        }
        Ok(joins)
    }

    /// A sandbox's groups, innermost first.
    fn of(&self, id: &SandboxId) -> Vec<PathBuf> {
        let unified = self.unified.iter().flat_map(|home| {
            let own = home.join(id.as_str());
            [own.join(WORK), own.join(GUEST), own]
        });
        unified.chain(self.old.iter().map(|(_, home)| home.join(id.as_str()))).collect()
    }

    /// Removes a sandbox's groups once its processes are gone.
    pub(crate) async fn remove(&self, id: &SandboxId) -> io::Result<()> {
        for path in self.of(id) {
            let mut pauses = PAUSES.into_iter().chain(MORE);
            while !is_gone(&path)? {
                let pause = pauses.next().ok_or_else(|| still_used(&path))?;
                tokio::time::sleep(Duration::from_millis(pause)).await;
            }
        }
        Ok(())
    }

    /// Removes the groups of sandboxes that are no more; who opens a home does not wait long for one that stays.
    pub(crate) fn remove_all_but(&self, kept: &[SandboxId]) -> io::Result<()> {
        self.all_but(kept)?.iter().try_for_each(|path| gone(path, PAUSES))
    }

    fn all_but(&self, kept: &[SandboxId]) -> io::Result<Vec<PathBuf>> {
        let homes = self.unified.iter().chain(self.old.iter().map(|(_, home)| home));
        let mut ids = BTreeSet::new();
        for home in homes.clone() {
            let Ok(entries) = fs::read_dir(home) else { continue };
            for entry in entries {
                ids.extend(entry?.file_name().to_str().and_then(|name| name.parse::<SandboxId>().ok()));
            }
        }
        Ok(ids.iter().filter(|id| !kept.contains(id)).flat_map(|id| self.of(id)).collect())
    }

    /// For a home that goes away.
    pub(crate) fn close(&self) -> io::Result<()> {
        let homes = self.unified.iter().chain(self.old.iter().map(|(_, home)| home));
        let all = self.all_but(&[])?;
        all.iter().chain(homes).try_for_each(|path| gone(path, PAUSES.into_iter().chain(MORE)))
    }

    fn work(&self, id: &SandboxId) -> Option<PathBuf> {
        self.unified.as_ref().ok().map(|home| home.join(id.as_str()).join(WORK))
    }

    pub(crate) async fn freeze(&self, id: &SandboxId) -> Result<(), Error> {
        let work = self.work(id).ok_or_else(|| self.no_freezer())?;
        let failed = || Error::io("freeze the sandbox's processes");
        fs::write(work.join("cgroup.freeze"), "1").map_err(|error| self.no_group(error, failed()))?;
        if let Err(error) = tokio::time::timeout(FREEZING, frozen(&work)).await.unwrap_or_else(|_| {
            Err(io::Error::new(io::ErrorKind::TimedOut, format!("some still ran after {} s", FREEZING.as_secs())))
        }) {
            self.thaw(id)?;
            return Err(failed()(error));
        }
        Ok(())
    }

    pub(crate) fn thaw(&self, id: &SandboxId) -> Result<(), Error> {
        let work = self.work(id).ok_or_else(|| self.no_freezer())?;
        fs::write(work.join("cgroup.freeze"), "0")
            .map_err(|error| self.no_group(error, Error::io("thaw the sandbox's processes")))
    }

    pub(crate) fn is_frozen(&self, id: &SandboxId) -> bool {
        self.work(id)
            .is_some_and(|work| fs::read_to_string(work.join("cgroup.freeze")).is_ok_and(|text| text.trim() == "1"))
    }

    fn no_freezer(&self) -> Error {
        let cause = self.unified.as_ref().err().cloned().unwrap_or_default();
        Error::NotEnforceable {
            layer: "freezing",
            cause,
            fix: "Run the server as root, or in a delegated cgroup (systemd-run --user --scope -p Delegate=yes)."
                .into(),
        }
    }

    /// A sandbox that was started by a version that made no groups.
    fn no_group(&self, error: io::Error, failed: impl FnOnce(io::Error) -> Error) -> Error {
        if error.kind() == io::ErrorKind::NotFound {
            return Error::NotEnforceable {
                layer: "freezing",
                cause: "the sandbox has no cgroup".into(),
                fix: "Stop and start the sandbox.".into(),
            };
        }
        failed(error)
    }

    pub(crate) fn counters(&self, id: &SandboxId) -> Counters {
        let mut counters = Counters::default();
        if let Some(work) = self.work(id) {
            counters.cpu = number(&work.join("cpu.stat"), "usage_usec").map(Duration::from_micros);
            counters.oom_kills = number(&work.join("memory.events"), "oom_kill").unwrap_or(0);
            counters.refused_forks = number(&work.join("pids.events"), "max").unwrap_or(0);
            counters.processes_full = is_full(&work);
        }
        for (controller, home) in &self.old {
            let own = home.join(id.as_str());
            match controller {
                Controller::Memory => {
                    counters.oom_kills += number(&own.join("memory.oom_control"), "oom_kill").unwrap_or(0);
                }
                Controller::Processes => {
                    counters.refused_forks += number(&own.join("pids.events"), "max").unwrap_or(0);
                    counters.processes_full |= is_full(&own);
                }
                Controller::Cpu => {}
            }
        }
        counters
    }

    /// What a limit is, as the kernel has it now.
    pub(crate) fn in_force(&self, id: &SandboxId, controller: Controller) -> Option<InForce> {
        if self.unified_controllers.contains(&controller) {
            let (file, value) = limit::read_unified(&self.work(id)?, controller)?;
            return Some(InForce { unified: true, file, value });
        }
        let (_, home) = self.old.iter().find(|(known, _)| *known == controller)?;
        let (file, value) = limit::read_old(&home.join(id.as_str()), controller)?;
        Some(InForce { unified: false, file, value })
    }

    /// The file that changes when a fork was refused.
    fn fork_events(&self, id: &SandboxId) -> Option<PathBuf> {
        let unified = self.work(id).map(|work| work.join("pids.events"));
        let old = self.old.iter().find(|(controller, _)| *controller == Controller::Processes);
        let old = old.map(|(_, home)| home.join(id.as_str()).join("pids.events"));
        unified.into_iter().chain(old).find(|path| path.exists())
    }

    pub(crate) async fn refused_fork(&self, id: &SandboxId) -> io::Result<()> {
        let Some(path) = self.fork_events(id) else { return std::future::pending().await };
        let before = number(&path, "max");
        // The old hierarchy's file does not tell when it changes.
        while number(&path, "max") == before {
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    }
}

/// Servers that were killed, and whose homes are gone, leave an empty directory each. One with groups in it stays.
fn sweep(top: &Path) {
    for entry in fs::read_dir(top).into_iter().flatten().flatten() {
        fs::remove_dir(entry.path()).ok();
    }
}

/// A home's name among the groups: FNV-1a of its path, not a secret, only a name.
fn name(directory: &Path) -> String {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in directory.as_os_str().as_bytes() {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    }
    format!("{hash:016x}")
}

fn directory(path: &Path) -> io::Result<()> {
    match fs::create_dir(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

fn open(path: &Path) -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}

/// False while it still has processes.
fn is_gone(path: &Path) -> io::Result<bool> {
    match fs::remove_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => Ok(false),
        other => other.map(|()| true),
    }
}

fn gone(path: &Path, pauses: impl IntoIterator<Item = u64>) -> io::Result<()> {
    let mut pauses = pauses.into_iter();
    while !is_gone(path)? {
        let pause = pauses.next().ok_or_else(|| still_used(path))?;
        std::thread::sleep(Duration::from_millis(pause));
    }
    Ok(())
}

fn still_used(path: &Path) -> io::Error {
    io::Error::other(format!("{} still has processes", path.display()))
}

async fn frozen(work: &Path) -> io::Result<()> {
    watch::until(&work.join("cgroup.events"), |text| word(text, "frozen") == Some(1)).await
}

/// Some are always ending: nearly all of what is allowed counts as all of it.
fn is_full(group: &Path) -> bool {
    let read = |file: &str| fs::read_to_string(group.join(file)).ok()?.trim().parse::<u64>().ok();
    matches!((read("pids.current"), read("pids.max")), (Some(current), Some(max)) if current + max / 8 >= max)
}

/// The number after a word in a file of such lines.
fn number(path: &Path, name: &str) -> Option<u64> {
    word(&fs::read_to_string(path).ok()?, name)
}

fn word(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}
