//! `approvals`, `approve`, `deny`, `answer`: questions of sandboxes to people.

mod answer;

use std::collections::HashMap;

use chrono::Utc;
use futures_util::StreamExt as _;
use sandbar_api::{Approval, ApprovalId, ApprovalList, ApprovalState, Code, Delivery, SandboxId};
use sandbar_client::{ApprovalQuery, Client};

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
    let mut names = Names::default();
    let mut named = Vec::new();
    for approval in approvals {
        named.push((names.of(&client, &approval).await?, approval));
    }
    let rows = named.iter().map(|(name, approval)| {
        [
            approval.id.to_string(),
            name.clone(),
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

/// The open ones, then each as it is opened, and how those end.
async fn watch(client: &Client, sandbox: Option<String>, print: Printer) -> Result<u8, Failure> {
    let mut names = Names::default();
    // As they were told.
    let mut told: HashMap<ApprovalId, (ApprovalState, Option<Delivery>)> = HashMap::new();
    let mut approvals = std::pin::pin!(client.follow_approvals(sandbox));
    while let Some(approval) = approvals.next().await {
        let approval = approval?;
        let now = (approval.state, approval.delivery);
        let before = told.insert(approval.id.clone(), now);
        if before == Some(now) {
            continue;
        }
        match (approval.state, print.json) {
            (ApprovalState::Open, false) => {
                let name = names.of(client, &approval).await?;
                tell(&approval, &name, print)?;
            }
            // What was never told as open was over before anybody looked.
            (_, false) if before.is_some() => {
                if let Some(how) = ending(&approval, before) {
                    print.line(inert(&format!("{}  {how}", approval.id)))?;
                }
            }
            (ApprovalState::Open, true) => print.json(&approval)?,
            (_, true) if before.is_some() => print.json(&approval)?,
            _ => {}
        }
        if approval.state != ApprovalState::Open && approval.delivery != Some(Delivery::Pending) {
            told.remove(&approval.id);
        }
    }
    Ok(exit::OK)
}

/// In a few words; None of what says nothing new to people.
fn ending(approval: &Approval, before: Option<(ApprovalState, Option<Delivery>)>) -> Option<String> {
    let was_open = before.is_some_and(|(state, _)| state == ApprovalState::Open);
    let refused = approval.delivery == Some(Delivery::Refused);
    match (&approval.answer, approval.state) {
        (Some(_), _) if refused => Some("not typed: the terminal had moved on".to_owned()),
        (Some(answer), _) => was_open.then(|| format!("answered {} by {}", answer.choice, answer.by)),
        (None, ApprovalState::Withdrawn) => {
            Some(format!("withdrawn {}", approval.reason.as_deref().unwrap_or_default()).trim_end().to_owned())
        }
        (None, _) => Some(format!("expired: {}", approval.on_deadline)),
    }
}

/// What sandboxes are called: people know them by that.
#[derive(Default)]
struct Names(HashMap<SandboxId, String>);

impl Names {
    async fn of(&mut self, client: &Client, approval: &Approval) -> Result<String, Failure> {
        let Some(id) = &approval.sandbox else { return Ok("-".to_owned()) };
        if let Some(name) = self.0.get(id) {
            return Ok(name.clone());
        }
        let name = match client.sandbox(id.as_str()).await {
            Ok(sandbox) => sandbox.name,
            // Deleted long ago, or nothing for an agent to look at.
            Err(error) if matches!(error.code(), Some(Code::UnknownSandbox | Code::SandboxGone | Code::Forbidden)) => {
                id.to_string()
            }
            Err(error) => return Err(error.into()),
        };
        self.0.insert(id.clone(), name.clone());
        Ok(name)
    }
}

fn tell(approval: &Approval, name: &str, print: Printer) -> Result<(), Failure> {
    let left = text::span(approval.deadline - Utc::now());
    let Approval { id, question, on_deadline, .. } = approval;
    print.line(inert(&format!("{id}  {name}  {question}  ({}; {on_deadline} in {left})", choices(approval))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_told_in_a_few_words() {
        let open = || -> Approval {
            serde_json::from_value(serde_json::json!({
                "id": "apr-01m7fxbef2q9spjz60y5wjr15k", "kind": "terminal", "state": "open",
                "session": "ses-01m7fxbe8p9dbm9jcf2777fkgg", "question": "Sure?", "choices": [], "context": {},
                "answerable_by": "operator", "created_at": "2026-01-01T00:00:00Z",
                "deadline": "2026-01-08T00:00:00Z", "on_deadline": "none",
            }))
            .unwrap_or_else(|error| panic!("{error}"))
        };
        let answered = |delivery| {
            let answer = serde_json::json!({"choice": "yes", "by": "socket", "at": "2026-01-01T00:00:00Z"});
            let answer = serde_json::from_value(answer).ok();
            Approval { state: ApprovalState::Answered, answer, delivery, ..open() }
        };
        let withdrawn = |reason: Option<&str>| Approval {
            state: ApprovalState::Withdrawn,
            reason: reason.map(Into::into),
            ..open()
        };
        let was_open = Some((ApprovalState::Open, None));
        let was_pending = Some((ApprovalState::Answered, Some(Delivery::Pending)));
        for (approval, before, want) in [
            (answered(None), was_open, Some("answered yes by socket")),
            (answered(Some(Delivery::Pending)), was_open, Some("answered yes by socket")),
            (answered(Some(Delivery::Typed)), was_pending, None),
            (answered(Some(Delivery::Refused)), was_pending, Some("not typed: the terminal had moved on")),
            (withdrawn(Some("moved_on")), was_open, Some("withdrawn moved_on")),
            (withdrawn(None), was_open, Some("withdrawn")),
            (Approval { state: ApprovalState::Expired, ..open() }, was_open, Some("expired: none")),
        ] {
            assert_eq!(ending(&approval, before).as_deref(), want, "{approval:?}");
        }
    }
}
