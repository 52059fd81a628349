//! What the probe tells, and that it tells the truth: the same attempts with and without a fence.

use std::{collections::HashMap, fs, time::Instant};

use sandbar_guest::protocol::{ProbeRequest, REACH_KUBERNETES};

use crate::{
    cgroups::Hierarchy,
    support::{Guest, Outcome, Variant, not_run, until},
};

async fn probe(guest: &Guest) -> Outcome<HashMap<String, String>> {
    Ok(guest.client.clone().probe(ProbeRequest::default()).await?.into_inner().facts)
}

/// Attempts that work must reach nobody else, and a directory without programs is needed.
const PRIVATE: &[&str] = &["unshare", "--mount", "--propagation", "private"];
const PRIVATE_NOEXEC: &[&str] = &[
    "unshare",
    "--mount",
    "--propagation",
    "private",
    "sh",
    "-c",
    "mount --bind /tmp /tmp && mount -o remount,bind,noexec,nosuid /tmp && exec \"$0\"",
];

async fn guests() -> Result<[Guest; 2], String> {
    if !rustix::process::geteuid().is_root() {
        return Err("a mount namespace needs root here".into());
    }
    let open = Variant { wrapper: PRIVATE.to_vec(), ..Variant::default() };
    let fenced = Variant { wrapper: PRIVATE_NOEXEC.to_vec(), fenced: true, ..Variant::default() };
    let start = |variant| async { Guest::start_as(variant).await.map_err(|error| error.to_string()) };
    Ok([start(open).await?, start(fenced).await?])
}

pub(crate) async fn tells_what_there_is(_: Guest) -> Outcome {
    let [open, fenced] = match guests().await {
        Ok(guests) => guests,
        Err(why) => return not_run("probe::tells_what_there_is", &why),
    };
    let facts = probe(&fenced).await?;
    for (key, wanted) in [
        ("status.Uid", "65534 65534 65534 65534"),
        ("status.Gid", "65534 65534 65534 65534"),
        ("status.Groups", ""),
        ("status.CapEff", "0000000000000000"),
        ("status.NoNewPrivs", "1"),
        ("status.Seccomp", "0"),
    ] {
        assert_eq!(facts.get(key).map(String::as_str), Some(wanted), "{key} of {facts:?}");
    }
    // What a shell in the same guest finds.
    let same = |key: &'static str, script: &'static str| (key, script);
    for (key, script) in [
        same("ns.mnt", "readlink /proc/self/ns/mnt"),
        same("ns.cgroup", "readlink /proc/self/ns/cgroup"),
        same("hostname", "uname -n"),
        same("pid1", "cat /proc/1/comm"),
        same("uid_map", "cat /proc/self/uid_map | tr -s ' ' | sed 's/^ //'"),
        same("cgroup", "cat /proc/self/cgroup | paste -sd ';'"),
        same("rlimit.nofile", "echo $(ulimit -Sn) $(ulimit -Hn)"),
        same("statfs.tmp", "stat -f -c '%b %S' /tmp | awk '{printf \"%.0f\\n\", $1*$2}'"),
    ] {
        let told = fenced.run(fenced.script(key, &format!("cd /; {script}"))).await?.text();
        assert_eq!(facts.get(key).map(String::as_str), Some(told.trim_end()), "{key}");
    }
    for key in [
        "status.CapBnd",
        "status.Seccomp_filters",
        "ns.user",
        "ns.pid",
        "ns.net",
        "ns.ipc",
        "ns.uts",
        "pids",
        "interfaces",
        "routes",
        "rlimit.core",
        "mount.root",
        "mount.usr",
        "mount.run",
        "mount.shm",
        "mount.proc",
        "landlock.abi",
    ] {
        let told = facts.get(key).ok_or_else(|| format!("no {key}"))?;
        assert!(!told.is_empty() && (!told.starts_with("error: ") || key == "landlock.abi"), "{key} is {told}");
    }
    assert!(facts["interfaces"].split(' ').any(|name| name == "lo"));
    let noexec =
        |facts: &HashMap<String, String>| facts["mount.tmp"].split([' ', ',']).any(|option| option == "noexec");
    assert!(noexec(&facts), "{}", facts["mount.tmp"]);
    assert!(!noexec(&probe(&open).await?));
    // There is none here.
    assert_eq!(facts["statfs.workspace"], "error: ENOENT");
    Ok(())
}

