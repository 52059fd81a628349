//! Terminals that wait for a person: noticed, asked about once, answered, and taken back when they move on.

mod typing;

use std::time::Duration;

use sandbar_api::{
    AnswerApproval, Approval, ApprovalKind, ApprovalState, Code, Delivery, Problem, Process, Role, StartProcess,
    TerminalSize,
};

use super::{
    Bed, Tested, code, command, owner,
    script::{self, Fault, Script},
    soon,
};
use crate::{ApprovalQuery, Caller, Config, Engine};

const SIZE: TerminalSize = TerminalSize { cols: 60, rows: 10 };

struct Asking {
    bed: Bed,
    process: Process,
    guest: Script,
}

impl Asking {
    async fn start() -> Result<Self, Box<dyn std::error::Error>> {
        let bed = Bed::new().await?;
        bed.create("a").await?;
        Self::of(bed).await
    }

    async fn of(bed: Bed) -> Result<Self, Box<dyn std::error::Error>> {
        let request = StartProcess { terminal: Some(SIZE), ..command(&["sleep"]) };
        let process = bed.engine.start_process("a", request).await?;
        let guest = bed.provider.get(&process.sandbox).ok_or("no sandbox")?.guest.clone();
        Ok(Self { bed, process, guest })
    }

    fn id(&self) -> &str {
        self.process.id.as_str()
    }

    fn print(&self, text: &str) {
        self.guest.write(self.id(), text.as_bytes());
    }

    async fn asks(&self, text: &str) -> Result<Approval, String> {
        self.print(text);
        self.open().await
    }

    async fn open(&self) -> Result<Approval, String> {
        soon(|| async { all(&self.bed.engine, &[ApprovalState::Open]).await.ok()?.pop() }).await
    }

    async fn get(&self, approval: &Approval) -> Result<Approval, Problem> {
        self.bed.engine.approval(&owner(), approval.id.as_str(), Duration::ZERO).await
    }

    async fn closed(&self, approval: &Approval) -> Result<Approval, String> {
        soon(|| async { self.get(approval).await.ok().filter(|approval| approval.state != ApprovalState::Open) }).await
    }

    async fn settled(&self, approval: &Approval) -> Result<Option<Delivery>, String> {
        let settled = |approval: &Approval| approval.delivery != Some(Delivery::Pending);
        let seen = soon(|| async { self.get(approval).await.ok().filter(settled) }).await?;
        Ok(seen.delivery)
    }

    async fn answer(&self, approval: &Approval, choice: &str, text: Option<&str>) -> Result<Approval, Problem> {
        answer(&self.bed.engine, approval, choice, text).await
    }

    fn typed(&self) -> String {
        self.guest.play(self.id()).map(|play| String::from_utf8_lossy(&play.tty.typed).into_owned()).unwrap_or_default()
    }

    fn looks(&self) -> u32 {
        self.guest.play(self.id()).map_or(0, |play| play.tty.looks)
    }

    /// Waits until the watcher has looked as often again as it takes to judge.
    async fn judged(&self) -> Result<(), String> {
        self.judged_since(self.looks()).await
    }

    async fn judged_since(&self, before: u32) -> Result<(), String> {
        soon(|| async { (self.looks() >= before + 2).then_some(()) }).await?;
        tokio::time::sleep(Duration::from_millis(100)).await;
        Ok(())
    }

    async fn told(&self, kind: &str) -> Result<usize, Problem> {
        let events = self.bed.engine.events(0, 10_000, None).await?;
        Ok(events.into_iter().filter(|event| event.kind == kind).count())
    }

    /// The server ends and another one starts: what it has not committed is as if it had been killed.
    async fn crash(&mut self) -> Tested {
        self.bed.restart().await
    }

    async fn end(&self) {
        self.guest.change(self.id(), |play| {
            play.exit = script::exit(0, 0, sandbar_guest::protocol::ExitReason::ByItself);
        });
    }
}

async fn all(engine: &Engine, states: &[ApprovalState]) -> Result<Vec<Approval>, Problem> {
    engine.approvals(&owner(), ApprovalQuery { states: states.into(), ..ApprovalQuery::default() }).await
}

async fn answer(engine: &Engine, approval: &Approval, choice: &str, text: Option<&str>) -> Result<Approval, Problem> {
    let request = AnswerApproval { choice: choice.into(), text: text.map(str::to_owned) };
    engine.answer_approval(&owner(), approval.id.as_str(), request).await
}

