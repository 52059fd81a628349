//! A verb that was refused changed nothing: each verb, with good and with bad input, against a sandbox in each state. What is
//! recorded, what follows, what runs and what stands still is afterwards as it was before.
//!
//! Not a refusal, and not here, is what was begun and then failed on its way, such as a start whose guest does not come up.

use std::collections::HashSet;

use bytes::Bytes;
use futures_util::{StreamExt as _, future::BoxFuture, stream};
use sandbar_api::{
    AddRules, AdoptQuarantined, AnswerApproval, Code, CreateSandbox, CreateSession, CreateSnapshot, CreateToken,
    CreateWebhook, Effect, ExecRequest, Fork, Problem, ProcessState, Restart, Role, SandboxState, SetBudget, SetSecret,
    StartProcess, SwitchModel, TerminalSize, WorkspaceSource,
};

use super::{
    Bed, Tested, command, exec, owner,
    script::{
        Fault, Script,
        kernel::{broken, cannot},
    },
    soon,
};
use crate::{ApprovalQuery, ByteStream, ListQuery, SessionQuery};

/// The name of something that there is not.
const NOBODY: &str = "sbx-00000000000000000000000000";

/// A sandbox `a` in some state. In it: a terminal that is started again when it fails, a process that has ended, a snapshot.
struct Scene {
    bed: Bed,
    guest: Script,
    kept: String,
    over: String,
}

impl Scene {
    async fn of(state: SandboxState) -> Result<Self, Box<dyn std::error::Error>> {
        let bed = Bed::new().await?;
        let sandbox = bed.create("a").await?;
        let guest = bed.provider.get(&sandbox.id).ok_or("no sandbox")?.guest.clone();
        let terminal = Some(TerminalSize { cols: 80, rows: 24 });
        let request = StartProcess { terminal, restart: Some(Restart::OnFailure), ..command(&["sleep"]) };
        let kept = bed.engine.start_process("a", request).await?.id.to_string();
        let over = bed.engine.exec("a", exec(&["echo", "x"], None, 10)).await?.process.to_string();
        bed.engine.snapshot(&owner(), "a", CreateSnapshot { name: Some("base".into()) }).await?;
        match state {
            SandboxState::Paused => drop(bed.engine.pause("a").await?),
            SandboxState::Stopped => drop(bed.engine.stop("a").await?),
            SandboxState::Failed => bed.provider.die(&sandbox.id),
            SandboxState::Deleted => bed.engine.delete("a").await?,
            _ => {}
        }
        let scene = Self { bed, guest, kept, over };
        let settled = || async {
            let engine = &scene.bed.engine;
            let found = engine.get(sandbox.id.as_str()).await.ok()?;
            let alive = matches!(found.state, SandboxState::Ready | SandboxState::Paused);
            let runs = |process: &sandbar_api::Process| process.state == ProcessState::Running;
            let running =
                engine.processes("a").await.unwrap_or_default().iter().filter(|process| runs(process)).count();
            (found.state == state && running == usize::from(alive)).then_some(())
        };
        soon(settled).await?;
        Ok(scene)
    }

    /// All that anybody can see, each with a name.
    async fn seen(&self) -> Result<Vec<(&'static str, String)>, Problem> {
        let (engine, inner) = (&self.bed.engine, &self.bed.engine.inner);
        let sandboxes = engine.list(ListQuery { states: SandboxState::ALL.to_vec(), ..ListQuery::default() }).await?;
        let mut within = Vec::new();
        for sandbox in &sandboxes.sandboxes {
            let id = sandbox.id.as_str();
            let network = engine.network(id).await.ok();
            let budget = engine.budget(&owner(), id).await.ok();
            let processes = inner.store.processes(&sandbox.id).await?;
            let mut lines = Vec::new();
            for process in &processes {
                lines.push(inner.store.line_of(&process.id).await?);
            }
            let still = self.bed.provider.kernel.is_still(&sandbox.id);
            within.push(format!("{id}: {network:#?} {budget:#?} {processes:#?} {lines:#?} still: {still}"));
        }
        let inside = [&self.kept, &self.over].map(|process| {
            self.guest.play(process).map(|play| (play.output, play.exit, play.tty.typed, play.hand.widths))
        });
        let sessions = engine.sessions(&owner(), SessionQuery { ended: true, ..SessionQuery::default() }).await?;
        let (mut made, mut snapshots) = (self.bed.provider.all(), self.bed.provider.kernel.snapshots());
        made.sort_by_key(|(id, _)| id.to_string());
        snapshots.sort_by_key(ToString::to_string);
        Ok(vec![
            ("sandboxes", format!("{:#?}", sandboxes.sandboxes)),
            ("what is within", within.join("\n")),
            ("sessions", format!("{:#?}", sessions.sessions)),
            ("the log", self.log().await?.join("\n")),
            ("approvals", format!("{:#?}", engine.approvals(&owner(), ApprovalQuery::default()).await?)),
            ("snapshots", format!("{:#?}", engine.snapshots().await?)),
            ("pools", format!("{:#?}", engine.pools().await?)),
            ("secrets", format!("{:#?}", engine.secrets().await?)),
            ("tokens", format!("{:#?}", engine.tokens().await?)),
            ("webhooks", format!("{:#?}", engine.webhooks().await?)),
            ("inside", format!("{inside:#?} files: {}", self.guest.changes_begun())),
            ("what the provider has", format!("{made:#?} {snapshots:#?}")),
        ])
    }

