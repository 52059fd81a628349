//! Approvals of connections: who waits, who answers, and what is left of it after a restart.

use std::time::Duration;

use sandbar_api::{
    AnswerApproval, Approval, ApprovalId, ApprovalState, Code, Effect, Problem, Role, SessionId, Source,
};
use sandbar_gateway::{Answer, Direction, Fact, Outcome, Question};
use sandbar_policy::{Decision, Host, Verdict};
use tokio::task::JoinHandle;

use super::{Bed, Tested, code, disk::SmallDisk, owner, soon};
use crate::{ApprovalQuery, Caller, Config, Engine, store::fault::lost};

const ASKS: &str = "network.ask = [\"*.example.org\"]";

fn question(host: &str) -> Result<Question, sandbar_policy::BadHost> {
    let rule = "*.example.org".to_owned();
    Ok(Question { host: Host::parse(host)?, port: 443, method: None, path: None, rule })
}

fn request(host: &str, method: &str, path: &str) -> Result<Question, sandbar_policy::BadHost> {
    Ok(Question { method: Some(method.into()), path: Some(path.into()), ..question(host)? })
}

async fn asks(bed: &Bed, name: &str, question: Question) -> Result<JoinHandle<Answer>, Problem> {
    let (inner, handle) = (bed.engine.inner.clone(), bed.engine.inner.handle(name).await?);
    Ok(tokio::spawn(async move { inner.gates.approvals.ask(&inner, &handle, question).await }))
}

async fn all(engine: &Engine, states: &[ApprovalState]) -> Result<Vec<Approval>, Problem> {
    engine.approvals(&owner(), ApprovalQuery { states: states.into(), ..ApprovalQuery::default() }).await
}

/// Waits until exactly so many are open.
async fn open(bed: &Bed, count: usize) -> Result<Vec<Approval>, String> {
    soon(|| async { all(&bed.engine, &[ApprovalState::Open]).await.ok().filter(|open| open.len() == count) }).await
}

async fn answer(bed: &Bed, id: &ApprovalId, choice: &str) -> Result<Approval, Problem> {
    let request = AnswerApproval { choice: choice.into(), text: None };
    bed.engine.answer_approval(&owner(), id.as_str(), request).await
}

/// Until so many connections wait for it.
async fn waiting(bed: &Bed, id: &ApprovalId, count: usize) -> Result<(), String> {
    soon(|| async { (bed.engine.inner.gates.approvals.waiting(id) == count).then_some(()) }).await
}

fn denied(answer: &Answer, with: &str) -> bool {
    matches!(answer, Answer::Deny(why) if why.contains(with))
}

async fn kinds(bed: &Bed, kind: &str) -> Result<usize, Problem> {
    Ok(bed.engine.events(0, 10_000, None).await?.into_iter().filter(|event| event.kind == kind).count())
}

#[tokio::test]
async fn many_ask_one_question_and_one_answer_releases_all_who_wait() -> Tested {
    let bed = Bed::new().await?;
    let sandbox = bed.create_of("my-agent", ASKS).await?;
    let mut asked = vec![];
    for _ in 0..20 {
        asked.push(asks(&bed, "my-agent", question("api.example.org")?).await?);
    }
    let approval = open(&bed, 1).await?.remove(0);
    waiting(&bed, &approval.id, 20).await?;
    assert_eq!(approval.question, "Allow \"my-agent\" to connect to api.example.org:443?");
    assert_eq!((&approval.session, approval.sandbox.as_ref()), (&sandbox.session, Some(&sandbox.id)));
    let choices: Vec<_> = approval.choices.iter().map(|choice| choice.id.as_str()).collect();
    assert_eq!((choices.as_slice(), approval.on_deadline.as_str()), (["once", "sandbox", "deny"].as_slice(), "deny"));
    assert_eq!(approval.context["rule"], "*.example.org");

    let answered = answer(&bed, &approval.id, "once").await?;
    assert_eq!(answered.answer.map(|answer| (answer.choice, answer.by)), Some(("once".into(), "socket".into())));
    for asked in asked {
        assert_eq!(asked.await?, Answer::Allow);
    }
    assert_eq!(kinds(&bed, "approval.opened").await?, 1);
    // It let through those who waited, and nobody else.
    let again = asks(&bed, "my-agent", question("api.example.org")?).await?;
    let next = open(&bed, 1).await?.remove(0);
    assert_ne!(next.id, approval.id);
    answer(&bed, &next.id, "deny").await?;
    assert!(denied(&again.await?, "denied"));
    let asked = asks(&bed, "my-agent", question("api.example.org")?).await?;
    open(&bed, 1).await?;
    asked.abort();
    Ok(())
}

