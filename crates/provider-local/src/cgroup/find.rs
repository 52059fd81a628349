//! Where the host mounts which hierarchy, and where in it we may make groups.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// What a group can limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Controller {
    Memory,
    Processes,
    Cpu,
}

impl Controller {
    pub(crate) const ALL: [Self; 3] = [Self::Memory, Self::Processes, Self::Cpu];

    /// As the kernel calls it.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Processes => "pids",
            Self::Cpu => "cpu",
        }
    }
}

/// Mounted hierarchies, and where in each of them this process is.
#[derive(Debug, Default)]
pub(crate) struct Hierarchies {
    /// Lines of `/proc/self/mountinfo` that are cgroup mounts.
    mounts: Vec<Mount>,
    /// `/proc/self/cgroup`.
    own: String,
}

#[derive(Debug, PartialEq, Eq)]
struct Mount {
    root: PathBuf,
    place: PathBuf,
    /// `None`: the unified hierarchy. Otherwise the controllers of an old one.
    controllers: Option<Vec<String>>,
}

impl Hierarchies {
    pub(crate) fn read() -> Self {
        // Without them there is nothing to be found, and whatever needs it says so.
        let mountinfo = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        Self { mounts: mountinfo.lines().filter_map(parse).collect(), own }
    }

    /// The mount of the unified hierarchy.
    pub(crate) fn mount(&self) -> PathBuf {
        let unified = self.mounts.iter().find(|mount| mount.controllers.is_none());
        unified.map(|mount| mount.place.clone()).unwrap_or_default()
    }

    /// Root makes groups at the top; anybody else only below its own.
    pub(crate) fn unified(&self, root: bool) -> Option<PathBuf> {
        let mount = self.mounts.iter().find(|mount| mount.controllers.is_none())?;
        if root { Some(mount.place.clone()) } else { self.below(mount, "") }
    }

    pub(crate) fn old(&self, root: bool) -> Vec<(Controller, PathBuf)> {
        let place = |controller: Controller| {
            let name = controller.as_str();
            let has = |mount: &&Mount| mount.controllers.as_ref().is_some_and(|all| all.iter().any(|one| one == name));
            let mount = self.mounts.iter().find(has)?;
            let place = if root { mount.place.clone() } else { self.below(mount, name)? };
            Some((controller, place))
        };
        Controller::ALL.into_iter().filter_map(place).collect()
    }

    /// Our own group in a hierarchy, as seen through its mount.
    fn below(&self, mount: &Mount, controller: &str) -> Option<PathBuf> {
        let path = self.own.lines().find_map(|line| {
            let mut parts = line.splitn(3, ':').skip(1);
            let names = parts.next()?;
            let here =
                if controller.is_empty() { names.is_empty() } else { names.split(',').any(|one| one == controller) };
            here.then(|| parts.next())?
        })?;
        let below = Path::new(path).strip_prefix(&mount.root).ok()?;
        Some(mount.place.join(below))
    }
}

fn parse(line: &str) -> Option<Mount> {
    let (head, tail) = line.split_once(" - ")?;
    let mut tail = tail.split(' ');
    let kind = tail.next()?;
    let options = tail.nth(1)?;
    let mut head = head.split(' ').skip(3);
    let (root, place) = (PathBuf::from(head.next()?), PathBuf::from(head.next()?));
    match kind {
        "cgroup2" => Some(Mount { root, place, controllers: None }),
        "cgroup" => Some(Mount { root, place, controllers: Some(options.split(',').map(str::to_owned).collect()) }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "\
30 25 0:26 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
31 25 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
32 25 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
33 25 0:29 / /home rw - ext4 /dev/sda rw";

    fn hierarchies(mountinfo: &str, own: &str) -> Hierarchies {
        Hierarchies { mounts: mountinfo.lines().filter_map(parse).collect(), own: own.to_owned() }
    }

    #[test]
    fn old_and_unified_hierarchies_are_told_apart() {
        let found = hierarchies(HYBRID, "4:memory:/a/b\n1:cpu,cpuacct:/\n0::/u");
        assert_eq!(found.unified(true), Some("/sys/fs/cgroup/unified".into()));
        assert_eq!(found.unified(false), Some("/sys/fs/cgroup/unified/u".into()));
        assert_eq!(
            found.old(true),
            [
                (Controller::Memory, "/sys/fs/cgroup/memory".into()),
                (Controller::Cpu, "/sys/fs/cgroup/cpu,cpuacct".into()),
            ]
        );
        assert_eq!(found.old(false)[0].1, PathBuf::from("/sys/fs/cgroup/memory/a/b"));
    }

    #[test]
    fn a_container_sees_its_own_group_as_the_root() {
        let found = hierarchies("30 25 0:26 /docker/x /sys/fs/cgroup rw - cgroup2 cgroup rw", "0::/docker/x/inner");
        assert_eq!(found.unified(false), Some("/sys/fs/cgroup/inner".into()));
        assert_eq!(hierarchies("", "").unified(true), None);
    }
}
