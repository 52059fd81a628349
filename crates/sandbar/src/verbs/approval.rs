//! `approvals`, `approve`, `deny`, `answer`: questions of sandboxes to people.

mod answer;

use std::collections::HashSet;

use chrono::Utc;
use futures_util::StreamExt as _;
use sandbar_api::{Approval, ApprovalList, ApprovalState, Code, Delivery, Event};
use sandbar_client::{ApprovalQuery, Client, EventFilter};

use crate::{
    context::Context,
    exit::{self, Failure},
    print::Printer,
    spinner, table,
    text::{self, inert},
};
pub(crate) use answer::{Answer, Approve, Deny, answer, approve, deny};

/// Show what sandboxes ask
///
/// A connection that a rule says to ask about, or a program that waits in a terminal. With an id all about that one: its
/// choices, and what is on the screen. What nobody answers before its deadline is decided as the question says; in a
/// terminal nothing is typed then.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sandbar approvals --watch
  sandbar approvals apr-01k9…               the whole question
  sandbar approve apr-01k9…                 this once, or yes
  sandbar approve apr-01k9… --for-sandbox   and whenever this sandbox asks for the same
  sandbar deny apr-01k9…
  sandbar answer apr-01k9… --choice 2")]
pub(crate) struct Approvals {
    /// Show this one alone, all of it
    #[arg(conflicts_with_all = ["all", "sandbox", "watch"])]
    approval: Option<String>,

    /// Those that are no longer open too
    #[arg(short, long, conflicts_with = "watch")]
    all: bool,

    /// Only those of this sandbox
    #[arg(long, value_name = "SANDBOX")]
    sandbox: Option<String>,

    /// Go on with new ones as they come, and tell how they end
    #[arg(short, long)]
    watch: bool,
}

pub(crate) async fn approvals(args: Approvals, context: &Context) -> Result<u8, Failure> {
    let client = context.client()?;
    let print = context.print;
    if let Some(id) = &args.approval {
        let approval = spinner::during("reading the approval", client.approval(id, None)).await?;
        return show(&approval, print).map(|()| exit::OK);
    }
    if args.watch {
        return watch(&client, args.sandbox, print).await;
    }
    let states = if args.all { Vec::new() } else { vec![ApprovalState::Open] };
    let query = ApprovalQuery { states, sandbox: args.sandbox, limit: None };
    let approvals = spinner::during("listing approvals", client.approvals(&query)).await?;
    if print.json {
        return print.json(&ApprovalList { approvals }).map(|()| exit::OK);
    }
    let now = Utc::now();
    let rows = approvals.iter().map(|approval| {
        [
            approval.id.to_string(),
            approval.sandbox.as_ref().map_or_else(|| "-".into(), ToString::to_string),
            approval.kind.as_str().to_owned(),
            state(approval),
            text::ago(approval.created_at, now),
            match approval.state {
                ApprovalState::Open => format!("in {}", text::span(approval.deadline - now)),
                _ => "-".into(),
            },
            choices(approval),
            approval.question.clone(),
        ]
    });
    print.line(table::render(["ID", "SANDBOX", "KIND", "STATE", "AGE", "EXPIRES", "CHOICES", "QUESTION"], rows))?;
    Ok(exit::OK)
}

fn state(approval: &Approval) -> String {
    let state = approval.state.as_str();
    match (&approval.answer, &approval.reason) {
        (Some(answer), _) if approval.delivery == Some(Delivery::Refused) => {
            format!("{state} ({}, not typed)", answer.choice)
        }
        (Some(answer), _) => format!("{state} ({})", answer.choice),
        (None, Some(reason)) => format!("{state} ({reason})"),
        (None, None) => state.to_owned(),
    }
}

fn choices(approval: &Approval) -> String {
    approval.choices.iter().map(|choice| choice.id.as_str()).collect::<Vec<_>>().join(",")
}

