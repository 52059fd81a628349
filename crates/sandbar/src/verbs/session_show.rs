//! `session show`: all there is to know of a session, and what to do where something of it keeps dying.

use chrono::{DateTime, Utc};
use sandbar_api::{Exit, Session, SessionTerminal};

use crate::{
    amount,
    context::Context,
    exit::Failure,
    table, text,
    verbs::{attach::brief, sandbox::each, session::Sessions},
};

/// At a glance: what keeps dying in it goes before what it is otherwise.
pub(crate) fn state(session: &Session) -> &'static str {
    match (session.crash_loops.is_empty(), session.restarting.is_empty()) {
        (false, _) => "crashing",
        (true, false) => "restarting",
        (true, true) => session.state.as_str(),
    }
}

pub(crate) async fn show(which: &Sessions, context: &Context) -> Result<u8, Failure> {
    let client = context.client()?;
    let print = context.print;
    let mut first = true;
    each(&which.sessions, context, async |name| {
        let session = client.session(name).await?;
        if print.json {
            return print.json(&session);
        }
        let gap = if std::mem::take(&mut first) { "" } else { "\n" };
        print.line(format!("{gap}{}", described(&session, Utc::now())))
    })
    .await
}

fn described(session: &Session, now: DateTime<Utc>) -> String {
    let mut fields = vec![
        ("name", session.name.clone().unwrap_or_else(|| "-".into())),
        ("id", session.id.to_string()),
        ("state", state(session).to_owned()),
        ("owner", session.owner.clone()),
        ("created", session.created_at.to_rfc3339()),
    ];
    if let Some(at) = session.deleted_at {
        fields.push(("deleted", at.to_rfc3339()));
    }
    if let Some(parent) = &session.parent {
        fields.push(("parent", parent.to_string()));
    }
    fields.extend(session.sandboxes.iter().map(|sandbox| ("sandbox", sandbox.to_string())));
    let terminal = |one: &SessionTerminal| format!("{} in {}: {}", one.process, one.sandbox, brief(&one.argv));
    fields.extend(session.terminals.iter().map(|one| ("terminal", terminal(one))));
    for one in &session.restarting {
        let next = match (one.due - now).num_seconds() {
            ..=0 => "is due".into(),
            _ => format!("in {}", text::span(one.due - now)),
        };
        let (argv, end) = (brief(&one.argv), ended(one.exit.as_ref()));
        fields.push(("restarting", format!("{} in {}: {argv}, {end}; next start {next}", one.process, one.sandbox)));
    }
    for one in &session.crash_loops {
        let (argv, end) = (brief(&one.argv), ended(one.exit.as_ref()));
        fields.push(("crashing", format!("{} in {}: {argv}, {end}", one.process, one.sandbox)));
        let times = format!("{} times in a row since {}, then given up", one.runs, one.since.to_rfc3339());
        fields.push(("  died", times));
        let look = if one.terminal { "screen" } else { "logs" };
        fields.push(("  look", format!("sandbar {look} {} {}", one.sandbox, one.process)));
        let name = session.name.as_deref().unwrap_or(session.id.as_str());
        fields.push(("  again", format!("sandbar session restart {name} {}", one.process)));
    }
    fields.push(("asking", format!("{} open approvals", session.open_approvals)));
    let budget = &session.budget;
    let of = |limit: Option<String>| limit.map(|limit| format!(" of {limit}")).unwrap_or_default();
    fields
        .push(("tokens", format!("{}{}", budget.tokens_used, of(budget.limits.tokens.map(|limit| limit.to_string())))));
    fields.push((
        "dollars",
        format!("{}{}", amount::dollars(budget.usd_used), of(budget.limits.usd.map(amount::dollars))),
    ));
    fields.extend(session.labels.iter().map(|(key, value)| ("label", format!("{key}={value}"))));
    table::fields(fields)
}

fn ended(exit: Option<&Exit>) -> String {
    exit.map_or_else(|| "which nobody saw end".into(), |exit| format!("ended with {}", exit.code))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn shown(terminals: usize) -> Result<Session, serde_json::Error> {
        let id = |kind: &str, number: usize| format!("{kind}-{number:026}");
        let terminal = |number| {
            serde_json::json!({
                "process": id("prc", number), "sandbox": id("sbx", 1), "argv": ["bash"], "started_at": "2026-01-01T00:00:00Z",
            })
        };
        serde_json::from_value(serde_json::json!({
            "id": id("ses", 1), "name": "agent", "owner": "socket", "state": "active", "labels": {},
            "created_at": "2026-01-01T00:00:00Z", "sandboxes": [id("sbx", 1)], "open_approvals": 0,
            "budget": {"tokens_used": 5, "usd_used": 0.5, "limits": {"tokens": 10}},
            "terminals": (1..=terminals).map(terminal).collect::<Vec<_>>(),
        }))
    }

    #[test]
    fn what_is_shown_names_limits_where_there_are_some() -> Result<(), serde_json::Error> {
        let text = described(&shown(1)?, Utc::now());
        for part in ["5 of 10", "$0.500000", "0 open approvals", "bash"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("$0.500000 of"), "{text}");
        Ok(())
    }

    #[test]
    fn what_keeps_dying_is_seen_at_a_glance_with_what_to_do() -> Result<(), Box<dyn std::error::Error>> {
        let mut session = shown(0)?;
        assert_eq!(state(&session), "active");
        let (process, sandbox) = (format!("prc-{:026}", 7), format!("sbx-{:026}", 1));
        let dying = serde_json::json!({
            "process": process, "restart_of": process, "sandbox": sandbox, "argv": ["agent"], "terminal": true,
            "exit": {"code": 3, "reason": "exited"}, "runs": 5, "since": "2026-01-01T00:00:00Z",
            "at": "2026-01-01T00:00:04Z", "due": "2026-01-01T00:00:08Z",
        });
        session.restarting = vec![serde_json::from_value(dying.clone())?];
        assert_eq!(state(&session), "restarting");
        let text = described(&session, "2026-01-01T00:00:04Z".parse()?);
        assert!(text.contains("agent, ended with 3; next start in 4s"), "{text}");
        session.crash_loops = vec![serde_json::from_value(dying)?];
        assert_eq!(state(&session), "crashing");
        let text = described(&session, "2026-01-01T00:00:09Z".parse()?);
        let look = format!("sandbar screen {sandbox} {process}");
        let again = format!("sandbar session restart agent {process}");
        for part in ["next start is due", "5 times in a row", look.as_str(), again.as_str()] {
            assert!(text.contains(part), "{part}: {text}");
        }
        Ok(())
    }
}