pub(crate) async fn is_refused_by_a_fence_and_by_nothing_else(_: Guest) -> Outcome {
    let [open, fenced] = match guests().await {
        Ok(guests) => guests,
        Err(why) => return not_run("probe::is_refused_by_a_fence_and_by_nothing_else", &why),
    };
    let (open_facts, facts) = (probe(&open).await?, probe(&fenced).await?);
    for (attempt, refusal) in [
        ("ptrace", "EPERM"),
        ("mount", "EPERM"),
        ("setuid_root", "EPERM"),
        ("mknod", "EPERM"),
        ("write_root", "EACCES"),
        ("write_usr", "EACCES"),
        ("exec_tmp", "EPERM"),
    ] {
        let key = format!("try.{attempt}");
        assert_eq!(open_facts.get(&key).map(String::as_str), Some("ok"), "{key} without a fence");
        assert_eq!(facts.get(&key).map(String::as_str), Some(refusal), "{key} with a fence");
    }
    // These are forbidden by nothing that this fence has.
    let write = if facts["landlock.abi"].starts_with("error: ") { "there is no Landlock" } else { "ok" };
    for (attempt, wanted) in [("write_proc", write), ("clone3", "ok")] {
        assert_eq!(facts.get(&format!("try.{attempt}")).map(String::as_str), Some(wanted), "{attempt}");
    }
    for attempt in ["bpf", "io_uring", "perf_event", "keyctl", "userfaultfd", "tiocsti", "unshare_user"] {
        let told = facts.get(&format!("try.{attempt}")).ok_or_else(|| format!("no {attempt}"))?;
        assert!(told == "ok" || told.starts_with('E'), "{attempt} is {told}");
        assert!(open_facts.contains_key(&format!("try.{attempt}")));
    }
    // The guest that was traced for a moment, and the places that were written to, are as before.
    assert_eq!(open.run(open.script("p", "ls -A / /usr; mount")).await?.text().matches("sandbar-probe").count(), 0);
    until("probes to be reaped", || open.children().is_empty() && fenced.children().is_empty()).await
}

pub(crate) async fn is_given_up_when_it_hangs(_: Guest) -> Outcome {
    let group = match Hierarchy::Unified.make() {
        Ok(group) => group,
        Err(why) => return not_run("probe::is_given_up_when_it_hangs", &why),
    };
    fs::write(group.file("cgroup.freeze"), "1")?;
    let guest = Guest::start_as(Variant { directory: Some(group.file("")), ..Variant::default() }).await?;
    let begin = Instant::now();
    let told = guest.client.clone().probe(ProbeRequest::default()).await.err().ok_or("it answered")?;
    assert!(told.message().contains("did not answer"), "{}", told.message());
    assert!(begin.elapsed().as_secs() < 60);
    // Also when nobody waits for its answer any more.
    let mut client = guest.client.clone();
    let call = tokio::spawn(async move { client.probe(ProbeRequest::default()).await.map(|_| ()) });
    until("the probe to be born", || !guest.children().is_empty()).await?;
    call.abort();
    until("the probe to be killed", || guest.children().is_empty()).await
}

pub(crate) async fn knows_the_cluster_by_the_guests_environment(without: Guest) -> Outcome {
    let reach = || ProbeRequest { reach: vec![REACH_KUBERNETES.into()] };
    let told = without.client.clone().probe(reach()).await?.into_inner().facts;
    assert_eq!(told["reach.kubernetes"], "not an address: KUBERNETES_SERVICE_HOST is not set");
    // Nobody has an address of this network.
    let wrapper = vec!["env", "KUBERNETES_SERVICE_HOST=192.0.2.1", "KUBERNETES_SERVICE_PORT=443"];
    let within = Guest::start_as(Variant { wrapper, ..Variant::default() }).await?;
    let told = within.client.clone().probe(reach()).await?.into_inner().facts;
    assert!(told.get("reach.192.0.2.1:443").is_some_and(|outcome| outcome != "ok"), "{told:?}");
    Ok(())
}
