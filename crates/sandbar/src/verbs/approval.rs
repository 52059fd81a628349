//! `approvals`, `approve`, `deny`, `answer`: questions of sandboxes to people.

use std::collections::HashSet;

use chrono::Utc;
use futures_util::StreamExt as _;
use sandbar_api::{AnswerApproval, Approval, ApprovalList, ApprovalState, Code, Event};
use sandbar_client::{ApprovalQuery, Client, EventFilter};

use crate::{
    context::Context,
    exit::{self, Failure},
    print::Printer,
    spinner, table,
    text::{self, inert},
    verbs::sandbox::each,
};

/// Show what sandboxes ask
///
/// What nobody answers before its deadline is decided as the question says: denied.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sandbar approvals --watch
  sandbar approve apr-01k9…                 this once
  sandbar approve apr-01k9… --for-sandbox   and whenever this sandbox asks for the same
  sandbar deny apr-01k9…")]
pub(crate) struct Approvals {
    /// Those that are no longer open too
    #[arg(short, long, conflicts_with = "watch")]
    all: bool,

    /// Only those of this sandbox
    #[arg(long, value_name = "SANDBOX")]
    sandbox: Option<String>,

    /// Go on with new ones as they come
    #[arg(short, long)]
    watch: bool,
}

/// Allow what a sandbox asks for
#[derive(Debug, clap::Args)]
pub(crate) struct Approve {
    /// Also whenever this sandbox asks for the same again
    #[arg(long)]
    for_sandbox: bool,

    /// The approvals' ids
    #[arg(required = true, value_name = "APPROVAL")]
    approvals: Vec<String>,
}

/// Refuse what a sandbox asks for
#[derive(Debug, clap::Args)]
pub(crate) struct Deny {
    /// The approvals' ids
    #[arg(required = true, value_name = "APPROVAL")]
    approvals: Vec<String>,
}

/// Answer an approval with one of its choices
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sandbar answer apr-01k9… --choice once")]
pub(crate) struct Answer {
    /// The approval's id
    approval: String,

    /// The choice's id, as `approvals` shows it
    #[arg(long, value_name = "CHOICE")]
    choice: String,

    /// What to say with it, where the question takes text
    #[arg(long)]
    text: Option<String>,
}

pub(crate) async fn approvals(args: Approvals, context: &Context) -> Result<u8, Failure> {
    let client = context.client()?;
    let print = context.print;
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
    print.line(table::render(["ID", "SANDBOX", "STATE", "AGE", "EXPIRES", "CHOICES", "QUESTION"], rows))?;
    Ok(exit::OK)
}

fn state(approval: &Approval) -> String {
    match &approval.answer {
        Some(answer) => format!("{} ({})", approval.state.as_str(), answer.choice),
        None => approval.state.as_str().to_owned(),
    }
}

fn choices(approval: &Approval) -> String {
    approval.choices.iter().map(|choice| choice.id.as_str()).collect::<Vec<_>>().join(",")
}

/// The open ones, then each as it is opened. The log is read from its beginning, because what was opened between a list
/// and the log's end would be missed otherwise.
async fn watch(client: &Client, sandbox: Option<String>, print: Printer) -> Result<u8, Failure> {
    let open = ApprovalQuery { states: vec![ApprovalState::Open], sandbox: sandbox.clone(), limit: None };
    let mut shown = HashSet::new();
    for approval in client.approvals(&open).await? {
        tell(&approval, print)?;
        shown.insert(approval.id.to_string());
    }
    let filter = EventFilter { sandbox, kinds: vec!["approval.opened".into()] };
    let mut events = std::pin::pin!(client.events_matching(None, filter));
    while let Some(event) = events.next().await {
        let Some(id) = about(&event?).filter(|id| shown.insert(id.clone())) else { continue };
        match client.approval(&id, None).await {
            Ok(approval) if approval.state == ApprovalState::Open => tell(&approval, print)?,
            Ok(_) => {}
            // It was long ago.
            Err(error) if error.code() == Some(Code::UnknownApproval) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(exit::OK)
}

fn about(event: &Event) -> Option<String> {
    event.data.get("approval")?.as_str().map(Into::into)
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

pub(crate) async fn approve(args: Approve, context: &Context) -> Result<u8, Failure> {
    let choice = if args.for_sandbox { "sandbox" } else { "once" };
    each_answer(&args.approvals, choice, context).await
}

pub(crate) async fn deny(args: Deny, context: &Context) -> Result<u8, Failure> {
    each_answer(&args.approvals, "deny", context).await
}

async fn each_answer(approvals: &[String], choice: &str, context: &Context) -> Result<u8, Failure> {
    let client = context.client()?;
    each(approvals, context, async |id| {
        let request = AnswerApproval { choice: choice.to_owned(), text: None };
        answered(&client.answer_approval(id, &request).await?, choice, context.print)
    })
    .await
}

pub(crate) async fn answer(args: Answer, context: &Context) -> Result<u8, Failure> {
    let request = AnswerApproval { choice: args.choice, text: args.text };
    let approval = context.client()?.answer_approval(&args.approval, &request).await?;
    answered(&approval, &request.choice, context.print).map(|()| exit::OK)
}

/// With the question, so that a wrong id is noticed.
fn answered(approval: &Approval, choice: &str, print: Printer) -> Result<(), Failure> {
    if print.json {
        return print.json(approval);
    }
    print.say(inert(&format!("answered {} with {choice}: {}", approval.id, approval.question)));
    Ok(())
}
