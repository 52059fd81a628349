//! Idleness: what nobody uses is put away, and comes back for whoever needs it.

use std::time::Duration;

use futures_util::future::join_all;
use sandbar_api::{Code, SandboxState};

use super::{Bed, Tested, code, command, exec, script::kernel::cannot};
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
    let used = bed.create_of("used", idle).await?;
    let talks = bed.engine.start_process("used", command(&["sleep"])).await?;
    kernel.count(&used.id, |counters| counters.cpu = Some(Duration::ZERO));
    let guest = bed.provider.get(&used.id).ok_or("no sandbox")?.guest.clone();
    for _ in 0..350 {
        tokio::time::sleep(Duration::from_millis(10)).await;
        kernel.count(&busy.id, |counters| {
            counters.cpu = counters.cpu.map(|cpu| cpu + Duration::from_millis(5));
        });
        guest.write(talks.id.as_str(), b".");
    }
    assert_eq!(bed.state("unknown").await, Some(SandboxState::Ready));
    assert_eq!(bed.state("busy").await, Some(SandboxState::Ready));
    assert_eq!(bed.state("used").await, Some(SandboxState::Ready), "it wrote all the time");
    assert_eq!(bed.state("waits").await, Some(SandboxState::Paused), "a process that sleeps is idle");
    assert_eq!(bed.state("awaited").await, Some(SandboxState::Ready), "somebody waits for it");
    call.abort();
    bed.until("awaited", SandboxState::Paused).await?;
    bed.until("busy", SandboxState::Paused).await?;
    bed.until("used", SandboxState::Paused).await?;
    bed.engine.signal("unknown", process.id.as_str(), "KILL").await?;
    bed.until("unknown", SandboxState::Paused).await?;
    Ok(())
}

#[tokio::test]
async fn what_cannot_be_paused_is_stopped_and_deleted_in_its_time() -> Tested {
    let bed = Bed::new().await?;
    bed.provider.kernel.fail("freeze", cannot);
    let policy = "[idle]\npause_after = \"50ms\"\nstop_after = \"200ms\"\ndelete_after = \"4s\"";
    let sandbox = bed.create_of("a", policy).await?;
    bed.until("a", SandboxState::Stopped).await?;
    let tried = bed.provider.kernel.done().into_iter().filter(|verb| verb == "freeze fails").count();
    assert_eq!(tried, 1, "it is not tried all the time");
    let gone = bed.until(sandbox.id.as_str(), SandboxState::Deleted).await?;
    assert_eq!(gone.reason.map(|reason| reason.code).as_deref(), Some("idle"));
    assert!(bed.provider.get(&sandbox.id).is_none());
    Ok(())
}

#[tokio::test]
async fn after_a_restart_idle_time_counts_anew() -> Tested {
    let mut bed = Bed::new().await?;
    bed.create_of("quiet", "[idle]\npause_after = \"4s\"").await?;
    let used = bed.create_of("used", "[idle]\npause_after = \"4s\"").await?;
    tokio::time::sleep(Duration::from_millis(1500)).await;
    bed.engine.shutdown().await;
    bed.provider.kernel.count(&used.id, |counters| counters.cpu = Some(Duration::from_secs(3600)));
    let begun = std::time::Instant::now();
    bed.restart().await?;
    let quiet = bed.until("quiet", SandboxState::Paused).await?;
    assert!(begun.elapsed() >= Duration::from_secs(4), "{:?}", begun.elapsed());
    let used = bed.until("used", SandboxState::Paused).await?;
    let later = used.changed_at - quiet.changed_at;
    assert!(later < chrono::TimeDelta::milliseconds(3600), "processor time of before is no work of today: {later}");
    Ok(())
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
