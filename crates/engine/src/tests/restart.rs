//! What a server finds when it starts again.

use std::sync::{Arc, Mutex, PoisonError};

use sandbar_api::{ProcessId, ProcessState, SandboxId, SandboxState};
use sandbar_provider::{Made, Mark, Provider as _, Spec};

use super::{Bed, Tested, command, exec, script, soon};
use crate::OutputItem;

#[tokio::test]
async fn living_processes_go_on_and_no_byte_is_lost_or_repeated() -> Tested {
    let mut bed = Bed::new().await?;
    let sandbox = bed.create("a").await?;
    let process = bed.engine.start_process("a", command(&["sleep"])).await?;
    let id = process.id.as_str();
    let guest = bed.provider.get(&sandbox.id).ok_or("no sandbox")?.guest.clone();
    guest.write(id, b"before ");
    let stored = || async { bed.engine.process("a", id).await.ok().filter(|process| process.output.end == 7) };
    soon(stored).await?;
    bed.engine.shutdown().await;
    guest.write(id, b"between ");
    bed.restart().await?;
    guest.write(id, b"after");
    guest.change(id, |play| play.exit = script::exit(0, 0, sandbar_guest::protocol::ExitReason::ByItself));
    let mut reader = bed.engine.output("a", id, Some(0)).await?;
    let mut text = vec![];
    while let Some(item) = reader.next(true).await? {
        if let OutputItem::Chunk(chunk) = item {
            text.extend(chunk.data);
        }
    }
    assert_eq!(String::from_utf8(text)?, "before between after");
    assert_eq!(bed.engine.exec("a", exec(&["echo", "x"], None, 10)).await?.stdout, "x");
    Ok(())
}

#[tokio::test]
async fn the_lost_are_said_to_be_lost_and_what_was_only_begun_is_removed() -> Tested {
    let mut bed = Bed::new().await?;
    let (dead, alive) = (bed.create("dead").await?, bed.create("alive").await?);
    let lost = bed.engine.start_process("dead", command(&["sleep"])).await?;
    let forgotten = bed.engine.start_process("alive", command(&["sleep"])).await?;
    bed.engine.shutdown().await;
    bed.provider.die(&dead.id);
    let guest = bed.provider.get(&alive.id).ok_or("no sandbox")?.guest.clone();
    // One that the guest no longer knows, and one that only the guest knows.
    script::forget(&guest, forgotten.id.as_str());
    let stranger = ProcessId::from_parts(1, [1; 10]);
    guest.write(stranger.as_str(), b"nobody was told of me");
    // One that this server was making when it ended, one that it had finished, and one of nobody.
    let origin = Some(bed.engine.inner.origin());
    let [begun, finished, foreign] = [1, 2, 3].map(|n| SandboxId::from_parts(1, [n; 10]));
    for (id, origin) in [(&begun, origin.clone()), (&finished, origin.clone()), (&foreign, None)] {
        bed.provider.create(&Spec { origin, ..Spec::standard(id.clone(), "unknown") }).await?;
    }
    bed.provider.mark(Made::Sandbox(&finished), &Mark::Kept(origin.ok_or("no origin")?)).await?;
    bed.restart().await?;
    let found = bed.engine.get("dead").await?;
    assert_eq!(found.state, SandboxState::Failed);
    assert_eq!(found.reason.map(|reason| reason.code).as_deref(), Some("guest_died"));
    assert_eq!(bed.engine.process("dead", lost.id.as_str()).await?.state, ProcessState::Lost);
    assert_eq!(bed.engine.get("alive").await?.state, SandboxState::Ready);
    assert_eq!(bed.engine.process("alive", forgotten.id.as_str()).await?.state, ProcessState::Lost);
    assert!(bed.provider.get(&begun).is_none());
    for id in [&finished, &foreign] {
        assert!(bed.provider.get(id).is_some(), "{id}");
        assert!(bed.provider.mark_of(id.as_str()).is_some_and(|mark| mark.is_quarantined()), "{id}");
    }
    let gone = || async { guest.play(stranger.as_str()).is_none().then_some(()) };
    soon(gone).await?;
    Ok(())
}