#[tokio::test]
async fn an_answer_whose_commit_nobody_heard_of_lets_through_who_waits() -> Tested {
    let bed = Bed::new().await?;
    bed.create_of("a", ASKS).await?;
    let asked = asks(&bed, "a", question("api.example.org")?).await?;
    let approval = open(&bed, 1).await?.remove(0);
    waiting(&bed, &approval.id, 1).await?;
    lost::lose(2);
    assert_eq!(answer(&bed, &approval.id, "sandbox").await?.state, ApprovalState::Answered);
    assert_eq!(asked.await?, Answer::Allow);
    // The rule it made is in force, here and in the store.
    assert_eq!(asks(&bed, "a", question("api.example.org")?).await?.await?, Answer::Allow);
    assert_eq!((lost::left(), kinds(&bed, "net.changed").await?), (0, 1));
    Ok(())
}

#[tokio::test]
async fn different_questions_are_asked_apart_and_only_so_many() -> Tested {
    let bed = Bed::new().await?;
    bed.create_of("a", ASKS).await?;
    let mut asked = vec![asks(&bed, "a", question("a.example.org")?).await?];
    asked.push(asks(&bed, "a", Question { port: 8443, ..question("a.example.org")? }).await?);
    asked.push(asks(&bed, "a", request("a.example.org", "POST", "/x\n/y")?).await?);
    let three = open(&bed, 3).await?;
    let odd = three.iter().find(|approval| approval.context["method"] == "POST").ok_or("it was asked")?;
    assert_eq!(odd.question, "Allow \"a\" to send POST /x\\n/y to a.example.org:443?");
    let choices: Vec<_> = odd.choices.iter().map(|choice| choice.id.as_str()).collect();
    assert_eq!(choices, ["once", "deny"], "no rule can be made for it");
    // What stands in a query is nobody's business, and makes no other question.
    for query in ["token=one", "token=two"] {
        asked.push(asks(&bed, "a", request("a.example.org", "GET", &format!("/q?{query}"))?).await?);
    }
    let four = open(&bed, 4).await?;
    let queried = four.iter().find(|approval| approval.context["method"] == "GET").ok_or("it was asked")?;
    waiting(&bed, &queried.id, 2).await?;
    assert_eq!(queried.context["path"], "/q");
    let long = asks(&bed, "a", request("a.example.org", "GET", &"/x".repeat(1025))?).await?.await?;
    assert!(denied(&long, "too long"), "{long:?}");
    for number in 4..32 {
        asked.push(asks(&bed, "a", question(&format!("h{number}.example.org"))?).await?);
    }
    open(&bed, 32).await?;
    let one_more = asks(&bed, "a", question("more.example.org")?).await?.await?;
    assert!(denied(&one_more, "32 approvals"), "{one_more:?}");
    bed.create_of("b", ASKS).await?;
    asked.push(asks(&bed, "b", question("more.example.org")?).await?);
    open(&bed, 33).await?;
    asked.iter().for_each(JoinHandle::abort);
    Ok(())
}

