//! Answers to questions that were asked of a person: by whoever is none, twice, forged, for something else, from inside. The
//! control of each is the operator's own answer.

use std::time::{Duration, Instant};

use sandbar_api::{Approval, ApprovalState, CreateToken, Role, StartProcess};
use sandbar_client::ApprovalQuery;

use crate::{
    attack::{Attack, Class, Control, Finding, act},
    stage::{Stage, Target, recipe, token},
    support::{Outcome, until},
    web,
    wire::{SILENCE, Step, get, tunnel},
};

const ONE: &[&str] = &["standard"];
/// Open questions of one sandbox at a time.
const MOST: u32 = 32;
/// How long more of them could come, and for how long few of them are waited for.
const WATCHED: Duration = Duration::from_secs(3);
const AWAITED: Duration = Duration::from_secs(300);
const ASKS: &str = "[network]\nask = [\"asked.out.test:*\", \"*.asked.out.test:*\"]\n";

pub(crate) fn all() -> Vec<Attack> {
    let approval = |name, act| {
        let control = Control::Act("by the operator", act!(by_operator));
        Attack::act(Class::Approvals, name, act, control).on(ONE).with(ASKS)
    };
    let other = |name, act, place, control| {
        Attack::act(Class::Approvals, name, act, Control::Act(place, control)).on(ONE).with(ASKS)
    };
    vec![
        approval("answer_by_the_agent_itself", act!(by_agent)),
        approval("answer_by_another_agent", act!(by_other_agent)),
        approval("answer_by_a_viewer", act!(by_viewer)),
        approval("answer_without_a_token", act!(by_nobody)),
        approval("answer_that_is_no_choice", act!(forged)),
        approval("answer_at_another_path", act!(other_paths)),
        approval("answer_from_inside", act!(from_inside)),
        other("answer_twice", act!(twice), "the first", act!(by_operator)),
        other("answer_when_the_asker_is_gone", act!(withdrawn), "before it is", act!(by_operator)),
        other("answer_after_the_deadline", act!(late), "before it", act!(by_operator)),
        other("once_for_another_host", act!(another_host), "for the same", act!(same_host)),
        other("once_for_another_sandbox", act!(another_sandbox), "for the same", act!(same_host)),
        other("once_is_not_twice", act!(another_time), "for the same", act!(same_host)),
        other("thousand_questions", act!(flood), "a few", act!(few)),
    ]
}

struct Asked {
    target: Target,
    approval: Approval,
    process: String,
    mark: String,
}

fn steps(stage: &Stage, host: &str, mark: &str) -> Vec<Step> {
    let place = format!("{host}:{}", stage.outside.plain);
    tunnel(&place, vec![Step::send(get(&format!("/{mark}"), &place))])
}

/// A sandbox in which somebody waits for an answer.
async fn ask(stage: &Stage, target: &Target) -> Outcome<Asked> {
    let made = stage.fresh(target.profile, &recipe(target.profile, ASKS, &[])).await?;
    let mark = stage.mark();
    let mut argv = ["/workspace/attacks", "--inside", "talk"].map(str::to_owned).to_vec();
    argv.extend(steps(stage, "asked.out.test", &mark).iter().map(Step::word));
    let process = stage.client.start_process(&made.id, &StartProcess { argv, ..StartProcess::default() }).await?;
    let approval = opened(stage, &made).await?;
    Ok(Asked { target: made, approval, process: process.id.to_string(), mark })
}

async fn open(stage: &Stage, target: &Target) -> Outcome<Vec<Approval>> {
    let query =
        ApprovalQuery { states: vec![ApprovalState::Open], sandbox: Some(target.id.clone()), limit: Some(1000) };
    Ok(stage.client.approvals(&query).await?)
}

async fn opened(stage: &Stage, target: &Target) -> Outcome<Approval> {
    until("there is a question", async || Ok(!open(stage, target).await?.is_empty())).await?;
    open(stage, target).await?.pop().ok_or_else(|| "it is gone".into())
}

impl Asked {
    /// What became of the question and of who waits; then all of it goes.
    async fn end(self, stage: &Stage, said: Vec<u16>) -> Outcome<Finding> {
        let state = stage.client.approval(self.approval.id.as_str(), None).await?.state;
        if said.iter().any(|status| *status < 400) || state == ApprovalState::Answered {
            until("it was let through", async || Ok(stage.outside.saw(&self.mark) || !running(stage, &self).await?))
                .await?;
        }
        let arrived = stage.outside.saw(&self.mark);
        stage.delete(&self.target).await?;
        let (mut said, mark) = (said, &self.mark);
        said.sort_unstable();
        said.dedup();
        Ok(match (state, arrived) {
            (_, true) => Finding::escaped(format!("{mark} arrived")),
            (ApprovalState::Open, false) => Finding::contained(format!("{said:?}, still open")),
            (state, false) => Finding::escaped(format!("{said:?}: it is {}", state.as_str())),
        })
    }
}

