//! Commands that are started again: how often, by whom, and when no more. The waits are the real ones, a quarter of a
//! second and its doubles.

use chrono::TimeDelta;
use sandbar_api::{
    Code, CreateSession, Process, ProcessState, Restart, Session, SessionState, StartProcess, TerminalSize,
};
use sandbar_guest::protocol::ExitReason;

use super::{Bed, Tested, code, command, owner, script, script::Fault, soon};
use crate::store::restart::{LIMIT, LineState};

fn kept(argv: &[&str]) -> StartProcess {
    let terminal = Some(TerminalSize { cols: 80, rows: 24 });
    let env = [("A".to_owned(), "1".to_owned())].into();
    StartProcess { restart: Some(Restart::OnFailure), terminal, env, cwd: Some("/tmp".into()), ..command(argv) }
}

impl Bed {
    /// Waits until so many processes were started in `a`, and returns the last of these.
    async fn started(&self, count: usize) -> Result<Process, String> {
        soon(|| async {
            let process = self.engine.processes("a").await.ok()?.into_iter().nth(count - 1)?;
            // It is recorded before it is started.
            let guest = self.provider.get(&process.sandbox)?.guest.clone();
            let begun = process.state != ProcessState::Running || guest.play(process.id.as_str()).is_some();
            begun.then_some(process)
        })
        .await
    }

    /// Waits until it is decided what follows a process; how many in a row had ended too soon by then.
    async fn runs(&self, process: &Process) -> Result<u64, String> {
        soon(|| async {
            let events = self.engine.events(0, 10_000, Some("a")).await.ok()?;
            let of = |event: &&sandbar_api::Event| event.process.as_deref() == Some(process.id.as_str());
            let due = events.iter().filter(of).find(|event| event.kind == "process.restart_due")?;
            due.data["runs"].as_u64()
        })
        .await
    }

    fn die(&self, process: &Process, code: i32, seconds: i64) -> Result<(), &'static str> {
        let guest = self.provider.get(&process.sandbox).ok_or("no sandbox")?.guest.clone();
        let at_ms = (process.started_at + TimeDelta::seconds(seconds)).timestamp_millis();
        guest.change(process.id.as_str(), |play| {
            play.exit =
                script::exit(code, 0, ExitReason::ByItself).map(|exit| sandbar_guest::protocol::Exit { at_ms, ..exit });
        });
        Ok(())
    }

    async fn of_a(&self) -> Option<Session> {
        self.engine.session(&owner(), "a").await.ok()
    }

    async fn count(&self, kind: &str) -> Result<usize, sandbar_api::Problem> {
        let events = self.engine.events(0, 10_000, None).await?;
        Ok(events.into_iter().filter(|event| event.kind == kind).count())
    }
}

#[tokio::test]
async fn one_that_fails_is_started_again_as_it_was() -> Tested {
    let bed = Bed::new().await?;
    let sandbox = bed.create("a").await?;
    let first = bed.engine.start_process("a", kept(&["sleep"])).await?;
    assert_eq!((first.restart, &first.restart_of, first.restarts), (Some(Restart::OnFailure), &None, 0));
    bed.engine.resize("a", first.id.as_str(), TerminalSize { cols: 99, rows: 9 }).await?;
    // While it is paused nothing is started, so that the wait can be looked at.
    bed.engine.pause("a").await?;
    bed.die(&first, 1, 0)?;
    let waiting = soon(|| async { bed.of_a().await?.restarting.pop() }).await?;
    assert_eq!((&waiting.process, waiting.exit.map(|exit| exit.code), waiting.runs), (&first.id, Some(1), 1));
    bed.engine.resume("a").await?;
    let second = bed.started(2).await?;
    assert_eq!((second.restart_of.as_ref(), second.restarts), (Some(&first.id), 1));
    assert_eq!((&second.argv, &second.cwd, second.terminal), (&first.argv, &first.cwd, true));
    assert!(second.started_at >= waiting.due);
    let start = bed.provider.get(&sandbox.id).and_then(|sandbox| sandbox.guest.last_start()).ok_or("it was started")?;
    assert_eq!(start.env.get("A").map(String::as_str), Some("1"));
    assert_eq!(start.terminal.map(|size| (size.cols, size.rows)), Some((99, 9)), "the last size it had");
    let session = bed.of_a().await.ok_or("no session")?;
    assert_eq!(session.terminals.iter().map(|one| &one.process).collect::<Vec<_>>(), [&second.id]);
    // It ends well, and that is that.
    bed.die(&second, 0, 0)?;
    soon(|| async { bed.of_a().await.filter(|session| session.terminals.is_empty()) }).await?;
    assert_eq!(bed.count("process.restart_due").await?, 1);
    assert_eq!(bed.engine.inner.store.next_due().await?, None);
    Ok(())
}

