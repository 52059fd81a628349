//! Sessions as a resource: made whole or not at all, found by whatever names them, deleted with what is theirs.

use std::collections::BTreeMap;

use sandbar_api::{
    ApprovalState, Code, CreateSandbox, CreateSession, CreateToken, Problem, Restart, Role, SandboxState, Session,
    SessionState, SetBudget, TerminalSize, WorkspaceSource,
};
use sandbar_gateway::Question;
use sandbar_policy::Host;
use sandbar_provider::Error;

use super::{Bed, Tested, code, owner, soon};
use crate::{ApprovalQuery, Caller, SessionQuery};

fn named(name: &str) -> CreateSession {
    CreateSession { name: Some(name.into()), ..CreateSession::default() }
}

fn running(name: &str, argv: &[&str]) -> CreateSession {
    CreateSession { command: Some(argv.iter().map(|word| (*word).to_owned()).collect()), ..named(name) }
}

impl Bed {
    async fn begin(&self, request: CreateSession) -> Result<Session, Problem> {
        Ok(self.engine.create_session(&owner(), request, None).await?.session)
    }

    async fn session(&self, of: &str) -> Result<Session, Problem> {
        self.engine.session(&owner(), of).await
    }

    async fn listed(&self, query: SessionQuery) -> Result<Vec<Session>, Problem> {
        Ok(self.engine.sessions(&owner(), query).await?.sessions)
    }

    async fn told(&self, kind: &str) -> Result<usize, Problem> {
        let events = self.engine.events(0, 10_000, None).await?;
        Ok(events.into_iter().filter(|event| event.kind == kind).count())
    }
}

#[tokio::test]
async fn one_is_made_with_a_sandbox_and_a_terminal_and_survives_the_server() -> Tested {
    let mut bed = Bed::new().await?;
    let labels = BTreeMap::from([("task".to_owned(), "42".to_owned())]);
    let terminal = Some(TerminalSize { cols: 101, rows: 33 });
    let made = bed.begin(CreateSession { labels, terminal, ..running("agent", &["sleep"]) }).await?;
    assert_eq!(
        (made.name.as_deref(), made.owner.as_str(), made.state),
        (Some("agent"), "socket", SessionState::Active)
    );
    let sandbox = bed.engine.get("agent").await?;
    assert_eq!((made.sandboxes.as_slice(), &sandbox.session), ([sandbox.id.clone()].as_slice(), &made.id));
    let one = made.terminals.first().ok_or("its command runs")?;
    assert_eq!(
        (made.terminals.len(), &one.sandbox, one.argv.as_slice()),
        (1, &sandbox.id, ["sleep".to_owned()].as_slice())
    );
    let start = bed.provider.get(&sandbox.id).and_then(|sandbox| sandbox.guest.last_start()).ok_or("it was started")?;
    assert_eq!(start.terminal.map(|size| (size.cols, size.rows)), Some((101, 33)));

    bed.engine.set_budget("agent", SetBudget { tokens: Some(9), ..SetBudget::default() }).await?;
    bed.restart().await?;
    let after = bed.session("agent").await?;
    assert_eq!(after.budget.limits.tokens, Some(9));
    assert_eq!(Session { budget: made.budget.clone(), ..after }, made);
    for of in [made.id.as_str(), sandbox.id.as_str()] {
        assert_eq!(bed.session(of).await?.id, made.id, "{of}");
    }
    bed.engine.pause("agent").await?;
    assert_eq!(bed.session("agent").await?.state, SessionState::Idle);
    bed.engine.delete("agent").await?;
    let ended = bed.session("agent").await?;
    assert_eq!((ended.state, ended.sandboxes, ended.terminals), (SessionState::Ended, vec![], vec![]));
    assert_eq!(ended.deleted_at, None, "nobody deleted it");
    Ok(())
}