async fn running(stage: &Stage, asked: &Asked) -> Outcome<bool> {
    Ok(stage.client.process(&asked.target.id, &asked.process).await?.exit.is_none())
}

fn post(stage: &Stage, path: &str, token: Option<&str>, body: &str) -> Outcome<u16> {
    let mut headers = vec![web::host(stage)?, web::JSON.to_owned()];
    headers.extend(token.map(web::bearer));
    Ok(web::ask(stage, &format!("POST {path}"), &headers, body)?.0)
}

const ONCE: &str = "{\"choice\":\"once\"}";

async fn answered_with(stage: &Stage, target: &Target, token: Option<&str>, bodies: &[&str]) -> Outcome<Finding> {
    let asked = ask(stage, target).await?;
    let path = format!("/v1/approvals/{}/answer", asked.approval.id);
    let said = bodies.iter().map(|body| post(stage, &path, token, body)).collect::<Outcome<Vec<_>>>()?;
    asked.end(stage, said).await
}

async fn by_operator(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let token = token(&stage.client, Role::Operator).await?;
    answered_with(stage, target, Some(&token), &[ONCE]).await
}

async fn by_viewer(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let token = token(&stage.client, Role::Viewer).await?;
    answered_with(stage, target, Some(&token), &[ONCE, "{\"choice\":\"sandbox\"}"]).await
}

async fn by_nobody(stage: &Stage, target: &Target) -> Outcome<Finding> {
    answered_with(stage, target, None, &[ONCE]).await
}

async fn agents(stage: &Stage, target: &Target) -> Outcome<String> {
    let session = stage.client.sandbox(&target.id).await?.session;
    let name = format!("agent-{}", stage.number());
    let request = CreateToken { name, role: Role::Agent, session: Some(session), ttl: None };
    Ok(stage.client.create_token(&request).await?.secret)
}

async fn by_agent(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let asked = ask(stage, target).await?;
    let (token, id) = (agents(stage, &asked.target).await?, &asked.approval.id);
    let mut said = vec![];
    for body in [ONCE, "{\"choice\":\"sandbox\"}", "{\"choice\":\"deny\"}"] {
        said.push(post(stage, &format!("/v1/approvals/{id}/answer"), Some(&token), body)?);
    }
    let rules = format!("{{\"effect\":\"allow\",\"rules\":[\"asked.out.test:{}\"]}}", stage.outside.plain);
    said.push(post(stage, &format!("/v1/sandboxes/{}/network/rules", asked.target.id), Some(&token), &rules)?);
    said.push(post(stage, "/v1/tokens", Some(&token), "{\"name\":\"more\",\"role\":\"operator\"}")?);
    asked.end(stage, said).await
}

async fn by_other_agent(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let token = agents(stage, target).await?;
    answered_with(stage, target, Some(&token), &[ONCE]).await
}

/// Words that a reader who wants to help would take for a yes.
async fn forged(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let token = token(&stage.client, Role::Operator).await?;
    let bodies = [
        "{\"choice\":\"yes\"}",
        "{\"choice\":\"allow\"}",
        "{\"choice\":\"approve\"}",
        "{\"choice\":\"Once\"}",
        "{\"choice\":\" once\"}",
        "{\"choice\":\"once\\u0000\"}",
        "{\"choice\":\"\"}",
        "{\"choice\":\"Allow the connections that wait\"}",
        "{\"choice\":0}",
        "{\"choice\":true}",
        "{\"choice\":null}",
        "{\"choice\":[\"once\"]}",
        "{\"choice\":{\"id\":\"once\"}}",
        "{\"choice\":\"x\",\"answer\":\"once\"}",
        "{\"choice\":\"once\",\"choice\":\"once\"}",
        "{\"choice\":\"once\",\"rule\":\"*:*\"}",
        "{\"choice\":\"once\",\"text\":\"and everything else\"}",
        "{\"text\":\"once\"}",
        "{\"text\":\"the user approves: choice=once\"}",
        "\"once\"",
        "once",
        "choice=once",
        "",
        "{}",
    ];
    answered_with(stage, target, Some(&token), &bodies).await
}

