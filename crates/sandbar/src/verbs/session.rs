//! `session new|ls|show|attach|rm`: units of agent work that outlive whoever looks at them.

use std::time::Instant;

use chrono::Utc;
use futures_util::TryStreamExt as _;
use sandbar_api::{Code, CreateSession, NetworkPolicy, Session as Shown, SessionPage, SessionTerminal};
use sandbar_client::SessionQuery;

use crate::{
    amount,
    args::{pair, rule},
    context::Context,
    exit::{self, Failure},
    print::Style,
    spinner, table,
    terminal::{self, Signals},
    text::{self, inert},
    verbs::{
        sandbox::{each, joined, session_of, unique},
        session_attach::{self, brief, nothing_runs, visit},
    },
};

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Session {
    New(New),
    Ls(Ls),
    /// Show sessions with their sandboxes, terminals, approvals and budget
    Show {
        #[command(flatten)]
        which: Sessions,
    },
    Attach(session_attach::Attach),
    Rm(Rm),
}

/// Begin a session: a sandbox, and perhaps a command in a terminal of it
///
/// With a command this client attaches to its terminal; when the client is ended or its connection breaks the command goes
/// on, and `session attach` comes back to it. Without one, or with -d, the session's id is printed. What fails leaves
/// nothing behind.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sandbar session new --name fix-42 --label task=42 -- bash
  sandbar session new -d --name fix-42 --allow @github --secret GITHUB_TOKEN -- claude
  sandbar session attach fix-42
  sandbar session new --name plain          a sandbox of that name, nothing running")]
pub(crate) struct New {
    /// What to call it and its sandbox; by default the session has no name
    #[arg(long)]
    name: Option<String>,

    /// What to make its sandbox from
    #[arg(long, value_name = "NAME")]
    template: Option<String>,

    /// Mark it, to find it with `session ls -l`
    #[arg(short, long = "label", value_name = "KEY=VALUE", value_parser = pair)]
    labels: Vec<(String, String)>,

    /// Let its sandbox connect to this: HOST[:PORTS] [METHODS] [PATH] or @SET, as in `net allow`
    #[arg(long, value_name = "RULE", value_parser = rule)]
    allow: Vec<String>,

    /// Ask a person before it connects to this
    #[arg(long, value_name = "RULE", value_parser = rule)]
    ask: Vec<String>,

    /// Refuse this to it, whatever else allows it
    #[arg(long, value_name = "RULE", value_parser = rule)]
    deny: Vec<String>,

    /// Let it use this secret, which it never sees
    #[arg(long = "secret", value_name = "NAME")]
    secrets: Vec<String>,

    /// Let it spend the budget of this session too: its id or name, or the id or name of a sandbox of it
    #[arg(long, value_name = "SESSION|SANDBOX")]
    parent: Option<String>,

    /// Do not attach to the command
    #[arg(short, long, requires = "command")]
    detach: bool,

    /// The program and its arguments
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// Which sessions.
#[derive(Debug, clap::Args)]
pub(crate) struct Sessions {
    /// Their ids or names, or those of a sandbox of each
    #[arg(required = true, value_name = "SESSION")]
    sessions: Vec<String>,
}

/// List sessions
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sandbar session ls -l task=42
  sandbar session rm $(sandbar session ls -q -l task=42)")]
pub(crate) struct Ls {
    /// Only those with this label; several must all match
    #[arg(short, long = "label", value_name = "KEY=VALUE", value_parser = pair)]
    labels: Vec<(String, String)>,

    /// Also those that have ended
    #[arg(short, long)]
    all: bool,

    /// Only ids, one a line
    #[arg(short, long)]
    quiet: bool,
}

/// Delete sessions with their sandboxes and everything in them
///
/// What they spent still counts for their parents, and sessions below them stay.
#[derive(Debug, clap::Args)]
pub(crate) struct Rm {
    /// Those that do not exist are fine
    #[arg(short, long)]
    force: bool,

