//! Idleness: what nobody uses is put away, and comes back for whoever needs it.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use sandbar_api::{Code, SandboxState};

use super::{Bed, Tested, code, command, exec, script::kernel::cannot, soon};
use crate::{idle::Rest, owner::Verb};

fn echo() -> sandbar_api::ExecRequest {
    exec(&["echo", "x"], None, 100)
}

async fn all_work(bed: &Bed) -> Tested {
    let calls = (0..20).map(|number| async move {
        match number % 3 {
            0 => bed.engine.start_process("a", command(&["echo", "x"])).await.map(drop),
            // The script knows no file, and says so itself.
            1 => match bed.engine.stat("a", "f").await {
                Err(problem) if problem.code == Code::UnknownFile => Ok(()),
                other => other.map(drop),
            },
            _ => bed.engine.exec("a", echo()).await.map(drop),
        }
    });
    for done in join_all(calls).await {
        done?;
    }
    Ok(())
}

#[tokio::test]
async fn what_idleness_paused_comes_back_once_for_all_who_need_it() -> Tested {
    let bed = Bed::new().await?;
    let sandbox = bed.create_of("a", "[idle]\npause_after = \"500ms\"").await?;
    let paused = bed.until("a", SandboxState::Paused).await?;
    assert_eq!(paused.reason.map(|reason| reason.code).as_deref(), Some("idle"));
    assert!(bed.provider.kernel.is_still(&sandbox.id));
    bed.provider.kernel.done();
    all_work(&bed).await?;
    let thaws = bed.provider.kernel.done().into_iter().filter(|verb| verb == "thaw").count();
    assert_eq!(thaws, 1);
    // And again when they are done.
    bed.until("a", SandboxState::Paused).await?;
    bed.engine.exec("a", echo()).await?;
    Ok(())
}

#[tokio::test]
async fn what_idleness_stopped_is_started_once_for_all_who_need_it() -> Tested {
    let mut bed = Bed::new().await?;
    bed.create_of("a", "[idle]\npause_after = \"50ms\"\nstop_after = \"500ms\"").await?;
    let stopped = bed.until("a", SandboxState::Stopped).await?;
    assert_eq!(stopped.reason.map(|reason| reason.code).as_deref(), Some("idle"));
    all_work(&bed).await?;
    let kinds: Vec<_> = bed.engine.events(0, 1000, Some("a")).await?.into_iter().map(|event| event.kind).collect();
    assert_eq!(kinds.iter().filter(|kind| *kind == "sandbox.creating").count(), 1, "{kinds:?}");
    // Also for those of the next server.
    bed.until("a", SandboxState::Stopped).await?;
    bed.restart().await?;
    bed.engine.exec("a", echo()).await?;
    Ok(())
}

#[tokio::test]
async fn what_a_person_paused_or_stopped_stays() -> Tested {
    let bed = Bed::new().await?;
    bed.create_of("a", "[idle]\npause_after = \"100ms\"").await?;
    bed.until("a", SandboxState::Paused).await?;
    let paused = bed.engine.pause("a").await?;
    assert_eq!(paused.reason.map(|reason| reason.code).as_deref(), Some("requested"));
    assert_eq!(code(bed.engine.exec("a", echo()).await), Some(Code::WrongState));
    bed.engine.resume("a").await?;
    bed.engine.exec("a", echo()).await?;

    bed.create_of("b", "[idle]\nstop_after = \"100ms\"").await?;
    bed.until("b", SandboxState::Stopped).await?;
    let stopped = bed.engine.stop("b").await?;
    assert_eq!(stopped.reason.map(|reason| reason.code).as_deref(), Some("requested"));
    assert_eq!(code(bed.engine.exec("b", echo()).await), Some(Code::WrongState));
    Ok(())
}