#[tokio::test]
async fn what_fails_leaves_nothing() -> Tested {
    let bed = Bed::new().await?;
    let refused = bed.begin(running("agent", &["no-such-command"])).await;
    assert_eq!(code(refused), Some(Code::CommandNotFound));
    assert_eq!(bed.provider.all(), []);
    assert_eq!(code(bed.session("agent").await), Some(Code::SessionEnded));
    let [ended] = &bed.listed(SessionQuery { ended: true, ..SessionQuery::default() }).await?[..] else {
        return Err("one was begun".into());
    };
    assert!(ended.deleted_at.is_some() && ended.state == SessionState::Ended);
    assert_eq!(bed.listed(SessionQuery::default()).await?, []);

    let (layer, cause, fix) = ("seccomp", "no".to_owned(), "none".to_owned());
    *bed.provider.broken.lock().map_err(|_| "poisoned")? = Some(Error::NotEnforceable { layer, cause, fix });
    assert_eq!(code(bed.begin(running("agent", &["sleep"])).await), Some(Code::NotEnforceable));
    // The name is free again, after either.
    bed.begin(running("agent", &["sleep"])).await?;
    assert_eq!(bed.provider.all().len(), 1);
    Ok(())
}

#[tokio::test]
async fn one_key_makes_one_session_with_all_it_has() -> Tested {
    let mut bed = Bed::new().await?;
    let request = CreateSession {
        env: [("A".to_owned(), "1".to_owned())].into(),
        ttl: Some("1h".parse()?),
        cwd: Some("/tmp".into()),
        restart: Some(Restart::Always),
        ..running("agent", &["slow"])
    };
    let owner = owner();
    let make = |_| bed.engine.create_session(&owner, request.clone(), Some("key"));
    let made = futures_util::future::try_join_all((0..10).map(make)).await?;
    assert_eq!(made.iter().filter(|made| !made.replayed).count(), 1);
    for one in &made {
        assert_eq!((&one.session.id, one.session.terminals.len()), (&made[0].session.id, 1), "whole for everybody");
    }
    let sandbox = bed.engine.get("agent").await?;
    assert_eq!(sandbox.env.get("A").map(String::as_str), Some("1"));
    assert_eq!(sandbox.expires_at.map(|at| at - sandbox.created_at), Some(chrono::TimeDelta::hours(1)));
    let [process] = &bed.engine.processes("agent").await?[..] else { return Err("one was started".into()) };
    assert_eq!((process.cwd.as_str(), process.restart), ("/tmp", Some(Restart::Always)));
    let other = bed.engine.create_session(&owner, named("other"), Some("key")).await;
    assert_eq!(code(other.map(drop)), Some(Code::IdempotencyMismatch));
    bed.restart().await?;
    let again = bed.engine.create_session(&owner, request, Some("key")).await?;
    assert!(again.replayed && again.session.id == made[0].session.id);

    // What failed stays failed under its key, and takes no name.
    for _ in 0..2 {
        let failed = bed.engine.create_session(&owner, running("broken", &["no-such-command"]), Some("other")).await;
        assert!(matches!(code(failed.map(drop)), Some(Code::CommandNotFound | Code::SandboxGone)));
    }
    bed.begin(named("broken")).await?;
    // A server that died before the command was started: whoever repeats the request gets all of it.
    let half = running("half", &["sleep"]);
    let key = crate::create::idempotency_key(&owner, "half", "session", &half)?;
    let sandbox = CreateSandbox { name: Some("half".into()), ..CreateSandbox::default() };
    bed.engine.birth(&owner, sandbox, None, Some(key)).await?;
    let whole = bed.engine.create_session(&owner, half, Some("half")).await?;
    assert_eq!((whole.replayed, whole.session.terminals.len()), (true, 1));
    Ok(())
}

