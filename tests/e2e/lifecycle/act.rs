//! The verbs of the model, asked of a real server.

use std::time::Duration;

use sandbar_api::{Code, CreateSandbox, CreateSnapshot, ExecRequest, Fork, Sandbox, SandboxState, StartProcess};
use sandbar_client::{Client, Error};

use crate::{
    lifecycle::model::{PATHS, Source, Step, Told, Write},
    support::{Outcome, until},
};

/// No call takes longer.
const BOUND: Duration = Duration::from_secs(300);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Answer {
    Done(Told),
    Refused(Code, String),
    /// The server went away meanwhile.
    None(String),
}

pub(crate) async fn act(client: &Client, step: &Step) -> Outcome<Answer> {
    let answer = tokio::time::timeout(BOUND, ask(client, step)).await;
    match answer.map_err(|_| format!("{step:?} is not answered in {} s", BOUND.as_secs()))?? {
        Ok(told) => Ok(Answer::Done(told)),
        Err(error) => Ok(match error.code() {
            // By a name that was given once.
            Some(Code::SandboxGone) => Answer::Refused(Code::UnknownSandbox, error.to_string()),
            Some(code) => Answer::Refused(code, error.to_string()),
            None => Answer::None(error.to_string()),
        }),
    }
}

fn in_state(sandbox: &Sandbox, state: SandboxState) -> Outcome {
    if sandbox.state == state {
        return Ok(());
    }
    Err(format!("`{}` is answered to be {:?}, not {state:?}", sandbox.name, sandbox.state).into())
}

/// Outside: what no answer may be. Inside: the server's.
async fn ask(client: &Client, step: &Step) -> Outcome<Result<Told, Error>> {
    let turned = |answer: Result<Sandbox, Error>, state| match answer {
        Ok(sandbox) => in_state(&sandbox, state).map(|()| Ok(Told::default())),
        Err(error) => Ok(Err(error)),
    };
    let nothing = |answer: Result<(), Error>| Ok(answer.map(|()| Told::default()));
    match step {
        Step::Create { name, source } => {
            if let Source::Pool(template) = source
                && let Err(error) = fill(client, template).await?
            {
                return Ok(Err(error));
            }
            let (template, from) = match source {
                Source::Template(template) | Source::Pool(template) => (Some((*template).to_owned()), None),
                Source::Snapshot(snapshot) => (None, Some(snapshot.clone())),
            };
            let request = CreateSandbox { name: Some(name.clone()), template, from, ..Default::default() };
            match client.create(&request, None).await {
                Ok(created) => {
                    in_state(&created.sandbox, SandboxState::Ready)?;
                    Ok(Ok(Told { ids: vec![created.sandbox.id.to_string()], ..Told::default() }))
                }
                Err(error) => Ok(Err(error)),
            }
        }
        Step::Write { name, writes } => match client.exec(name, &shell(&script(writes))).await {
            Ok(result) if result.exit.code == 0 => Ok(Ok(Told { output: result.stdout, ..Told::default() })),
            Ok(result) => Err(format!("{writes:?} in `{name}`: {:?}: {}", result.exit, result.stderr).into()),
            Err(error) => Ok(Err(error)),
        },
        Step::Run { name } => {
            // One that leaves somebody behind, and one that is nobody's child any more.
            let script = "sleep 1000 & (setsid sleep 1000 &) & exec sleep 1000";
            let argv = ["sh", "-c", script].map(String::from).into();
            let started = client.start_process(name, &StartProcess { argv, ..Default::default() }).await;
            Ok(started.map(|process| Told { ids: vec![process.id.to_string()], ..Told::default() }))
        }
        Step::Pause { name } => turned(client.pause(name).await, SandboxState::Paused),
        Step::Resume { name } => turned(client.resume(name).await, SandboxState::Ready),
        Step::Stop { name } => turned(client.stop(name).await, SandboxState::Stopped),
        Step::Start { name } => turned(client.start(name).await, SandboxState::Ready),
        Step::Delete { name } => nothing(client.delete(name).await),
        Step::Snapshot { name, snapshot } => {
            let request = CreateSnapshot { name: Some(snapshot.clone()) };
            nothing(client.snapshot(name, &request).await.map(drop))
        }
        Step::DeleteSnapshot { snapshot } => nothing(client.delete_snapshot(snapshot).await),
        Step::Fork { name, prefix, count } => {
            let request = Fork { count: *count, name: Some(prefix.clone()), ..Fork::default() };
            let forked = client.fork(name, &request).await;
            if let Ok(sandboxes) = &forked {
                sandboxes.iter().try_for_each(|sandbox| in_state(sandbox, SandboxState::Ready))?;
            }
            let ids = |sandboxes: Vec<Sandbox>| sandboxes.iter().map(|sandbox| sandbox.id.to_string()).collect();
            Ok(forked.map(|sandboxes| Told { ids: ids(sandboxes), ..Told::default() }))
        }
        Step::SetPool { template, size } => nothing(client.set_pool(template, *size).await.map(drop)),
    }
}

/// Full, or with a reason why not; or the server went away.
async fn fill(client: &Client, template: &str) -> Outcome<Result<(), Error>> {
    let mut gone = None;
    until("the pool is full", async || match client.pools().await {
        Ok(pools) => {
            let pool = pools.iter().find(|pool| pool.template == template);
            Ok(pool.is_none_or(|pool| pool.warm == pool.size || pool.reason.is_some()))
        }
        Err(error) => {
            gone = Some(error);
            Ok(true)
        }
    })
    .await?;
    Ok(gone.map_or(Ok(()), Err))
}

fn shell(script: &str) -> ExecRequest {
    ExecRequest {
        argv: ["sh", "-c", script].map(String::from).into(),
        env: Default::default(),
        cwd: None,
        timeout: None,
        stdin: None,
        max_output: sandbar_api::process::default_output_cap(),
    }
}

/// All of it, then everything there is.
fn script(writes: &[Write]) -> String {
    let mut script = String::from("set -e; ");
    for write in writes {
        script += &match write {
            Write::Append(path, word) => format!("mkdir -p $(dirname {path}); printf %s {word} >> {path}; "),
            Write::Remove(path) => format!("rm -f {path}; "),
            Write::Renew(directory) => format!("rm -rf {directory}; mkdir {directory}; "),
        };
    }
    let mut paths = PATHS;
    paths.sort_unstable();
    script + &format!("for f in {}; do if [ -e $f ]; then echo \"$f=$(cat $f)\"; fi; done", paths.join(" "))
}
