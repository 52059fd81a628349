//! Commands in a sandbox: `exec`, `ps`, `logs`, `kill`.

use std::io::IsTerminal as _;

use chrono::Utc;
use futures_util::StreamExt as _;
use sandbar_api::{Control, ExitReason, Process, ProcessList, ProcessState, StartProcess, Stream};
use sandbar_client::{Client, OutputItem};
use sandbar_terminal::{InputModes, Neutral, Titles, neutral::RESTORE};

use crate::{
    args::{CommandOptions, RestartWhen},
    attach::Attachment,
    context::Context,
    exit::{self, Failure},
    print::{Printer, written},
    running::Running,
    spinner, table,
    terminal::{self, Signals},
    text::{self, inert},
    verbs::sandbox::unique,
    visit::{Chord, End, Manner, Visit},
};

/// Run a command in a sandbox
///
/// The command goes on when this client dies or the server is restarted; `logs` shows what it wrote. Signals sent to
/// this client reach the command, and its exit code becomes ours.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sandbar exec agent -- make test
  sandbar exec -t agent bash
  tar c src | sandbar exec -i agent -- tar x
  sandbar exec -d agent -- ./server           prints the process id")]
pub(crate) struct Exec {
    /// Forward standard input; -t does so too
    #[arg(short, long)]
    pub interactive: bool,

    /// Print the process id and let it run
    #[arg(short, long, conflicts_with_all = ["interactive", "tty"])]
    pub detach: bool,

    /// Start it again when it ends, until it is killed or keeps dying
    #[arg(long, value_name = "WHEN", value_enum, requires = "detach")]
    pub restart: Option<RestartWhen>,

    #[command(flatten)]
    pub options: CommandOptions,

    /// Its id or name
    pub sandbox: String,

    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

/// List the processes of a sandbox
#[derive(Debug, clap::Args)]
pub(crate) struct Ps {
    /// Its id or name
    sandbox: String,
}

/// Show what a process has written
///
/// Bytes are numbered from 0; what was read once can be continued with --from, whatever happened in between.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sandbar logs agent                     of the process started last
  sandbar logs -f agent prc-01k9…        until it ends
  sandbar logs --from 4096 agent prc-01k9…")]
pub(crate) struct Logs {
    /// Go on until the process ends
    #[arg(short, long)]
    follow: bool,

    /// The first byte wanted; by default the first that is kept
    #[arg(long, value_name = "OFFSET")]
    from: Option<u64>,

    /// The sandbox's id or name
    sandbox: String,

    /// The process; by default the one started last
    process: Option<String>,
}

/// Send a signal to a process
///
/// KILL ends everything the process started; other signals reach its process group.
#[derive(Debug, clap::Args)]
pub(crate) struct Kill {
    /// The signal, for example INT, SIGHUP or 9
    #[arg(short, long, default_value = "TERM")]
    signal: String,

    /// The sandbox's id or name
    sandbox: String,