#[tokio::test]
async fn who_works_is_not_idle() -> Tested {
    let bed = Bed::new().await?;
    // So long that a host with much else to do does not make those who work look idle.
    let idle = "[idle]\npause_after = \"1500ms\"";
    // Where processor time cannot be told, a process that runs is at work.
    bed.create_of("unknown", idle).await?;
    let process = bed.engine.start_process("unknown", command(&["sleep"])).await?;
    let busy = bed.create_of("busy", idle).await?;
    let kernel = &bed.provider.kernel;
    kernel.count(&busy.id, |counters| counters.cpu = Some(Duration::ZERO));
    let waits = bed.create_of("waits", idle).await?;
    kernel.count(&waits.id, |counters| counters.cpu = Some(Duration::from_millis(1)));
    bed.engine.start_process("waits", command(&["sleep"])).await?;
    let awaited = bed.create_of("awaited", idle).await?;
    kernel.count(&awaited.id, |counters| counters.cpu = Some(Duration::ZERO));
    let engine = bed.engine.clone();
    let call = tokio::spawn(async move { engine.exec("awaited", exec(&["sleep"], None, 10)).await });
    let guest = bed.provider.get(&awaited.id).ok_or("no sandbox")?.guest.clone();
    soon(|| async { guest.play(&guest.last_start()?.process_id) }).await?;
    let used = bed.create_of("used", idle).await?;
    let talks = bed.engine.start_process("used", command(&["sleep"])).await?;
    kernel.count(&used.id, |counters| counters.cpu = Some(Duration::ZERO));
    let guest = bed.provider.get(&used.id).ok_or("no sandbox")?.guest.clone();
    let (busy_one, used_one) = (bed.engine.inner.handle("busy").await?, bed.engine.inner.handle("used").await?);
    for round in 0.. {
        // How long the host let nobody work, or what was written not arrive.
        let (mut stalled, mut last) = (Duration::ZERO, Instant::now());
        for name in ["busy", "used", "awaited"] {
            bed.engine.resume(name).await?;
        }
        for _ in 0..350 {
            tokio::time::sleep(Duration::from_millis(10)).await;
            stalled = stalled.max(last.elapsed()).max(used_one.activity.idle_for());
            last = Instant::now();
            kernel.count(&busy.id, |counters| {
                counters.cpu = counters.cpu.map(|cpu| cpu + Duration::from_millis(20));
            });
            guest.write(talks.id.as_str(), b".");
        }
        let states = [&busy_one, &used_one].map(|one| one.state());
        if states == [SandboxState::Ready; 2] {
            break;
        }
        assert!(
            stalled > Duration::from_millis(500) && round < 10,
            "they worked all the time: {states:?}, {stalled:?}"
        );
    }
    assert_eq!(bed.state("unknown").await, Some(SandboxState::Ready));
    assert_eq!(bed.state("awaited").await, Some(SandboxState::Ready), "somebody waits for it");
    // A process that sleeps is idle.
    bed.until("waits", SandboxState::Paused).await?;
    call.abort();
    bed.until("awaited", SandboxState::Paused).await?;
    bed.until("busy", SandboxState::Paused).await?;
    bed.until("used", SandboxState::Paused).await?;
    bed.engine.signal("unknown", process.id.as_str(), "KILL").await?;
    bed.until("unknown", SandboxState::Paused).await?;
    Ok(())
}

