//! `session new|ls|show|attach|restart|rm`: units of agent work that outlive whoever looks at them.

use std::time::Instant;

use chrono::Utc;
use futures_util::TryStreamExt as _;
use sandbar_api::{
    Code, CreateSandbox, CreateSession, ProcessId, RestartSession, Session as Shown, SessionPage, StartProcess,
};
use sandbar_client::{Client, SessionQuery};

use crate::{
    args::{Bind, RestartWhen, Workspace, pair},
    context::Context,
    exit::{self, Failure},
    print::{Printer, Style},
    spinner, table,
    terminal::{self, Signals},
    text::{self, inert},
    verbs::{
        attach::{DetachKeys, How},
        sandbox::{SandboxOptions, fill, joined, removed, unique},
        session_attach::{self, nothing_runs, visit},
        session_show,
    },
};

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Session {
    New(Box<New>),
    Ls(Ls),
    /// Show sessions with their sandboxes, terminals, approvals and budget
    Show {
        #[command(flatten)]
        which: Sessions,
    },
    Attach(session_attach::Attach),
    Restart(Restart),
    Rm(Rm),
}

/// Begin a session: a sandbox, and perhaps a command in a terminal of it
///
/// With a command this client attaches to its terminal; when you leave with Ctrl-A d, the client is ended or its
/// connection breaks, the command goes on, and `session attach` comes back to it. Without one, or with -d, the session's id
/// is printed. What fails leaves nothing behind.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sandbar session new --name fix-42 --label task=42 -- bash
  sandbar session new -d --name fix-42 --allow @github --secret GITHUB_TOKEN -- claude
  sandbar session new -d --name fix-42 --workspace . --restart on-failure -- claude
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

    #[command(flatten)]
    options: SandboxOptions,

    /// Start the command again when it ends, until it is killed or keeps dying
    #[arg(long, value_name = "WHEN", value_enum, requires = "command")]
    restart: Option<RestartWhen>,

    /// The directory to run the command in [default: /workspace]
    #[arg(long, value_name = "PATH", requires = "command")]
    cwd: Option<String>,

    /// Repeating the same with the same key returns the same session
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,

    #[command(flatten)]
    keys: DetachKeys,

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
    pub sessions: Vec<String>,
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

/// Start a command again that was begun with --restart and does not run
///
/// One that kept dying and was given up, that waits for its time, that was killed, or that ended with its sandbox. What went
/// wrong before is forgiven.
#[derive(Debug, clap::Args)]
pub(crate) struct Restart {
    /// Its id or name, or that of a sandbox of it
    session: String,

    /// A process that ran the command, if several commands could be meant
    process: Option<ProcessId>,
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
        Session::New(args) => new(*args, context).await,
        Session::Ls(args) => ls(args, context).await,
        Session::Show { which } => session_show::show(&which, context).await,
        Session::Attach(args) => session_attach::attach(&args, context).await.map_err(Failure::beside_a_command),
        Session::Restart(args) => restart(args, context).await,
        Session::Rm(args) => rm(&args, context).await,
    }
}