#[tokio::test]
async fn one_that_keeps_dying_is_flagged_and_can_be_started_by_a_person() -> Tested {
    let mut bed = Bed::new().await?;
    let request = CreateSession {
        name: Some("a".into()),
        command: Some(vec!["die".into(), "3".into()]),
        restart: Some(Restart::OnFailure),
        ..CreateSession::default()
    };
    bed.engine.create_session(&owner(), request, None).await?;
    for count in 2..=LIMIT as usize {
        bed.started(count).await?;
        if count == 3 {
            // In the middle of a wait: it goes on, and nothing is started twice.
            soon(|| async { bed.of_a().await?.restarting.pop() }).await?;
            bed.restart().await?;
        }
    }
    let session = soon(|| async { bed.of_a().await.filter(|session| !session.crash_loops.is_empty()) }).await?;
    let [flagged] = &session.crash_loops[..] else { return Err("flagged once".into()) };
    let processes = bed.engine.processes("a").await?;
    assert_eq!((processes.len(), processes.last().map(|last| &last.id)), (LIMIT as usize, Some(&flagged.process)));
    assert_eq!((flagged.exit.as_ref().map(|exit| exit.code), flagged.runs, flagged.terminal), (Some(3), LIMIT, true));
    assert_eq!((session.state, session.restarting), (SessionState::Active, vec![]));
    assert_eq!(bed.count("process.crash_loop").await?, 1);
    bed.restart().await?;
    assert_eq!(bed.count("process.crash_loop").await?, 1, "told once");
    bed.engine.screen("a", flagged.process.as_str()).await?;

    let again = bed.engine.restart_session("a", None).await?;
    assert_eq!((again.restart_of.as_ref(), again.restarts), (Some(&flagged.restart_of), LIMIT));
    assert_eq!(bed.runs(&again).await?, 1, "the count begins anew");
    // Nor has somebody to wait for what is due.
    let early = async || bed.engine.restart_session("a", Some(&flagged.restart_of)).await.ok();
    let early = soon(&early).await?;
    assert_eq!(bed.runs(&early).await?, 1);
    assert!(bed.of_a().await.is_some_and(|session| session.crash_loops.is_empty()));
    Ok(())
}

