//! What sandboxes may leave on a host when they are gone: processes, descriptors, mounts, loop devices, control groups,
//! uids, files. Nothing.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use crate::support::{Outcome, Server, groups, leftovers, until};

/// A process, never mistaken for a later one with the same number.
type Process = (u32, String);

pub(crate) struct Traces {
    /// Descriptors of processes that the server holds before there is any sandbox.
    pidfds: usize,
    /// The launchers of servers that were killed.
    launchers: BTreeSet<Process>,
}

impl Traces {
    pub(crate) fn begin(server: &Server) -> Outcome<Self> {
        Ok(Self { pidfds: pidfds(server.pid()), launchers: BTreeSet::new() })
    }

    /// Before a server is killed.
    pub(crate) fn note(&mut self, server: &Server) {
        self.launchers.extend(children(server.pid()));
    }

    /// Of sandboxes, with the server still there.
    pub(crate) async fn expect_none_but_the_server(&self, server: &Server) -> Outcome {
        self.expect(server, || {
            let mut left = on_host(server)?;
            let launchers = children(server.pid());
            if launchers.len() != 1 {
                left.push(format!("{} children of the server", launchers.len()));
            }
            for (launcher, _) in &launchers {
                left.extend(children(*launcher).into_iter().map(|(pid, _)| format!("child {pid} of the launcher")));
            }
            for pid in launchers.iter().map(|(pid, _)| *pid).chain([server.pid()]) {
                left.extend(held(pid).into_iter().map(|path| format!("{} held by {pid}", path.display())));
            }
            let held = pidfds(server.pid());
            if held > self.pidfds {
                left.push(format!("{held} processes watched by the server instead of {}", self.pidfds));
            }
            Ok(left)
        })
        .await
    }

    /// Of the killed server either.
    pub(crate) async fn expect_none(&self, server: &Server) -> Outcome {
        self.expect(server, || {
            let mut left = on_host(server)?;
            let home = server.home.path();
            for pid in pids() {
                let places =
                    ["cwd", "root"].into_iter().filter_map(|link| fs::read_link(format!("/proc/{pid}/{link}")).ok());
                let held = open(pid).into_iter().chain(places).filter(|path| path.starts_with(home));
                left.extend(held.map(|path| format!("{} held by {pid}", path.display())));
            }
            Ok(left)
        })
        .await
    }

    /// The kernel frees the dead a moment later.
    async fn expect(&self, server: &Server, look: impl Fn() -> Outcome<Vec<String>>) -> Outcome {
        let mut left = vec![];
        let gone = until("nothing is left", async || {
            left = look()?;
            let launchers = self.launchers.iter().filter(|(pid, start)| started(*pid).as_ref() == Some(start));
            left.extend(launchers.map(|(pid, _)| format!("launcher {pid} of a server that was killed")));
            Ok(left.is_empty())
        });
        gone.await.map_err(|error| format!("{error}: {left:?} of {}", server.home.path().display()).into())
    }
}

fn on_host(server: &Server) -> Outcome<Vec<String>> {
    let home = server.home.path();
    let mut left = leftovers(home)?;
    // A home's own group stays for the next server.
    let below = |group: &PathBuf| group.parent().and_then(Path::file_name).is_some_and(|parent| parent != "sandbar");
    left.extend(groups(home)?.into_iter().filter(below).map(|group| format!("control group {}", group.display())));
    let name = home.file_name().ok_or("the root is no home")?.to_string_lossy().into_owned();
    for device in fs::read_dir("/sys/block")?.flatten() {
        let backing = fs::read_to_string(device.path().join("loop/backing_file")).unwrap_or_default();
        if backing.contains(&name) {
            left.push(format!("{} of {}", device.file_name().display(), backing.trim()));
        }
    }
    // Blank disks and output files are made ahead, as nobody's yet.
    let places: [(&str, &[&str]); 3] =
        [("local", &["base-", "layers", "blank-"]), ("local/layers", &[]), ("output", &[".making", ".ready"])];
    for (place, kept) in places {
        for entry in fs::read_dir(home.join(place))? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if !kept.iter().any(|kept| name.starts_with(kept)) {
                left.push(format!("file {place}/{name}"));
            }
        }
    }
    Ok(left)
}

fn pids() -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| *pid != std::process::id()).collect()
}

/// The fields of a process's status after its name, if it lives. The dead are for whoever adopted them to bury.
fn status(pid: u32) -> Option<Vec<String>> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    Some(stat.rsplit(')').next()?.split_whitespace().map(str::to_owned).collect())
}

/// When it was started, if it lives.
fn started(pid: u32) -> Option<String> {
    status(pid).filter(|fields| fields[0] != "Z")?.get(19).cloned()
}

/// Dead ones too: their parent has to bury them.
fn children(parent: u32) -> Vec<Process> {
    let parent = parent.to_string();
    let of = |pid: u32| status(pid).filter(|fields| fields[1] == parent).map(|fields| (pid, fields[19].clone()));
    pids().into_iter().filter_map(of).collect()
}

/// What a process has open.
fn open(pid: u32) -> Vec<PathBuf> {
    let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    open.filter_map(|entry| fs::read_link(entry.path()).ok()).collect()
}

/// Those of sandboxes, snapshots and their output.
fn held(pid: u32) -> Vec<PathBuf> {
    let of_sandbox = |path: &PathBuf| {
        let mut parts = path.components().map(|part| part.as_os_str().to_string_lossy());
        parts.any(|part| ["sbx-", "snp-", "prc-"].iter().any(|prefix| part.starts_with(prefix)))
    };
    open(pid).into_iter().filter(of_sandbox).collect()
}

fn pidfds(pid: u32) -> usize {
    open(pid).iter().filter(|path| path.to_string_lossy() == "anon_inode:[pidfd]").count()
}