#[tokio::test]
async fn what_died_while_it_was_paused_runs_when_it_is_started_again() -> Tested {
    let mut bed = Bed::new().await?;
    let sandbox = bed.create("a").await?;
    bed.engine.pause("a").await?;
    bed.engine.shutdown().await;
    bed.provider.die(&sandbox.id);
    bed.restart().await?;
    assert_eq!(bed.engine.get("a").await?.state, SandboxState::Failed);
    assert_eq!(bed.engine.start("a").await?.state, SandboxState::Ready);
    assert!(!bed.provider.kernel.is_still(&sandbox.id), "what it left is stood on");
    Ok(())
}

#[tokio::test]
async fn after_a_restart_of_the_host_sandboxes_are_stopped_with_their_files() -> Tested {
    let mut bed = Bed::new().await?;
    let sandbox = bed.create("a").await?;
    bed.engine.start_process("a", command(&["sleep"])).await?;
    bed.engine.shutdown().await;
    bed.provider.die(&sandbox.id);
    std::fs::write(bed.home.join("boot_id"), "another")?;
    bed.restart().await?;
    let found = bed.engine.get("a").await?;
    assert_eq!(found.state, SandboxState::Stopped);
    assert_eq!(found.reason.map(|reason| reason.code).as_deref(), Some("host_restarted"));
    assert_eq!(bed.engine.start("a").await?.state, SandboxState::Ready);
    Ok(())
}

#[tokio::test]
async fn what_idleness_had_paused_comes_back_after_a_restart_of_the_host_too() -> Tested {
    let mut bed = Bed::new().await?;
    let sandbox = bed.create_of("a", "[idle]\npause_after = \"100ms\"").await?;
    bed.until("a", SandboxState::Paused).await?;
    bed.engine.shutdown().await;
    bed.provider.die(&sandbox.id);
    std::fs::write(bed.home.join("boot_id"), "another")?;
    bed.restart().await?;
    assert_eq!(bed.engine.get("a").await?.state, SandboxState::Stopped);
    assert_eq!(bed.engine.exec("a", super::exec(&["echo", "x"], None, 10)).await?.stdout, "x");
    Ok(())
}

#[tokio::test]
async fn a_deletion_is_recorded_before_files_go_and_finished_by_the_next_start() -> Tested {
    let mut bed = Bed::new().await?;
    for (name, stops) in [("ready", false), ("stopped", true)] {
        let id = bed.create(name).await?.id;
        if stops {
            bed.engine.stop(name).await?;
        }
        let (record, seen) = (bed.engine.inner.registry.by_id(&id).ok_or("no handle")?, Arc::new(Mutex::new(None)));
        let told = seen.clone();
        *bed.provider.destroys.lock().map_err(|_| "poisoned")? = Some(Box::new(move || {
            let reason = record.sandbox().reason.map(|reason| reason.code);
            *told.lock().unwrap_or_else(PoisonError::into_inner) = reason;
        }));
        bed.engine.delete(name).await?;
        let seen = seen.lock().map_err(|_| "poisoned")?.take();
        assert_eq!(seen.as_deref(), Some("deleting"), "{name}");
    }
    // As a server leaves one that ends when some of the files are gone.
    let half = bed.create("half").await?.id;
    bed.engine.stop("half").await?;
    bed.engine.inner.store.restate(&half, crate::owner::reason("deleting", "")).await?;
    bed.restart().await?;
    assert!(bed.provider.get(&half).is_none());
    assert_eq!(bed.engine.get(half.as_str()).await?.state, SandboxState::Deleted);
    Ok(())
}

#[tokio::test]
async fn a_home_has_one_engine_at_a_time() -> Tested {
    let bed = Bed::new().await?;
    let second = Bed::open(&bed.home, &bed.provider).await.err().ok_or("a second engine was opened")?;
    assert!(matches!(second, crate::OpenError::HomeInUse { .. }), "{second}");
    assert!(!second.fix().is_empty());
    Ok(())
}