#[tokio::test]
async fn for_the_sandbox_it_lasts_and_goes_before_what_asked() -> Tested {
    let mut bed = Bed::new().await?;
    bed.create_of("a", ASKS).await?;
    let asked = asks(&bed, "a", question("api.example.org")?).await?;
    let approval = open(&bed, 1).await?.remove(0);
    answer(&bed, &approval.id, "sandbox").await?;
    assert_eq!(asked.await?, Answer::Allow);
    for round in 0..2 {
        let rules = bed.engine.network("a").await?.rules;
        assert!(
            rules.iter().any(|rule| rule.rule == "api.example.org:443" && rule.source == Source::Approval),
            "{rules:?}"
        );
        assert_eq!(asks(&bed, "a", question("api.example.org")?).await?.await?, Answer::Allow, "round {round}");
        assert_eq!(asks(&bed, "a", request("api.example.org", "GET", "/")?).await?.await?, Answer::Allow);
        let handle = bed.engine.inner.handle("a").await?;
        let effect = |host: &str| match handle.rules.policy(0, &Default::default()).connect(&Host::parse(host)?, 443) {
            Verdict::Decided(decision) => Ok::<_, sandbar_policy::BadHost>(Some(decision.effect)),
            Verdict::Inspect => Ok(None),
        };
        assert_eq!((effect("api.example.org")?, effect("b.example.org")?), (Some(Effect::Allow), Some(Effect::Ask)));
        bed.restart().await?;
    }
    let told: Vec<_> =
        bed.engine.events(0, 1000, None).await?.into_iter().map(|event| (event.kind, event.data)).collect();
    let changed = told.iter().find(|(kind, _)| kind == "net.changed").ok_or("it was told")?;
    assert_eq!((&changed.1["approval"], &changed.1["by"]), (&approval.id.as_str().into(), &"socket".into()));

    let asked = asks(&bed, "a", request("b.example.org", "GET", "/x/*/y")?).await?;
    let approval = open(&bed, 1).await?.remove(0);
    answer(&bed, &approval.id, "sandbox").await?;
    assert_eq!(asked.await?, Answer::Allow);
    assert_eq!(asks(&bed, "a", request("b.example.org", "GET", "/x/*/y")?).await?.await?, Answer::Allow);
    let other = asks(&bed, "a", request("b.example.org", "GET", "/x/z/y")?).await?;
    open(&bed, 1).await?;
    other.abort();
    Ok(())
}

#[tokio::test]
async fn once_with_nobody_waiting_lets_exactly_one_through_also_after_a_restart() -> Tested {
    let mut bed = Bed::new().await?;
    bed.create_of("a", ASKS).await?;
    for restart in [false, true] {
        let asked = asks(&bed, "a", question("api.example.org")?).await?;
        let approval = open(&bed, 1).await?.remove(0);
        asked.abort();
        waiting(&bed, &approval.id, 0).await?;
        answer(&bed, &approval.id, "once").await?;
        if restart {
            bed.restart().await?;
        }
        let mut asked = vec![];
        for _ in 0..10 {
            asked.push(asks(&bed, "a", question("api.example.org")?).await?);
        }
        let next = open(&bed, 1).await?.remove(0);
        assert_ne!(next.id, approval.id);
        waiting(&bed, &next.id, 9).await?;
        answer(&bed, &next.id, "deny").await?;
        let mut allowed = 0;
        for asked in asked {
            allowed += usize::from(asked.await? == Answer::Allow);
        }
        assert_eq!(allowed, 1);
    }
    // What released those who waited is not kept for the next server either.
    let asked = asks(&bed, "a", question("api.example.org")?).await?;
    let approval = open(&bed, 1).await?.remove(0);
    answer(&bed, &approval.id, "once").await?;
    assert_eq!(asked.await?, Answer::Allow);
    bed.restart().await?;
    let asked = asks(&bed, "a", question("api.example.org")?).await?;
    open(&bed, 1).await?;
    asked.abort();
    Ok(())
}