#[tokio::test]
async fn a_person_who_kills_it_has_the_last_word() -> Tested {
    let bed = Bed::new().await?;
    bed.create("a").await?;
    for signal in ["TERM", "KILL"] {
        let process =
            bed.engine.start_process("a", StartProcess { restart: Some(Restart::Always), ..kept(&["sleep"]) }).await?;
        bed.engine.signal("a", process.id.as_str(), signal).await?;
        let ended = async || {
            bed.engine.process("a", process.id.as_str()).await.ok().filter(|one| one.state == ProcessState::Exited)
        };
        soon(&ended).await?;
        assert_eq!(bed.engine.inner.store.next_due().await?, None, "{signal}");
    }
    // Also while it waits.
    let dying = bed.engine.start_process("a", kept(&["sleep"])).await?;
    bed.engine.pause("a").await?;
    bed.die(&dying, 1, 0)?;
    bed.runs(&dying).await?;
    let handle = bed.engine.inner.handle("a").await?;
    soon(|| async { handle.live(&dying.id).is_none().then_some(()) }).await?;
    bed.engine.signal("a", dying.id.as_str(), "TERM").await?;
    assert_eq!(bed.engine.inner.store.next_due().await?, None);
    assert_eq!(code(bed.engine.signal("a", dying.id.as_str(), "TERM").await), Some(Code::ProcessOver));
    bed.engine.resume("a").await?;
    assert_eq!(bed.engine.processes("a").await?.len(), 3);
    assert_eq!(code(bed.engine.restart_session("a", None).await), Some(Code::BadRequest), "three could be meant");
    let again = bed.engine.restart_session("a", Some(&dying.id)).await?;
    assert_eq!(again.restart_of, Some(dying.id));
    Ok(())
}

#[tokio::test]
async fn a_kill_that_is_refused_leaves_the_restart_policy() -> Tested {
    let bed = Bed::new().await?;
    let sandbox = bed.create("a").await?;
    let guest = bed.provider.get(&sandbox.id).ok_or("no sandbox")?.guest.clone();
    let line = async |process: &Process| {
        bed.engine.inner.store.line_of(&process.id).await.map(|line| line.map(|line| line.state))
    };
    let first = bed.engine.start_process("a", kept(&["sleep"])).await?;
    for signal in ["TERM", "KILL"] {
        bed.engine.pause("a").await?;
        assert_eq!(code(bed.engine.signal("a", first.id.as_str(), signal).await), Some(Code::WrongState));
        bed.engine.resume("a").await?;
        // Nor if the guest does not get it.
        guest.fail("signal", Some(Fault::Unreachable));
        assert_eq!(code(bed.engine.signal("a", first.id.as_str(), signal).await), Some(Code::GuestUnreachable));
        guest.fail("signal", None);
        assert_eq!(line(&first).await?, Some(LineState::Running), "{signal}");
    }
    // Also while it waits to be started again: what it left behind cannot be killed in a paused sandbox.
    bed.engine.pause("a").await?;
    bed.die(&first, 1, 0)?;
    bed.runs(&first).await?;
    let handle = bed.engine.inner.handle("a").await?;
    soon(|| async { handle.live(&first.id).is_none().then_some(()) }).await?;
    assert_eq!(code(bed.engine.signal("a", first.id.as_str(), "KILL").await), Some(Code::WrongState));
    assert!(matches!(line(&first).await?, Some(LineState::Waiting(_))));
    bed.engine.resume("a").await?;
    let second = bed.started(2).await?;
    assert_eq!(second.restart_of, Some(first.id));
    assert_eq!(bed.count("process.restart_cancelled").await?, 0);
    Ok(())
}

#[tokio::test]
async fn nothing_is_started_in_a_sandbox_that_ended_or_stands_still() -> Tested {
    let bed = Bed::new().await?;
    for verb in ["stop", "delete", "pause"] {
        bed.create("a").await?;
        let process = bed.engine.start_process("a", kept(&["die", "1"])).await?;
        soon(|| async { bed.of_a().await?.restarting.pop() }).await?;
        match verb {
            "stop" => drop(bed.engine.stop("a").await?),
            "delete" => bed.engine.delete("a").await?,
            _ => drop(bed.engine.pause("a").await?),
        }
        match verb {
            // Held, not forgotten.
            "pause" => {
                soon(|| async { bed.of_a().await?.restarting.pop() }).await?;
                let (store, handle) = (&bed.engine.inner.store, bed.engine.inner.handle("a").await?);
                soon(|| async { store.due_lines(chrono::Utc::now()).await.ok()?.pop() }).await?;
                let used = handle.activity.last();
                crate::restarts::round(&bed.engine.inner).await?;
                assert_eq!(handle.activity.last(), used, "what waits in it is no use of it");
                let before = bed.engine.processes("a").await?.len();
                bed.engine.resume("a").await?;
                bed.started(before + 1).await?;
                return Ok(());
            }
            "stop" => {
                let before = bed.engine.processes("a").await?.len();
                bed.engine.start("a").await?;
                assert_eq!(bed.engine.inner.store.next_due().await?, None);
                assert_eq!(bed.engine.processes("a").await?.len(), before);
                bed.engine.delete("a").await?;
            }
            _ => assert_eq!(bed.engine.inner.store.next_due().await?, None, "{}", process.id),
        }
    }
    Ok(())
}