/// Whether some file below has it.
fn holds(directory: &std::path::Path, text: &[u8]) -> std::io::Result<bool> {
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        let found = match std::fs::symlink_metadata(&path)?.file_type() {
            kind if kind.is_dir() => holds(&path, text)?,
            kind if kind.is_file() => std::fs::read(&path)?.windows(text.len()).any(|part| part == text),
            _ => false,
        };
        if found {
            return Ok(true);
        }
    }
    Ok(false)
}

fn ids(approval: &Approval) -> Vec<&str> {
    approval.choices.iter().map(|choice| choice.id.as_str()).collect()
}

#[tokio::test]
async fn a_question_is_asked_answered_and_typed_once() -> Tested {
    let asking = Asking::start().await?;
    let approval = asking.asks("step 1\r\nRemove it? [Y/n] ").await?;
    assert_eq!((approval.kind, approval.question.as_str()), (ApprovalKind::Terminal, "Remove it? [Y/n]"));
    assert_eq!((ids(&approval), approval.takes_text), (vec!["yes", "no"], false));
    assert_eq!((approval.on_deadline.as_str(), approval.answerable_by), ("none", Role::Operator));
    let context = &approval.context;
    assert_eq!((&context["process"], &context["command"]), (&asking.id().into(), &"sleep".into()));
    assert_eq!((&context["prompt"], &context["output"], &context["input"]), (&"yes_no".into(), &25.into(), &0.into()));
    assert_eq!(context["screen"], "step 1\nRemove it? [Y/n]");

    let answered = asking.answer(&approval, "no", None).await?;
    assert_eq!((answered.state, answered.delivery), (ApprovalState::Answered, Some(Delivery::Typed)));
    assert_eq!(asking.typed(), "n\r");
    assert_eq!(code(asking.answer(&approval, "yes", None).await), Some(Code::ApprovalClosed));
    // Its program has not reacted yet, and still shows it.
    asking.judged().await?;
    assert_eq!(all(&asking.bed.engine, &[ApprovalState::Open]).await?, []);
    // It asks the same once more.
    let again = asking.asks("n\r\nRemove it? [Y/n] ").await?;
    assert_ne!(again.id, approval.id);
    for kind in ["approval.answered", "approval.typed"] {
        assert_eq!(asking.told(kind).await?, 1, "{kind}");
    }
    assert_eq!(asking.told("approval.opened").await?, 2);
    let events = serde_json::to_string(&asking.bed.engine.events(0, 10_000, None).await?)?;
    assert!(!events.contains("step 1") && events.contains("Remove it?"), "a screen is not told in events");
    Ok(())
}

#[tokio::test]
async fn a_password_is_typed_and_kept_nowhere() -> Tested {
    let asking = Asking::start().await?;
    asking.guest.change(asking.id(), |play| play.tty.no_echo = true);
    let approval = asking.asks("Password for alice: ").await?;
    assert_eq!(approval.question, "Password for alice:");
    assert_eq!((ids(&approval), approval.takes_text), (vec!["text"], true));
    assert_eq!(approval.context["prompt"], "password");
    let answered = asking.answer(&approval, "text", Some("hunter2 hunter3")).await?;
    assert_eq!(asking.typed(), "hunter2 hunter3\r");
    let answer = answered.answer.ok_or("it was answered")?;
    assert_eq!((answer.text, answer.masked), (None, true));
    asking.judged().await?;
    assert_eq!(all(&asking.bed.engine, &[ApprovalState::Open]).await?, [], "nothing was printed for it");
    asking.bed.engine.shutdown().await;
    assert!(holds(&asking.bed.home, b"Password for alice")?, "what is asked is kept");
    assert!(!holds(&asking.bed.home, b"hunter2")?);
    Ok(())
}