#[tokio::test]
async fn what_is_open_outlives_the_server_and_is_joined_by_who_asks_again() -> Tested {
    let mut bed = Bed::new().await?;
    bed.create_of("a", ASKS).await?;
    let asked = asks(&bed, "a", question("api.example.org")?).await?;
    let approval = open(&bed, 1).await?.remove(0);
    bed.restart().await?;
    assert!(denied(&asked.await?, "shutting down"));
    let again = asks(&bed, "a", question("api.example.org")?).await?;
    waiting(&bed, &approval.id, 1).await?;
    assert_eq!(open(&bed, 1).await?, std::slice::from_ref(&approval));
    answer(&bed, &approval.id, "once").await?;
    assert_eq!(again.await?, Answer::Allow);
    assert_eq!(code(answer(&bed, &approval.id, "deny").await), Some(Code::ApprovalClosed));
    Ok(())
}

#[tokio::test]
async fn nobody_in_time_is_a_denial() -> Tested {
    let bed = Bed::new().await?;
    bed.create_of("a", ASKS).await?;
    let asked = asks(&bed, "a", question("api.example.org")?).await?;
    let late = open(&bed, 1).await?.remove(0);
    bed.overdue(&late.id).await?;
    // Too late, though nobody has noticed yet: the answer does not count.
    let problem = answer(&bed, &late.id, "once").await.err().ok_or("it counted")?;
    assert_eq!(problem.code, Code::ApprovalClosed);
    assert!(problem.detail.contains("not answered in time, which counts as `deny`"), "{problem}");
    assert!(denied(&asked.await?, "nobody answered in time"));

    let asked = asks(&bed, "a", question("api.example.org")?).await?;
    let approval = open(&bed, 1).await?.remove(0);
    bed.overdue(&approval.id).await?;
    // One that is opened makes the clock look again.
    let other = asks(&bed, "a", question("other.example.org")?).await?;
    assert!(denied(&asked.await?, "nobody answered in time"));
    let expired = all(&bed.engine, &[ApprovalState::Expired]).await?;
    assert_eq!(expired.iter().map(|approval| &approval.id).collect::<Vec<_>>(), [&late.id, &approval.id]);
    assert_eq!(kinds(&bed, "approval.expired").await?, 2);
    other.abort();
    Ok(())
}

#[tokio::test]
async fn what_a_deleted_sandbox_asked_is_withdrawn() -> Tested {
    let bed = Bed::new().await?;
    bed.create_of("a", ASKS).await?;
    let asked = asks(&bed, "a", question("api.example.org")?).await?;
    let approval = open(&bed, 1).await?.remove(0);
    bed.engine.delete("a").await?;
    assert!(denied(&asked.await?, "gone"));
    let problem = answer(&bed, &approval.id, "sandbox").await.err().ok_or("it counted")?;
    assert!(matches!(problem.code, Code::ApprovalClosed | Code::SandboxGone), "{problem}");
    let problem = answer(&bed, &approval.id, "once").await.err().ok_or("it counted")?;
    assert!(problem.detail.contains("withdrawn"), "{problem}");
    assert_eq!(kinds(&bed, "approval.withdrawn").await?, 1);
    Ok(())
}

#[tokio::test]
async fn of_fifty_answers_at_once_one_counts_and_all_others_are_told() -> Tested {
    let bed = Bed::new().await?;
    bed.create_of("a", ASKS).await?;
    let asked = asks(&bed, "a", question("api.example.org")?).await?;
    let approval = open(&bed, 1).await?.remove(0);
    let answers = (0..50).map(|number| {
        let (engine, id) = (bed.engine.clone(), approval.id.clone());
        tokio::spawn(async move {
            let caller = Caller { owner: format!("token:{number}"), role: Role::Operator, session: None };
            let choice = ["once", "sandbox", "deny"][number % 3].to_owned();
            engine.answer_approval(&caller, id.as_str(), AnswerApproval { choice, text: None }).await
        })
    });
    let (mut winners, mut losers) = (vec![], 0);
    for answer in answers.collect::<Vec<_>>() {
        match answer.await? {
            Ok(approval) => winners.extend(approval.answer),
            Err(problem) if problem.code == Code::ApprovalClosed => losers += 1,
            Err(problem) => return Err(problem.into()),
        }
    }
    assert_eq!((winners.len(), losers), (1, 49));
    let counted = &winners[0].choice;
    assert_eq!(asked.await? == Answer::Allow, counted != "deny", "{counted}");
    let rules = bed.engine.network("a").await?.rules.len();
    assert_eq!(rules, 1 + usize::from(counted == "sandbox"), "{counted}");
    assert_eq!(kinds(&bed, "approval.answered").await?, 1);
    Ok(())
}

