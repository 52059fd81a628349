//! The command line: global options and the verbs; each verb's own options stand beside its code.

use std::path::PathBuf;

use clap::{Parser, Subcommand, ValueEnum};
use sandbar_api::{HumanDuration, Restart};

use crate::{exit, up, verbs};

const ABOUT: &str = "Isolated places for untrusted commands";

const LONG_ABOUT: &str = "\
Isolated places for untrusted commands.

`sandbar run` gives one command a fresh sandbox and needs nothing else. `sandbar up` starts a server; the other \
verbs are its client: they make sandboxes that last, run commands in them and move files in and out.";

const EXAMPLES: &str = "\
Examples:
  sandbar run -- python3 -c 'print(6 * 7)'      one command, gone afterwards
  sandbar run -t --workspace . -- bash          a shell over a copy of this directory
  sandbar up                                    start a server
  sandbar create --name agent --ttl 2h          a sandbox that lasts
  sandbar exec -t agent bash                    a shell in it
  sandbar cp agent:/workspace/out ./out         its results
  sandbar inspect agent                         what holds it, with evidence
  sandbar net allow agent api.github.com        where it may talk to
  sandbar budget set agent --usd 5              what it may spend
  sandbar fork agent -n 3                       three more with the same files";

#[derive(Debug, Parser)]
#[command(
    name = "sandbar", version, about = ABOUT, long_about = LONG_ABOUT,
    after_help = format!("{EXAMPLES}\n\n{}", exit::HELP),
    subcommand_value_name = "VERB", subcommand_help_heading = "Verbs",
    disable_help_subcommand = true, max_term_width = 100, arg_required_else_help = true
)]
pub(crate) struct Args {
    #[command(flatten)]
    pub global: Global,
    #[command(subcommand)]
    pub verb: Verb,
}

#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct Global {
    /// Print JSON: the API's documents; of a stream, one a line
    ///
    /// What a command of `run` or `exec` writes is passed on as it is.
    #[arg(long, global = true)]
    pub json: bool,

    /// The server: https://HOST:PORT (with the token in SANDBAR_TOKEN), or the path of its Unix socket
    /// [env: SANDBAR_SERVER]
    ///
    /// By default the socket in the home directory. If the system does not know who signed the server's certificate,
    /// put the path of the signer's PEM file into SSL_CERT_FILE.
    #[arg(long, global = true, value_name = "ADDRESS")]
    pub server: Option<String>,

    /// Where the server keeps its data and its socket [env: SANDBAR_HOME]
    ///
    /// By default $XDG_STATE_HOME/sandbar or ~/.local/state/sandbar, and /var/lib/sandbar for root.
    #[arg(long, global = true, value_name = "DIR")]
    pub home: Option<PathBuf>,

    /// When to use colour; auto also honours NO_COLOR
    #[arg(long, global = true, value_name = "WHEN", value_enum, default_value_t = Color::Auto)]
    pub color: Color,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Color {
    Auto,
    Always,
    Never,
}