#[tokio::test]
async fn what_cannot_be_meant_changes_nothing() -> Tested {
    let bed = Bed::new().await?;
    bed.begin(named("agent")).await?;
    bed.create("box").await?;
    let nobody = sandbar_api::SessionId::from_parts(1, [1; 10]);
    let before = *bed.engine.head().borrow();
    let size = |cols, rows| CreateSession { terminal: Some(TerminalSize { cols, rows }), ..running("x", &["sleep"]) };
    for (request, want) in [
        (named("agent"), Code::NameTaken),
        (named("box"), Code::NameTaken),
        (named("No"), Code::BadName),
        (named("ses-x"), Code::BadName),
        (CreateSession { parent: Some(nobody.clone()), ..named("x") }, Code::BadRequest),
        (CreateSession { template: Some("none".into()), ..named("x") }, Code::UnknownTemplate),
        (CreateSession { secrets: vec!["NONE".into()], ..named("x") }, Code::UnknownSecret),
        (CreateSession { command: None, ..size(80, 24) }, Code::BadRequest),
        (CreateSession { restart: Some(Restart::Always), ..named("x") }, Code::BadRequest),
        (CreateSession { cwd: Some("/tmp".into()), ..named("x") }, Code::BadRequest),
        (CreateSession { cwd: Some("/..".into()), ..running("x", &["sleep"]) }, Code::PathOutside),
        (CreateSession { env: [("=".to_owned(), String::new())].into(), ..named("x") }, Code::BadEnv),
        (CreateSession { ttl: Some("0s".parse()?), ..named("x") }, Code::BadDuration),
        (CreateSession { workspace: WorkspaceSource::Bind { path: "x".into() }, ..named("x") }, Code::BadPath),
        (size(0, 24), Code::BadRequest),
        (size(80, 10_000), Code::BadRequest),
        (running("x", &[]), Code::BadCommand),
    ] {
        assert_eq!(code(bed.begin(request.clone()).await), Some(want), "{request:?}");
    }
    assert_eq!(*bed.engine.head().borrow(), before);
    for of in ["nobody", nobody.as_str(), ""] {
        assert_eq!(code(bed.session(of).await), Some(Code::UnknownSession), "{of}");
        assert_eq!(code(bed.engine.delete_session(of).await), Some(Code::UnknownSession), "{of}");
    }
    let limit = SessionQuery { limit: Some(0), ..SessionQuery::default() };
    assert_eq!(code(bed.listed(limit).await), Some(Code::BadRequest));
    let cursor = SessionQuery { cursor: Some("sbx-x".into()), ..SessionQuery::default() };
    assert_eq!(code(bed.listed(cursor).await), Some(Code::BadCursor));
    Ok(())
}

#[tokio::test]
async fn deleting_takes_everything_but_the_children() -> Tested {
    let bed = Bed::new().await?;
    std::fs::write(bed.home.join("templates/asks.toml"), "network.ask = [\"*.example.org\"]")?;
    let made = bed.begin(CreateSession { template: Some("asks".into()), ..running("agent", &["sleep"]) }).await?;
    let joins =
        CreateSandbox { session: Some(made.id.clone()), name: Some("second".into()), ..CreateSandbox::default() };
    bed.engine.create(&owner(), joins.clone(), None).await?;
    let child = bed.begin(CreateSession { parent: Some(made.id.clone()), ..named("child") }).await?;
    let (inner, handle) = (bed.engine.inner.clone(), bed.engine.inner.handle("agent").await?);
    let rule = "*.example.org".to_owned();
    let question = Question { host: Host::parse("api.example.org")?, port: 443, method: None, path: None, rule };
    let asked = tokio::spawn(async move { inner.gates.approvals.ask(&inner, &handle, question).await });
    soon(|| async { bed.session("agent").await.ok().filter(|session| session.open_approvals == 1) }).await?;
    assert_eq!(bed.session("second").await?.sandboxes.len(), 2);

    bed.engine.delete_session("agent").await?;
    assert!(matches!(asked.await?, sandbar_gateway::Answer::Deny(_)), "who waited is told");
    let withdrawn = ApprovalQuery { states: vec![ApprovalState::Withdrawn], ..ApprovalQuery::default() };
    assert_eq!(bed.engine.approvals(&owner(), withdrawn).await?.len(), 1);
    assert_eq!(bed.provider.all().len(), 1, "the child's");
    for sandbox in &made.sandboxes {
        let gone = bed.engine.get(sandbox.as_str()).await?;
        let why = gone.reason.map(|reason| reason.code);
        assert_eq!((gone.state, why.as_deref()), (SandboxState::Deleted, Some("session_deleted")));
    }
    let ended = bed.session(made.id.as_str()).await?;
    assert!(ended.deleted_at.is_some() && ended.state == SessionState::Ended && ended.open_approvals == 0);
    assert_eq!(bed.session("child").await?.parent, Some(made.id.clone()));
    for of in ["agent", made.id.as_str()] {
        bed.engine.delete_session(of).await?;
    }
    assert_eq!(bed.told("session.deleted").await?, 1, "told once");
    assert_eq!(code(bed.session("agent").await), Some(Code::SessionEnded));
    assert_eq!(code(bed.engine.create(&owner(), joins, None).await), Some(Code::SessionEnded));
    let below = CreateSession { parent: Some(made.id.clone()), ..named("late") };
    assert_eq!(code(bed.begin(below).await), Some(Code::SessionEnded));
    let token = CreateToken { name: "t".into(), role: Role::Agent, session: Some(made.id.clone()), ttl: None };
    assert_eq!(code(bed.engine.create_token(token).await), Some(Code::SessionEnded));
    assert_eq!(bed.engine.budget(&owner(), child.parent.ok_or("it has one")?.as_str()).await?.session, made.id);
    assert_ne!(bed.begin(named("agent")).await?.id, made.id, "the name is free");
    Ok(())
}

