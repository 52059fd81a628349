//! Limits as the kernel's files want them, in the unified hierarchy and in the old ones.

use std::{collections::BTreeSet, fs, io, path::Path};

use sandbar_api::Limits;
use sandbar_provider::Error;

use super::find::Controller;

/// The period over which processor time is counted, in microseconds.
const PERIOD: u64 = 100_000;

/// Which controllers the limits need, and the value each is given: bytes, a number, or microseconds per period.
pub(crate) fn wanted(limits: &Limits) -> Vec<(Controller, String)> {
    let memory = limits.memory.map(|memory| (Controller::Memory, memory.0.to_string()));
    let processes = limits.processes.map(|processes| (Controller::Processes, processes.to_string()));
    // At least a millisecond, which is the least that the kernel takes.
    let quota = |cpu: f64| ((cpu * PERIOD as f64) as u64).max(1000);
    let cpu = limits.cpus.map(|cpu| (Controller::Cpu, quota(cpu).to_string()));
    memory.into_iter().chain(processes).chain(cpu).collect()
}

pub(super) fn refused(controller: Controller, cause: String) -> Error {
    let layer = match controller {
        Controller::Memory => "memory limit",
        Controller::Processes => "process limit",
        Controller::Cpu => "cpu limit",
    };
    let fix = format!(
        "Run the server as root, or in a delegated cgroup with the {} controller \
         (systemd-run --user --scope -p Delegate=yes); or leave the limit out of the template.",
        controller.as_str()
    );
    Error::NotEnforceable { layer, cause, fix }
}

/// Makes the unified hierarchy's controllers available below `home`, from its mount down, and tells which are.
pub(super) fn hand_down(home: &Path, mount: &Path) -> BTreeSet<Controller> {
    let Ok(below) = home.strip_prefix(mount) else { return BTreeSet::new() };
    let mut at = mount.to_owned();
    let mut available = controllers(&at);
    for part in below.components() {
        // A group that has processes of its own may not hand any down: then it is simply not available.
        available.retain(|controller| enable(&at, [*controller]).is_ok());
        at.push(part);
    }
    available.retain(|controller| enable(home, [*controller]).is_ok());
    available
}

fn controllers(path: &Path) -> BTreeSet<Controller> {
    let text = fs::read_to_string(path.join("cgroup.controllers")).unwrap_or_default();
    let has = |controller: &Controller| text.split_whitespace().any(|word| word == controller.as_str());
    Controller::ALL.into_iter().filter(has).collect()
}

pub(super) fn enable(path: &Path, controllers: impl IntoIterator<Item = Controller>) -> io::Result<()> {
    controllers
        .into_iter()
        .try_for_each(|controller| fs::write(path.join("cgroup.subtree_control"), format!("+{}", controller.as_str())))
}

pub(super) fn set_unified(work: &Path, controller: Controller, value: &str) -> io::Result<()> {
    match controller {
        Controller::Memory => {
            fs::write(work.join("memory.max"), value)?;
            // What does not fit must end, not wander to the disk; hosts without swap have no such file.
            present(fs::write(work.join("memory.swap.max"), "0"))
        }
        Controller::Processes => fs::write(work.join("pids.max"), value),
        Controller::Cpu => fs::write(work.join("cpu.max"), format!("{value} {PERIOD}")),
    }
}

pub(super) fn set_old(own: &Path, controller: Controller, value: &str) -> io::Result<()> {
    match controller {
        Controller::Memory => {
            fs::write(own.join("memory.limit_in_bytes"), value)?;
            present(fs::write(own.join("memory.memsw.limit_in_bytes"), value))
        }
        Controller::Processes => fs::write(own.join("pids.max"), value),
        Controller::Cpu => {
            fs::write(own.join("cpu.cfs_period_us"), PERIOD.to_string())?;
            fs::write(own.join("cpu.cfs_quota_us"), value)
        }
    }
}

fn present(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        // Where swap is not accounted the file is there and refuses.
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(()),
        other => other,
    }
}

pub(super) fn read_unified(work: &Path, controller: Controller) -> Option<(&'static str, String)> {
    let file = match controller {
        Controller::Memory => "memory.max",
        Controller::Processes => "pids.max",
        Controller::Cpu => "cpu.max",
    };
    read(work, file)
}

pub(super) fn read_old(own: &Path, controller: Controller) -> Option<(&'static str, String)> {
    match controller {
        Controller::Memory => read(own, "memory.limit_in_bytes"),
        Controller::Processes => read(own, "pids.max"),
        Controller::Cpu => read(own, "cpu.cfs_quota_us"),
    }
}

/// The file and the first word in it: behind `cpu.max` stands the period as well.
fn read(directory: &Path, file: &'static str) -> Option<(&'static str, String)> {
    let text = fs::read_to_string(directory.join(file)).ok()?;
    text.split_whitespace().next().map(|value| (file, value.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_stated_is_wanted() {
        assert!(wanted(&Limits::default()).is_empty());
        let limits = Limits { cpus: Some(1.5), processes: Some(64), ..Limits::default() };
        assert_eq!(wanted(&limits), [(Controller::Processes, "64".into()), (Controller::Cpu, "150000".into())]);
        let tiny = Limits { cpus: Some(0.0001), ..Limits::default() };
        assert_eq!(wanted(&tiny), [(Controller::Cpu, "1000".into())]);
    }
}