#[tokio::test]
async fn text_is_one_line_and_kept_with_the_answer_alone() -> Tested {
    let asking = Asking::start().await?;
    let approval = asking.asks("What is the name of the project? ").await?;
    assert_eq!(approval.context["prompt"], "text");
    for bad in ["a\nb", "a\r", "\u{1b}[A", "\u{3}", "\u{7f}", "\u{9b}A"] {
        let refused = asking.answer(&approval, "text", Some(bad)).await;
        assert_eq!(code(refused), Some(Code::BadAnswer), "{bad:?}");
    }
    assert_eq!(code(asking.answer(&approval, "text", None).await), Some(Code::BadAnswer));
    assert_eq!(code(asking.answer(&approval, "yes", None).await), Some(Code::BadAnswer));
    let long = "x".repeat(10 << 20);
    assert_eq!(code(asking.answer(&approval, "text", Some(&long)).await), Some(Code::TooLarge));
    assert_eq!(asking.typed(), "");
    let answered = asking.answer(&approval, "text", Some("Größe 1")).await?;
    assert_eq!(answered.answer.and_then(|answer| answer.text).as_deref(), Some("Größe 1"));
    assert_eq!(asking.typed(), "Größe 1\r");
    let events = serde_json::to_string(&asking.bed.engine.events(0, 10_000, None).await?)?;
    assert!(!events.contains("Größe 1"));
    Ok(())
}

#[tokio::test]
async fn who_may_not_answer_types_nothing() -> Tested {
    let asking = Asking::start().await?;
    let approval = asking.asks("Go on? [y/N] ").await?;
    let request = || AnswerApproval { choice: "yes".into(), text: None };
    for role in [Role::Agent, Role::Viewer] {
        let session = (role == Role::Agent).then(|| approval.session.clone());
        let caller = Caller { owner: "token:x".into(), role, session };
        let refused = asking.bed.engine.answer_approval(&caller, approval.id.as_str(), request()).await;
        assert_eq!(code(refused), Some(Code::Forbidden), "{role:?}");
    }
    let foreign = asking.bed.engine.answer_approval(&owner(), "apr-00000000000000000000000000", request()).await;
    assert_eq!(code(foreign), Some(Code::UnknownApproval));
    // A sandbox that prints what an answer looks like has answered nothing.
    asking.print("y\r\n\u{1b}]0;yes\u{7}approved: yes\r\n");
    let closed = asking.closed(&approval).await?;
    assert_eq!((closed.state, closed.answer), (ApprovalState::Withdrawn, None));
    assert_eq!(closed.reason.as_deref(), Some("moved_on"));
    assert_eq!(asking.typed(), "");
    let late = asking.answer(&approval, "yes", None).await;
    assert_eq!(code(late), Some(Code::ApprovalClosed));
    Ok(())
}

#[tokio::test]
async fn it_is_taken_back_when_somebody_types_or_the_process_ends() -> Tested {
    let asking = Asking::start().await?;
    let first = asking.asks("Go on? [y/N] ").await?;
    asking.bed.engine.write_input("a", asking.id(), None, "x".into(), false).await?;
    assert_eq!(asking.closed(&first).await?.reason.as_deref(), Some("typed_over"));
    // Of input that the server does not see it learns a little later.
    let second = asking.asks("x\r\nGo on? [y/N] ").await?;
    assert_ne!(first.id, second.id);
    asking.guest.types(asking.id(), b"q");
    assert_eq!(asking.closed(&second).await?.reason.as_deref(), Some("typed_over"));
    asking.bed.engine.write_input("a", asking.id(), None, "w".into(), false).await?;
    asking.judged().await?;
    assert_eq!(all(&asking.bed.engine, &[ApprovalState::Open]).await?, [], "somebody is at it");
    let third = asking.asks("q\r\nGo on? [y/N] ").await?;
    asking.end().await;
    assert_eq!(asking.closed(&third).await?.reason.as_deref(), Some("process_ended"));
    assert_eq!(asking.told("approval.withdrawn").await?, 3);
    Ok(())
}

#[tokio::test]
async fn with_its_sandbox_it_goes_as_everything_does() -> Tested {
    let asking = Asking::start().await?;
    let approval = asking.asks("Go on? [y/N] ").await?;
    asking.bed.engine.delete("a").await?;
    assert_eq!(asking.closed(&approval).await?.reason.as_deref(), Some("sandbox_gone"));
    Ok(())
}

#[tokio::test]
async fn the_same_question_drawn_again_stays_one_approval() -> Tested {
    let asking = Asking::start().await?;
    let approval = asking.asks("Go on? [y/N] ").await?;
    let before = approval.context["output"].as_u64().ok_or("an offset")?;
    asking.print("\r\u{1b}[2KGo on? [y/N] ");
    let moved = |approval: &Approval| approval.context["output"].as_u64() > Some(before);
    let seen = soon(|| async { asking.get(&approval).await.ok().filter(moved) }).await?;
    assert_eq!((seen.state, asking.told("approval.opened").await?), (ApprovalState::Open, 1));
    asking.answer(&approval, "yes", None).await?;
    assert_eq!(asking.typed(), "y\r");
    Ok(())
}

