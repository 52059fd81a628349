//! Which processes are in the workload's cgroup, and which must not be.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
};

use sandbar_guest::protocol::ProbeRequest;

use crate::support::{Guest, Outcome, Variant, code, not_run, pid_in, stat, until};

#[derive(Clone, Copy)]
pub(crate) enum Hierarchy {
    Unified,
    Pids,
}

/// A cgroup of the test's own, removed when it is dropped.
pub(crate) struct Cgroup(PathBuf);

impl Hierarchy {
    /// Or why this host has none for us.
    pub(crate) fn make(self) -> Result<Cgroup, String> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let mounted: &[&str] = match self {
            Self::Unified => &["/sys/fs/cgroup/unified", "/sys/fs/cgroup"],
            Self::Pids => &["/sys/fs/cgroup/pids"],
        };
        let root = mounted.iter().map(Path::new).find(|root| root.join("cgroup.procs").exists());
        let root = root.ok_or_else(|| format!("none of {mounted:?} is a cgroup"))?;
        let name = format!("sandbar-guest-test-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = root.join(name);
        fs::create_dir(&path).map_err(|error| format!("{} cannot be made: {error}", path.display()))?;
        Ok(Cgroup(path))
    }
}

impl Cgroup {
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn name(&self) -> String {
        format!("/{}", self.0.file_name().unwrap_or_default().to_string_lossy())
    }

    fn holds(&self, pid: u32) -> Outcome<bool> {
        let groups = fs::read_to_string(format!("/proc/{pid}/cgroup"))?;
        Ok(groups.lines().any(|line| line.ends_with(&self.name())))
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // A frozen or dying member keeps it for a moment.
        let _ = fs::write(self.file("cgroup.freeze"), "0");
        for _ in 0..200 {
            match fs::remove_dir(&self.0) {
                Err(error) if error.kind() == std::io::ErrorKind::ResourceBusy => {
                    std::thread::sleep(std::time::Duration::from_millis(10));
                }
                _ => return,
            }
        }
    }
}

/// A workload that stays in its group while its keepers stay outside.
async fn check(guest: &Guest, group: &Cgroup) -> Outcome {
    let script = "cat /proc/self/cgroup; ls /proc/self/fd; echo $$ > leader; echo end; exec sleep 1000";
    guest.client.clone().start(guest.script("p", script)).await?;
    let mut follower = guest.follow("p", 0).await?;
    follower.until_text("end").await?;
    let leader = pid_in(&guest.path("leader")).await?;
    let (_, minder) = stat(leader).ok_or("no leader")?;
    assert!(group.holds(leader)?, "the leader is outside");
    assert!(!group.holds(minder)?, "the minder is inside");
    assert!(!group.holds(guest.pid())?, "the guest is inside");
    let text = follower.ended.text();
    assert!(text.contains(&group.name()), "{text}");
    // 0, 1, 2 and the directory that `ls` reads: no handle of the group leaked.
    assert_eq!(text.lines().filter(|line| line.parse::<u32>().is_ok()).count(), 4, "{text}");
    let held = fs::read_dir(format!("/proc/{minder}/fd"))?.flatten().filter_map(|fd| fs::read_link(fd.path()).ok());
    for target in held {
        assert!(!target.starts_with("/sys/fs/cgroup"), "the minder holds {}", target.display());
    }
    let facts = guest.client.clone().probe(ProbeRequest::default()).await?.into_inner().facts;
    assert!(facts["cgroup"].split(';').any(|line| line.ends_with(&group.name())), "{facts:?}");
    Ok(())
}

pub(crate) async fn workloads_are_born_in_the_directory(_: Guest) -> Outcome {
    let group = match Hierarchy::Unified.make() {
        Ok(group) => group,
        Err(why) => return not_run("cgroups::workloads_are_born_in_the_directory", &why),
    };
    let guest = Guest::start_as(Variant { directory: Some(group.file("")), ..Variant::default() }).await?;
    check(&guest, &group).await?;
    drop(guest);
    Ok(())
}