#[tokio::test]
async fn only_people_answer_and_only_with_what_is_asked() -> Tested {
    let bed = Bed::new().await?;
    let sandbox = bed.create_of("a", ASKS).await?;
    let asked = asks(&bed, "a", question("api.example.org")?).await?;
    let approval = open(&bed, 1).await?.remove(0);
    let id = approval.id.as_str();
    let caller = |role, session: Option<&SessionId>| Caller { owner: "socket".into(), role, session: session.cloned() };
    let of = |choice: &str, text: Option<&str>| AnswerApproval { choice: choice.into(), text: text.map(Into::into) };
    let stranger = SessionId::from_parts(7, [7; 10]);
    let agent = caller(Role::Agent, Some(&sandbox.session));
    let (foreign, loose) = (caller(Role::Agent, Some(&stranger)), caller(Role::Agent, None));
    for agent in [&agent, &foreign, &loose] {
        assert_eq!(code(bed.engine.answer_approval(agent, id, of("once", None)).await), Some(Code::Forbidden));
    }
    let viewer = caller(Role::Viewer, None);
    assert_eq!(code(bed.engine.answer_approval(&viewer, id, of("once", None)).await), Some(Code::Forbidden));
    let operator = caller(Role::Operator, None);
    for unknown in ["apr-00000000000000000000000000", "nonsense", ""] {
        let answered = bed.engine.answer_approval(&operator, unknown, of("once", None)).await;
        assert_eq!(code(answered), Some(Code::UnknownApproval), "{unknown}");
    }
    let problem = bed.engine.answer_approval(&operator, id, of("yes", None)).await.err().ok_or("it counted")?;
    assert_eq!(problem.code, Code::BadAnswer);
    assert!(problem.fix.contains("`once`, `sandbox`, `deny`"), "{problem}");
    assert_eq!(code(bed.engine.answer_approval(&operator, id, of("once", Some("x"))).await), Some(Code::BadAnswer));

    let list = |caller: Caller| {
        let engine = bed.engine.clone();
        async move { engine.approvals(&caller, ApprovalQuery::default()).await.map(|found| found.len()) }
    };
    assert_eq!((list(agent.clone()).await?, list(foreign.clone()).await?, list(viewer).await?), (1, 0, 1));
    assert_eq!(code(list(loose).await), Some(Code::Forbidden));
    let none = Duration::ZERO;
    assert_eq!(bed.engine.approval(&agent, id, none).await?, approval);
    assert_eq!(code(bed.engine.approval(&foreign, id, none).await), Some(Code::UnknownApproval));
    let of_a = ApprovalQuery { sandbox: Some("a".into()), ..ApprovalQuery::default() };
    assert_eq!(bed.engine.approvals(&agent, of_a.clone()).await?.len(), 1);
    assert_eq!(code(bed.engine.approvals(&foreign, of_a).await), Some(Code::UnknownSandbox));

    bed.engine.answer_approval(&operator, id, of("deny", None)).await?;
    assert!(denied(&asked.await?, "a person denied it"));
    Ok(())
}