#[tokio::test]
async fn the_same_question_below_another_command_is_another_approval() -> Tested {
    let asking = Asking::start().await?;
    asking.guest.change(asking.id(), |play| (play.tty.raw, play.tty.no_echo) = (true, true));
    let shown = |command: &str| {
        format!(
            "\u{1b}[2J\u{1b}[H {command}\r\n\r\n Do you want to proceed?\r\n ❯ 1. Yes\r\n   2. No\r\n\r\n Esc to cancel"
        )
    };
    let approval = asking.asks(&shown("ls -l")).await?;
    assert_eq!(approval.question, "Do you want to proceed?");
    asking.print(&shown("rm -rf ."));
    assert_eq!(asking.closed(&approval).await?.reason.as_deref(), Some("moved_on"));
    let next = asking.open().await?;
    assert!(next.context["screen"].as_str().is_some_and(|screen| screen.contains("rm -rf .")));
    assert_eq!(
        (code(asking.answer(&approval, "1", None).await), asking.typed().as_str()),
        (Some(Code::ApprovalClosed), "")
    );
    Ok(())
}

#[tokio::test]
async fn a_program_that_flips_between_questions_is_asked_about_now_and_then() -> Tested {
    let asking = Asking::start().await?;
    for number in 0..10 {
        let approval = asking.asks(&format!("\r\nDelete {number}? [y/N] ")).await?;
        asking.print("\r\nworks on\r\n");
        asking.closed(&approval).await?;
    }
    asking.print("\r\nDelete all? [y/N] ");
    asking.judged().await?;
    assert_eq!(
        (all(&asking.bed.engine, &[ApprovalState::Open]).await?, asking.told("approval.opened").await?),
        (vec![], 10)
    );
    Ok(())
}

#[tokio::test]
async fn a_screen_that_never_stands_still_keeps_its_question_while_it_shows_it() -> Tested {
    let asking = Asking::start().await?;
    let approval = asking.asks("Go on? [y/N] ").await?;
    let first = approval.context["output"].as_u64().ok_or("an offset")?;
    // Drawn again and again, long enough to be glanced at in between.
    let renewed = |approval: &Approval| approval.context["output"].as_u64() > Some(first + 100);
    let seen = soon(|| async {
        asking.print("\r\u{1b}[2KGo on? [y/N] ");
        asking.get(&approval).await.ok().filter(renewed)
    });
    assert_eq!(seen.await?.state, ApprovalState::Open);
    let gone = soon(|| async {
        asking.print("building\r\n");
        asking.get(&approval).await.ok().filter(|approval| approval.state != ApprovalState::Open)
    });
    assert_eq!(gone.await?.reason.as_deref(), Some("moved_on"));
    assert_eq!(asking.told("approval.opened").await?, 1);
    Ok(())
}

#[tokio::test]
async fn whoever_types_closes_it_also_when_the_program_then_works_in_silence() -> Tested {
    let asking = Asking::start().await?;
    asking.guest.change(asking.id(), |play| play.tty.no_echo = true);
    let approval = asking.asks("Password: ").await?;
    asking.guest.change(asking.id(), |play| play.tty.works_us = 1_000_000);
    asking.bed.engine.write_input("a", asking.id(), None, "secret\r".into(), false).await?;
    assert_eq!(asking.closed(&approval).await?.reason.as_deref(), Some("typed_over"));
    Ok(())
}

#[tokio::test]
async fn who_works_is_not_asked_about_and_who_cannot_be_seen_neither() -> Tested {
    let asking = Asking::start().await?;
    asking.guest.change(asking.id(), |play| play.tty.works_us = 1_000_000);
    asking.print("Go on? [y/N] ");
    let looked = || async { (asking.looks() >= 4).then_some(()) };
    soon(looked).await?;
    assert_eq!(all(&asking.bed.engine, &[]).await?, [], "it uses processor time");
    asking.guest.change(asking.id(), |play| play.tty.works_us = 0);
    asking.open().await?;

    let bed = Bed::new().await?;
    let sandbox = bed.create("a").await?;
    bed.provider.get(&sandbox.id).ok_or("no sandbox")?.guest.fail("look", Some(Fault::Old));
    let old = Asking::of(bed).await?;
    old.print("Go on? [y/N] ");
    soon(|| async { (old.guest.refused() > 0).then_some(()) }).await?;
    old.guest.fail("look", None);
    old.print("\r\nGo on? [y/N] ");
    tokio::time::sleep(Duration::from_millis(800)).await;
    assert_eq!((all(&old.bed.engine, &[]).await?, old.looks()), (vec![], 0), "it is not watched any more");
    Ok(())
}

