//! Making, finding and removing sandboxes: `create`, `ls`, `rm`.

use std::{collections::BTreeMap, time::Instant};

use chrono::Utc;
use futures_util::TryStreamExt as _;
use sandbar_api::{
    Code, CreateSandbox, HumanDuration, NetworkPolicy, Sandbox, SandboxPage, SandboxState, SessionId, WorkspaceSource,
};
use sandbar_client::{Client, SandboxQuery};

use crate::{
    args::{Bind, Workspace, pair, rule, variable, workspace},
    context::Context,
    copy,
    exit::{self, Failure},
    print::{Printer, Style},
    sizes::Sizes,
    spinner, table,
    text::{self, inert},
};

/// Create a sandbox
///
/// Prints its id on standard output.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sandbar create --name agent --ttl 2h --label task=42
  sandbar create --workspace .           work on a copy of this directory
  sandbar create --workspace .:rw        work in this directory itself
  sandbar create --from before-upgrade   with the files of a snapshot
  sandbar create --memory 4GiB --cpus 2 --usd 5
  sandbar create --allow @github --allow 'api.example.org GET' --secret GITHUB_TOKEN
  id=$(sandbar create) && sandbar exec $id -- make test")]
pub(crate) struct Create {
    /// What to call it; made up by default
    #[arg(long)]
    name: Option<String>,

    /// What to make it from
    #[arg(long, value_name = "NAME")]
    template: Option<String>,

    /// Give it the files of a snapshot, by id or name, and its template; a workspace is among them
    #[arg(long, value_name = "SNAPSHOT", conflicts_with_all = ["template", "workspace"])]
    from: Option<String>,

    /// Mark it, to find it with `ls -l`
    #[arg(short, long = "label", value_name = "KEY=VALUE", value_parser = pair)]
    labels: Vec<(String, String)>,

    #[command(flatten)]
    options: SandboxOptions,

    /// Repeating the same creation with the same key returns the same sandbox
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
}

/// What a sandbox is made with; shared by `create` and `session new`.
#[derive(Debug, clap::Args)]
pub(crate) struct SandboxOptions {
    /// Set a variable for everything that runs in it; without a value it is taken from the environment of this command
    #[arg(short, long, value_name = "NAME[=VALUE]", value_parser = variable)]
    pub env: Vec<(String, String)>,

    /// Delete it after this long, for example 90m or 7d
    #[arg(long, value_name = "DURATION")]
    pub ttl: Option<HumanDuration>,

    /// Bring a directory in as /workspace: a copy of it, or with :rw the directory itself (on the server's host)
    #[arg(short, long, value_name = "DIR[:rw]", value_parser = workspace)]
    pub workspace: Option<Workspace>,

    /// Let it connect to this: HOST[:PORTS] [METHODS] [PATH] or @SET, as in `net allow`
    #[arg(long, value_name = "RULE", value_parser = rule)]
    pub allow: Vec<String>,

    /// Ask a person before it connects to this
    #[arg(long, value_name = "RULE", value_parser = rule)]
    pub ask: Vec<String>,

    /// Refuse this to it, whatever else allows it
    #[arg(long, value_name = "RULE", value_parser = rule)]
    pub deny: Vec<String>,

    /// Let it use this secret, which it never sees
    #[arg(long = "secret", value_name = "NAME")]
    pub secrets: Vec<String>,

    #[command(flatten)]
    pub sizes: Sizes,

    /// Let it spend the budget of this session too: its id or name, or the id or name of a sandbox of it
    #[arg(long, value_name = "SESSION|SANDBOX")]
    pub parent: Option<String>,
}

impl SandboxOptions {
    /// Of a sandbox, or of a session's.
    pub(crate) async fn request(self, client: &Client) -> Result<CreateSandbox, Failure> {
        let parent = match &self.parent {
            Some(parent) => Some(session_of(client, parent).await?),
            None => None,
        };
        Ok(CreateSandbox {
            env: unique("variable", self.env)?,
            ttl: self.ttl,
            workspace: source(self.workspace.as_ref())?,
            parent,
            network: NetworkPolicy { allow: self.allow, ask: self.ask, deny: self.deny },
            secrets: self.secrets,
            limits: self.sizes.limits(),
            budget: self.sizes.budget(),
            ..CreateSandbox::default()
        })
    }
}