/// Verbs that share their options are described here, the others where their options are.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    Run(verbs::run::Run),
    Up(up::Up),
    Create(verbs::sandbox::Create),
    Ls(verbs::sandbox::Ls),
    Inspect(verbs::inspect::Inspect),
    Exec(verbs::process::Exec),
    Attach(verbs::attach::Attach),
    Cp(verbs::cp::Cp),
    Forward(verbs::forward::Forward),
    Preview(verbs::preview::Preview),
    Open(verbs::open::Open),
    Mcp(verbs::mcp::Mcp),
    Ps(verbs::process::Ps),
    Logs(verbs::process::Logs),
    Screen(verbs::look::Screen),
    Transcript(verbs::look::Transcript),
    Replay(verbs::replay::Replay),
    Kill(verbs::process::Kill),
    /// End the processes of sandboxes and keep their files
    Stop(verbs::sandbox::Sandboxes),
    /// Start stopped sandboxes again
    Start(verbs::sandbox::Sandboxes),
    /// Hold the processes of sandboxes still, with their memory
    Pause(verbs::sandbox::Sandboxes),
    /// Let paused sandboxes go on
    Resume(verbs::sandbox::Sandboxes),
    Snapshot(verbs::snapshot::Snapshot),
    Snapshots(verbs::snapshot::Snapshots),
    Fork(verbs::snapshot::Fork),
    Rm(verbs::sandbox::Rm),
    /// Begin sessions, which are sandboxes and terminals that belong together, and come back to them
    #[command(subcommand)]
    Session(verbs::session::Session),
    /// Say where a sandbox may talk to, and see what it did
    #[command(subcommand)]
    Net(verbs::net::Net),
    /// Keep secrets that sandboxes use and never have
    #[command(subcommand)]
    Secret(verbs::secret::Secret),
    Approvals(verbs::approval::Approvals),
    Approve(verbs::approval::Approve),
    Deny(verbs::approval::Deny),
    Answer(verbs::approval::Answer),
    /// Limit what a session may use, and see what it has used
    #[command(subcommand)]
    Budget(verbs::budget::Budget),
    /// Choose the model of a session
    #[command(subcommand)]
    Model(verbs::budget::Model),
    Usage(verbs::usage::Usage),
    Events(verbs::events::Events),
    /// Show and check the templates that sandboxes are made from
    #[command(subcommand)]
    Template(verbs::template::Template),
    /// Show the isolation profiles that templates choose from
    #[command(subcommand)]
    Profile(verbs::profile::Profile),
    /// Keep sandboxes warm, so that creating one does not wait
    #[command(subcommand)]
    Pool(verbs::pool::Pool),
    /// Manage the tokens that may call over TCP
    #[command(subcommand)]
    Token(verbs::token::Token),
    /// Tell somebody outside when an approval waits or a process keeps dying
    #[command(subcommand)]
    Webhook(verbs::webhook::Webhook),
    Quarantine(verbs::quarantine::Quarantine),
    /// Install on Kubernetes, and look whether a cluster can hold sandboxes
    #[command(subcommand)]
    Kubernetes(verbs::kubernetes::Kubernetes),
    Doctor(verbs::doctor::Doctor),
    Completions(verbs::completions::Completions),
}

/// What a command runs with; shared by `run` and `exec`.
#[derive(Debug, clap::Args)]
pub(crate) struct CommandOptions {
    /// Give the command a terminal
    #[arg(short, long)]
    pub tty: bool,

    /// Set a variable; without a value it is taken from the environment of this command
    #[arg(short, long, value_name = "NAME[=VALUE]", value_parser = variable)]
    pub env: Vec<(String, String)>,

    /// The directory to run in [default: /workspace]
    #[arg(long, value_name = "PATH")]
    pub cwd: Option<String>,

    /// Kill the command and everything it started after this long, for example 90s or 1h30m
    #[arg(long, value_name = "DURATION")]
    pub timeout: Option<HumanDuration>,
}

/// When a command that has ended is started again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum RestartWhen {
    OnFailure,
    Always,
}

impl From<RestartWhen> for Restart {
    fn from(when: RestartWhen) -> Self {
        match when {
            RestartWhen::OnFailure => Self::OnFailure,
            RestartWhen::Always => Self::Always,
        }
    }
}

/// A directory to bring in: `DIR` or `DIR:rw`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Workspace {
    pub directory: PathBuf,
    pub bind: Bind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bind {
    /// The sandbox works on a copy.
    Copy,
    /// The sandbox writes into the directory itself.
    ReadWrite,
}

pub(crate) fn workspace(text: &str) -> Result<Workspace, String> {
    let (directory, bind) = match text.strip_suffix(":rw") {
        Some(directory) => (directory, Bind::ReadWrite),
        None => (text, Bind::Copy),
    };
    if directory.is_empty() {
        return Err("there is no directory; write DIR or DIR:rw".into());
    }
    Ok(Workspace { directory: directory.into(), bind })
}

/// Told here where it is wrong; the server would say the same.
pub(crate) fn rule(text: &str) -> Result<String, String> {
    sandbar_api::network::rule(text).map(|_| text.to_owned()).map_err(|problem| problem.detail)
}

pub(crate) fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.into(), value.into())),
        _ => Err("write KEY=VALUE".into()),
    }
}

pub(crate) fn variable(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some(("", _)) => Err("write NAME=VALUE".into()),
        Some((name, value)) => Ok((name.into(), value.into())),
        None => match std::env::var(text) {
            Ok(value) => Ok((text.into(), value)),
            Err(_) => Err(format!("`{text}` is not set here; write {text}=VALUE")),
        },
    }
}

#[cfg(test)]
mod tests;
