//! `secret set|ls|rm|grant|revoke`: values that sandboxes use and never have.

use std::{
    io::{IsTerminal as _, Read as _},
    path::{Path, PathBuf},
};

use chrono::Utc;
use sandbar_api::{
    SecretList, SetSecret,
    secret::{MAX_SECRET, check_name},
};

use crate::{
    context::Context,
    exit::{self, Failure},
    hidden::hidden,
    print::Printer,
    spinner, table,
    text::{self, inert},
    verbs::{net::changed, sandbox::each},
};

const DEFAULT_PLACE: &str = "header:Authorization:Bearer {}";

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Secret {
    Set(Set),
    /// List secrets, without their values
    Ls,
    /// Remove secrets; no request carries them from now on
    Rm {
        /// Their names
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
    },
    /// Let a sandbox use a secret, from its next request on
    Grant {
        /// The secret's name
        name: String,
        /// The sandbox's id or name
        sandbox: String,
    },
    /// Take a secret from a sandbox; what its template grants stays
    Revoke {
        /// The secret's name
        name: String,
        /// The sandbox's id or name
        sandbox: String,
    },
}

/// Make or change a secret; the value comes from standard input or a file, never from the command line
///
/// Sandboxes that may use it have a placeholder in a variable of its name. The gateway puts the value in where --as says,
/// in requests to the hosts alone, and over verified TLS only. It is stored encrypted and nothing gives it back. A newline
/// at its end is left out.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Places:
  header:NAME:FORMAT     in a header, for example header:X-Api-Key:{}
  basic:USER             as the password of USER in basic authentication, as git sends it
  query:NAME             in a parameter of the URL
  body                   wherever the placeholder stands in the body

Examples:
  sandbar secret set GITHUB_TOKEN --host api.github.com < token
  sandbar secret set GIT_PASSWORD --host github.com --as basic:x-access-token --file token
  sandbar secret set GITHUB_TOKEN --host api.github.com --host uploads.github.com --keep-value
  sandbar secret grant GITHUB_TOKEN agent")]
pub(crate) struct Set {
    /// Its name, and the variable that holds the placeholder: A-Z, 0-9 and _
    name: String,

    /// A host it may go to, by exact name
    #[arg(long = "host", required = true, value_name = "HOST")]
    hosts: Vec<String>,

    /// Where in a request it may stand
    #[arg(long = "as", value_name = "PLACE", default_value = DEFAULT_PLACE)]
    place: String,

    /// Take the value from this file
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,

    /// Change hosts and place and leave the value as it is
    #[arg(long, conflicts_with = "file")]
    keep_value: bool,
}

pub(crate) async fn secret(verb: Secret, context: &Context) -> Result<u8, Failure> {
    let print = context.print;
    match verb {
        Secret::Set(args) => set(args, context).await,
        Secret::Ls => ls(context).await,
        Secret::Rm { names } => {
            let client = context.client()?;
            let mut removed = Vec::new();
            let outcome = each(&names, context, async |name| {
                spinner::during("removing the secret", client.remove_secret(name)).await?;
                if !print.json {
                    print.say(format!("removed {}", inert(name)));
                }
                removed.push(name.to_owned());
                Ok(())
            })
            .await;
            if print.json {
                print.json(&serde_json::json!({"removed": removed}))?;
            }
            outcome
        }
        Secret::Grant { name, sandbox } => {
            let network = spinner::during("granting", context.client()?.grant_secret(&sandbox, &name)).await?;
            changed(&network, &format!("{sandbox} may use {name}"), print)
        }
        Secret::Revoke { name, sandbox } => {
            let network = spinner::during("revoking", context.client()?.revoke_secret(&sandbox, &name)).await?;
            changed(&network, &format!("{sandbox} may no longer use {name}"), print)
        }
    }
}

