//! What ends a process that takes too much: the guest's part of limits.

use std::fs;

use sandbar_guest::protocol::{ExitReason, ForgetRequest, RelieveRequest, StartRequest};

use crate::{
    cgroups::Hierarchy,
    support::{Guest, Outcome, Variant, code_of, is_alive, not_run, pid_in, until},
};

async fn relieve(guest: &Guest, reason: ExitReason) -> Result<String, tonic::Status> {
    let reply = guest.client.clone().relieve(RelieveRequest { reason: reason.into() }).await?;
    Ok(reply.into_inner().process_id)
}

/// A leader with a number of children that are all there when the file appears.
fn family(size: u32) -> String {
    format!("i=0; while [ $i -lt {size} ]; do sleep 1000 & i=$((i+1)); done; echo $$ > size{size}; wait")
}

pub(crate) async fn relieves_of_the_largest_tree(guest: Guest) -> Outcome {
    for (id, size) in [("a", 2), ("b", 6), ("c", 4)] {
        guest.client.clone().start(guest.script(id, &family(size))).await?;
    }
    let mut leaders = Vec::new();
    for size in [2, 6, 4] {
        leaders.push(pid_in(&guest.path(&format!("size{size}"))).await?);
    }
    let mut minders = leaders.len();
    for (id, left) in [("b", vec![0, 2]), ("c", vec![0]), ("a", vec![])] {
        assert_eq!(relieve(&guest, ExitReason::PidsLimit).await?, id);
        let exit = guest.follow(id, 0).await?.until_end().await?.exit.ok_or("no exit")?;
        assert_eq!((exit.code, exit.signal, exit.reason()), (137, 9, ExitReason::PidsLimit));
        for index in left {
            assert!(is_alive(leaders[index]), "a neighbour died with {id}");
        }
        // As long as some of it is left, it is the one again.
        until("its minder to end", || guest.children().len() < minders).await?;
        minders -= 1;
    }
    assert_eq!(relieve(&guest, ExitReason::PidsLimit).await?, "");
    Ok(())
}

const THREADS: &str = "import threading, time
for _ in range(20): threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
open('threads', 'w').write('1\\n')
time.sleep(1000)";

pub(crate) async fn relieves_of_threads_too(guest: Guest) -> Outcome {
    let python = StartRequest { argv: vec!["python3".into(), "-c".into(), THREADS.into()], ..guest.script("t", "") };
    if code_of(guest.client.clone().start(python).await) != "ok" {
        return not_run("limits::relieves_of_threads_too", "there is no python3");
    }
    guest.client.clone().start(guest.script("f", &family(5))).await?;
    pid_in(&guest.path("threads")).await?;
    pid_in(&guest.path("size5")).await?;
    assert_eq!(relieve(&guest, ExitReason::PidsLimit).await?, "t");
    Ok(())
}

pub(crate) async fn relieves_when_nothing_can_be_forked(_: Guest) -> Outcome {
    let group = match Hierarchy::Pids.make() {
        Ok(group) => group,
        Err(why) => return not_run("limits::relieves_when_nothing_can_be_forked", &why),
    };
    fs::write(group.file("pids.max"), "12")?;
    let guest = Guest::start_as(Variant { joins: vec![group.file("cgroup.procs")], ..Variant::default() }).await?;
    guest.client.clone().start(guest.script("quiet", "echo $$ > quiet; exec sleep 1000")).await?;
    let quiet = pid_in(&guest.path("quiet")).await?;
    let full = || fs::read_to_string(group.file("pids.current")).is_ok_and(|current| current.trim() == "12");
    // With the neighbour and the leader, exactly as many as there may be.
    guest.client.clone().start(guest.script("bomb", &family(10))).await?;
    until("the group to be full", full).await?;
    assert_eq!(relieve(&guest, ExitReason::PidsLimit).await?, "bomb");
    let exit = guest.follow("bomb", 0).await?.until_end().await?.exit.ok_or("no exit")?;
    assert_eq!(exit.reason(), ExitReason::PidsLimit);
    assert!(is_alive(quiet), "a neighbour died");
    assert_eq!(guest.run(guest.script("next", "echo room")).await?.text(), "room\n");
    Ok(())
}