#[tokio::test]
async fn whose_output_is_awaited_is_not_idle() -> Tested {
    let bed = Bed::new().await?;
    let idle = "[idle]\npause_after = \"500ms\"";
    let (followed, alone) = (bed.create_of("followed", idle).await?, bed.create_of("alone", idle).await?);
    for sandbox in [&followed, &alone] {
        bed.provider.kernel.count(&sandbox.id, |counters| counters.cpu = Some(Duration::ZERO));
    }
    let process = bed.engine.start_process("followed", command(&["sleep"])).await?;
    bed.engine.start_process("alone", command(&["sleep"])).await?;
    let mut reader = bed.engine.output("followed", process.id.as_str(), None).await?;
    let follower = tokio::spawn(async move { reader.next(true).await.map(|item| item.is_some()) });
    let handle = bed.engine.inner.handle("followed").await?;
    soon(|| async { (handle.waiting.len() == 1).then_some(()) }).await?;
    // It may have been put away before somebody waited.
    bed.engine.resume("followed").await?;
    bed.engine.resume("alone").await?;
    bed.until("alone", SandboxState::Paused).await?;
    assert_eq!(handle.state(), SandboxState::Ready);
    follower.abort();
    bed.until("followed", SandboxState::Paused).await?;
    Ok(())
}

#[tokio::test]
async fn what_cannot_be_paused_is_stopped_and_deleted_in_its_time() -> Tested {
    let bed = Bed::new().await?;
    bed.provider.kernel.fail("freeze", cannot);
    let policy = "[idle]\npause_after = \"50ms\"\nstop_after = \"1s\"\ndelete_after = \"4s\"";
    for _ in 0..5 {
        let sandbox = bed.create_of("a", policy).await?;
        let gone = bed.until(sandbox.id.as_str(), SandboxState::Deleted).await?;
        assert_eq!(gone.reason.map(|reason| reason.code).as_deref(), Some("idle"));
        assert!(bed.provider.get(&sandbox.id).is_none());
        let tried = bed.provider.kernel.done().into_iter().filter(|verb| verb == "freeze fails").count();
        assert!(tried <= 1, "it is not tried all the time");
        let events = bed.engine.events(0, 1000, Some(sandbox.id.as_str())).await?;
        // Of steps that a host is late for, those that give up less are left out.
        if tried == 1 && events.iter().any(|event| event.kind == "sandbox.stopped") {
            return Ok(());
        }
    }
    Err("it goes without having been stopped, or nobody tried to pause it".into())
}

#[tokio::test]
async fn after_a_restart_idle_time_counts_anew() -> Tested {
    let mut bed = Bed::new().await?;
    bed.create_of("quiet", "[idle]\npause_after = \"4s\"").await?;
    let id = bed.create_of("used", "[idle]\npause_after = \"4s\"").await?.id;
    // A host that stalls between the two looks like the fault, but not every time.
    for round in 1..=4 {
        for name in ["quiet", "used"] {
            bed.engine.resume(name).await?;
        }
        tokio::time::sleep(Duration::from_millis(1500)).await;
        bed.engine.shutdown().await;
        let asleep = bed.state("quiet").await != Some(SandboxState::Ready);
        bed.provider.kernel.count(&id, |counters| counters.cpu = Some(Duration::from_secs(3600 * round)));
        let begun = Instant::now();
        bed.restart().await?;
        if asleep {
            continue;
        }
        let quiet = bed.until("quiet", SandboxState::Paused).await?;
        assert!(begun.elapsed() >= Duration::from_secs(4), "{:?}", begun.elapsed());
        let used = bed.until("used", SandboxState::Paused).await?;
        let later = used.changed_at - quiet.changed_at;
        if later < chrono::TimeDelta::milliseconds(3600) {
            return Ok(());
        }
    }
    Err("processor time of before is taken for work of today".into())
}

#[tokio::test]
async fn who_was_used_a_moment_ago_is_not_put_away() -> Tested {
    let bed = Bed::new().await?;
    bed.create("a").await?;
    let handle = bed.engine.inner.handle("a").await?;
    let seen = handle.activity.last();
    bed.engine.exec("a", echo()).await?;
    for rest in [Rest::Pause, Rest::Stop, Rest::Delete] {
        handle.ask(|reply| Verb::Rest(rest, seen, reply)).await?;
        assert_eq!(bed.state("a").await, Some(SandboxState::Ready), "{rest:?}");
        bed.engine.exec("a", echo()).await?;
    }
    Ok(())
}
