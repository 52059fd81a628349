//! Keeping and multiplying files: `snapshot`, `snapshots`, `fork`.

use std::time::Instant;

use chrono::Utc;
use sandbar_api::{
    Code, CreateSnapshot, Fork as ForkRequest, Forked, HumanDuration, SnapshotList, snapshot::MAX_FORKS,
};

use crate::{
    args::pair,
    context::Context,
    exit::{self, Failure},
    print::Style,
    spinner, table,
    text::{self, inert},
    verbs::sandbox::{removed, unique},
};

/// Keep the files of a sandbox as they are now
///
/// Root and workspace, at one moment, also while something writes; not processes and their memory. The snapshot
/// outlives its sandbox. Prints its id on standard output.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sandbar snapshot agent --name before-upgrade
  sandbar create --from before-upgrade
  sandbar create --from $(sandbar snapshot agent)")]
pub(crate) struct Snapshot {
    /// What to call it; made up by default
    #[arg(long)]
    name: Option<String>,

    /// Its id or name
    sandbox: String,
}

/// List or delete snapshots
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sandbar snapshots
  sandbar snapshots rm before-upgrade
  sandbar snapshots rm $(sandbar snapshots ls -q)")]
pub(crate) struct Snapshots {
    #[command(subcommand)]
    verb: Option<SnapshotsVerb>,
}

#[derive(Debug, clap::Subcommand)]
enum SnapshotsVerb {
    /// List snapshots; so does `snapshots` alone
    Ls {
        /// Only ids, one a line
        #[arg(short, long)]
        quiet: bool,
    },
    /// Delete snapshots; sandboxes made from them keep their files
    Rm {
        /// Those that do not exist are fine
        #[arg(short, long)]
        force: bool,

        /// Their ids or names
        #[arg(required = true, value_name = "SNAPSHOT")]
        snapshots: Vec<String>,
    },
}

/// Make independent sandboxes with the files that one has now
///
/// They have its template and environment, and names, ids and sessions of their own; processes are not copied. Prints
/// their ids on standard output.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sandbar fork agent
  sandbar fork agent -n 3 --name try -l task=42 --ttl 1h      try-1, try-2 and try-3")]
pub(crate) struct Fork {
    /// How many, 1 to 100
    #[arg(short = 'n', long, value_name = "N", default_value_t = 1, value_parser = count())]
    count: u32,

    /// The first part of their names, followed by -1, -2, …; made up by default
    #[arg(long, value_name = "PREFIX")]
    name: Option<String>,

    /// Mark them, to find them with `ls -l`
    #[arg(short, long = "label", value_name = "KEY=VALUE", value_parser = pair)]
    labels: Vec<(String, String)>,

    /// Delete them after this long, for example 90m or 7d [default: together with their origin]
    #[arg(long, value_name = "DURATION")]
    ttl: Option<HumanDuration>,

    /// Its id or name
    sandbox: String,
}

fn count() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=i64::from(MAX_FORKS))
}

pub(crate) async fn snapshot(args: Snapshot, context: &Context) -> Result<u8, Failure> {
    let client = context.client()?;
    let begin = Instant::now();
    let request = CreateSnapshot { name: args.name };
    let taken = spinner::during("taking a snapshot", client.snapshot(&args.sandbox, &request)).await?;
    let print = context.print;
    if print.json {
        return print.json(&taken).map(|()| exit::OK);
    }
    let (name, size) = (print.note(&inert(&taken.name), Style::Bold), text::size(taken.size));
    let took = text::took(begin.elapsed());
    print.say(format!("kept the files of {} as {name} ({}, {size}) in {took}", inert(&args.sandbox), taken.id));
    print.line(taken.id.as_str())?;
    Ok(exit::OK)
}

pub(crate) async fn snapshots(args: Snapshots, context: &Context) -> Result<u8, Failure> {
    match args.verb.unwrap_or(SnapshotsVerb::Ls { quiet: false }) {
        SnapshotsVerb::Ls { quiet } => ls(quiet, context).await,
        SnapshotsVerb::Rm { force, snapshots } => rm(force, &snapshots, context).await,
    }
}

async fn ls(quiet: bool, context: &Context) -> Result<u8, Failure> {
    let snapshots = spinner::during("listing snapshots", context.client()?.snapshots()).await?;
    let print = context.print;
    if quiet {
        return snapshots.iter().try_for_each(|snapshot| print.line(snapshot.id.as_str())).map(|()| exit::OK);
    }
    if print.json {
        return print.json(&SnapshotList { snapshots }).map(|()| exit::OK);
    }
    let now = Utc::now();
    let rows = snapshots.into_iter().map(|snapshot| {
        [
            snapshot.name,
            snapshot.id.to_string(),
            snapshot.sandbox.to_string(),
            snapshot.template,
            text::ago(snapshot.created_at, now),
            text::size(snapshot.size),
        ]
    });
    print.line(table::render(["NAME", "ID", "SANDBOX", "TEMPLATE", "AGE", "SIZE"], rows))?;
    Ok(exit::OK)
}

async fn rm(force: bool, snapshots: &[String], context: &Context) -> Result<u8, Failure> {
    let client = context.client()?;
    let gone = |code| force && code == Code::UnknownSnapshot;
    removed("snapshot ", snapshots, context, gone, async |name| client.delete_snapshot(name).await).await
}

pub(crate) async fn fork(args: Fork, context: &Context) -> Result<u8, Failure> {
    let client = context.client()?;
    let begin = Instant::now();
    let request =
        ForkRequest { count: args.count, name: args.name, labels: unique("label", args.labels)?, ttl: args.ttl };
    let sandboxes = spinner::during("forking", client.fork(&args.sandbox, &request)).await?;
    let print = context.print;
    if print.json {
        return print.json(&Forked { sandboxes }).map(|()| exit::OK);
    }
    let names = sandboxes.iter().map(|sandbox| inert(&sandbox.name)).collect::<Vec<_>>().join(", ");
    print.say(format!("forked {} into {names} in {}", inert(&args.sandbox), text::took(begin.elapsed())));
    sandboxes.iter().try_for_each(|sandbox| print.line(sandbox.id.as_str()))?;
    Ok(exit::OK)
}
