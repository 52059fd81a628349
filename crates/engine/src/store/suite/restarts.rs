//! Lines of processes that follow one another: decided with the end of each, started once, forgotten by nobody.

use chrono::TimeDelta;
use sandbar_api::{
    Exit, ExitReason, Process, ProcessId, ProcessState, Restart, SandboxId, SandboxState, StartProcess, Stream,
    TerminalSize,
};

use super::{Home, Outcome, all_events, kinds, new_process, new_sandbox, now, sandbox};
use crate::store::{
    Chunk, Error, RestartStore as _, Result, Store,
    restart::{By, FIRST_WAIT, KEPT, LIMIT, LineRow, LineState},
};

fn request() -> StartProcess {
    StartProcess {
        argv: vec!["agent".into()],
        env: [("A".into(), "1".into())].into(),
        terminal: Some(TerminalSize { cols: 101, rows: 33 }),
        restart: Some(Restart::OnFailure),
        ..StartProcess::default()
    }
}

fn failed() -> Option<Exit> {
    Some(Exit { code: 3, signal: None, reason: ExitReason::Exited })
}

async fn begun(store: &impl Store, sandbox: &SandboxId) -> Result<Process> {
    let process = Process { restart: Some(Restart::OnFailure), terminal: true, ..new_process(sandbox) };
    store.begin_line(&process, &request()).await?;
    Ok(process)
}

fn following(line: &LineRow) -> Process {
    Process {
        restart: line.request.restart,
        restart_of: Some(line.line.clone()),
        restarts: line.restarts + 1,
        ..new_process(&line.sandbox)
    }
}

async fn line(
    store: &impl Store,
    process: &ProcessId,
) -> std::result::Result<LineRow, Box<dyn std::error::Error + Send + Sync>> {
    Ok(store.line_of(process).await?.ok_or("it has a line")?)
}

pub(in crate::store) async fn what_is_to_follow_is_found_again_and_started_once<H: Home>(home: H) -> Outcome {
    let store = home.open().await?;
    let here = sandbox(&store, "s").await?;
    let first = begun(&store, &here).await?;
    assert_eq!(store.process(&here, &first.id).await?.as_ref(), Some(&first));
    assert_eq!((line(&store, &first.id).await?.state, store.next_due().await?), (LineState::Running, None));
    for _ in 0..2 {
        store.end_run(&first.id, ProcessState::Exited, failed(), first.started_at).await?;
    }
    assert_eq!(kinds(&store).await?[2..], ["process.started", "process.exited", "process.restart_due"]);
    drop(store);

    let store = home.open().await?;
    let waiting = line(&store, &first.id).await?;
    let LineState::Waiting(due) = waiting.state else { return Err(format!("{waiting:?}").into()) };
    assert_eq!(due - waiting.changed_at, TimeDelta::from_std(FIRST_WAIT)?);
    assert_eq!((&waiting.request, waiting.quick, waiting.since), (&request(), 1, first.started_at));
    assert_eq!(store.next_due().await?, Some(due));
    assert_eq!(store.due_lines(due - TimeDelta::microseconds(1)).await?, []);
    assert_eq!(store.due_lines(due).await?, std::slice::from_ref(&waiting));
    assert_eq!(store.due_lines(due - TimeDelta::days(1)).await?.len(), 1, "the clock went back");
    let second = following(&waiting);
    let rivals: Vec<_> = (0..20).map(|_| following(&waiting)).collect();
    let starts = rivals.iter().chain([&second]).map(|process| store.next_run(process, By::Time));
    let started = futures_util::future::try_join_all(starts).await?;
    assert_eq!(started.iter().filter(|started| **started).count(), 1, "of many who would start it one does");
    assert_eq!((store.due_lines(due).await?, store.next_due().await?), (vec![], None));
    let running = store.running_processes().await?;
    let [second] = &running[..] else { return Err("one runs".into()) };
    assert_eq!((second.restart_of.as_ref(), second.restarts), (Some(&first.id), 1));
    let told = all_events(&store).await?.pop().ok_or("it was told")?;
    assert_eq!((told.kind.as_str(), &told.data["restart_of"]), ("process.started", &first.id.as_str().into()));
    assert_eq!(line(&store, &second.id).await?.line, first.id, "any of them names it");
    assert!(!store.next_run(&following(&line(&store, &first.id).await?), By::Person).await?, "it runs");
    Ok(())
}

