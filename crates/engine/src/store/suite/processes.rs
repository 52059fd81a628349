//! Processes: rows from start to end, with the range of their output.

use sandbar_api::{Exit, ExitReason, OutputRange, ProcessState, SandboxState};

use super::{Home, Outcome, all_events, kinds, new_process, now, sandbox, stdout};
use crate::store::{Error, Store as _};

pub(in crate::store) async fn they_start_and_end_once<H: Home>(home: H) -> Outcome {
    let store = home.open().await?;
    let (here, elsewhere) = (sandbox(&store, "here").await?, sandbox(&store, "elsewhere").await?);
    let (mut one, mut two) = (new_process(&here), new_process(&here));
    two.terminal = true;
    for process in [&one, &two] {
        store.create_process(process).await?;
    }
    assert!(store.create_process(&one).await.is_err(), "an id is used once");
    store.append_output(&one.id, &stdout(0, "hello"), 1 << 20).await?;
    one.output = OutputRange { start: 0, end: 5 };
    assert_eq!(store.process(&here, &one.id).await?.as_ref(), Some(&one));
    assert_eq!(store.process(&elsewhere, &one.id).await?, None, "it is another sandbox's");
    assert_eq!(store.processes(&here).await?, [one.clone(), two.clone()]);
    assert_eq!(store.running_processes().await?, [one.clone(), two.clone()]);

    let at = now();
    let exit = Exit { code: 137, signal: Some(9), reason: ExitReason::Timeout };
    store.end_process(&one.id, ProcessState::Exited, Some(exit.clone()), at).await?;
    let told = *store.head().borrow();
    store.end_process(&one.id, ProcessState::Lost, None, now()).await?;
    assert_eq!(*store.head().borrow(), told, "it had ended already");
    assert!(store.end_process(&two.id, ProcessState::Running, None, at).await.is_err());
    (one.state, one.exit, one.exited_at) = (ProcessState::Exited, Some(exit), Some(at));
    drop(store);

    let store = home.open().await?;
    assert_eq!(store.process(&here, &one.id).await?, Some(one));
    assert_eq!(store.running_processes().await?, [two.clone()]);
    let event = all_events(&store).await?.pop().ok_or("its end was told")?;
    assert_eq!((event.kind.as_str(), &event.data["exit"]["code"]), ("process.exited", &137.into()));
    let nobody = store.end_process(&new_process(&here).id, ProcessState::Lost, None, at).await;
    assert!(matches!(nobody, Err(Error::Missing(_))), "{nobody:?}");
    Ok(())
}

pub(in crate::store) async fn none_start_where_no_sandbox_is<H: Home>(home: H) -> Outcome {
    let store = home.open().await?;
    let id = sandbox(&store, "gone").await?;
    store.transition(&id, SandboxState::Deleted, None).await?;
    let told = *store.head().borrow();
    let refused = store.create_process(&new_process(&id)).await;
    assert!(matches!(refused, Err(Error::Missing(_))), "{refused:?}");
    assert_eq!(store.processes(&id).await?, []);
    assert_eq!(*store.head().borrow(), told);
    Ok(())
}

pub(in crate::store) async fn one_that_ends_at_a_limit_tells_which<H: Home>(home: H) -> Outcome {
    let store = home.open().await?;
    let id = sandbox(&store, "s").await?;
    for (reason, limit) in
        [(ExitReason::Oom, "memory"), (ExitReason::PidsLimit, "processes"), (ExitReason::DiskLimit, "disk")]
    {
        let process = new_process(&id);
        store.create_process(&process).await?;
        let exit = Exit { code: 137, signal: Some(9), reason };
        let head = *store.head().borrow();
        for _ in 0..2 {
            store.end_process(&process.id, ProcessState::Exited, Some(exit.clone()), now()).await?;
        }
        assert_eq!(store.process(&id, &process.id).await?.and_then(|process| process.exit), Some(exit.clone()));
        let told = store.events(head, 10, Some(&id)).await?;
        assert_eq!(
            told.iter().map(|event| event.kind.as_str()).collect::<Vec<_>>(),
            ["sandbox.limit", "process.exited"]
        );
        assert_eq!(told[0].data, serde_json::json!({ "limit": limit, "process": process.id }));
        assert_eq!(told[1].data, serde_json::json!({ "exit": exit }));
        assert!(told.iter().all(|event| event.process.as_deref() == Some(process.id.as_str())));
    }
    let nobody = new_process(&id).id;
    let exit = Exit { code: 137, signal: Some(9), reason: ExitReason::Oom };
    let nobody = store.end_process(&nobody, ProcessState::Exited, Some(exit), now()).await;
    assert!(matches!(nobody, Err(Error::Missing(_))), "{nobody:?}");
    Ok(())
}

pub(in crate::store) async fn a_refused_one_is_gone_and_told<H: Home>(home: H) -> Outcome {
    let store = home.open().await?;
    let id = sandbox(&store, "s").await?;
    let mut process = new_process(&id);
    process.argv = vec!["sh".into(), "x".repeat(100_000)];
    store.create_process(&process).await?;
    store.refuse_process(&process.id, "there is no such program").await?;
    assert_eq!(store.processes(&id).await?, []);
    assert_eq!(kinds(&store).await?[2..], ["process.started", "process.refused"]);
    let event = all_events(&store).await?.pop().ok_or("it was told")?;
    assert_eq!(event.data["reason"], "there is no such program");
    assert_eq!((&event.data["argv"], &event.data["argv_cut"]), (&serde_json::json!(["sh"]), &true.into()));
    let again = store.refuse_process(&process.id, "once more").await;
    assert!(matches!(again, Err(Error::Missing(_))), "{again:?}");
    Ok(())
}
