//! Limits: what the guest is told of them, and how the end of a process says which one it was.

use std::time::Duration;

use sandbar_api::{ExitReason, Process, StartProcess};
use sandbar_guest::protocol;
use sandbar_provider::Counters;

use super::{
    Bed, Tested, command, script,
    script::{Script, kernel::cannot},
    soon,
};

const ALL: &str = "[limits]\nmemory = \"64MiB\"\nprocesses = 20\ndisk = \"1GiB\"";

async fn running(bed: &Bed, name: &str) -> Result<(Process, Script), Box<dyn std::error::Error>> {
    let process = bed.engine.start_process(name, command(&["sleep"])).await?;
    let guest = bed.provider.get(&process.sandbox).ok_or("no sandbox")?.guest.clone();
    Ok((process, guest))
}

/// How a process is said to have ended that ended like this, after the counters had changed like that.
async fn ended(
    bed: &Bed,
    change: fn(&mut Counters),
    code: i32,
    signal: i32,
    reason: protocol::ExitReason,
) -> Result<(Process, ExitReason), Box<dyn std::error::Error>> {
    let (process, guest) = running(bed, "a").await?;
    bed.provider.kernel.count(&process.sandbox, change);
    guest.change(process.id.as_str(), |play| play.exit = script::exit(code, signal, reason));
    let exit = soon(|| async { bed.engine.process("a", process.id.as_str()).await.ok()?.exit }).await?;
    assert_eq!(exit.code, code);
    Ok((process, exit.reason))
}

#[tokio::test]
async fn a_process_is_told_its_limits() -> Tested {
    let bed = Bed::new().await?;
    let sandbox = bed.create_of("a", "[limits]\noutput = \"1MiB\"\nwall_time = \"1m\"").await?;
    let guest = bed.provider.get(&sandbox.id).ok_or("no sandbox")?.guest.clone();
    for (timeout, want) in [(None, 60_000), (Some("2m"), 60_000), (Some("1s"), 1_000)] {
        let timeout = timeout.map(str::parse).transpose()?;
        bed.engine.start_process("a", StartProcess { timeout, ..command(&["echo", "x"]) }).await?;
        let told = guest.last_start().ok_or("nothing was started")?;
        assert_eq!((told.timeout_ms, told.max_output), (want, 1 << 20));
    }
    let sandbox = bed.create("b").await?;
    bed.engine.start_process("b", command(&["echo", "x"])).await?;
    let told = bed.provider.get(&sandbox.id).and_then(|sandbox| sandbox.guest.last_start()).ok_or("no start")?;
    assert_eq!((told.timeout_ms, told.max_output), (0, 0), "nothing is stated");
    Ok(())
}

#[tokio::test]
async fn an_end_at_a_limit_says_which() -> Tested {
    use protocol::ExitReason::{ByItself, Killed, OutputLimit, PidsLimit, Timeout};
    let bed = Bed::new().await?;
    bed.create_of("a", ALL).await?;
    let oom: fn(&mut Counters) = |counters| counters.oom_kills += 1;
    let forks: fn(&mut Counters) = |counters| counters.refused_forks += 1;
    let nothing: fn(&mut Counters) = |_| {};
    for (change, code, signal, reason, want, limit) in [
        (nothing, 1, 0, ByItself, ExitReason::Exited, None),
        (oom, 137, 9, ByItself, ExitReason::Oom, Some("memory")),
        // What was counted before it started is another's.
        (nothing, 137, 9, ByItself, ExitReason::Exited, None),
        (oom, 1, 0, ByItself, ExitReason::Oom, Some("memory")),
        (oom, 0, 0, ByItself, ExitReason::Exited, None),
        (oom, 137, 9, Timeout, ExitReason::Timeout, None),
        (oom, 137, 9, Killed, ExitReason::Killed, None),
        (forks, 254, 0, ByItself, ExitReason::PidsLimit, Some("processes")),
        (nothing, 137, 9, PidsLimit, ExitReason::PidsLimit, Some("processes")),
        (nothing, 137, 9, OutputLimit, ExitReason::OutputLimit, None),
        (|counters| counters.disk_full = true, 1, 0, ByItself, ExitReason::DiskLimit, Some("disk")),
    ] {
        let (process, got) = ended(&bed, change, code, signal, reason).await?;
        assert_eq!(got, want, "{code} {signal} {reason:?}");
        let mut events = bed.engine.events(0, 1000, None).await?;
        events.retain(|event| event.process.as_deref() == Some(process.id.as_str()));
        let told = events.iter().find(|event| event.kind == "sandbox.limit");
        assert_eq!(told.map(|event| event.data["limit"].clone()), limit.map(Into::into), "{want:?}");
        assert!(told.is_none_or(|event| event.data["process"] == process.id.as_str()));
        let exited = events.iter().find(|event| event.kind == "process.exited").ok_or("its end was not told")?;
        assert_eq!(exited.data["exit"]["reason"], serde_json::to_value(want)?);
    }
    Ok(())
}