async fn other_paths(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let token = token(&stage.client, Role::Operator).await?;
    let asked = ask(stage, target).await?;
    let (id, other) = (asked.approval.id.to_string(), &target.id);
    let mut said = vec![];
    for path in [
        "/v1/approvals/apr_00000000000000000000000000/answer".to_owned(),
        format!("/v1/approvals/{}/answer", id.to_ascii_uppercase()),
        format!("/v1/approvals/{id}%00/answer"),
        format!("/v1/approvals/../approvals/{id}/answer"),
        format!("/v1/approvals/{id}"),
        format!("/v1/sandboxes/{other}/approvals/{id}/answer"),
        format!("/v1/approvals/{other}/answer"),
        "/v1/approvals/*/answer".to_owned(),
        "/v1/approvals//answer".to_owned(),
    ] {
        said.push(post(stage, &path, Some(&token), ONCE)?);
    }
    asked.end(stage, said).await
}

/// A sandbox that may talk to any name, with an operator's token that it must not have had.
async fn from_inside(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let token = token(&stage.client, Role::Operator).await?;
    let asked = ask(stage, target).await?;
    let wide = stage.target(target.profile, &recipe(target.profile, crate::names::WIDE, &[])).await?;
    let port = stage.address()?.rsplit(':').next().unwrap_or_default().to_owned();
    let mut said = vec![];
    for name in ["127.0.0.1", "localhost", "api.out.test"] {
        let path = format!("/v1/approvals/{}/answer", asked.approval.id);
        let head = format!(
            "Host: 127.0.0.1:{port}\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{ONCE}",
            ONCE.len()
        );
        for steps in [
            tunnel(format!("{name}:{port}"), vec![Step::send(format!("POST {path} HTTP/1.1\r\n{head}"))]),
            vec![Step::send(format!("POST http://{name}:{port}{path} HTTP/1.1\r\n{head}")), Step::Answer(SILENCE)],
            vec![Step::send(format!("POST {path} HTTP/1.1\r\n{head}")), Step::Answer(SILENCE)],
        ] {
            let heard = stage.wire(&wide, &steps).await?;
            let last = heard.rsplit("HTTP/1.1 ").next().and_then(|rest| rest.get(..3)).unwrap_or("0");
            said.push(last.parse().unwrap_or(999));
        }
    }
    // A tunnel that opens is no answer.
    let state = stage.client.approval(asked.approval.id.as_str(), None).await?.state;
    let said = said
        .into_iter()
        .map(|status| if state == ApprovalState::Open && status < 400 { 599 } else { status })
        .collect();
    asked.end(stage, said).await
}

async fn twice(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let token = token(&stage.client, Role::Operator).await?;
    let asked = ask(stage, target).await?;
    let path = format!("/v1/approvals/{}/answer", asked.approval.id);
    let first = post(stage, &path, Some(&token), "{\"choice\":\"deny\"}")?;
    let later = [ONCE, "{\"choice\":\"sandbox\"}", ONCE].map(|body| post(stage, &path, Some(&token), body));
    let later = later.into_iter().collect::<Outcome<Vec<_>>>()?;
    let answer = stage.client.approval(asked.approval.id.as_str(), None).await?.answer;
    until("who waited has ended", async || Ok(!running(stage, &asked).await?)).await?;
    let arrived = stage.outside.saw(&asked.mark);
    stage.delete(&asked.target).await?;
    let choice = answer.map(|answer| answer.choice).unwrap_or_default();
    Ok(if arrived || choice != "deny" || first >= 300 || later.iter().any(|status| *status != 409) {
        Finding::escaped(format!("{first}, then {later:?}: {choice}"))
    } else {
        Finding::contained(format!("{first}, then {later:?}: {choice}"))
    })
}

async fn withdrawn(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let token = token(&stage.client, Role::Operator).await?;
    let asked = ask(stage, target).await?;
    stage.delete(&asked.target).await?;
    let said = post(stage, &format!("/v1/approvals/{}/answer", asked.approval.id), Some(&token), ONCE)?;
    let state = stage.client.approval(asked.approval.id.as_str(), None).await?.state;
    Ok(if said < 400 || state == ApprovalState::Answered || stage.outside.saw(&asked.mark) {
        Finding::escaped(format!("{said}, {}", state.as_str()))
    } else {
        Finding::contained(format!("{said}, {}", state.as_str()))
    })
}

async fn late(_: &Stage, _: &Target) -> Outcome<Finding> {
    Ok(Finding::not_run("the deadline is ten minutes away; the engine's own tests set it in the past"))
}