    /// What was told, but for commands that could not be started: the log tells of the attempt, and that is meant.
    async fn log(&self) -> Result<Vec<String>, Problem> {
        let events = self.bed.engine.events(0, 10_000, None).await?;
        let attempts: HashSet<_> =
            events.iter().filter(|event| event.kind == "process.refused").map(|event| event.process.clone()).collect();
        let told = events.into_iter().filter(|event| event.process.is_none() || !attempts.contains(&event.process));
        Ok(told.map(|event| format!("{} {:?} {:?} {}", event.kind, event.sandbox, event.process, event.data)).collect())
    }
}

type Verb = (&'static str, for<'s> fn(&'s Scene) -> BoxFuture<'s, Result<(), Problem>>);

macro_rules! verbs {
    ($(($name:literal, $scene:ident => $call:expr)),* $(,)?) => {
        [$(($name, |$scene: &Scene| Box::pin(async move { $call.await.map(drop) }))),*]
    };
}

fn bytes() -> ByteStream {
    stream::iter([Ok(Bytes::from_static(b"x"))]).boxed()
}

fn named(name: &str) -> CreateSandbox {
    CreateSandbox { name: Some(name.into()), ..CreateSandbox::default() }
}

fn run(argv: &[&str]) -> ExecRequest {
    exec(argv, None, 100)
}

/// Of a guest that does not hear it.
async fn unheard<T>(
    scene: &Scene,
    call: &'static str,
    verb: impl Future<Output = Result<T, Problem>>,
) -> Result<T, Problem> {
    scene.guest.fail(call, Some(Fault::Unreachable));
    let refused = verb.await;
    scene.guest.fail(call, None);
    refused
}

/// Of a kernel that does not do it.
async fn undone<T>(
    scene: &Scene,
    verb: &'static str,
    error: fn() -> sandbar_provider::Error,
    call: impl Future<Output = Result<T, Problem>>,
) -> Result<T, Problem> {
    scene.bed.provider.kernel.fail(verb, error);
    let refused = call.await;
    scene.bed.provider.kernel.mend(verb);
    refused
}

const LIVES: &[Verb] = &verbs![
    ("start", s => s.bed.engine.start("a")),
    ("stop", s => s.bed.engine.stop("a")),
    ("pause", s => s.bed.engine.pause("a")),
    ("pause what cannot be frozen", s => undone(s, "freeze", cannot, s.bed.engine.pause("a"))),
    ("resume", s => s.bed.engine.resume("a")),
    ("resume what cannot be thawed", s => undone(s, "thaw", broken, async {
        // A running one has nothing to resume, and its kernel nothing to refuse.
        s.bed.engine.resume("a").await
    })),
    ("delete", s => s.bed.engine.delete("a")),
    ("delete nobody", s => s.bed.engine.delete(NOBODY)),
    ("snapshot", s => s.bed.engine.snapshot(&owner(), "a", CreateSnapshot::default())),
    ("snapshot by a name that is taken", s => s.bed.engine.snapshot(&owner(), "a", CreateSnapshot { name: Some("base".into()) })),
    ("snapshot by a bad name", s => s.bed.engine.snapshot(&owner(), "a", CreateSnapshot { name: Some("../x".into()) })),
    ("snapshot what cannot be copied", s => undone(s, "snapshot", broken, s.bed.engine.snapshot(&owner(), "a", CreateSnapshot::default()))),
    ("delete a snapshot that is none", s => s.bed.engine.delete_snapshot("nothing")),
    ("fork none", s => s.bed.engine.fork(&owner(), "a", Fork { count: 0, ..fork() })),
    ("fork by a name that is taken", s => s.bed.engine.fork(&owner(), "a", Fork { name: Some("a".into()), ..fork() })),
    ("fork what cannot be copied", s => undone(s, "snapshot", broken, s.bed.engine.fork(&owner(), "a", fork()))),
    ("create by a name that is taken", s => s.bed.engine.create(&owner(), named("a"), None)),
    ("create by a bad name", s => s.bed.engine.create(&owner(), named("../x"), None)),
    ("create of no template", s => s.bed.engine.create(&owner(), CreateSandbox { template: Some("nothing".into()), ..named("b") }, None)),
    ("create of no snapshot", s => s.bed.engine.create(&owner(), CreateSandbox { from: Some("nothing".into()), ..named("b") }, None)),
    ("create of two trees", s => s.bed.engine.create(&owner(), CreateSandbox {
        from: Some("base".into()),
        workspace: WorkspaceSource::Bind { path: "/tmp".into() },
        ..named("b")
    }, None)),
    ("create with a secret that is none", s => s.bed.engine.create(&owner(), CreateSandbox { secrets: vec!["nothing".into()], ..named("b") }, None)),
    ("create under a bad key", s => s.bed.engine.create(&owner(), named("b"), Some("a key with spaces"))),
    ("a session by a name that is taken", s => s.bed.engine.create_session(&owner(), CreateSession { name: Some("a".into()), ..CreateSession::default() }, None)),
    ("delete a session that is none", s => s.bed.engine.delete_session("nothing")),
    ("restart what runs", s => s.bed.engine.restart_session("a", None)),
    ("restart what is of no chain", s => async {
        let process = s.over.parse().map_err(|_| Problem::new(Code::BadRequest, "", ""))?;
        s.bed.engine.restart_session("a", Some(&process)).await
    }),
];

fn fork() -> Fork {
    Fork { count: 1, name: None, labels: [].into(), ttl: None }
}

const PROCESSES: &[Verb] = &verbs![
    ("exec", s => s.bed.engine.exec("a", run(&["echo", "x"]))),
    ("exec nothing", s => s.bed.engine.exec("a", run(&[]))),
    ("exec what there is not", s => s.bed.engine.exec("a", run(&["nonsense"]))),
    ("exec nowhere", s => s.bed.engine.exec("a", ExecRequest { cwd: Some("a\0b".into()), ..run(&["echo", "x"]) })),
    ("exec with a bad variable", s => s.bed.engine.exec("a", ExecRequest { env: [("A=B".into(), "x".into())].into(), ..run(&["echo", "x"]) })),
    ("exec for too much output", s => s.bed.engine.exec("a", exec(&["echo", "x"], None, u64::MAX))),
    ("start a process", s => s.bed.engine.start_process("a", command(&["sleep"]))),
    ("start what there is not, again and again", s => s.bed.engine.start_process("a", StartProcess { restart: Some(Restart::Always), ..command(&["nonsense"]) })),
    ("start in a terminal without size", s => s.bed.engine.start_process("a", StartProcess { terminal: Some(TerminalSize { cols: 0, rows: 0 }), ..command(&["sleep"]) })),
    ("start a terminal that there is not", s => s.bed.engine.start_process("a", StartProcess { terminal: Some(TerminalSize { cols: 80, rows: 24 }), ..command(&["nonsense"]) })),
    ("type", s => s.bed.engine.write_input("a", &s.kept, None, "x".into(), false)),
    ("type too far", s => s.bed.engine.write_input("a", &s.kept, Some(99), "x".into(), false)),
    ("type into nothing", s => s.bed.engine.write_input("a", NOBODY, None, "x".into(), false)),
    ("TERM", s => s.bed.engine.signal("a", &s.kept, "TERM")),
    ("KILL", s => s.bed.engine.signal("a", &s.kept, "KILL")),
    ("HUP", s => s.bed.engine.signal("a", &s.kept, "HUP")),
    ("TERM what is over", s => s.bed.engine.signal("a", &s.over, "TERM")),
    ("KILL what is over", s => s.bed.engine.signal("a", &s.over, "KILL")),
    ("KILL nothing", s => s.bed.engine.signal("a", NOBODY, "KILL")),
    ("no signal", s => s.bed.engine.signal("a", &s.kept, "NONSENSE")),
    ("TERM, unheard", s => unheard(s, "signal", s.bed.engine.signal("a", &s.kept, "TERM"))),
    ("KILL, unheard", s => unheard(s, "signal", s.bed.engine.signal("a", &s.kept, "KILL"))),
    ("KILL what is over, unheard", s => unheard(s, "signal", s.bed.engine.signal("a", &s.over, "KILL"))),
    ("resize", s => s.bed.engine.resize("a", &s.kept, TerminalSize { cols: 10, rows: 10 })),
    ("resize to nothing", s => s.bed.engine.resize("a", &s.kept, TerminalSize { cols: 0, rows: 10 })),
    ("resize what is over", s => s.bed.engine.resize("a", &s.over, TerminalSize { cols: 10, rows: 10 })),
    ("write a file", s => s.bed.engine.write_file("a", "/upload", None, bytes())),
    ("write where it may not", s => s.bed.engine.write_file("a", "/full", None, bytes())),
    ("write a bad path", s => s.bed.engine.write_file("a", "a\0b", None, bytes())),
    ("remove what there is not", s => s.bed.engine.remove("a", "/nothing", true)),
    ("unpack what is no archive", s => s.bed.engine.unpack("a", "/", bytes())),
    ("dial no port", s => s.bed.engine.dial("a", 0)),
];

const REST: &[Verb] = &verbs![
    ("allow a bad rule", s => s.bed.engine.add_rules(&owner(), "a", AddRules { effect: Effect::Allow, rules: vec!["good.example".into(), "not a rule!".into()] })),
    ("remove a rule that is none", s => s.bed.engine.remove_rule(&owner(), "a", "nothing.example")),
    ("grant a secret that is none", s => s.bed.engine.grant_secret(&owner(), "a", "NOTHING")),
    ("revoke a secret that is none", s => s.bed.engine.revoke_secret(&owner(), "a", "NOTHING")),
    ("allow in nobody", s => s.bed.engine.add_rules(&owner(), NOBODY, AddRules { effect: Effect::Allow, rules: vec!["good.example".into()] })),
    ("a bad secret", s => s.bed.engine.set_secret("KEY", SetSecret { hosts: vec![], placement: "nowhere".into(), value: Some("x".into()) })),
    ("remove a secret that is none", s => s.bed.engine.remove_secret("NOTHING")),
    ("an endless budget", s => s.bed.engine.set_budget("a", SetBudget { tokens: None, usd: Some(-1.0), per_minute: None })),
    ("a model that is none", s => s.bed.engine.switch_model("a", SwitchModel { model: Some("nothing".into()) })),
    ("an agent's token without a session", s => s.bed.engine.create_token(CreateToken { name: "t".into(), role: Role::Agent, session: None, ttl: None })),
    ("revoke a token that is none", s => s.bed.engine.revoke_token("nothing")),
    ("a bad webhook", s => s.bed.engine.add_webhook(CreateWebhook { url: "ftp://x".into(), name: None, kinds: vec![] })),
    ("remove a webhook that is none", s => s.bed.engine.remove_webhook("nothing")),
    ("a pool of no template", s => s.bed.engine.set_pool("nothing", 1)),
    ("a pool that is too large", s => s.bed.engine.set_pool("default", u32::MAX)),
    ("answer nothing", s => s.bed.engine.answer_approval(&owner(), "apr-00000000000000000000000000", AnswerApproval { choice: "yes".into(), text: None })),
    ("adopt nothing", s => s.bed.engine.adopt_quarantined(&owner(), NOBODY, AdoptQuarantined::default())),
    ("remove nothing from quarantine", s => s.bed.engine.remove_quarantined(NOBODY)),
];

/// The lines that are not the same.
fn changed(before: &str, after: &str) -> String {
    let mut told = String::new();
    if before != after {
        for (mark, one, other) in [("-", before, after), ("+", after, before)] {
            let gone = one.lines().filter(|line| !other.lines().any(|same| same == *line));
            told.extend(gone.map(|line| format!("{mark} {line}\n")));
        }
        // Of lines that are there twice, or in another order.
        told.push_str("(changed)");
    }
    told
}

async fn changes_nothing(verbs: &[Verb]) -> Tested {
    use SandboxState::{Deleted, Failed, Paused, Ready, Stopped};
    let mut refused = 0;
    for state in [Ready, Paused, Stopped, Failed, Deleted] {
        let mut scene = Scene::of(state).await?;
        let mut first = scene.seen().await?;
        for (name, verb) in verbs {
            match verb(&scene).await {
                Err(problem) => {
                    refused += 1;
                    for ((what, before), (_, after)) in first.iter().zip(scene.seen().await?) {
                        let changed = changed(before, &after);
                        assert!(changed.is_empty(), "{name}, {state:?}: {problem}\n{what}:\n{changed}");
                    }
                }
                // What was done is another test's; the next one finds everything as it was.
                Ok(()) => {
                    scene = Scene::of(state).await?;
                    first = scene.seen().await?;
                }
            }
        }
    }
    assert!(refused > 2 * verbs.len(), "hardly anything was refused: {refused}");
    Ok(())
}

#[tokio::test]
async fn of_a_life_change_nothing() -> Tested {
    changes_nothing(LIVES).await
}

#[tokio::test]
async fn of_processes_and_files_change_nothing() -> Tested {
    changes_nothing(PROCESSES).await
}

#[tokio::test]
async fn of_rules_budgets_and_settings_change_nothing() -> Tested {
    changes_nothing(REST).await
}
