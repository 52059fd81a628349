//! `cp`: files and trees between here and a sandbox.

use std::time::Instant;

use crate::{
    context::Context,
    copy::{self, Place, Repositories, place},
    exit::{self, Failure},
    spinner,
    text::{inert, took},
};

/// Copy files and directories into and out of a sandbox
///
/// A place in a sandbox is written SANDBOX:PATH; relative paths start at /workspace. As with `cp -r`, what is copied
/// lands in the destination if that is a directory, and gets its name otherwise; DIR/. stands for what is in DIR.
/// `-` is standard input or output.
///
/// What comes out of a sandbox is not trusted: devices, pipes, and links that lead outside of the copy are left out
/// and reported, as is what the sandbox's user cannot read, and the exit code is then 1. A `.git` that is here already is
/// not overwritten, since its hooks and settings run programs on this machine; see --force.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sandbar cp notes.txt agent:                 to /workspace/notes.txt
  sandbar cp src agent:/workspace/lib         a tree
  sandbar cp agent:/workspace/out/. results   what is in out, into results
  sandbar cp agent:report.csv - | head")]
pub(crate) struct Cp {
    /// What to copy
    #[arg(value_name = "SOURCE", value_parser = place)]
    source: Place,

    /// Where to
    #[arg(value_name = "DESTINATION", value_parser = place)]
    destination: Place,

    /// Out of a sandbox: overwrite also what is in a `.git` here
    #[arg(short, long)]
    force: bool,
}

pub(crate) async fn cp(args: &Cp, context: &Context) -> Result<u8, Failure> {
    let print = context.print;
    let begin = Instant::now();
    let client = context.client()?;
    let (copied, to) = match (&args.source, &args.destination) {
        (Place::Local(from), Place::Sandbox { sandbox, path }) => {
            let copy = copy::upload(&client, from, sandbox, path, print);
            (spinner::during("copying", copy).await?, format!("{sandbox}:{path}"))
        }
        (Place::Stdio, Place::Sandbox { sandbox, path }) => {
            (copy::upload_stdin(&client, sandbox, path).await?, format!("{sandbox}:{path}"))
        }
        (Place::Sandbox { sandbox, path }, Place::Local(to)) => {
            let repositories = if args.force { Repositories::Overwrite } else { Repositories::Keep };
            let copy = copy::download(&client, sandbox, path, to, repositories, print);
            (spinner::during("copying", copy).await?, to.display().to_string())
        }
        (Place::Sandbox { sandbox, path }, Place::Stdio) => {
            copy::download_stdout(&client, sandbox, path).await?;
            return Ok(exit::OK);
        }
        (Place::Sandbox { .. }, Place::Sandbox { .. }) => {
            return Err(
                Failure::usage("both places are in sandboxes").hint("Copy out of the one first, then into the other.")
            );
        }
        _ => {
            return Err(Failure::usage("neither place is in a sandbox").hint("Write it as SANDBOX:PATH."));
        }
    };
    let entries = match copied.entries {
        1 => "1 entry".to_owned(),
        entries => format!("{entries} entries"),
    };
    if print.json {
        print.json(&copied)?;
    } else {
        print.say(format!("copied {entries} to {} in {}", inert(&to), took(begin.elapsed())));
    }
    Ok(if copied.skipped.is_empty() { exit::OK } else { exit::FAILED })
}