#[tokio::test]
async fn nothing_is_looked_at_while_nothing_happens() -> Tested {
    let asking = Asking::start().await?;
    asking.print("compiling\r\n");
    asking.judged().await?;
    // What was printed may be seen late.
    for _ in 0..10 {
        let before = asking.looks();
        tokio::time::sleep(Duration::from_secs(1)).await;
        if asking.looks() == before {
            return Ok(());
        }
    }
    Err("it is looked at all the time".into())
}

#[tokio::test]
async fn where_nobody_can_be_asked_nobody_watches() -> Tested {
    let place = sandbar_test_harness::scratch()?;
    let provider = script::Scripted::new(place.path().to_owned());
    let config =
        Config { home: place.path().to_owned(), providers: vec![provider.clone()], asks: false, ..Config::default() };
    let bed = Bed { engine: Engine::open(config).await?, provider, home: place.path().to_owned(), _place: None };
    let sandbox = bed.create("a").await?;
    let request = StartProcess { terminal: Some(SIZE), ..command(&["sleep"]) };
    let process = bed.engine.start_process("a", request).await?;
    let guest = bed.provider.get(&sandbox.id).ok_or("no sandbox")?.guest.clone();
    guest.write(process.id.as_str(), b"Go on? [y/N] ");
    tokio::time::sleep(Duration::from_millis(600)).await;
    assert_eq!(guest.play(process.id.as_str()).map(|play| play.tty.looks), Some(0));
    Ok(())
}

#[tokio::test]
async fn the_next_server_goes_on_with_what_was_asked() -> Tested {
    let mut asking = Asking::start().await?;
    let approval = asking.asks("Go on? [y/N] ").await?;
    asking.crash().await?;
    asking.judged().await?;
    assert_eq!(asking.open().await?.id, approval.id);
    asking.bed.engine.shutdown().await;
    asking.print("\r\nReally? [y/N] ");
    asking.crash().await?;
    assert_eq!(asking.closed(&approval).await?.reason.as_deref(), Some("moved_on"));
    let second = asking.open().await?;
    asking.bed.engine.shutdown().await;
    asking.end().await;
    script::forget(&asking.guest, asking.id());
    asking.crash().await?;
    assert_eq!(asking.closed(&second).await?.reason.as_deref(), Some("process_ended"));
    Ok(())
}

#[tokio::test]
async fn at_the_deadline_nothing_is_typed_and_nothing_asked_anew() -> Tested {
    let asking = Asking::start().await?;
    let approval = asking.asks("Go on? [y/N] ").await?;
    assert_eq!((approval.deadline - approval.created_at).num_days(), 7);
    let inner = &asking.bed.engine.inner;
    for expired in inner.store.expire_approvals(approval.deadline).await? {
        inner.gates.approvals.ended(&expired);
    }
    inner.terminals.watchers.nudge(&asking.process.id);
    asking.judged().await?;
    assert_eq!(code(asking.answer(&approval, "yes", None).await), Some(Code::ApprovalClosed));
    assert_eq!((asking.typed().as_str(), all(&asking.bed.engine, &[]).await?.len()), ("", 1));
    Ok(())
}

#[tokio::test]
async fn one_that_is_paused_is_left_alone() -> Tested {
    let asking = Asking::start().await?;
    soon(|| async { (asking.looks() >= 2).then_some(()) }).await?;
    asking.bed.engine.pause("a").await?;
    let before = asking.looks();
    asking.print("Go on? [y/N] ");
    tokio::time::sleep(Duration::from_millis(800)).await;
    assert_eq!(
        (asking.looks(), all(&asking.bed.engine, &[]).await?),
        (before, vec![]),
        "it stands still since it must"
    );
    asking.bed.engine.resume("a").await?;
    let approval = asking.open().await?;
    asking.bed.engine.pause("a").await?;
    assert_eq!(code(asking.answer(&approval, "yes", None).await), Some(Code::WrongState));
    asking.bed.engine.resume("a").await?;
    asking.answer(&approval, "yes", None).await?;
    assert_eq!(asking.typed(), "y\r");
    Ok(())
}
