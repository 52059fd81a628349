//! How it ends when it is asked to: programs first, in time, and not by a workload's word.

use std::{
    os::unix::process::ExitStatusExt as _,
    process::ExitStatus,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal};
use sandbar_guest::protocol::{BindRequest, StartRequest, guest_client::GuestClient};
use tonic::transport::Channel;

use super::house::{Identity, Remote};
use crate::support::{Follower, Guest, Outcome, is_alive, not_run, pid_in, stat, until};

async fn shell(client: &GuestClient<Channel>, id: &str, script: &str) -> Outcome {
    let argv = ["sh", "-c", script].map(String::from).to_vec();
    let start = StartRequest { process_id: id.into(), argv, cwd: "/".into(), ..StartRequest::default() };
    client.clone().start(start).await?;
    Ok(())
}

fn ask(pid: u32) -> Outcome {
    Ok(rustix::process::kill_process(Pid::from_raw(pid.try_into()?).ok_or("no pid")?, Signal::TERM)?)
}

async fn end(remote: &mut Remote) -> Outcome<ExitStatus> {
    let mut status = None;
    until("the guest to end", || {
        status = remote.process.try_wait().ok().flatten();
        status.is_some()
    })
    .await?;
    status.ok_or_else(|| "no status".into())
}

pub(crate) async fn takes_programs_along(_: Guest) -> Outcome {
    // A busy machine may not let it say farewell in the moment it has, but not each time.
    for _ in 0..3 {
        if ends_with_programs().await? {
            return Ok(());
        }
    }
    Err("who heeds is not asked, or has no time".into())
}

/// Whether the one that heeds had its time.
async fn ends_with_programs() -> Outcome<bool> {
    let known = Identity::new()?;
    let mut remote = Remote::start(&[&known]).await?;
    let mut client = remote.connect(&known).await?;
    client.bind(BindRequest { sandbox_id: "sbx-one".into() }).await?;
    let place = remote.directory.path().display().to_string();
    shell(
        &client,
        "heeds",
        // Its shell is interrupted when it waits, and has nothing to start.
        &format!("trap 'echo bye > {place}/bye; exit' TERM; sleep 1000 & echo $$ > {place}/one; wait"),
    )
    .await?;
    shell(&client, "ignores", &format!("trap '' TERM; echo $$ > {place}/two; sleep 1000")).await?;
    let (heeds, ignores) = (pid_in(&remote.path("one")).await?, pid_in(&remote.path("two")).await?);
    ask(remote.process.id())?;
    let status = end(&mut remote).await?;
    assert_eq!((status.code(), status.signal()), (Some(0), None));
    until("programs to be gone", || !is_alive(heeds) && !is_alive(ignores)).await?;
    Ok(std::fs::read_to_string(remote.path("bye")).is_ok_and(|said| said == "bye\n"))
}

pub(crate) async fn is_quick_when_nothing_runs(_: Guest) -> Outcome {
    let known = Identity::new()?;
    // A busy machine may hold up one or another; were the time that programs have waited for, each would take it.
    let mut took = Duration::MAX;
    for _ in 0..5 {
        let mut remote = Remote::start(&[&known]).await?;
        remote.connect(&known).await?;
        let begin = Instant::now();
        ask(remote.process.id())?;
        assert_eq!(end(&mut remote).await?.code(), Some(0));
        took = took.min(begin.elapsed());
        if took < Duration::from_secs(1) {
            return Ok(());
        }
    }
    Err(format!("it took {took:?}").into())
}

pub(crate) async fn is_not_asked_by_a_workload(_: Guest) -> Outcome {
    if !rustix::process::geteuid().is_root() {
        return not_run("ended::is_not_asked_by_a_workload", "a PID namespace needs root here");
    }
    let known = Identity::new()?;
    let mut remote =
        Remote::start_in(&["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"], &[&known]).await?;
    let mut client = remote.connect(&known).await?;
    client.bind(BindRequest { sandbox_id: "sbx-one".into() }).await?;
    shell(&client, "p", "kill -TERM 1; kill -INT 1; kill -KILL 1; kill -0 1 && echo there").await?;
    let said = Follower::open(client.clone(), "p", 0).await?.until_end().await?.text();
    assert_eq!(said, "there\n");
    shell(&client, "q", "true").await?;
    // From outside it is heard. The first process there is the child of what made the namespace.
    let outer = remote.process.id();
    let pids = std::fs::read_dir("/proc")?.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let first = pids.into_iter().find(|pid| stat(*pid).is_some_and(|(_, parent)| parent == outer)).ok_or("no guest")?;
    ask(first)?;
    assert_eq!(end(&mut remote).await?.code(), Some(0));
    Ok(())
}