/// The operator lets one connection through; whether another one, to `host` from `other`, gets the same.
async fn after_once(stage: &Stage, target: &Target, host: &str, other: bool, spent: bool) -> Outcome<Finding> {
    let asked = ask(stage, target).await?;
    let answer = sandbar_api::AnswerApproval { choice: "once".into(), text: None };
    if !spent {
        // Nobody waits any more, so the next one may use it.
        stage.client.signal(&asked.target.id, &asked.process, "KILL").await?;
        until("who asked is gone", async || Ok(!running(stage, &asked).await?)).await?;
    }
    stage.client.answer_approval(asked.approval.id.as_str(), &answer).await?;
    if spent {
        until("it was let through", async || Ok(stage.outside.saw(&asked.mark))).await?;
    }
    let neighbour =
        if other { Some(stage.fresh(target.profile, &recipe(target.profile, ASKS, &[])).await?) } else { None };
    let from = neighbour.as_ref().unwrap_or(&asked.target);
    let mark = stage.mark();
    let mut argv = ["/workspace/attacks", "--inside", "talk"].map(str::to_owned).to_vec();
    argv.extend(steps(stage, host, &mark).iter().map(Step::word));
    let process = stage.client.start_process(&from.id, &StartProcess { argv, ..StartProcess::default() }).await?;
    let process = process.id.to_string();
    until("it was let through, or asked for", async || {
        let over = stage.client.process(&from.id, &process).await?.exit.is_some();
        Ok(over || stage.outside.saw(&mark) || !open(stage, from).await?.is_empty())
    })
    .await?;
    let arrived = stage.outside.saw(&mark);
    for one in neighbour.iter().chain([&asked.target]) {
        stage.delete(one).await?;
    }
    Ok(if arrived { Finding::escaped("it went through") } else { Finding::contained("it has to ask") })
}

async fn another_host(stage: &Stage, target: &Target) -> Outcome<Finding> {
    after_once(stage, target, "x.asked.out.test", false, false).await
}

async fn another_sandbox(stage: &Stage, target: &Target) -> Outcome<Finding> {
    after_once(stage, target, "asked.out.test", true, false).await
}

async fn another_time(stage: &Stage, target: &Target) -> Outcome<Finding> {
    after_once(stage, target, "asked.out.test", false, true).await
}

async fn same_host(stage: &Stage, target: &Target) -> Outcome<Finding> {
    after_once(stage, target, "asked.out.test", false, false).await
}

/// So many different questions at a time; nobody reads more than a few, and nobody else has to wait.
async fn questions(stage: &Stage, target: &Target, number: usize) -> Outcome<Finding> {
    let made = stage.fresh(target.profile, &recipe(target.profile, ASKS, &[])).await?;
    let (patience, hold) = if number > MOST as usize { (WATCHED, "6000") } else { (AWAITED, "120000") };
    let text = format!("CONNECT n{{}}.asked.out.test:{} HTTP/1.1\r\nHost: x\r\n\r\n", stage.outside.plain);
    let argv = [
        "/workspace/attacks",
        "--inside",
        "crowd",
        &number.to_string(),
        hold,
        &sandbar_api::bytes::encode(text.as_bytes()),
    ];
    let argv = argv.map(str::to_owned).to_vec();
    let process = stage.client.start_process(&made.id, &StartProcess { argv, ..StartProcess::default() }).await?;
    let process = process.id.to_string();
    until("all have asked", async || Ok(stage.client.process(&made.id, &process).await?.output.end > 0)).await?;
    let mut most = 0;
    let mut slowest = Duration::ZERO;
    // Each is written down before it is open, so that the last ones may be a moment behind.
    let watched = Instant::now();
    while most < number && watched.elapsed() < patience {
        let begun = Instant::now();
        most = most.max(open(stage, &made).await?.len());
        slowest = slowest.max(begun.elapsed());
    }
    let other = ask(stage, target).await;
    stage.delete(&made).await?;
    let other = other?;
    stage.delete(&other.target).await?;
    Ok(match most {
        most if most >= number => Finding::escaped(format!("{most} are open")),
        most => Finding::contained(format!(
            "{most} of {number} are open, a neighbour's besides, a list takes {slowest:.1?} at most"
        )),
    })
}

async fn flood(stage: &Stage, target: &Target) -> Outcome<Finding> {
    let found = questions(stage, target, 1000).await?;
    match &found {
        Finding::Contained(how)
            if how.split(' ').next().and_then(|most| most.parse().ok()).is_some_and(|most: u32| most > MOST) =>
        {
            Ok(Finding::escaped(how.clone()))
        }
        _ => Ok(found),
    }
}

async fn few(stage: &Stage, target: &Target) -> Outcome<Finding> {
    questions(stage, target, 8).await
}

/// Of a question that the gate asks itself.
pub(crate) async fn kind_of_the_gates(stage: &Stage, target: &Target) -> Outcome<sandbar_api::ApprovalKind> {
    let asked = ask(stage, target).await?;
    stage.delete(&asked.target).await?;
    Ok(asked.approval.kind)
}
