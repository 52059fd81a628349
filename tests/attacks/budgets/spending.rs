//! Budgets under load: many calls at once, clients that leave, vendors that tell nothing, children of a session, and an
//! agent's own token. What the vendor counted must be within the budget, and in the books.

use sandbar_api::SetBudget;

use super::{CHAT, SPENT, agent, call, chat, counted, post};
use crate::{
    attack::Finding,
    stage::{Stage, Target},
    support::{Outcome, until},
    wire::{SILENCE, Step},
};

/// All at once, streamed: what the vendor counted must be within.
async fn streams(stage: &Stage, target: &Target, tokens: Option<u64>, limit: u64) -> Outcome<Finding> {
    let (agent, session) = agent(stage, target, tokens, None).await?;
    let before = stage.outside.upstream.seen().len();
    let body = chat("write:40 pause:5", ",\"max_tokens\":50,\"stream\":true");
    let steps = [Step::send(post(CHAT, "", &body)).word(), Step::Answer(8000).word()];
    let said = stage.client_inside(&agent, "storm", &["50", &steps[0], &steps[1]]).await?;
    until("all is settled", async || Ok(stage.client.budget(&session).await?.tokens_reserved == 0)).await?;
    let (used, calls) = counted(stage, before);
    let books = stage.client.budget(&session).await?.tokens_used;
    stage.delete(&agent).await?;
    if used > limit {
        return Ok(Finding::escaped(format!("the vendor counted {used} tokens in {calls} calls ({said})")));
    }
    if calls == 0 || books < used {
        return Err(format!("{calls} calls, the vendor counted {used}, the books have {books}: {said}").into());
    }
    Ok(Finding::contained(format!("{calls} calls, {used} of {limit} tokens ({said})")))
}

pub(super) async fn storm(stage: &Stage, target: &Target) -> Outcome<Finding> {
    streams(stage, target, Some(1000), 1000).await
}

pub(super) async fn storm_free(stage: &Stage, target: &Target) -> Outcome<Finding> {
    streams(stage, target, None, 1000).await
}

/// A client that hangs up as soon as the request is out, again and again: what it caused is counted.
async fn leaves(stage: &Stage, target: &Target, tokens: Option<u64>, limit: u64) -> Outcome<Finding> {
    let (agent, session) = agent(stage, target, tokens, None).await?;
    let before = stage.outside.upstream.seen().len();
    let body = chat("write:40 slow:50", ",\"max_tokens\":50,\"stream\":true");
    let word = Step::send(post(CHAT, "", &body)).word();
    // Nobody waits for the answer: the connection is closed when the client ends.
    for _ in 0..40 {
        stage.client_inside(&agent, "talk", &[&word, "rest:30"]).await?;
    }
    until("all is settled", async || Ok(stage.client.budget(&session).await?.tokens_reserved == 0)).await?;
    let (used, calls) = counted(stage, before);
    let books = stage.client.budget(&session).await?.tokens_used;
    stage.delete(&agent).await?;
    if used > limit {
        return Ok(Finding::escaped(format!("the vendor counted {used} tokens in {calls} calls")));
    }
    if calls == 0 || books < used {
        return Err(format!("{calls} calls, the vendor counted {used}, the books have {books}").into());
    }
    Ok(Finding::contained(format!("{calls} calls, {used} of {limit} tokens, {books} in the books")))
}

pub(super) async fn gone(stage: &Stage, target: &Target) -> Outcome<Finding> {
    leaves(stage, target, Some(800), 800).await
}

pub(super) async fn gone_free(stage: &Stage, target: &Target) -> Outcome<Finding> {
    leaves(stage, target, None, 800).await
}