/// Which sandboxes, by id or name.
#[derive(Debug, clap::Args)]
pub(crate) struct Sandboxes {
    /// Their ids or names
    #[arg(required = true, value_name = "SANDBOX")]
    pub sandboxes: Vec<String>,
}

/// List sandboxes
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sandbar ls -l task=42 --state ready
  sandbar rm $(sandbar ls -q -l task=42)")]
pub(crate) struct Ls {
    /// Only those with this label; several must all match
    #[arg(short, long = "label", value_name = "KEY=VALUE", value_parser = pair)]
    labels: Vec<(String, String)>,

    /// Only those in this state; several are alternatives
    #[arg(long = "state", value_name = "STATE", value_parser = state())]
    states: Vec<SandboxState>,

    /// Deleted ones too
    #[arg(short, long, conflicts_with = "states")]
    all: bool,

    /// Only ids, one a line
    #[arg(short, long)]
    quiet: bool,
}

/// Delete sandboxes with everything in them
#[derive(Debug, clap::Args)]
pub(crate) struct Rm {
    /// Those that do not exist are fine
    #[arg(short, long)]
    force: bool,

    #[command(flatten)]
    which: Sandboxes,
}

fn state() -> impl clap::builder::TypedValueParser<Value = SandboxState> {
    use clap::builder::{PossibleValuesParser, TypedValueParser as _};
    PossibleValuesParser::new(SandboxState::ALL.map(SandboxState::as_str)).try_map(|text| text.parse::<SandboxState>())
}

pub(crate) async fn create(args: Create, context: &Context) -> Result<u8, Failure> {
    let client = context.client()?;
    let begin = Instant::now();
    let workspace = args.options.workspace.clone();
    let request = CreateSandbox {
        name: args.name,
        template: args.template,
        labels: unique("label", args.labels)?,
        from: args.from,
        ..args.options.request(&client).await?
    };
    let created = spinner::during("creating", client.create(&request, args.idempotency_key.as_deref())).await?;
    let sandbox = created.sandbox;
    // A replay has its workspace already, perhaps with work in it.
    if !created.replayed {
        spinner::during("copying the workspace", fill(&client, &sandbox, workspace.as_ref(), context.print)).await?;
    }
    let print = context.print;
    if print.json {
        return print.json(&sandbox).map(|()| exit::OK);
    }
    let name = print.note(&inert(&sandbox.name), Style::Bold);
    print.say(match created.replayed {
        true => format!("found {name} ({}), created before with this key", sandbox.id),
        false => format!("created {name} ({}) in {}", sandbox.id, text::took(begin.elapsed())),
    });
    print.line(sandbox.id.as_str())?;
    Ok(exit::OK)
}

/// A session by its own id or name, or by a sandbox of it.
pub(crate) async fn session_of(client: &Client, text: &str) -> Result<SessionId, Failure> {
    match text.parse() {
        Ok(session) => Ok(session),
        Err(_) => Ok(client.session(text).await?.id),
    }
}

/// The part of a workspace that the server brings in.
pub(crate) fn source(workspace: Option<&Workspace>) -> Result<WorkspaceSource, Failure> {
    let Some(Workspace { directory, bind }) = workspace else { return Ok(WorkspaceSource::Empty) };
    let path = directory.canonicalize().map_err(Failure::io(format!("`{}` cannot be used", directory.display())))?;
    if !path.is_dir() {
        return Err(Failure::usage(format!("`{}` is not a directory", directory.display())));
    }
    match (bind, path.to_str()) {
        (Bind::Copy, _) => Ok(WorkspaceSource::Empty),
        (Bind::ReadWrite, Some(path)) => Ok(WorkspaceSource::Bind { path: path.to_owned() }),
        (Bind::ReadWrite, None) => Err(Failure::usage("a directory whose name is not UTF-8 cannot be bound")),
    }
}

/// The part of a workspace that we bring in: a copy. A sandbox without it would not be what was asked for.
pub(crate) async fn fill(
    client: &Client,
    sandbox: &Sandbox,
    workspace: Option<&Workspace>,
    print: Printer,
) -> Result<(), Failure> {
    let Some(Workspace { directory, bind: Bind::Copy }) = workspace else { return Ok(()) };
    let copied = copy::upload_tree(client, sandbox.id.as_str(), "/workspace", directory, print).await;
    if let Err(failure) = copied {
        if let Err(error) = client.delete(sandbox.id.as_str()).await {
            print.warn(format!("{} was not removed again: {}", sandbox.id, exit::chain(&error)));
        }
        return Err(failure);
    }
    Ok(())
}