pub(in crate::store) async fn one_that_keeps_dying_is_flagged_once_until_a_person_starts_it<H: Home>(
    home: H,
) -> Outcome {
    let store = home.open().await?;
    let new = new_sandbox("s");
    let session = new.row.sandbox.session.clone();
    let here = new.row.sandbox.id.clone();
    store.create_sandbox(new).await?;
    let first = begun(&store, &here).await?;
    let mut last = first.clone();
    for run in 1..=LIMIT {
        store.end_run(&last.id, ProcessState::Exited, failed(), last.started_at + TimeDelta::seconds(59)).await?;
        if run < LIMIT {
            last = following(&line(&store, &first.id).await?);
            assert!(store.next_run(&last, By::Time).await?);
        }
    }
    let flagged = line(&store, &first.id).await?;
    assert_eq!((flagged.state, flagged.quick, &flagged.process), (LineState::CrashLoop, LIMIT, &last.id));
    assert_eq!(store.next_due().await?, None);
    assert_eq!(store.lines(&session).await?, std::slice::from_ref(&flagged));
    let told: Vec<_> =
        all_events(&store).await?.into_iter().filter(|event| event.kind == "process.crash_loop").collect();
    let [told] = &told[..] else { return Err("it is told once".into()) };
    assert_eq!(told.process.as_deref(), Some(last.id.as_str()));
    assert_eq!(
        (&told.data["argv"][0], &told.data["exit"]["code"], &told.data["runs"]),
        (&"agent".into(), &3.into(), &LIMIT.into())
    );
    assert!(!store.next_run(&following(&flagged), By::Time).await?);

    let again = following(&flagged);
    assert!(store.next_run(&again, By::Person).await?);
    assert_eq!(line(&store, &first.id).await?.quick, 0);
    store.end_run(&again.id, ProcessState::Exited, failed(), again.started_at + TimeDelta::seconds(60)).await?;
    assert_eq!(line(&store, &first.id).await?.quick, 0, "it had run for a minute");
    store.transition(&here, SandboxState::Deleted, None).await?;
    assert_eq!(store.lines(&session).await?, [], "gone with its sandbox");
    Ok(())
}

pub(in crate::store) async fn of_a_long_line_the_first_and_the_newest_are_kept<H: Home>(home: H) -> Outcome {
    let store = home.open().await?;
    let here = sandbox(&store, "s").await?;
    let bystander = new_process(&here);
    store.create_process(&bystander).await?;
    let first = begun(&store, &here).await?;
    let mut runs = vec![first.clone()];
    while runs.len() < KEPT as usize + 4 {
        let last = &runs[runs.len() - 1];
        let chunk = Chunk { offset: 0, stream: Stream::Stdout, at: now(), data: "words".into() };
        store.append_output(&last.id, &chunk, 1 << 20).await?;
        store.end_run(&last.id, ProcessState::Exited, failed(), last.started_at + TimeDelta::seconds(61)).await?;
        let next = following(&line(&store, &first.id).await?);
        assert!(store.next_run(&next, By::Time).await?);
        runs.push(next);
    }
    let kept: Vec<_> = store.processes(&here).await?.into_iter().map(|process| process.id).collect();
    let newest = runs.iter().skip(runs.len() - KEPT as usize);
    let wanted: Vec<_> = [&bystander, &first].into_iter().chain(newest).map(|process| process.id.clone()).collect();
    assert_eq!(kept.len(), wanted.len());
    assert!(wanted.iter().all(|id| kept.contains(id)));
    assert_eq!(store.output_range(&first.id).await?.end, 5);
    assert_eq!(store.output_range(&runs[1].id).await?.end, 0, "what it wrote went with it");
    assert_eq!(line(&store, &runs[runs.len() - 1].id).await?.line, first.id);
    Ok(())
}

