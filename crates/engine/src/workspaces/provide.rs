//! Providing a workspace: look at the newest sandbox, do what brings it to `ready`, look again. What others do meanwhile
//! is seen by looking, so that it never matters who was first.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use sandbar_api::{Code, CreateSandbox, Problem, Sandbox, SandboxId, SandboxState, SessionId, check};
use sandbar_guest::protocol::HelloRequest;
use sha2::{Digest as _, Sha256};
use tokio::time::{self, Instant};

use super::config::Plan;
use crate::{
    Caller, CreateOutcome, Inner, create,
    handle::Handle,
    owner::{self, Verb},
    problem,
    store::{IdempotencyKey, SandboxRow, sessions::SessionRow},
};

/// How long one that is called ready may keep silent, and its owner take to notice that it has died.
const SIGN_OF_LIFE: Duration = Duration::from_secs(5);
/// Another server has it: what that does is seen in the store.
const LOOK: Duration = Duration::from_secs(1);

/// What became of the newest sandbox.
enum Looked {
    Ready(Box<Sandbox>),
    /// It may be something else by now.
    Again,
    /// It cannot be started any more.
    Hopeless,
}

pub(super) async fn provide(
    inner: &Arc<Inner>,
    caller: &Caller,
    session: &SessionRow,
    plan: &Plan,
) -> Result<Sandbox, Problem> {
    let mut hopeless = None;
    loop {
        if inner.closing.is_cancelled() {
            return Err(problem::shutting_down());
        }
        let last = inner.store.last_sandbox(&session.id).await?;
        match newest(inner, &session.id, last.as_ref()).await? {
            Some(id) if Some(&id) != hopeless.as_ref() => match look(inner, &id).await? {
                Looked::Ready(sandbox) => {
                    inner.used(&id).await;
                    return Ok(*sandbox);
                }
                Looked::Again => tokio::task::yield_now().await,
                Looked::Hopeless => hopeless = Some(id),
            },
            _ => {
                let CreateOutcome { sandbox, replayed } = make(inner, caller, session, plan, last).await?;
                if !replayed {
                    return Ok(sandbox);
                }
            }
        }
    }
}

/// Of those that are not deleted.
async fn newest(inner: &Inner, session: &SessionId, last: Option<&SandboxRow>) -> Result<Option<SandboxId>, Problem> {
    match last {
        None => Ok(None),
        Some(row) if row.sandbox.state != SandboxState::Deleted => Ok(Some(row.sandbox.id.clone())),
        Some(_) => Ok(inner.store.belongings(session).await?.sandboxes.pop().map(|(id, _)| id)),
    }
}

async fn look(inner: &Inner, id: &SandboxId) -> Result<Looked, Problem> {
    // Before the look, so that what changes after it is told.
    let mut head = inner.store.head();
    let Some(handle) = inner.registry.by_id(id) else {
        let _told = time::timeout(LOOK, head.changed()).await;
        return Ok(Looked::Again);
    };
    let sandbox = handle.sandbox();
    if sandbox.reason.as_ref().is_some_and(owner::is_deleting) {
        return match inner.remove(id, owner::requested_delete()).await {
            Ok(()) => Ok(Looked::Again),
            Err(problem) => Err(problem),
        };
    }
    match sandbox.state {
        _ if handle.is_within_reach() => wake(inner, &handle).await,
        SandboxState::Ready | SandboxState::Deleted => Ok(Looked::Again),
        SandboxState::Creating | SandboxState::Stopping => {
            changed(inner, &handle, &sandbox, None).await?;
            Ok(Looked::Again)
        }
        SandboxState::Stopped | SandboxState::Failed => {
            handle.activity.touch();
            match handle.ask(Verb::Start).await {
                Ok(sandbox) => Ok(Looked::Ready(Box::new(sandbox))),
                // Another one would not fare better.
                Err(problem) if [Code::DiskFull, Code::ShuttingDown].contains(&problem.code) => Err(problem),
                Err(problem) => match handle.state() {
                    SandboxState::Failed => Ok(Looked::Hopeless),
                    // Not even begun, and asking again at once would not help.
                    state if state == sandbox.state => Err(problem),
                    _ => Ok(Looked::Again),
                },
            }
        }
        // By a person, whose word stands.
        SandboxState::Paused => Err(problem::wrong_state(&sandbox)),
    }
}