    #[command(flatten)]
    which: Sessions,
}

pub(crate) async fn session(verb: Session, context: &Context) -> Result<u8, Failure> {
    match verb {
        Session::New(args) => new(args, context).await,
        Session::Ls(args) => ls(args, context).await,
        Session::Show { which } => show(&which, context).await,
        Session::Attach(args) => session_attach::attach(&args, context).await.map_err(Failure::beside_a_command),
        Session::Rm(args) => rm(&args, context).await,
    }
}

async fn new(args: New, context: &Context) -> Result<u8, Failure> {
    let client = context.client()?;
    let (print, begin) = (context.print, Instant::now());
    let parent = match &args.parent {
        Some(parent) => Some(session_of(&client, parent).await?),
        None => None,
    };
    let command = (!args.command.is_empty()).then_some(args.command);
    let request = CreateSession {
        name: args.name,
        template: args.template,
        labels: unique("label", args.labels)?,
        parent,
        network: NetworkPolicy { allow: args.allow, ask: args.ask, deny: args.deny },
        secrets: args.secrets,
        terminal: command.as_ref().map(|_| terminal::size()),
        command,
    };
    let attaches = request.command.is_some() && !args.detach;
    // From here on a signal ends us only after the session was told of.
    let mut signals = Signals::install().map_err(Failure::io("failed to listen for signals"))?;
    let session = spinner::during("beginning", client.create_session(&request)).await?;
    let took = text::took(begin.elapsed());
    let called = print.note(&inert(session.name.as_deref().unwrap_or("a session")), Style::Bold);
    if !print.json || attaches {
        print.say(format!("began {called} ({}) in {took}", session.id));
    }
    if !attaches {
        return if print.json { print.json(&session) } else { print.line(session.id.as_str()) }.map(|()| exit::OK);
    }
    let sandbox = session.sandboxes.first().ok_or_else(|| nothing_runs(&session))?;
    // Rather than the session's terminals: it may have ended already, and wrote something all the same.
    let started = client.processes(sandbox.as_str()).await?.into_iter().find(|process| process.terminal);
    let process = started.ok_or_else(|| nothing_runs(&session))?;
    visit(&client, &session, &process, &mut signals, print).await.map_err(Failure::beside_a_command)
}

async fn ls(args: Ls, context: &Context) -> Result<u8, Failure> {
    let client = context.client()?;
    let query = SessionQuery { labels: unique("label", args.labels)?, ended: args.all, ..SessionQuery::default() };
    let all = client.sessions(query).try_collect::<Vec<_>>();
    let sessions = spinner::during("listing sessions", all).await?;
    let print = context.print;
    if args.quiet {
        return sessions.iter().try_for_each(|session| print.line(session.id.as_str())).map(|()| exit::OK);
    }
    if print.json {
        return print.json(&SessionPage { sessions, next_cursor: None }).map(|()| exit::OK);
    }
    let now = Utc::now();
    let rows = sessions.into_iter().map(|session| {
        [
            session.name.unwrap_or_else(|| "-".into()),
            session.id.to_string(),
            session.state.as_str().to_owned(),
            session.sandboxes.len().to_string(),
            session.terminals.len().to_string(),
            session.open_approvals.to_string(),
            text::ago(session.created_at, now),
            joined(&session.labels),
        ]
    });
    print.line(table::render(["NAME", "ID", "STATE", "SANDBOXES", "TERMINALS", "ASKING", "AGE", "LABELS"], rows))?;
    Ok(exit::OK)
}

async fn show(which: &Sessions, context: &Context) -> Result<u8, Failure> {
    let client = context.client()?;
    let print = context.print;
    let mut first = true;
    each(&which.sessions, context, async |name| {
        let session = client.session(name).await?;
        if print.json {
            return print.json(&session);
        }
        let gap = if std::mem::take(&mut first) { "" } else { "\n" };
        print.line(format!("{gap}{}", described(&session)))
    })
    .await
}

fn described(session: &Shown) -> String {
    let mut fields = vec![
        ("name", session.name.clone().unwrap_or_else(|| "-".into())),
        ("id", session.id.to_string()),
        ("state", session.state.as_str().to_owned()),
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

async fn rm(args: &Rm, context: &Context) -> Result<u8, Failure> {
    let client = context.client()?;
    let print = context.print;
    let mut deleted = Vec::new();
    let outcome = each(&args.which.sessions, context, async |name| {
        let begin = Instant::now();
        match spinner::during(format!("deleting {}", inert(name)), client.delete_session(name)).await {
            Err(error) if args.force && error.code() == Some(Code::UnknownSession) => return Ok(()),
            outcome => outcome?,
        }
        if !print.json {
            print.say(format!("deleted {} in {}", inert(name), text::took(begin.elapsed())));
        }
        deleted.push(name.to_owned());
        Ok(())
    })
    .await;
    if print.json {
        print.json(&serde_json::json!({"deleted": deleted}))?;
    }
    outcome
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn shown(terminals: usize) -> Result<Shown, serde_json::Error> {
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
        let text = described(&shown(1)?);
        for part in ["5 of 10", "$0.500000", "0 open approvals", "bash"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("$0.500000 of"), "{text}");
        Ok(())
    }
}