pub(crate) async fn relieves_of_nothing_when_nothing_runs(guest: Guest) -> Outcome {
    guest.run(guest.script("over", "exit 1")).await?;
    assert_eq!(relieve(&guest, ExitReason::PidsLimit).await?, "");
    assert_eq!(code_of(relieve(&guest, ExitReason::ByItself).await), "bad_request");
    Ok(())
}

const READ: usize = 64 * 1024;

pub(crate) async fn cuts_off_output(guest: Guest) -> Outcome {
    for (id, script) in [
        ("endless", "yes"),
        ("both", "yes & yes >&2; wait"),
        // Ended by itself, but not all it wrote is kept.
        ("short", "head -c 60000 /dev/zero; exit 0"),
    ] {
        let request = StartRequest { max_output: 50_000, ..guest.script(id, script) };
        let ended = guest.run(request).await?;
        let kept = ended.stdout.len() + ended.stderr.len();
        assert!((50_001..=50_000 + READ).contains(&kept), "{kept} bytes of {id} were kept");
        let exit = ended.exit.ok_or("no exit")?;
        assert_eq!(exit.reason(), ExitReason::OutputLimit, "{id}: {exit:?}");
    }
    until("everything to be gone", || guest.children().is_empty()).await
}

/// It wrote too much and ended before the guest, which stood still, read anything. Which of the two the guest hears of first
/// is its luck, so it is tried often.
pub(crate) async fn tells_of_a_limit_that_was_found_after_the_end(guest: Guest) -> Outcome {
    for round in 0..16 {
        let (id, pid) = (format!("p{round}"), format!("pid{round}"));
        let script =
            format!("echo $$ > {pid}; while [ ! -e go{round} ]; do sleep 0.01; done; exec head -c 60000 /dev/zero");
        let request = StartRequest { max_output: 50_000, ..guest.script(&id, &script) };
        guest.client.clone().start(request).await?;
        let leader = pid_in(&guest.path(&pid)).await?;
        guest.freeze(true)?;
        fs::write(guest.path(&format!("go{round}")), "")?;
        until("its end", || !is_alive(leader)).await?;
        guest.freeze(false)?;
        let exit = guest.follow(&id, 0).await?.until_exit().await?;
        assert_eq!(exit.reason(), ExitReason::OutputLimit, "in round {round}: {exit:?}");
    }
    Ok(())
}

pub(crate) async fn cuts_off_output_that_nobody_reads(guest: Guest) -> Outcome {
    // Just below what the guest keeps, so that only throwing away what follows lets the exit be told.
    let request = StartRequest { max_output: 1_000_000, ..guest.script("p", "exec yes") };
    guest.client.clone().start(request).await?;
    let mut status = guest.status("p").await?.ok_or("no record")?;
    while status.exit.is_none() {
        tokio::task::yield_now().await;
        status = guest.status("p").await?.ok_or("no record")?;
    }
    assert_eq!(status.exit.map(|exit| exit.reason()), Some(ExitReason::OutputLimit));
    let ended = guest.follow("p", 0).await?.until_end().await?;
    assert_eq!(ended.stdout.len() as u64, status.output_end);
    Ok(())
}

pub(crate) async fn cuts_off_what_a_leader_left_behind(guest: Guest) -> Outcome {
    let script = "sh -c 'echo $$ > left; while [ ! -e go ]; do sleep 0.01; done; exec yes' &
while [ ! -s left ]; do sleep 0.01; done; exit 4";
    let request = StartRequest { max_output: 1000, ..guest.script("p", script) };
    guest.client.clone().start(request).await?;
    let exit = guest.follow("p", 0).await?.until_exit().await?;
    guest.client.clone().forget(ForgetRequest { process_id: "p".into() }).await?;
    assert_eq!((exit.code, exit.reason()), (4, ExitReason::ByItself));
    let left = pid_in(&guest.path("left")).await?;
    assert!(is_alive(left));
    fs::write(guest.path("go"), "")?;
    until("the leftover to be killed", || !is_alive(left)).await
}

pub(crate) async fn lets_output_reach_its_limit(guest: Guest) -> Outcome {
    let request = StartRequest { max_output: 50_000, ..guest.script("p", "head -c 50000 /dev/zero") };
    let ended = guest.run(request).await?;
    let exit = ended.exit.ok_or("no exit")?;
    assert_eq!((ended.stdout.len(), exit.code, exit.reason()), (50_000, 0, ExitReason::ByItself));
    Ok(())
}