async fn set(args: Set, context: &Context) -> Result<u8, Failure> {
    // Before anybody types a value for nothing.
    check_name(&args.name)?;
    let client = context.client()?;
    let print = context.print;
    let value = match (&args.file, args.keep_value) {
        (_, true) => None,
        (Some(file), _) => Some(usable(read_file(file)?)?),
        (None, _) => Some(usable(read_input(&args.name, print).await?)?),
    };
    let request = SetSecret { hosts: args.hosts, placement: args.place, value };
    let set = spinner::during("setting the secret", client.set_secret(&args.name, &request)).await?;
    if print.json {
        return print.json(&set).map(|()| exit::OK);
    }
    print.say(inert(&format!("set {} for {}", set.name, set.hosts.join(", "))));
    Ok(exit::OK)
}

fn read_file(file: &Path) -> Result<Vec<u8>, Failure> {
    let failed = || Failure::io(format!("{} cannot be read", file.display()));
    bounded(std::fs::File::open(file).map_err(failed())?).map_err(failed())
}

/// A little more than is allowed, so that too much is noticed.
fn bounded(source: impl std::io::Read) -> std::io::Result<Vec<u8>> {
    let mut value = Vec::new();
    source.take(MAX_SECRET as u64 + 3).read_to_end(&mut value)?;
    Ok(value)
}

async fn read_input(name: &str, print: Printer) -> Result<Vec<u8>, Failure> {
    if std::io::stdin().is_terminal() {
        return hidden(&format!("value of {}", inert(name)), MAX_SECRET, print).await;
    }
    bounded(std::io::stdin().lock()).map_err(Failure::io("failed to read the value from standard input"))
}

/// Files and `echo` end with a newline that is no part of the value.
fn usable(mut value: Vec<u8>) -> Result<String, Failure> {
    if value.last() == Some(&b'\n') {
        value.pop();
        if value.last() == Some(&b'\r') {
            value.pop();
        }
    }
    if value.len() > MAX_SECRET {
        return Err(Failure::usage(format!("the value is longer than {MAX_SECRET} bytes")));
    }
    if value.is_empty() {
        return Err(Failure::usage("the value is empty").hint("Give it on standard input or with --file FILE."));
    }
    // Not quoted: it is a secret even when it is malformed.
    String::from_utf8(value).map_err(|_| Failure::usage("the value is not UTF-8"))
}

async fn ls(context: &Context) -> Result<u8, Failure> {
    let secrets = spinner::during("listing secrets", context.client()?.secrets()).await?;
    let print = context.print;
    if print.json {
        return print.json(&SecretList { secrets }).map(|()| exit::OK);
    }
    let now = Utc::now();
    let rows = secrets
        .into_iter()
        .map(|secret| [secret.name, secret.hosts.join(","), secret.placement, text::ago(secret.changed_at, now)]);
    print.line(table::render(["NAME", "HOSTS", "AS", "SET"], rows))?;
    Ok(exit::OK)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(bytes: &[u8]) -> Result<String, u8> {
        usable(bytes.to_vec()).map_err(|failure| failure.code())
    }

    #[test]
    fn one_newline_is_left_out() {
        for (given, want) in [("a", "a"), ("a\n", "a"), ("a\r\n", "a"), ("a\n\n", "a\n"), (" a b ", " a b ")] {
            assert_eq!(taken(given.as_bytes()), Ok(want.to_owned()));
        }
        for bad in [&b""[..], b"\n", b"\r\n", b"\xff", &[b'x'; MAX_SECRET + 1]] {
            assert_eq!(taken(bad), Err(exit::USAGE));
        }
        assert!(taken(&[b'x'; MAX_SECRET]).is_ok());
    }

    #[test]
    fn too_much_is_noticed_and_not_read_to_its_end() {
        let endless = std::io::repeat(b'x');
        let read = bounded(endless).unwrap_or_default();
        assert!(read.len() > MAX_SECRET && read.len() < MAX_SECRET + 8);
        assert_eq!(taken(&read), Err(exit::USAGE));
    }
}