#[tokio::test]
async fn whoever_watches_one_is_told_of_its_end() -> Tested {
    let bed = Bed::new().await?;
    bed.create_of("a", ASKS).await?;
    let asked = asks(&bed, "a", question("api.example.org")?).await?;
    let approval = open(&bed, 1).await?.remove(0);
    let brief = bed.engine.approval(&owner(), approval.id.as_str(), Duration::from_millis(1)).await?;
    assert_eq!(brief.state, ApprovalState::Open);
    let watch = {
        let (engine, id) = (bed.engine.clone(), approval.id.clone());
        tokio::spawn(async move { engine.approval(&owner(), id.as_str(), Duration::from_secs(60)).await })
    };
    // A watcher is no connection that waits.
    waiting(&bed, &approval.id, 1).await?;
    answer(&bed, &approval.id, "once").await?;
    assert_eq!(watch.await??.state, ApprovalState::Answered);
    assert_eq!(asked.await?, Answer::Allow);
    Ok(())
}

#[tokio::test]
async fn where_there_is_nobody_to_ask_it_is_denied_at_once() -> Tested {
    let mut bed = Bed::new().await?;
    bed.create_of("a", ASKS).await?;
    bed.engine.shutdown().await;
    let providers: Vec<std::sync::Arc<dyn sandbar_provider::Provider>> = vec![bed.provider.clone()];
    bed.engine = Engine::open(Config { home: bed.home.clone(), providers, asks: false, ..Config::default() }).await?;
    let answer = asks(&bed, "a", question("api.example.org")?).await?.await?;
    assert!(denied(&answer, "nobody to ask"), "{answer:?}");
    assert_eq!(all(&bed.engine, &[]).await?, []);
    Ok(())
}

#[tokio::test]
async fn on_a_full_disk_nothing_new_is_asked_and_what_was_asked_is_answered() -> Tested {
    let name = "on_a_full_disk_nothing_new_is_asked_and_what_was_asked_is_answered";
    let Some(disk) = SmallDisk::new(name)? else { return Ok(()) };
    let bed = Bed::at(disk.path().join("home")).await?;
    let sandbox = bed.create_of("a", ASKS).await?;
    let asked = asks(&bed, "a", question("api.example.org")?).await?;
    let approval = open(&bed, 1).await?.remove(0);
    let facts = bed.engine.inner.gates.facts.clone();
    disk.fill()?;
    // The log may reuse space of its own for a while.
    while bed.engine.ready().await.is_ok() {}
    disk.fill()?;
    let refused = asks(&bed, "a", question("other.example.org")?).await?.await?;
    assert!(denied(&refused, "cannot be recorded: the disk is full"), "{refused:?}");
    for _ in 0..10 {
        facts.record(&sandbox.id, &crate::gate::Share::default(), opened());
    }
    soon(|| async { (facts.lost(&sandbox.id) == 10).then_some(()) }).await?;
    disk.fill()?;
    answer(&bed, &approval.id, "sandbox").await?;
    assert_eq!(asked.await?, Answer::Allow);
    disk.free()?;
    let told = || async {
        let events = bed.engine.events(0, 1000, Some("a")).await.ok()?;
        events.into_iter().find(|event| event.kind == "net.log_lost")
    };
    assert_eq!(soon(told).await?.data["count"], 10);
    Ok(())
}

fn opened() -> Fact {
    Fact {
        direction: Direction::Tunnel,
        host: "api.example.org".into(),
        port: 443,
        method: None,
        path: None,
        decision: Decision { effect: Effect::Allow, rule: None },
        secrets: vec![],
        outcome: Outcome::Opened,
        sent: 0,
        received: 0,
        elapsed: Duration::ZERO,
    }
}

impl Bed {
    /// Its time is over, as if ten minutes had passed.
    async fn overdue(&self, id: &ApprovalId) -> Result<(), sqlx::Error> {
        use sqlx::ConnectOptions as _;
        let options = sqlx::sqlite::SqliteConnectOptions::new().filename(self.home.join("sandbar.db"));
        let mut raw = options.busy_timeout(Duration::from_secs(5)).connect().await?;
        sqlx::query("UPDATE approvals SET deadline = created_at WHERE id = $1")
            .bind(id.as_str())
            .execute(&mut raw)
            .await?;
        Ok(())
    }
}