#[tokio::test]
async fn lists_are_paged_and_narrowed() -> Tested {
    let bed = Bed::new().await?;
    for number in 0..5 {
        let labels = BTreeMap::from([("odd".to_owned(), (number % 2 == 1).to_string())]);
        bed.begin(CreateSession { labels, ..named(&format!("s-{number}")) }).await?;
    }
    let (mut seen, mut query) = (vec![], SessionQuery { limit: Some(2), ..SessionQuery::default() });
    loop {
        let page = bed.engine.sessions(&owner(), query.clone()).await?;
        assert!(page.sessions.len() <= 2);
        seen.extend(page.sessions.into_iter().filter_map(|session| session.name));
        query.cursor = page.next_cursor;
        if query.cursor.is_none() {
            break;
        }
    }
    seen.sort();
    assert_eq!(seen, ["s-0", "s-1", "s-2", "s-3", "s-4"]);
    let labels = BTreeMap::from([("odd".to_owned(), "true".to_owned())]);
    let odd = bed.listed(SessionQuery { labels, ..SessionQuery::default() }).await?;
    assert_eq!(odd.len(), 2);
    Ok(())
}

#[tokio::test]
async fn an_agent_sees_its_own_alone() -> Tested {
    let bed = Bed::new().await?;
    let own = bed.begin(named("own")).await?;
    let below = bed.begin(CreateSession { parent: Some(own.id.clone()), ..named("below") }).await?;
    bed.begin(named("other")).await?;
    let agent = Caller { owner: "token:x".into(), role: Role::Agent, session: Some(own.id.clone()) };
    for of in ["own", own.id.as_str()] {
        assert_eq!(bed.engine.session(&agent, of).await?, own);
    }
    for of in ["other", "below", below.id.as_str(), "nobody"] {
        assert_eq!(code(bed.engine.session(&agent, of).await), Some(Code::Forbidden), "{of}");
    }
    assert_eq!(bed.engine.sessions(&agent, SessionQuery::default()).await?.sessions, [own]);
    let unbound = Caller { session: None, ..agent };
    assert_eq!(code(bed.engine.sessions(&unbound, SessionQuery::default()).await), Some(Code::Forbidden));
    assert_eq!(code(bed.engine.session(&unbound, "own").await), Some(Code::Forbidden));
    Ok(())
}

#[tokio::test]
async fn of_twenty_that_want_one_name_one_has_it_also_from_a_pool() -> Tested {
    let bed = Bed::new().await?;
    bed.engine.set_pool("default", 3).await?;
    let warm = async || Some(bed.engine.pools().await.ok()?.first()?.warm == 3).filter(|warm| *warm);
    soon(&warm).await?;
    let begun = (0..20).map(|_| bed.begin(running("agent", &["sleep"])));
    let begun = futures_util::future::join_all(begun).await;
    assert_eq!(begun.iter().filter(|one| one.is_ok()).count(), 1);
    for refused in begun.into_iter().filter_map(Result::err) {
        assert_eq!(refused.code, Code::NameTaken);
    }
    assert_eq!(bed.listed(SessionQuery { ended: true, ..SessionQuery::default() }).await?.len(), 1);
    soon(&warm).await?;
    Ok(())
}