pub(crate) async fn workloads_join_what_they_are_given(_: Guest) -> Outcome {
    let groups = Hierarchy::Unified.make().and_then(|first| Ok([first, Hierarchy::Pids.make()?]));
    let groups = match groups {
        Ok(groups) => groups,
        Err(why) => return not_run("cgroups::workloads_join_what_they_are_given", &why),
    };
    let joins = groups.iter().map(|group| group.file("cgroup.procs")).collect();
    let guest = Guest::start_as(Variant { joins, fenced: true, ..Variant::default() }).await?;
    rustix::fs::chmod(guest.directory.path(), rustix::fs::Mode::from_raw_mode(0o777))?;
    check(&guest, &groups[0]).await?;
    let leader = pid_in(&guest.path("leader")).await?;
    assert!(groups[1].holds(leader)?, "the leader is in the first group only");
    drop(guest);
    Ok(())
}

pub(crate) async fn nothing_starts_outside_its_group(_: Guest) -> Outcome {
    for born in [true, false] {
        let group = match Hierarchy::Unified.make() {
            Ok(group) => group,
            Err(why) => return not_run("cgroups::nothing_starts_outside_its_group", &why),
        };
        let variant = if born {
            Variant { directory: Some(group.file("")), ..Variant::default() }
        } else {
            Variant { joins: vec![group.file("cgroup.procs")], ..Variant::default() }
        };
        let guest = Guest::start_as(variant).await?;
        assert_eq!(guest.run(guest.script("control", "echo fine")).await?.text(), "fine\n");
        until("the group to be empty", || fs::remove_dir(group.file("")).is_ok()).await?;
        let refused = guest.client.clone().start(guest.script("p", "touch ran")).await.err().ok_or("it started")?;
        assert_eq!(code(&refused), "internal");
        assert!(refused.message().contains("cgroup"), "{}", refused.message());
        let refused = guest.client.clone().probe(ProbeRequest::default()).await.err().ok_or("it probed")?;
        assert!(refused.message().contains("cgroup"), "{}", refused.message());
        assert!(!guest.path("ran").exists() && guest.status("p").await?.is_none());
        until("minders to end", || guest.children().is_empty()).await?;
    }
    Ok(())
}

pub(crate) async fn freezing_leaves_the_guest_alone(_: Guest) -> Outcome {
    let group = match Hierarchy::Unified.make() {
        Ok(group) => group,
        Err(why) => return not_run("cgroups::freezing_leaves_the_guest_alone", &why),
    };
    let guest = Guest::start_as(Variant { directory: Some(group.file("")), ..Variant::default() }).await?;
    let script = "while :; do echo tick; sleep 0.01; done";
    guest.client.clone().start(guest.script("p", script)).await?;
    let mut follower = guest.follow("p", 0).await?;
    follower.until_text("tick").await?;
    fs::write(group.file("cgroup.freeze"), "1")?;
    let frozen = || fs::read_to_string(group.file("cgroup.events")).is_ok_and(|events| events.contains("frozen 1"));
    until("the group to be frozen", frozen).await?;
    assert!(guest.status("p").await?.is_some());
    guest.signal("p", libc::SIGKILL).await?;
    assert_eq!(follower.until_end().await?.code(), Some(137));
    Ok(())
}

pub(crate) async fn a_start_that_froze_can_be_killed(_: Guest) -> Outcome {
    let group = match Hierarchy::Unified.make() {
        Ok(group) => group,
        Err(why) => return not_run("cgroups::a_start_that_froze_can_be_killed", &why),
    };
    fs::write(group.file("cgroup.freeze"), "1")?;
    let guest = Guest::start_as(Variant { directory: Some(group.file("")), ..Variant::default() }).await?;
    let mut client = guest.client.clone();
    let start = tokio::spawn({
        let request = guest.script("p", "touch ran");
        async move { client.start(request).await }
    });
    let born = || fs::read_to_string(group.file("cgroup.procs")).is_ok_and(|pids| !pids.is_empty());
    until("the leader to be born", born).await?;
    assert!(!start.is_finished());
    guest.signal("p", libc::SIGKILL).await?;
    assert!(start.await?.is_err(), "it started");
    until("everything to be gone", || !born() && guest.children().is_empty()).await?;
    assert!(!guest.path("ran").exists());
    Ok(())
}
