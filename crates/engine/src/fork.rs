//! Forking: one moment of a sandbox becomes many sandboxes of their own, or none. They are made from a hidden snapshot,
//! and they are there when its record goes: until then a failure here, or a start of the next server, removes them.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

use futures_util::{StreamExt as _, stream};
use sandbar_api::{Code, CreateSandbox, Fork, Problem, Sandbox, SetBudget, Source, check, snapshot::MAX_FORKS};
use sandbar_provider::Provider;

use crate::{
    Caller, Engine, Inner, clock, create,
    handle::Handle,
    ids,
    owner::{self, Keep, Verb},
    problem,
    store::{NewSandbox, SnapshotRow},
};

/// Sandboxes made at once.
const AT_ONCE: usize = 16;

impl Engine {
    pub async fn fork(&self, caller: &Caller, sandbox: &str, request: Fork) -> Result<Vec<Sandbox>, Problem> {
        check_fork(&request)?;
        let handle = self.inner.handle(sandbox).await?;
        handle.activity.touch();
        let (inner, caller) = (self.inner.clone(), caller.clone());
        // A task of its own, which a caller who goes away does not stop halfway.
        let forked = self.inner.owners.spawn(async move { fork(&inner, &caller, &handle, request).await });
        forked.await.map_err(|error| {
            tracing::error!(%error, "forking a sandbox panicked");
            Problem::new(Code::Internal, "Forking the sandbox failed.", "Look at the server's log.")
        })?
    }
}

fn check_fork(request: &Fork) -> Result<(), Problem> {
    if !(1..=MAX_FORKS).contains(&request.count) {
        return Err(Problem::new(
            Code::BadRequest,
            format!("A sandbox cannot be forked {} times at once.", request.count),
            format!("Ask for 1 to {MAX_FORKS}."),
        ));
    }
    if let Some(name) = name(request, request.count) {
        check::name(&name)?;
    }
    if let Some(ttl) = request.ttl {
        create::expiry(clock::now(), ttl)?;
    }
    check::labels(&request.labels)
}

fn name(request: &Fork, number: u32) -> Option<String> {
    request.name.as_ref().map(|name| format!("{name}-{number}"))
}

async fn fork(
    inner: &Arc<Inner>,
    caller: &Caller,
    origin: &Arc<Handle>,
    request: Fork,
) -> Result<Vec<Sandbox>, Problem> {
    for number in 1..=request.count {
        // Before the work; the store decides.
        if let Some(name) = name(&request, number)
            && inner.store.sandbox_named(&name).await?.is_some()
        {
            return Err(crate::store::Error::NameTaken(name).into());
        }
    }
    let id = ids::snapshot(clock::now())?;
    let keep = Keep { name: id.to_string(), id, hidden: true, owner: caller.owner.clone() };
    let moment = origin.ask(|reply| Verb::Keep(keep, reply)).await?;
    let (sandboxes, failed) = match plan(caller, origin, &request, &moment) {
        Ok(planned) => make(inner, &origin.provider, planned).await,
        Err(problem) => (vec![], Some(problem)),
    };
    let failed = match failed {
        Some(problem) => Some(problem),
        // With its record the forks become what they are called.
        None => inner.give_up(&moment, owner::requested_delete()).await.err(),
    };
    let Some(problem) = failed else { return Ok(sandboxes) };
    // One that stays is removed by the next start of the server, as long as the record says what it is of.
    if take_back(inner, sandboxes).await
        && let Err(problem) = inner.give_up(&moment, owner::requested_delete()).await
    {
        tracing::error!(snapshot = %moment.snapshot.id, %problem, "the snapshot of a failed fork is not given up");
    }
    Err(problem)
}

/// Those that were made, and why they are not all.
async fn make(
    inner: &Arc<Inner>,
    provider: &Arc<dyn Provider>,
    planned: Vec<NewSandbox>,
) -> (Vec<Sandbox>, Option<Problem>) {
    // After a failure no more are begun, but those under way are finished, so that they can be taken back whole.
    let failed = Mutex::new(None);
    let fail = |problem| {
        failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(problem);
    };
    let made = stream::iter(planned)
        .map(|new| async {
            if failed.lock().unwrap_or_else(PoisonError::into_inner).is_some() {
                return None;
            }
            if inner.closing.is_cancelled() {
                fail(problem::shutting_down());
                return None;
            }
            match create::create(inner, new, provider.clone(), Instant::now()).await {
                Ok(outcome) => Some(outcome.sandbox),
                Err(problem) => {
                    fail(problem);
                    None
                }
            }
        })
        .buffered(AT_ONCE)
        .filter_map(std::future::ready)
        .collect()
        .await;
    (made, failed.into_inner().unwrap_or_else(PoisonError::into_inner))
}

fn plan(caller: &Caller, origin: &Handle, request: &Fork, moment: &SnapshotRow) -> Result<Vec<NewSandbox>, Problem> {
    let Sandbox { env, expires_at, .. } = origin.sandbox();
    let one = |number| {
        let one = CreateSandbox {
            name: name(request, number),
            labels: request.labels.clone(),
            env: env.clone(),
            ttl: request.ttl,
            // A copy spends what its origin may spend, not as much again.
            parent: Some(origin.session()),
            ..CreateSandbox::default()
        };
        let mut new = create::plan(caller, one, moment.template.clone(), Some(moment.snapshot.id.clone()), None)?;
        new.budget = SetBudget::default();
        // A copy does not outlive its origin unless it is told to.
        if request.ttl.is_none() {
            new.row.sandbox.expires_at = expires_at;
        }
        // What it may talk to, its copies may too; but for what a person allowed that one sandbox.
        (new.gate.rules, new.gate.secrets) = origin.rules.own();
        new.gate.rules.retain(|rule| rule.source != Source::Approval);
        Ok(new)
    };
    (1..=request.count).map(one).collect()
}

/// Whether all of them are gone.
async fn take_back(inner: &Inner, sandboxes: Vec<Sandbox>) -> bool {
    let delete = |sandbox: Sandbox| async move {
        let Some(handle) = inner.registry.by_id(&sandbox.id) else { return true };
        let why = owner::reason("fork_failed", "Another sandbox of the same fork could not be made.");
        match handle.ask(|reply| Verb::Delete(why, reply)).await {
            Ok(()) => true,
            Err(problem) if problem.code == Code::SandboxGone => true,
            Err(problem) => {
                tracing::error!(sandbox = %sandbox.id, %problem, "a sandbox of a failed fork is not deleted");
                false
            }
        }
    };
    let gone: Vec<bool> = stream::iter(sandboxes).map(delete).buffer_unordered(AT_ONCE).collect().await;
    !gone.contains(&false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_meant_is_refused() {
        let fork = |count, name: Option<&str>| Fork { count, name: name.map(str::to_owned), ..Fork::default() };
        let long = "a".repeat(61);
        for (request, want) in [
            (fork(0, None), Err(Code::BadRequest)),
            (fork(MAX_FORKS + 1, None), Err(Code::BadRequest)),
            (fork(1, Some("No")), Err(Code::BadName)),
            (fork(10, Some(&long)), Err(Code::BadName)),
            (fork(9, Some(&long)), Ok(())),
            (fork(MAX_FORKS, Some("a")), Ok(())),
            (Fork { ttl: "0s".parse().ok(), ..Fork::default() }, Err(Code::BadDuration)),
        ] {
            assert_eq!(check_fork(&request).map_err(|problem| problem.code), want, "{request:?}");
        }
    }
}