/// All that there is to know before answering.
fn show(approval: &Approval, print: Printer) -> Result<(), Failure> {
    if print.json {
        return print.json(approval);
    }
    let now = Utc::now();
    let mut fields = vec![
        ("question", approval.question.clone()),
        ("id", approval.id.to_string()),
        ("kind", approval.kind.as_str().to_owned()),
        ("state", state(approval)),
        ("session", approval.session.to_string()),
    ];
    fields.extend(approval.sandbox.as_ref().map(|id| ("sandbox", id.to_string())));
    let known = ["process", "command", "host", "port", "method", "path", "rule"];
    fields.extend(known.into_iter().filter_map(|name| {
        let value = approval.context.get(name)?;
        Some((name, value.as_str().map_or_else(|| value.to_string(), str::to_owned)))
    }));
    fields.push(("asked", format!("{} ago", text::ago(approval.created_at, now))));
    if approval.state == ApprovalState::Open {
        fields.push(("then", format!("{} in {}", approval.on_deadline, text::span(approval.deadline - now))));
    }
    print.line(table::fields(fields))?;
    print.line("")?;
    let rows = approval.choices.iter().map(|choice| [choice.id.clone(), choice.label.clone()]);
    print.line(table::render(["CHOICE", "MEANS"], rows))?;
    if let Some(screen) = approval.context.get("screen").and_then(|screen| screen.as_str()) {
        print.line("")?;
        for line in screen.lines() {
            print.line(format!("| {}", inert(line)).trim_end())?;
        }
    }
    Ok(())
}

/// The open ones, then each as it is opened, and how those end. The log is read from its beginning, because what was
/// opened between a list and the log's end would be missed otherwise.
async fn watch(client: &Client, sandbox: Option<String>, print: Printer) -> Result<u8, Failure> {
    let open = ApprovalQuery { states: vec![ApprovalState::Open], sandbox: sandbox.clone(), limit: None };
    // Those that were told as open, and those that need not be looked at again.
    let (mut told, mut known) = (HashSet::new(), HashSet::new());
    for approval in client.approvals(&open).await? {
        tell(&approval, print)?;
        told.insert(approval.id.to_string());
        known.insert(approval.id.to_string());
    }
    let filter = EventFilter { sandbox, kinds: vec!["approval.".into()] };
    let mut events = std::pin::pin!(client.events_matching(None, filter));
    while let Some(event) = events.next().await {
        let event = event?;
        let Some(id) = about(&event) else { continue };
        if event.kind == "approval.opened" {
            if known.insert(id.clone())
                && let Some(approval) = still_open(client, &id).await?
            {
                tell(&approval, print)?;
                told.insert(id);
            }
        } else if let Some(how) = ending(&event).filter(|_| told.contains(&id)) {
            match print.json {
                true => print.json(&client.approval(&id, None).await?)?,
                false => print.line(inert(&format!("{id}  {how}")))?,
            }
        }
    }
    Ok(exit::OK)
}

async fn still_open(client: &Client, id: &str) -> Result<Option<Approval>, Failure> {
    match client.approval(id, None).await {
        Ok(approval) => Ok(Some(approval).filter(|approval| approval.state == ApprovalState::Open)),
        // It was long ago.
        Err(error) if error.code() == Some(Code::UnknownApproval) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn about(event: &Event) -> Option<String> {
    event.data.get("approval")?.as_str().map(Into::into)
}

/// In a few words; None of what is no end.
fn ending(event: &Event) -> Option<String> {
    let text = |name: &str| event.data.get(name).and_then(|value| value.as_str()).unwrap_or_default();
    match event.kind.as_str() {
        "approval.answered" => Some(format!("answered {} by {}", text("choice"), text("by"))),
        "approval.withdrawn" => Some(format!("withdrawn {}", text("reason")).trim_end().to_owned()),
        "approval.expired" => Some(format!("expired: {}", text("choice"))),
        "approval.refused" => Some("not typed: the terminal had moved on".to_owned()),
        _ => None,
    }
}

fn tell(approval: &Approval, print: Printer) -> Result<(), Failure> {
    if print.json {
        return print.json(approval);
    }
    let left = text::span(approval.deadline - Utc::now());
    let line =
        format!("{}  {}  ({}; {} in {left})", approval.id, approval.question, choices(approval), approval.on_deadline);
    print.line(inert(&line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_told_in_a_few_words() {
        let event = |kind: &str, data: serde_json::Value| Event {
            seq: 1,
            at: chrono::DateTime::UNIX_EPOCH,
            kind: kind.into(),
            sandbox: None,
            process: None,
            data,
        };
        for (kind, data, want) in [
            ("approval.answered", serde_json::json!({"choice": "yes", "by": "socket"}), Some("answered yes by socket")),
            ("approval.withdrawn", serde_json::json!({"reason": "moved_on"}), Some("withdrawn moved_on")),
            ("approval.withdrawn", serde_json::json!({"reason": null}), Some("withdrawn")),
            ("approval.expired", serde_json::json!({"choice": "deny"}), Some("expired: deny")),
            ("approval.typed", serde_json::json!({}), None),
        ] {
            assert_eq!(ending(&event(kind, data)).as_deref(), want, "{kind}");
        }
    }
}
