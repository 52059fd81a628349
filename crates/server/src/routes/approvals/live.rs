//! Approvals as they open and close: those that are open, then every change, read from the event log.

use std::{collections::HashSet, time::Duration};

use axum::{http::HeaderMap, response::Response};
use futures_util::{StreamExt as _, stream};
use sandbar_api::{Approval, ApprovalState, Code, Event, Problem};
use sandbar_engine::{ApprovalQuery, Caller, Engine};

use super::MAX_LIMIT;
use crate::{
    App,
    extract::last_event_id,
    problem::Result,
    routes::events::Log,
    sse::{self, Frames},
};

/// Each event is the approval as it is when it is sent, and is called by its state.
pub(super) async fn follow(app: &App, caller: Caller, query: ApprovalQuery, headers: &HeaderMap) -> Result<Response> {
    let seen = last_event_id(headers)?;
    let states = query.states;
    let mut log = Log::new(&app.engine, query.sandbox.clone(), vec!["approval.".into()]);
    // Before the list: what changes meanwhile is told again, rather than not at all.
    let after = seen.unwrap_or_else(|| log.end());
    let open = ApprovalQuery {
        states: vec![ApprovalState::Open],
        sandbox: query.sandbox,
        limit: query.limit.or(Some(MAX_LIMIT)),
    };
    // Also for one who comes back: it says whether the sandbox is theirs to see.
    let mut first = app.engine.approvals(&caller, open).await?;
    if seen.is_some() || !is_wanted(&states, ApprovalState::Open) {
        first.clear();
    }
    let batch = log.begin(Some(after), super::BATCH).await?;
    let last = first.len().saturating_sub(1);
    // Only the last carries a number: who breaks off before it begins anew.
    let first = first
        .into_iter()
        .enumerate()
        .map(move |(index, approval)| sse::frame((index == last).then_some(after), approval.state.as_str(), &approval));
    let following = Following { engine: app.engine.clone(), caller, states };
    let begun = stream::iter(following.frames(batch.events).await);
    let rest = stream::unfold(Some((log, following)), async |state| {
        let (mut log, following) = state?;
        match log.wait().await {
            Ok(events) => Some((following.frames(events).await, Some((log, following)))),
            Err(problem) => Some((vec![Err(problem)], None)),
        }
    });
    let frames = stream::iter(first).chain(begun).chain(rest.flat_map(stream::iter));
    Ok(sse::respond(frames, app.closing.clone()))
}

struct Following {
    engine: Engine,
    caller: Caller,
    states: Vec<ApprovalState>,
}

impl Following {
    async fn frames(&self, events: Vec<Event>) -> Vec<Frames> {
        let mut frames = Vec::new();
        for (seq, id) in newest(&events) {
            match self.approval(id).await {
                Ok(Some(approval)) => frames.push(sse::frame(Some(seq), approval.state.as_str(), &approval)),
                Ok(None) => {}
                Err(problem) => {
                    frames.push(Err(problem));
                    break;
                }
            }
        }
        frames
    }

    /// None if it is another session's, pruned, or of no state that was asked for.
    async fn approval(&self, id: &str) -> std::result::Result<Option<Approval>, Problem> {
        match self.engine.approval(&self.caller, id, Duration::ZERO).await {
            Ok(approval) => Ok(Some(approval).filter(|approval| is_wanted(&self.states, approval.state))),
            Err(problem) if problem.code == Code::UnknownApproval => Ok(None),
            Err(problem) => Err(problem),
        }
    }
}

fn is_wanted(states: &[ApprovalState], state: ApprovalState) -> bool {
    states.is_empty() || states.contains(&state)
}

/// Each approval once, with the last event about it, in the order of those.
fn newest(events: &[Event]) -> Vec<(u64, &str)> {
    let mut known = HashSet::new();
    let mut newest: Vec<_> = events
        .iter()
        .rev()
        .filter_map(|event| Some((event.seq, event.data.get("approval")?.as_str()?)))
        .filter(|(_, id)| known.insert(*id))
        .collect();
    newest.reverse();
    newest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_approval_is_told_once_a_batch() {
        let event = |seq, approval: &str| Event {
            seq,
            at: chrono::DateTime::UNIX_EPOCH,
            kind: "approval.opened".into(),
            sandbox: None,
            process: None,
            data: serde_json::json!({ "approval": approval }),
        };
        let events = [event(1, "a"), event(2, "b"), event(3, "a"), event(4, "c")];
        assert_eq!(newest(&events), [(2, "b"), (3, "a"), (4, "c")]);
    }
}