#[tokio::test]
async fn where_nothing_is_stated_nothing_is_put_down_to_it() -> Tested {
    let bed = Bed::new().await?;
    bed.create("a").await?;
    let all: fn(&mut Counters) = |counters| {
        *counters = Counters { oom_kills: 1, refused_forks: 1, disk_full: true, ..Counters::default() };
    };
    assert_eq!(ended(&bed, all, 137, 9, protocol::ExitReason::ByItself).await?.1, ExitReason::Exited);
    Ok(())
}

#[tokio::test]
async fn who_forks_too_much_is_killed_and_not_too_often() -> Tested {
    let bed = Bed::new().await?;
    let sandbox = bed.create_of("a", ALL).await?;
    let (process, guest) = running(&bed, "a").await?;
    bed.provider.kernel.done();
    let refused = bed.provider.kernel.refused(&sandbox.id);
    // Refused, but there is room again: nobody is to blame any more.
    refused.notify_one();
    soon(|| async { bed.provider.kernel.done().iter().any(|verb| verb == "thaw").then_some(()) }).await?;
    assert_eq!(guest.relieved(), 0);
    bed.provider.kernel.count(&sandbox.id, |counters| counters.processes_full = true);
    refused.notify_one();
    let exit = soon(|| async { bed.engine.process("a", process.id.as_str()).await.ok()?.exit }).await?;
    assert_eq!(exit.reason, ExitReason::PidsLimit);
    soon(|| async { (!bed.provider.kernel.is_still(&sandbox.id)).then_some(()) }).await?;
    assert_eq!(bed.provider.kernel.done(), ["freeze", "thaw"]);

    let begun = tokio::time::Instant::now();
    let before = guest.relieved();
    let late = || guest.relieved() == before && begun.elapsed() < Duration::from_secs(20);
    while begun.elapsed() < Duration::from_millis(450) || late() {
        refused.notify_one();
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let (times, most) = (guest.relieved() - before, begun.elapsed().as_millis() / 100 + 1);
    assert!(times >= 1 && u128::from(times) <= most, "{times} times, at most {most}");

    // Where nothing can stand still the guest has to be fast.
    bed.provider.kernel.fail("freeze", cannot);
    let (process, _) = running(&bed, "a").await?;
    refused.notify_one();
    let exit = soon(|| async { bed.engine.process("a", process.id.as_str()).await.ok()?.exit }).await?;
    assert_eq!(exit.reason, ExitReason::PidsLimit);
    Ok(())
}

#[tokio::test]
async fn only_a_kill_is_put_down_to_memory_across_a_restart() -> Tested {
    let mut bed = Bed::new().await?;
    bed.create_of("a", ALL).await?;
    let (killed, guest) = running(&bed, "a").await?;
    let (failed, _) = running(&bed, "a").await?;
    bed.engine.shutdown().await;
    bed.provider.kernel.count(&killed.sandbox, |counters| counters.oom_kills += 1);
    let by_itself = protocol::ExitReason::ByItself;
    guest.change(failed.id.as_str(), |play| play.exit = script::exit(1, 0, by_itself));
    guest.change(killed.id.as_str(), |play| play.exit = script::exit(137, 9, by_itself));
    bed.restart().await?;
    for (process, want) in [(&killed, ExitReason::Oom), (&failed, ExitReason::Exited)] {
        let exit = soon(|| async { bed.engine.process("a", process.id.as_str()).await.ok()?.exit }).await?;
        assert_eq!(exit.reason, want);
    }
    Ok(())
}