/// The vendor is made to tell no usage, or to break off: then what was reserved counts.
async fn untold(stage: &Stage, target: &Target, tokens: Option<u64>, limit: u64) -> Outcome<Finding> {
    let (agent, session) = agent(stage, target, tokens, None).await?;
    let before = stage.outside.upstream.seen().len();
    for prompt in ["write:40 silent:1", "write:40 break:10", "write:40 zip:1"].iter().cycle().take(24) {
        for stream in ["", ",\"stream\":true", ",\"stream\":true,\"stream_options\":{\"include_usage\":false}"] {
            let body = chat(prompt, &format!(",\"max_tokens\":50{stream}"));
            call(stage, &agent, post(CHAT, "", &body)).await?;
        }
    }
    until("all is settled", async || Ok(stage.client.budget(&session).await?.tokens_reserved == 0)).await?;
    let (used, calls) = counted(stage, before);
    let books = stage.client.budget(&session).await?.tokens_used;
    stage.delete(&agent).await?;
    if used > limit {
        return Ok(Finding::escaped(format!("the vendor counted {used} tokens in {calls} calls")));
    }
    if calls == 0 || books < used {
        return Err(format!("{calls} calls, the vendor counted {used}, the books have {books}").into());
    }
    Ok(Finding::contained(format!("{calls} calls, {used} of {limit} tokens, {books} in the books")))
}

pub(super) async fn silent(stage: &Stage, target: &Target) -> Outcome<Finding> {
    untold(stage, target, Some(800), 800).await
}

pub(super) async fn silent_free(stage: &Stage, target: &Target) -> Outcome<Finding> {
    untold(stage, target, None, 800).await
}

/// Sub-sessions with budgets of their own, all of which their parent's bounds.
async fn family(stage: &Stage, target: &Target, tokens: Option<u64>) -> Outcome<Finding> {
    let (parent, session) = agent(stage, target, tokens, None).await?;
    let before = stage.outside.upstream.seen().len();
    let mut children = vec![];
    for _ in 0..3 {
        children.push(agent(stage, target, Some(1_000_000), Some(&session)).await?.0);
    }
    let body = chat("write:40", ",\"max_tokens\":50");
    let steps = [Step::send(post(CHAT, "", &body)).word(), Step::Answer(SILENCE * 4).word()];
    for child in &children {
        stage.client_inside(child, "storm", &["10", &steps[0], &steps[1]]).await?;
    }
    let (used, calls) = counted(stage, before);
    let shown = stage.client.budget(&session).await?.tokens_used;
    for one in children.iter().chain([&parent]) {
        stage.delete(one).await?;
    }
    Ok(if used > 500 {
        Finding::escaped(format!("three children used {used} tokens in {calls} calls"))
    } else {
        Finding::contained(format!("{used} of 500 tokens in {calls} calls, {shown} in the parent's books"))
    })
}

pub(super) async fn children(stage: &Stage, target: &Target) -> Outcome<Finding> {
    family(stage, target, Some(500)).await
}

pub(super) async fn children_free(stage: &Stage, target: &Target) -> Outcome<Finding> {
    family(stage, target, None).await
}

/// With the token that an agent has, for its own session and its parent's.
async fn raised_by(stage: &Stage, target: &Target, agents: bool) -> Outcome<Finding> {
    let (poor, session) = agent(stage, target, SPENT, None).await?;
    let request = sandbar_api::CreateToken {
        name: format!("agent-{}", stage.number()),
        role: if agents { sandbar_api::Role::Agent } else { sandbar_api::Role::Operator },
        session: if agents { Some(session.parse().map_err(|_| "no session id")?) } else { None },
        ttl: None,
    };
    let token = stage.client.create_token(&request).await?.secret;
    let client = sandbar_client::Client::tcp(&stage.server.base()?, Some(&token))?;
    let more = SetBudget { tokens: Some(1_000_000), ..SetBudget::default() };
    let tried = client.set_budget(&session, &more).await;
    let switched = client.switch_model(&session, Some("large")).await;
    let (rich, others) = agent(stage, target, Some(1_000_000), None).await?;
    let seen = client.budget(&others).await;
    stage.delete(&rich).await?;
    stage.delete(&poor).await?;
    Ok(match (tried, switched) {
        (Ok(_), _) => Finding::escaped("the budget was raised"),
        (_, Ok(_)) => Finding::escaped("the model was switched"),
        _ if seen.is_ok() => Finding::escaped("another's budget was told"),
        (Err(error), Err(_)) => Finding::contained(error.to_string()),
    })
}

pub(super) async fn raise(stage: &Stage, target: &Target) -> Outcome<Finding> {
    raised_by(stage, target, true).await
}

pub(super) async fn raise_free(stage: &Stage, target: &Target) -> Outcome<Finding> {
    raised_by(stage, target, false).await
}