#[tokio::test]
async fn what_runs_for_a_minute_is_forgiven_and_what_has_no_policy_just_ends() -> Tested {
    let bed = Bed::new().await?;
    bed.create("a").await?;
    let mut process = bed.engine.start_process("a", kept(&["sleep"])).await?;
    for (count, seconds, runs) in [(2, 1, 1), (3, 61, 0), (4, 1, 1)] {
        bed.die(&process, 1, seconds)?;
        assert_eq!(bed.runs(&process).await?, runs, "{count}");
        process = bed.started(count).await?;
    }
    bed.engine.signal("a", process.id.as_str(), "KILL").await?;
    let plain = StartProcess { restart: Some(Restart::Never), ..kept(&["die", "1"]) };
    assert_eq!(bed.engine.start_process("a", plain).await?.restart, None);
    assert_eq!(
        code(bed.engine.restart_session("a", Some(&bed.engine.processes("a").await?[4].id)).await),
        Some(Code::UnknownProcess)
    );
    assert!(bed.of_a().await.is_some_and(|session| session.crash_loops.is_empty() && session.restarting.is_empty()));
    Ok(())
}

#[tokio::test]
async fn a_sandbox_that_does_not_answer_holds_up_no_other() -> Tested {
    let bed = Bed::new().await?;
    let silent = bed.create("b").await?;
    let stuck = bed.engine.start_process("b", kept(&["sleep"])).await?;
    let guest = bed.provider.get(&silent.id).ok_or("no sandbox")?.guest.clone();
    guest.fail("start", Some(Fault::Unreachable));
    bed.die(&stuck, 1, 0)?;
    soon(|| async { guest.last_start().filter(|start| start.process_id != stuck.id.as_str()) }).await?;
    bed.create("a").await?;
    let first = bed.engine.start_process("a", kept(&["sleep"])).await?;
    bed.die(&first, 1, 0)?;
    bed.runs(&first).await?;
    // After as long as one is waited for.
    match bed.started(2).await {
        Ok(_) => {}
        Err(_) => drop(bed.started(2).await?),
    }
    assert_eq!(bed.engine.processes("b").await?.len(), 2, "nor is it started twice");
    Ok(())
}

#[tokio::test]
async fn one_that_was_recorded_when_the_server_died_is_started_by_the_next() -> Tested {
    let mut bed = Bed::new().await?;
    bed.create("a").await?;
    let first = bed.engine.start_process("a", kept(&["sleep"])).await?;
    bed.engine.pause("a").await?;
    bed.die(&first, 1, 0)?;
    bed.runs(&first).await?;
    // As a server leaves it that dies after the record and before the start.
    let recorded = Process {
        id: crate::ids::process(crate::clock::now())?,
        restart_of: Some(first.id.clone()),
        restarts: 1,
        state: ProcessState::Running,
        exit: None,
        exited_at: None,
        ..first.clone()
    };
    assert!(bed.engine.inner.store.next_run(&recorded, crate::store::restart::By::Time).await?);
    bed.restart().await?;
    bed.engine.resume("a").await?;
    let third = bed.started(3).await?;
    assert_eq!((third.restart_of.as_ref(), third.restarts, third.state), (Some(&first.id), 2, ProcessState::Running));
    assert_eq!(bed.engine.process("a", recorded.id.as_str()).await?.state, ProcessState::Lost);
    Ok(())
}
