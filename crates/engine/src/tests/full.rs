//! A full disk under the engine: nobody waits for ever, and what makes room works.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use sandbar_api::{Code, ProcessState, SandboxState};

use super::{
    Bed, Tested, command,
    disk::SmallDisk,
    exec,
    script::{self, Fault},
    soon,
};

#[tokio::test]
async fn callers_are_told_and_deleting_makes_room() -> Tested {
    let Some(disk) = SmallDisk::new("callers_are_told_and_deleting_makes_room")? else { return Ok(()) };
    let mut bed = Bed::at(disk.path().join("home")).await?;
    let sandbox = bed.create("a").await?;
    let guest = bed.provider.get(&sandbox.id).ok_or("no sandbox")?.guest.clone();
    let left = bed.engine.start_process("a", command(&["sleep"])).await?;
    let engine = bed.engine.clone();
    let call = tokio::spawn(async move { engine.exec("a", exec(&["sleep"], None, 100)).await });
    let running = || async {
        let processes = bed.engine.processes("a").await.ok()?;
        processes.into_iter().find(|process| process.id != left.id && guest.play(process.id.as_str()).is_some())
    };
    let process = soon(running).await?;
    disk.fill()?;
    let begun = Instant::now();
    guest.write(process.id.as_str(), &vec![0; 1 << 20]);
    let told = tokio::time::timeout(Duration::from_secs(300), call).await??;
    assert_eq!(told.map_err(|problem| problem.code).err(), Some(Code::DiskFull));
    assert!(begun.elapsed() >= Duration::from_secs(4), "it was not given time");
    let killed = || async { guest.play(process.id.as_str())?.exit };
    soon(killed).await?;
    // Its output still waits, so whoever asks to follow it is told as well.
    let mut reader = bed.engine.output("a", process.id.as_str(), None).await?;
    let told = loop {
        match reader.next(true).await {
            Ok(Some(_)) => {}
            other => break other.map(|_| ()),
        }
    };
    assert_eq!(told.map_err(|problem| problem.code), Err(Code::DiskFull));

    guest
        .change(left.id.as_str(), |play| play.exit = script::exit(0, 0, sandbar_guest::protocol::ExitReason::ByItself));
    let ended = || async { bed.engine.process("a", left.id.as_str()).await.ok()?.exit };
    soon(ended).await?;
    bed.restart().await?;
    assert_eq!(bed.engine.stop("a").await?.state, SandboxState::Stopped);
    assert_eq!(bed.engine.process("a", process.id.as_str()).await?.state, ProcessState::Exited);
    bed.engine.delete("a").await?;
    disk.free()?;
    bed.create("b").await?;
    Ok(())
}

/// Neither is known of a process whose start nobody heard of and that could not be recorded.
#[tokio::test]
async fn a_process_that_may_have_been_started_and_is_not_recorded_does_not_live() -> Tested {
    let Some(disk) = SmallDisk::new("a_process_that_may_have_been_started_and_is_not_recorded_does_not_live")? else {
        return Ok(());
    };
    let bed = Bed::at(disk.path().join("home")).await?;
    let sandbox = bed.create("a").await?;
    let guest = bed.provider.get(&sandbox.id).ok_or("no sandbox")?.guest.clone();
    disk.fill()?;
    for answers in [true, false] {
        guest.fail("start", Some(Fault::Lost));
        // Nor does it answer whoever would kill it, for a while.
        guest.fail("signal", (!answers).then_some(Fault::Unreachable));
        // Until the database's log has no room left.
        loop {
            let refused = bed.engine.start_process("a", command(&["sleep"])).await.map_err(|problem| problem.code);
            match refused.err() {
                Some(Code::GuestUnreachable) => {}
                other => break assert_eq!(other, Some(Code::DiskFull)),
            }
        }
        let id = guest.last_start().ok_or("it was not started")?.process_id;
        guest.fail("signal", None);
        // Killed, and then forgotten.
        soon(|| async { guest.play(&id).is_none_or(|play| play.exit.is_some()).then_some(()) }).await?;
        assert_eq!(bed.engine.processes("a").await?, []);
    }
    Ok(())
}

#[tokio::test]
async fn a_caller_who_gives_up_kills_also_what_waits_for_room() -> Tested {
    let Some(disk) = SmallDisk::new("a_caller_who_gives_up_kills_also_what_waits_for_room")? else { return Ok(()) };
    let bed = Bed::at(disk.path().join("home")).await?;
    let sandbox = bed.create("a").await?;
    let guest = bed.provider.get(&sandbox.id).ok_or("no sandbox")?.guest.clone();
    let engine = bed.engine.clone();
    let call = tokio::spawn(async move { engine.exec("a", exec(&["sleep"], None, 100)).await });
    let running = || async { bed.engine.processes("a").await.ok()?.into_iter().next() };
    let process = soon(running).await?;
    soon(|| async { guest.play(process.id.as_str()) }).await?;
    disk.fill()?;
    guest.write(process.id.as_str(), &vec![0; 1 << 20]);
    tokio::time::sleep(Duration::from_millis(300)).await;
    call.abort();
    // The guest is told to forget what has ended, perhaps before anybody looks.
    let killed = || async { guest.play(process.id.as_str()).is_none_or(|play| play.exit.is_some()).then_some(()) };
    soon(killed).await?;
    bed.engine.delete("a").await?;
    Ok(())
}

/// Not even the ballast is left: what is deleted makes the room in which its deletion is recorded.
#[tokio::test]
async fn what_is_deleted_goes_before_that_is_recorded_if_need_be() -> Tested {
    let Some(disk) = SmallDisk::new("what_is_deleted_goes_before_that_is_recorded_if_need_be")? else { return Ok(()) };
    let disk = Arc::new(disk);
    let bed = Bed::at(disk.path().join("home")).await?;
    let sandbox = bed.create("a").await?;
    bed.engine.start_process("a", command(&["sleep"])).await?;
    std::fs::write(disk.path().join("home/ballast"), "")?;
    disk.fill()?;
    // Uses up what the database's log still has room for.
    let mut refusals = 0;
    while refusals < 20 {
        let refused = bed.engine.start_process("a", command(&["nonsense"])).await.map_err(|problem| problem.code);
        refusals += usize::from(refused.err() == Some(Code::DiskFull));
    }
    let refused = bed.engine.stop("a").await.map_err(|problem| problem.code);
    assert_eq!(refused.err(), Some(Code::DiskFull), "there was room all the time");
    let full = disk.clone();
    *bed.provider.destroys.lock().map_err(|_| "poisoned")? = Some(Box::new(move || drop(full.free())));
    bed.engine.delete("a").await?;
    assert!(bed.provider.get(&sandbox.id).is_none());
    assert_eq!(bed.engine.get(sandbox.id.as_str()).await?.state, SandboxState::Deleted);
    Ok(())
}
