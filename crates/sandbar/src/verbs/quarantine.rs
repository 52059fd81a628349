//! `quarantine ls|adopt|rm`: what the server found and does not know.

use chrono::Utc;
use sandbar_api::{AdoptQuarantined, Adopted, Code, QuarantineList};

use crate::{
    context::Context,
    exit::{self, Failure},
    spinner, table,
    text::{self, inert},
    verbs::sandbox::removed,
};

/// Decide about files that the server found and its database does not know
///
/// After a lost or older database, sandboxes, snapshots and output may be there that nobody knows. The server keeps them in
/// quarantine: they use disk space and nothing else. docs/recovery.md says how they come to be there.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sandbar quarantine
  sandbar quarantine adopt sbx-01m7gamjbhmf5e2803gec1w8gr
  sandbar quarantine rm $(sandbar quarantine ls -q)")]
pub(crate) struct Quarantine {
    #[command(subcommand)]
    verb: Option<QuarantineVerb>,
}

#[derive(Debug, clap::Subcommand)]
enum QuarantineVerb {
    /// List the quarantine; so does `quarantine` alone
    Ls {
        /// Only ids, one a line
        #[arg(short, long)]
        quiet: bool,
    },
    /// Make a sandbox or a snapshot the server's own again
    ///
    /// It keeps its files. Rules, secrets, environment and budget were in the database: a sandbox gets those of its template.
    /// Prints its id on standard output.
    Adopt {
        /// What to call it [default: its own name if that is free]
        #[arg(long)]
        name: Option<String>,

        /// Its template [default: the one it was made from]
        #[arg(long)]
        template: Option<String>,

        /// Its id
        id: String,
    },
    /// Remove from the quarantine, with all files
    Rm {
        /// Those that are not in quarantine are fine
        #[arg(short, long)]
        force: bool,

        /// Their ids
        #[arg(required = true, value_name = "ID")]
        ids: Vec<String>,
    },
}

pub(crate) async fn quarantine(args: Quarantine, context: &Context) -> Result<u8, Failure> {
    match args.verb.unwrap_or(QuarantineVerb::Ls { quiet: false }) {
        QuarantineVerb::Ls { quiet } => ls(quiet, context).await,
        QuarantineVerb::Adopt { name, template, id } => adopt(&id, &AdoptQuarantined { name, template }, context).await,
        QuarantineVerb::Rm { force, ids } => {
            let client = context.client()?;
            let gone = |code| force && code == Code::UnknownQuarantined;
            removed("", &ids, context, gone, async |id| client.remove_quarantined(id).await).await
        }
    }
}

async fn ls(quiet: bool, context: &Context) -> Result<u8, Failure> {
    let quarantined = spinner::during("listing the quarantine", context.client()?.quarantine()).await?;
    let print = context.print;
    if quiet {
        return quarantined.iter().try_for_each(|one| print.line(inert(&one.id))).map(|()| exit::OK);
    }
    if print.json {
        return print.json(&QuarantineList { quarantined }).map(|()| exit::OK);
    }
    let now = Utc::now();
    let rows = quarantined.into_iter().map(|one| {
        [
            one.id,
            one.kind.as_str().to_owned(),
            one.name.unwrap_or_default(),
            one.template.unwrap_or_default(),
            text::ago(one.since, now),
            one.reason,
        ]
    });
    print.line(table::render(["ID", "KIND", "NAME", "TEMPLATE", "SINCE", "REASON"], rows))?;
    Ok(exit::OK)
}

async fn adopt(id: &str, request: &AdoptQuarantined, context: &Context) -> Result<u8, Failure> {
    let adopted = spinner::during("adopting", context.client()?.adopt_quarantined(id, request)).await?;
    let print = context.print;
    if print.json {
        return print.json(&adopted).map(|()| exit::OK);
    }
    let (kind, name, id) = match &adopted {
        Adopted::Sandbox(sandbox) => ("sandbox", &sandbox.name, sandbox.id.to_string()),
        Adopted::Snapshot(snapshot) => ("snapshot", &snapshot.name, snapshot.id.to_string()),
    };
    print.say(format!("adopted {kind} {}", inert(name)));
    print.line(inert(&id))?;
    Ok(exit::OK)
}