    /// The process's id
    process: String,
}

/// The request for a command with these options.
pub(crate) fn request(command: Vec<String>, options: &CommandOptions, stdin: bool) -> Result<StartProcess, Failure> {
    let mut env = unique("variable", options.env.clone())?;
    let terminal = options.tty.then(terminal::size);
    if let (Some(_), Ok(term)) = (terminal, std::env::var("TERM")) {
        env.entry("TERM".into()).or_insert(term);
    }
    Ok(StartProcess {
        argv: command,
        env,
        cwd: options.cwd.clone(),
        terminal,
        stdin,
        timeout: options.timeout,
        restart: None,
    })
}

pub(crate) async fn exec(args: Exec, context: &Context) -> Result<u8, Failure> {
    let client = context.client()?;
    let print = context.print;
    let forward_input = (args.interactive || args.options.tty) && !terminal::stdin_is_null();
    let mut request = request(args.command, &args.options, forward_input)?;
    request.restart = args.restart.map(Into::into);
    if args.detach {
        let process = spinner::during("starting", client.start_process(&args.sandbox, &request)).await?;
        if print.json {
            return print.json(&process).map(|()| exit::OK);
        }
        print.say(format!("started {} in {}", text::command(&process.argv), inert(&args.sandbox)));
        return print.line(process.id.as_str()).map(|()| exit::OK);
    }
    let mut signals = Signals::install().map_err(Failure::io("failed to listen for signals"))?;
    start_and_attach(&client, &args.sandbox, &request, &mut signals, print).await
}

/// The whole life of a command in front of the user.
pub(crate) async fn start_and_attach(
    client: &Client,
    sandbox: &str,
    request: &StartProcess,
    signals: &mut Signals,
    print: Printer,
) -> Result<u8, Failure> {
    let start = spinner::during("starting", client.start_process(sandbox, request));
    let process = tokio::select! {
        process = start => process?,
        code = signals.interrupted() => return Err(Failure::Quiet(code)),
    };
    let running = Running { client, sandbox, process: &process, print };
    let forward_input = request.stdin;
    if request.terminal.is_none() {
        return Attachment { running, forward_input }.drive(signals).await;
    }
    let (manner, control, chord) = (Manner::Ours, Control::Take, Chord::None);
    let visit = Visit { running, name: sandbox, manner, control, chord, forward_input };
    match visit.drive(signals).await? {
        End::Exit(code) => Ok(code),
        End::Detached => Err(Failure::new(exit::SANDBAR, "the command was left before its end")),
    }
}

pub(crate) async fn ps(args: &Ps, context: &Context) -> Result<u8, Failure> {
    let client = context.client()?;
    let print = context.print;
    let processes = spinner::during("listing processes", client.processes(&args.sandbox)).await?;
    if print.json {
        return print.json(&ProcessList { processes }).map(|()| exit::OK);
    }
    let now = Utc::now();
    let rows = processes.iter().map(|process| {
        [
            process.id.to_string(),
            state(process),
            text::ago(process.started_at, now),
            text::size(process.output.end),
            text::shortened(&text::command(&process.argv), 60),
        ]
    });
    print.line(table::render(["ID", "STATE", "AGE", "OUTPUT", "COMMAND"], rows))?;
    Ok(exit::OK)
}

fn state(process: &Process) -> String {
    match (process.state, &process.exit) {
        (ProcessState::Running, _) => "running".into(),
        (ProcessState::Lost, _) | (ProcessState::Exited, None) => "lost".into(),
        (ProcessState::Exited, Some(exit)) => {
            let why = match exit.reason {
                ExitReason::Exited => "",
                ExitReason::Timeout => ", timeout",
                ExitReason::Killed => ", killed",
                ExitReason::Stopped => ", stopped",
                ExitReason::Oom => ", oom",
                ExitReason::PidsLimit => ", pids limit",
                ExitReason::DiskLimit => ", disk limit",
                ExitReason::OutputLimit => ", output limit",
            };
            format!("exited ({}{why})", exit.code)
        }
    }
}

pub(crate) async fn logs(args: &Logs, context: &Context) -> Result<u8, Failure> {
    let client = context.client()?;
    let process = match &args.process {
        Some(process) => process.clone(),
        None => newest(&client, &args.sandbox).await?,
    };
    // What a terminal was shown is written for a terminal; ours is not to obey all of it.
    let shown = !context.print.json && std::io::stdout().is_terminal();
    let mut neutral = match shown && client.process(&args.sandbox, &process).await?.terminal {
        true => Some(Neutral::new(Titles::Drop, InputModes::Drop)),
        false => None,
    };
    let mut output = std::pin::pin!(client.output(&args.sandbox, &process, args.from, args.follow));
    while let Some(item) = output.next().await {
        match item? {
            OutputItem::Chunk(chunk) if context.print.json => context.print.json(&chunk)?,
            OutputItem::Chunk(chunk) => match chunk.stream {
                Stream::Stdout => {
                    let harmless = neutral.as_mut().map(|neutral| neutral.filter(&chunk.data));
                    written(write(std::io::stdout().lock(), harmless.as_deref().unwrap_or(&chunk.data)))?;
                }
                Stream::Stderr => written(write(std::io::stderr().lock(), &chunk.data))?,
            },
            OutputItem::Exit(_) => {}
        }
    }
    if neutral.is_some() {
        written(write(std::io::stdout().lock(), RESTORE))?;
    }
    Ok(exit::OK)
}

fn write(mut stream: impl std::io::Write, data: &[u8]) -> std::io::Result<()> {
    stream.write_all(data)?;
    stream.flush()
}

/// Ids sort by time.
async fn newest(client: &Client, sandbox: &str) -> Result<String, Failure> {
    let processes = client.processes(sandbox).await?;
    let newest = processes.into_iter().max_by(|a, b| (a.started_at, &a.id).cmp(&(b.started_at, &b.id)));
    newest.map(|process| process.id.to_string()).ok_or_else(|| {
        Failure::new(exit::NOT_FOUND, format!("nothing was started in {sandbox} yet"))
            .hint(format!("Start something with `sandbar exec {sandbox} -- COMMAND`."))
    })
}

pub(crate) async fn kill(args: &Kill, context: &Context) -> Result<u8, Failure> {
    let client = context.client()?;
    client.signal(&args.sandbox, &args.process, &args.signal).await?;
    let print = context.print;
    if print.json {
        return print.json(&serde_json::json!({"process": args.process, "signal": args.signal})).map(|()| exit::OK);
    }
    print.say(format!("sent {} to {}", inert(&args.signal), inert(&args.process)));
    Ok(exit::OK)
}
