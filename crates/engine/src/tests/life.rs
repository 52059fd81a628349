//! The life of a sandbox: created, replayed, stopped, started, dead, expired, deleted.

use sandbar_api::{Code, CreateSandbox, ExitReason, ProcessState, SandboxState};

use super::{Bed, Tested, command, exec, owner, soon};

#[tokio::test]
async fn one_key_makes_one_sandbox_however_often_it_is_sent() -> Tested {
    let bed = Bed::new().await?;
    let request = CreateSandbox { name: Some("once".into()), ..CreateSandbox::default() };
    let caller = owner();
    let create = || bed.engine.create(&caller, request.clone(), Some("key"));
    let (first, second, third) = tokio::join!(create(), create(), create());
    let (first, second, third) = (first?, second?, third?);
    assert_eq!([first.replayed, second.replayed, third.replayed].iter().filter(|replayed| !**replayed).count(), 1);
    for outcome in [&first, &second, &third] {
        assert_eq!(outcome.sandbox.id, first.sandbox.id);
        assert_eq!(outcome.sandbox.state, SandboxState::Ready);
    }
    let other = CreateSandbox::default();
    let refused = bed.engine.create(&owner(), other, Some("key")).await;
    assert_eq!(refused.map_err(|problem| problem.code).err(), Some(Code::IdempotencyMismatch));
    assert_eq!(bed.create("once").await.map_err(|problem| problem.code), Err(Code::NameTaken));
    Ok(())
}

#[tokio::test]
async fn a_create_that_fails_leaves_a_free_name_and_the_story() -> Tested {
    let bed = Bed::new().await?;
    let (layer, cause, fix) = ("user namespaces", "EPERM".to_owned(), "sysctl".to_owned());
    *bed.provider.broken.lock().map_err(|_| "poisoned")? =
        Some(sandbar_provider::Error::NotEnforceable { layer, cause, fix });
    assert_eq!(bed.create("a").await.map_err(|problem| problem.code), Err(Code::NotEnforceable));
    assert!(bed.engine.list(crate::ListQuery::default()).await?.sandboxes.is_empty());
    let events = bed.engine.events(0, 100, None).await?;
    let deleted = events.iter().find(|event| event.kind == "sandbox.deleted").ok_or("no event")?;
    assert!(deleted.data.to_string().contains("start_failed"), "{deleted:?}");
    assert_eq!(bed.create("a").await?.state, SandboxState::Ready);
    Ok(())
}

#[tokio::test]
async fn whoever_reads_that_it_is_ready_can_work_in_it() -> Tested {
    let bed = Bed::new().await?;
    bed.provider.kernel.slow_down(std::time::Duration::from_millis(200));
    let ready = |from: u64| {
        let bed = &bed;
        async move {
            let told = || async {
                let events = bed.engine.events(from, 100, None).await.ok()?;
                events.iter().any(|event| event.kind == "sandbox.ready").then_some(())
            };
            soon(told).await?;
            Ok::<_, Box<dyn std::error::Error>>(bed.engine.exec("a", exec(&["echo", "x"], None, 10)).await?)
        }
    };
    let (made, ran) = tokio::join!(bed.create("a"), ready(0));
    made?;
    assert_eq!(ran?.stdout, "x");
    bed.engine.stop("a").await?;
    let head = *bed.engine.head().borrow();
    let (started, ran) = tokio::join!(bed.engine.start("a"), ready(head));
    started?;
    assert_eq!(ran?.stdout, "x");
    Ok(())
}

#[tokio::test]
async fn a_caller_that_goes_away_does_not_stop_a_creation_halfway() -> Tested {
    let bed = Bed::new().await?;
    let impatient = std::time::Duration::from_millis(5);
    assert!(tokio::time::timeout(impatient, bed.create("a")).await.is_err());
    let ready = || async { bed.engine.get("a").await.ok().filter(|sandbox| sandbox.state == SandboxState::Ready) };
    soon(ready).await?;
    Ok(())
}

#[tokio::test]
async fn deleting_can_be_repeated_and_raced() -> Tested {
    let bed = Bed::new().await?;
    let sandbox = bed.create("a").await?;
    bed.engine.start_process("a", command(&["sleep"])).await?;
    let (first, second) = tokio::join!(bed.engine.delete("a"), bed.engine.delete(sandbox.id.as_str()));
    first?;
    second?;
    bed.engine.delete("a").await?;
    bed.engine.delete(sandbox.id.as_str()).await?;
    assert!(bed.provider.get(&sandbox.id).is_none());
    assert_eq!(bed.engine.get(sandbox.id.as_str()).await?.state, SandboxState::Deleted);
    let gone = bed.engine.exec("a", exec(&["echo", "x"], None, 10)).await.map_err(|problem| problem.code);
    assert_eq!(gone.err(), Some(Code::SandboxGone));
    assert_eq!(bed.engine.delete("never").await.map_err(|problem| problem.code), Err(Code::UnknownSandbox));
    bed.create("a").await?;
    Ok(())
}

#[tokio::test]
async fn stopping_ends_processes_and_starting_brings_it_back() -> Tested {
    let bed = Bed::new().await?;
    bed.create("a").await?;
    let process = bed.engine.start_process("a", command(&["sleep"])).await?;
    assert_eq!(bed.engine.stop("a").await?.state, SandboxState::Stopped);
    assert_eq!(bed.engine.stop("a").await?.state, SandboxState::Stopped);
    let ended = bed.engine.process("a", process.id.as_str()).await?;
    assert_eq!(ended.exit.map(|exit| exit.reason), Some(ExitReason::Stopped));
    let refused = bed.engine.exec("a", exec(&["echo", "x"], None, 10)).await.err().ok_or("it ran")?;
    assert_eq!(refused.code, Code::WrongState);
    assert!(refused.fix.contains("sandbar start a"), "{}", refused.fix);
    assert_eq!(bed.engine.start("a").await?.state, SandboxState::Ready);
    assert_eq!(bed.engine.start("a").await?.state, SandboxState::Ready);
    assert_eq!(bed.engine.exec("a", exec(&["echo", "x"], None, 10)).await?.stdout, "x");
    Ok(())
}

#[tokio::test]
async fn a_guest_that_dies_takes_its_processes_and_can_be_started_again() -> Tested {
    let bed = Bed::new().await?;
    let sandbox = bed.create("a").await?;
    let process = bed.engine.start_process("a", command(&["sleep"])).await?;
    bed.provider.die(&sandbox.id);
    let failed = || async { bed.engine.get("a").await.ok().filter(|sandbox| sandbox.state == SandboxState::Failed) };
    let failed = soon(failed).await?;
    assert_eq!(failed.reason.map(|reason| reason.code).as_deref(), Some("guest_died"));
    assert_eq!(bed.engine.process("a", process.id.as_str()).await?.state, ProcessState::Lost);
    bed.engine.start("a").await?;
    assert_eq!(bed.engine.exec("a", exec(&["echo", "x"], None, 10)).await?.stdout, "x");
    Ok(())
}

#[tokio::test]
async fn a_sandbox_past_its_time_goes() -> Tested {
    let bed = Bed::new().await?;
    let request = CreateSandbox { ttl: Some("150ms".parse()?), ..CreateSandbox::default() };
    let sandbox = bed.engine.create(&owner(), request, None).await?.sandbox;
    let id = sandbox.id.as_str();
    let deleted = || async { bed.engine.get(id).await.ok().filter(|sandbox| sandbox.state == SandboxState::Deleted) };
    let deleted = soon(deleted).await?;
    assert_eq!(deleted.reason.map(|reason| reason.code).as_deref(), Some("expired"));
    Ok(())
}
