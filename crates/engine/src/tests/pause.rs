//! Pausing: everything stands still, nothing is lost, and whatever happens in between is settled.

use bytes::Bytes;
use futures_util::stream;
use sandbar_api::{Code, CreateSandbox, ExitReason, SandboxState};

use super::{
    Bed, Tested, code, command, exec, owner,
    script::kernel::{broken, cannot},
    soon,
};

fn echo() -> sandbar_api::ExecRequest {
    exec(&["echo", "x"], None, 100)
}

#[tokio::test]
async fn work_is_refused_and_everything_else_goes_on() -> Tested {
    let bed = Bed::new().await?;
    let sandbox = bed.create("a").await?;
    let process = bed.engine.start_process("a", command(&["sleep"])).await?;
    let (id, guest) = (process.id.as_str(), bed.provider.get(&sandbox.id).ok_or("no sandbox")?.guest.clone());
    let paused = bed.engine.pause("a").await?;
    assert_eq!(paused.state, SandboxState::Paused);
    assert_eq!(paused.reason.map(|reason| reason.code).as_deref(), Some("requested"));
    assert!(bed.provider.kernel.is_still(&sandbox.id));

    let refused = bed.engine.exec("a", echo()).await.err().ok_or("it ran")?;
    assert_eq!(refused.code, Code::WrongState);
    assert!(refused.fix.contains("sandbar resume a"), "{}", refused.fix);
    let body = || Box::pin(stream::iter([Ok(Bytes::from_static(b"x"))]));
    for (what, refused) in [
        ("start", code(bed.engine.start_process("a", command(&["sleep"])).await)),
        ("input", code(bed.engine.write_input("a", id, None, Bytes::new(), true).await)),
        ("signal", code(bed.engine.signal("a", id, "KILL").await)),
        ("stat", code(bed.engine.stat("a", "f").await)),
        ("list", code(bed.engine.list_directory("a", "d").await)),
        ("write", code(bed.engine.write_file("a", "f", None, body()).await)),
        ("unpack", code(bed.engine.unpack("a", "f", body()).await)),
        ("start again", code(bed.engine.start("a").await)),
    ] {
        assert_eq!(refused, Some(Code::WrongState), "{what}");
    }
    // What was on its way out when everything stood still arrives.
    guest.write(id, b"late");
    let mut reader = bed.engine.output("a", id, None).await?;
    let read = tokio::time::timeout(std::time::Duration::from_secs(300), reader.next(true)).await??;
    assert!(matches!(read, Some(crate::OutputItem::Chunk(chunk)) if chunk.data == b"late"));
    assert_eq!(bed.engine.processes("a").await?.len(), 1);

    assert_eq!(bed.engine.pause("a").await?.state, SandboxState::Paused);
    assert_eq!(bed.engine.resume("a").await?.state, SandboxState::Ready);
    assert_eq!(bed.engine.resume("a").await?.reason, None);
    assert!(!bed.provider.kernel.is_still(&sandbox.id));
    assert_eq!(bed.engine.exec("a", echo()).await?.stdout, "x");
    guest.write(id, b" and later");
    let all = || async { bed.engine.process("a", id).await.ok().filter(|process| process.output.end == 14) };
    soon(all).await?;
    let kinds: Vec<_> = bed.engine.events(0, 100, Some("a")).await?.into_iter().map(|event| event.kind).collect();
    assert_eq!(kinds.iter().filter(|kind| *kind == "sandbox.paused").count(), 1, "{kinds:?}");
    Ok(())
}

#[tokio::test]
async fn a_pause_that_fails_has_changed_nothing() -> Tested {
    let bed = Bed::new().await?;
    let sandbox = bed.create("a").await?;
    for (error, want) in [(cannot as fn() -> _, Code::NotEnforceable), (broken, Code::Internal)] {
        bed.provider.kernel.fail("freeze", error);
        let head = *bed.engine.head().borrow();
        assert_eq!(code(bed.engine.pause("a").await), Some(want));
        assert_eq!(bed.state("a").await, Some(SandboxState::Ready));
        assert_eq!(*bed.engine.head().borrow(), head);
        assert!(!bed.provider.kernel.is_still(&sandbox.id));
        bed.engine.exec("a", echo()).await?;
    }
    bed.provider.kernel.mend("freeze");
    bed.engine.pause("a").await?;
    bed.provider.kernel.fail("thaw", broken);
    assert_eq!(code(bed.engine.resume("a").await), Some(Code::Internal));
    assert_eq!(bed.state("a").await, Some(SandboxState::Paused));
    assert_eq!(code(bed.engine.exec("a", echo()).await), Some(Code::WrongState));
    bed.provider.kernel.mend("thaw");
    bed.engine.resume("a").await?;
    bed.engine.exec("a", echo()).await?;
    Ok(())
}

#[tokio::test]
async fn a_start_under_way_is_not_caught_halfway() -> Tested {
    let bed = Bed::new().await?;
    let sandbox = bed.create("a").await?;
    let guest = bed.provider.get(&sandbox.id).ok_or("no sandbox")?.guest.clone();
    bed.engine.inner.patience.wait_for_calls(60);
    let pause = async {
        let begun = soon(|| async { guest.last_start() }).await?;
        assert!(guest.play(&begun.process_id).is_none(), "it started too fast to show anything");
        bed.engine.pause("a").await?;
        assert!(guest.play(&begun.process_id).is_some(), "it was paused before it had started");
        Ok::<_, Box<dyn std::error::Error>>(())
    };
    let start = async {
        let handle = bed.engine.inner.handle("a").await?;
        let held = soon(|| async { handle.is_held().then_some(()) }).await;
        guest.let_start();
        held?;
        Ok::<_, Box<dyn std::error::Error>>(())
    };
    let (ran, paused, held) = tokio::join!(bed.engine.start_process("a", command(&["held"])), pause, start);
    ran?;
    held?;
    paused
}