/// Brings back what idleness put away, and asks what is called ready for a sign of life.
async fn wake(inner: &Inner, handle: &Handle) -> Result<Looked, Problem> {
    let before = handle.sandbox();
    let alive = match handle.enter().await {
        Ok(mut inside) => match time::timeout(SIGN_OF_LIFE, inside.guest.hello(HelloRequest {})).await {
            Ok(Ok(_)) => return Ok(Looked::Ready(Box::new(handle.sandbox()))),
            Ok(Err(status)) => problem::from_status(&status),
            Err(_) => Problem::new(
                Code::GuestUnreachable,
                format!("The sandbox `{}` does not answer.", before.name),
                "Try again; if it stays so, stop and start the sandbox.",
            ),
        },
        Err(problem) => problem,
    };
    // Its owner is about to call it what it is.
    match changed(inner, handle, &before, Some(SIGN_OF_LIFE)).await? {
        true => Ok(Looked::Again),
        false => Err(alive),
    }
}

/// Whether it became something else in that time.
async fn changed(inner: &Inner, handle: &Handle, from: &Sandbox, most: Option<Duration>) -> Result<bool, Problem> {
    let mut record = handle.record.subscribe();
    let moved = |now: &Sandbox| now.state != from.state || now.changed_at != from.changed_at;
    let deadline = Instant::now() + most.unwrap_or(super::LIMIT);
    tokio::select! {
        // An error would mean that the handle is gone, which is a change too.
        _ = record.wait_for(moved) => Ok(true),
        () = inner.closing.cancelled() => Err(problem::shutting_down()),
        () = time::sleep_until(deadline) => Ok(false),
    }
}

/// It is called like its session, as every session's first sandbox is, unless another sandbox has the name.
async fn make(
    inner: &Arc<Inner>,
    caller: &Caller,
    session: &SessionRow,
    plan: &Plan,
    last: Option<SandboxRow>,
) -> Result<CreateOutcome, Problem> {
    let begun = std::time::Instant::now();
    let before = last.as_ref().map_or("nothing", |row| row.sandbox.id.as_str());
    let mut template = inner.template(&plan.template).await?;
    let lease = plan.shape(&mut template);
    let planned = |name: Option<&String>| {
        let request = CreateSandbox {
            name: name.cloned(),
            labels: labels(session),
            session: Some(session.id.clone()),
            ttl: Some(lease),
            ..CreateSandbox::default()
        };
        inner.check_gate(&template, &request)?;
        let mut new = create::plan(caller, request, template.clone(), None, Some(key(session, before)))?;
        new.row.lease = Some(lease);
        Ok::<_, Problem>(new)
    };
    let name = session.marks.name.as_ref();
    match inner.bear(planned(name)?, begun).await {
        Err(problem) if problem.code == Code::NameTaken && name.is_some() => inner.bear(planned(None)?, begun).await,
        made => made,
    }
}

/// It says what came before, which all see alike who may make it at the same time.
fn key(session: &SessionRow, before: &str) -> IdempotencyKey {
    let owner = format!("session:{}", session.id);
    let key = format!("workspace after {before}");
    let digest = Sha256::new().chain_update(&owner).chain_update(&key).finalize().into();
    IdempotencyKey { owner, key, digest }
}

/// To find it by.
fn labels(session: &SessionRow) -> BTreeMap<String, String> {
    let Some(conversation) = &session.conversation else { return BTreeMap::new() };
    let external = conversation.external.as_ref().map(|external| ("conversation", &external.id));
    let all = [("agent", &conversation.agent)].into_iter().chain(external);
    all.map(|(key, value)| (key.to_owned(), label(value))).collect()
}

/// As it is, or what stands for it where it is too long: half of it could be another's.
fn label(text: &str) -> String {
    if text.len() <= check::MAX_LABEL_VALUE {
        return text.to_owned();
    }
    let digest = Sha256::digest(text.as_bytes());
    digest.iter().fold("sha256-".to_owned(), |hex, byte| format!("{hex}{byte:02x}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_ids_stay_apart_in_labels() {
        let long = |end: &str| format!("{}{end}", "x".repeat(300));
        assert_eq!(label("thread 1"), "thread 1");
        let labels = BTreeMap::from([("conversation".to_owned(), label(&long("a")))]);
        assert_eq!(check::labels(&labels), Ok(()));
        assert_ne!(label(&long("a")), label(&long("b")));
    }
}