/// A key given twice is a mistake that must not be decided silently.
pub(crate) fn unique(what: &str, pairs: Vec<(String, String)>) -> Result<BTreeMap<String, String>, Failure> {
    let mut map = BTreeMap::new();
    for (key, value) in pairs {
        if map.insert(key.clone(), value).is_some() {
            return Err(Failure::usage(format!("the {what} `{key}` is given twice")));
        }
    }
    Ok(map)
}

pub(crate) async fn ls(args: Ls, context: &Context) -> Result<u8, Failure> {
    let client = context.client()?;
    let states = if args.all { SandboxState::ALL.to_vec() } else { args.states };
    let query = SandboxQuery { labels: unique("label", args.labels)?, states, ..SandboxQuery::default() };
    let all = client.sandboxes(query).try_collect::<Vec<_>>();
    let sandboxes = spinner::during("listing sandboxes", all).await?;
    let print = context.print;
    if args.quiet {
        return sandboxes.iter().try_for_each(|sandbox| print.line(sandbox.id.as_str())).map(|()| exit::OK);
    }
    if print.json {
        return print.json(&SandboxPage { sandboxes, next_cursor: None }).map(|()| exit::OK);
    }
    let now = Utc::now();
    let rows = sandboxes.into_iter().map(|sandbox| {
        [
            sandbox.name,
            sandbox.id.to_string(),
            sandbox.state.as_str().to_owned(),
            sandbox.template,
            text::ago(sandbox.created_at, now),
            match sandbox.expires_at {
                Some(at) if sandbox.state != SandboxState::Deleted => format!("in {}", text::span(at - now)),
                _ => "-".into(),
            },
            joined(&sandbox.labels),
        ]
    });
    print.line(table::render(["NAME", "ID", "STATE", "TEMPLATE", "AGE", "EXPIRES", "LABELS"], rows))?;
    Ok(exit::OK)
}

pub(crate) fn joined(pairs: &BTreeMap<String, String>) -> String {
    pairs.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(",")
}

pub(crate) async fn rm(args: &Rm, context: &Context) -> Result<u8, Failure> {
    let client = context.client()?;
    let gone = |code| args.force && matches!(code, Code::UnknownSandbox | Code::SandboxGone);
    removed("", &args.which.sandboxes, context, gone, async |name| client.delete(name).await).await
}

/// Deletes each, tells so, and lists them where JSON is asked for; what is `gone` already is fine.
pub(crate) async fn removed(
    what: &str,
    names: &[String],
    context: &Context,
    gone: impl Fn(Code) -> bool,
    mut delete: impl AsyncFnMut(&str) -> Result<(), sandbar_client::Error>,
) -> Result<u8, Failure> {
    let print = context.print;
    let mut deleted = Vec::new();
    let outcome = each(names, context, async |name| {
        let begin = Instant::now();
        match spinner::during(format!("deleting {}", inert(name)), delete(name)).await {
            Err(error) if error.code().is_some_and(&gone) => return Ok(()),
            outcome => outcome?,
        }
        if !print.json {
            print.say(format!("deleted {what}{} in {}", inert(name), text::took(begin.elapsed())));
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

/// Goes on after a failure, tells each, and ends with the first one's code.
pub(crate) async fn each<T>(
    things: &[T],
    context: &Context,
    mut verb: impl AsyncFnMut(&T) -> Result<(), Failure>,
) -> Result<u8, Failure> {
    let mut code = exit::OK;
    for thing in things {
        match verb(thing).await {
            Ok(()) => {}
            Err(Failure::Quiet(code)) => return Err(Failure::Quiet(code)),
            // Nothing after this can work.
            Err(failure) if failure.code() == exit::UNREACHABLE => return Err(failure),
            Err(failure) => {
                context.print.failure(&failure);
                if code == exit::OK {
                    code = failure.code();
                }
            }
        }
    }
    Ok(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn twice_the_same_key_is_a_mistake() {
        let pairs = |keys: &[&str]| keys.iter().map(|key| ((*key).to_owned(), String::new())).collect();
        assert!(unique("label", pairs(&["a", "b"])).is_ok());
        assert_eq!(unique("label", pairs(&["a", "a"])).err().map(|failure| failure.code()), Some(exit::USAGE));
    }
}