pub(in crate::store) async fn a_person_and_the_end_of_the_sandbox_end_a_line<H: Home>(home: H) -> Outcome {
    let store = home.open().await?;
    let here = sandbox(&store, "s").await?;
    store.transition(&here, SandboxState::Ready, None).await?;
    // Asked to end while it runs.
    let asked = begun(&store, &here).await?;
    assert_eq!(store.give_up_line(&asked.id).await?.map(|line| line.state), Some(LineState::Running));
    store.end_run(&asked.id, ProcessState::Exited, failed(), now()).await?;
    assert_eq!(line(&store, &asked.id).await?.state, LineState::Ended);
    // Given up while it waits.
    let waits = begun(&store, &here).await?;
    store.end_run(&waits.id, ProcessState::Lost, None, now()).await?;
    assert!(matches!(line(&store, &waits.id).await?.state, LineState::Waiting(_)), "lost is no success");
    store.give_up_line(&waits.id).await?;
    assert_eq!((line(&store, &waits.id).await?.state, store.next_due().await?), (LineState::Ended, None));
    assert_eq!(kinds(&store).await?.pop().as_deref(), Some("process.restart_cancelled"));
    assert_eq!(store.give_up_line(&new_process(&here).id).await?, None);
    // Given up for a signal that was then not sent.
    let stays = begun(&store, &here).await?;
    let before = store.give_up_line(&stays.id).await?.ok_or("it has a line")?;
    store.take_up_line(&before).await?;
    assert_eq!((line(&store, &stays.id).await?, before.state), (before.clone(), LineState::Running));
    store.end_run(&stays.id, ProcessState::Exited, failed(), now()).await?;
    let waiting = line(&store, &stays.id).await?.state;
    let before = store.give_up_line(&stays.id).await?.ok_or("it has a line")?;
    store.take_up_line(&before).await?;
    assert!(matches!(waiting, LineState::Waiting(_)));
    assert_eq!(line(&store, &stays.id).await?.state, waiting);
    assert_eq!(kinds(&store).await?.pop().as_deref(), Some("process.restart_due"));
    // More has happened since: that stands.
    let next = following(&line(&store, &stays.id).await?);
    assert!(store.next_run(&next, By::Time).await?);
    store.give_up_line(&next.id).await?;
    store.take_up_line(&before).await?;
    assert_eq!(line(&store, &stays.id).await?.state, LineState::Leaving);
    // Waiting in a sandbox that ends, and ending in one.
    let (idle, busy) = (begun(&store, &here).await?, begun(&store, &here).await?);
    store.end_run(&idle.id, ProcessState::Exited, failed(), now()).await?;
    store.transition(&here, SandboxState::Stopping, None).await?;
    store.end_run(&busy.id, ProcessState::Exited, failed(), now()).await?;
    for process in [&idle, &busy] {
        assert_eq!(line(&store, &process.id).await?.state, LineState::Ended);
    }
    let ended = line(&store, &idle.id).await?;
    assert!(!store.next_run(&following(&ended), By::Time).await?);
    assert!(store.next_run(&following(&ended), By::Person).await?, "a person may start it all the same");
    Ok(())
}

pub(in crate::store) async fn one_that_cannot_be_started_counts_as_failed<H: Home>(home: H) -> Outcome {
    let store = home.open().await?;
    let here = sandbox(&store, "s").await?;
    let never = begun(&store, &here).await?;
    store.refuse_process(&never.id, "there is no such program").await?;
    assert_eq!(store.line_of(&never.id).await?, None, "nothing follows what never was");
    let first = begun(&store, &here).await?;
    store.end_run(&first.id, ProcessState::Exited, failed(), first.started_at).await?;
    for run in 2..=LIMIT {
        let next = following(&line(&store, &first.id).await?);
        assert!(store.next_run(&next, By::Time).await?);
        store.refuse_process(&next.id, "there is no such program any more").await?;
        let after = line(&store, &first.id).await?;
        assert_eq!((after.quick, &after.process), (run, &first.id), "the last that ran");
    }
    assert_eq!(line(&store, &first.id).await?.state, LineState::CrashLoop);
    let gone = sandbox(&store, "gone").await?;
    store.transition(&gone, SandboxState::Deleted, None).await?;
    let refused = store.begin_line(&new_process(&gone), &request()).await;
    assert!(matches!(refused, Err(Error::Missing(_))), "{refused:?}");
    Ok(())
}