#[tokio::test]
async fn a_paused_one_can_die_stop_expire_and_be_deleted() -> Tested {
    let bed = Bed::new().await?;
    let dies = bed.create("dies").await?;
    bed.engine.pause("dies").await?;
    bed.provider.die(&dies.id);
    let failed = bed.until("dies", SandboxState::Failed).await?;
    assert_eq!(failed.reason.map(|reason| reason.code).as_deref(), Some("guest_died"));
    assert_eq!(bed.engine.start("dies").await?.state, SandboxState::Ready);
    bed.engine.exec("dies", echo()).await?;

    bed.create("stops").await?;
    let process = bed.engine.start_process("stops", command(&["sleep"])).await?;
    bed.engine.pause("stops").await?;
    bed.provider.kernel.done();
    assert_eq!(bed.engine.stop("stops").await?.state, SandboxState::Stopped);
    assert_eq!(bed.provider.kernel.done(), ["thaw"], "whoever stands still cannot end");
    let ended = bed.engine.process("stops", process.id.as_str()).await?;
    assert_eq!(ended.exit.map(|exit| exit.reason), Some(ExitReason::Stopped));
    for refused in [bed.engine.pause("stops").await, bed.engine.resume("stops").await] {
        assert_eq!(code(refused), Some(Code::WrongState));
    }

    let request = CreateSandbox { ttl: Some("2s".parse()?), ..CreateSandbox::default() };
    let mut tries = 0;
    let expires = loop {
        let made = bed.engine.create(&owner(), request.clone(), None).await?.sandbox;
        match bed.engine.pause(made.id.as_str()).await {
            // On a slow host one may be gone before it is paused, but not each.
            Err(problem) if problem.code == Code::SandboxGone && tries < 5 => tries += 1,
            paused => break paused?,
        }
    };
    let gone = bed.until(expires.id.as_str(), SandboxState::Deleted).await?;
    assert_eq!(gone.reason.map(|reason| reason.code).as_deref(), Some("expired"));

    bed.create("goes").await?;
    bed.engine.pause("goes").await?;
    bed.engine.delete("goes").await?;
    assert_eq!(code(bed.engine.resume("goes").await), Some(Code::SandboxGone));
    Ok(())
}

#[tokio::test]
async fn a_server_that_ends_halfway_leaves_what_the_next_makes_true() -> Tested {
    let mut bed = Bed::new().await?;
    let (ready, paused) = (bed.create("ready").await?, bed.create("paused").await?);
    let process = bed.engine.start_process("paused", command(&["sleep"])).await?;
    bed.engine.pause("paused").await?;
    bed.engine.shutdown().await;
    // It ended after it had held one still and let the other go, and before either was recorded.
    bed.provider.kernel.set_still(&ready.id, true);
    bed.provider.kernel.set_still(&paused.id, false);
    bed.restart().await?;
    assert_eq!(bed.state("ready").await, Some(SandboxState::Ready));
    assert!(!bed.provider.kernel.is_still(&ready.id));
    bed.engine.exec("ready", echo()).await?;
    assert_eq!(bed.state("paused").await, Some(SandboxState::Paused));
    assert!(bed.provider.kernel.is_still(&paused.id));
    assert_eq!(code(bed.engine.exec("paused", echo()).await), Some(Code::WrongState));
    bed.engine.resume("paused").await?;
    let guest = bed.provider.get(&paused.id).ok_or("no sandbox")?.guest.clone();
    guest.write(process.id.as_str(), b"on");
    let on = || async { bed.engine.process("paused", process.id.as_str()).await.ok().filter(|p| p.output.end == 2) };
    soon(on).await?;
    Ok(())
}

#[tokio::test]
async fn what_holds_it_is_asked_inside_and_remembered_while_it_stands_still() -> Tested {
    let bed = Bed::new().await?;
    let sandbox = bed.create("a").await?;
    bed.engine.pause("a").await?;
    assert_eq!(code(bed.engine.enforcement("a").await), Some(Code::WrongState), "nobody has looked yet");
    bed.engine.resume("a").await?;
    let seen = bed.engine.enforcement("a").await?;
    assert_eq!((&seen.sandbox, seen.profile.as_str(), seen.user.as_str()), (&sandbox.id, "standard", "agent"));
    assert!(seen.holds());
    assert_eq!(seen.layers[0].evidence, "Seccomp: 2 in a");
    bed.engine.pause("a").await?;
    assert_eq!(bed.engine.enforcement("a").await?, seen);
    bed.engine.stop("a").await?;
    assert_eq!(code(bed.engine.enforcement("a").await), Some(Code::WrongState));
    bed.engine.start("a").await?;
    bed.engine.pause("a").await?;
    assert_eq!(code(bed.engine.enforcement("a").await), Some(Code::WrongState), "that was another run");
    Ok(())
}