async fn new(args: New, context: &Context) -> Result<u8, Failure> {
    let how = (How::default().control(), args.keys.chord()?);
    let client = context.client()?;
    let (print, begin) = (context.print, Instant::now());
    let workspace = args.options.workspace.clone();
    let CreateSandbox { env, ttl, workspace: source, parent, network, secrets, limits, budget, .. } =
        args.options.request(&client).await?;
    let command = (!args.command.is_empty()).then_some(args.command);
    let terminal = command.as_ref().map(|_| terminal::size());
    let mut request = CreateSession {
        name: args.name,
        template: args.template,
        labels: unique("label", args.labels)?,
        parent,
        network,
        secrets,
        command,
        terminal,
        cwd: args.cwd,
        restart: args.restart.map(Into::into),
        env,
        ttl,
        workspace: source,
        limits,
        budget,
    };
    let attaches = request.command.is_some() && !args.detach;
    // What is copied has to be there before the command looks for it.
    let late =
        workspace.as_ref().filter(|workspace| workspace.bind == Bind::Copy).and_then(|_| postponed(&mut request));
    // From here on a signal ends us only after the session was told of.
    let mut signals = Signals::install().map_err(Failure::io("failed to listen for signals"))?;
    let key = args.idempotency_key.as_deref();
    let begun = spinner::during("beginning", client.create_session(&request, key)).await?;
    let mut session = begun.session;
    if !begun.replayed && workspace.is_some() {
        session = furnish(&client, session, workspace.as_ref(), late, print).await?;
    }
    let took = text::took(begin.elapsed());
    let called = print.note(&inert(session.name.as_deref().unwrap_or("a session")), Style::Bold);
    if !print.json || attaches {
        print.say(match begun.replayed {
            true => format!("found {called} ({}), begun before with this key", session.id),
            false => format!("began {called} ({}) in {took}", session.id),
        });
    }
    if !attaches {
        return if print.json { print.json(&session) } else { print.line(session.id.as_str()) }.map(|()| exit::OK);
    }
    let sandbox = session.sandboxes.first().ok_or_else(|| nothing_runs(&session))?;
    // Rather than the session's terminals: it may have ended already, and wrote something all the same.
    let started = client.processes(sandbox.as_str()).await?.into_iter().find(|process| process.terminal);
    let process = started.ok_or_else(|| nothing_runs(&session))?;
    visit(&client, &session, &process, how, &mut signals, print).await.map_err(Failure::beside_a_command)
}

/// The command, taken out of the request.
fn postponed(request: &mut CreateSession) -> Option<StartProcess> {
    let (terminal, cwd, restart) = (request.terminal.take(), request.cwd.take(), request.restart.take());
    let argv = request.command.take()?;
    Some(StartProcess { argv, terminal, cwd, restart, ..StartProcess::default() })
}

/// Brings the workspace in, then starts the command. A session without them would not be what was asked for.
async fn furnish(
    client: &Client,
    session: Shown,
    workspace: Option<&Workspace>,
    command: Option<StartProcess>,
    print: Printer,
) -> Result<Shown, Failure> {
    let furnish = async {
        let sandbox = session.sandboxes.first().ok_or_else(|| nothing_runs(&session))?;
        let sandbox = client.sandbox(sandbox.as_str()).await?;
        fill(client, &sandbox, workspace, print).await?;
        if let Some(command) = command {
            client.start_process(sandbox.id.as_str(), &command).await?;
        }
        Ok::<_, Failure>(client.session(session.id.as_str()).await?)
    };
    let furnished = spinner::during("copying the workspace", furnish).await;
    if furnished.is_err()
        && let Err(error) = client.delete_session(session.id.as_str()).await
    {
        print.warn(format!("{} was not removed again: {}", session.id, exit::chain(&error)));
    }
    furnished
}

async fn restart(args: Restart, context: &Context) -> Result<u8, Failure> {
    let request = RestartSession { process: args.process };
    let process = spinner::during("starting", context.client()?.restart_session(&args.session, &request)).await?;
    let print = context.print;
    if print.json {
        return print.json(&process).map(|()| exit::OK);
    }
    print.say(format!("started {} again in {}", text::command(&process.argv), inert(&args.session)));
    print.line(process.id.as_str()).map(|()| exit::OK)
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
            session.name.clone().unwrap_or_else(|| "-".into()),
            session.id.to_string(),
            session_show::state(&session).to_owned(),
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

async fn rm(args: &Rm, context: &Context) -> Result<u8, Failure> {
    let client = context.client()?;
    let gone = |code| args.force && code == Code::UnknownSession;
    removed("", &args.which.sessions, context, gone, async |name| client.delete_session(name).await).await
}
