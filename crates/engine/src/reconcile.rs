//! On start: compares what the store says with what the providers find, and makes both agree again. May be killed at
//! any point and run again: each sandbox is settled by steps that lead to a state which is settled the same way.

mod snapshots;
mod strays;

pub(crate) use strays::remove;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

use futures_util::{StreamExt as _, stream};
use sandbar_api::{Idle, Problem, Process, ProcessState, SandboxId, SandboxState};
use sandbar_guest::protocol::{ListRequest, ProcessStatus};
use sandbar_provider::{Counters, FoundSnapshot, Guest, Made, Provider};

use crate::{
    Inner, OpenError, clock,
    gate::Door,
    handle::Handle,
    identity::Fit,
    owner::{self, Owner, reason},
    pool, problem, process, pump,
    store::{PoolMember, SandboxFilter, SandboxRow},
};

/// It has no files any more.
const LOST: &str = "lost";
/// Sandboxes settled at once.
const AT_ONCE: usize = 16;
const PAGE: u32 = 1000;

/// What a provider has of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    Running,
    /// Its files, but no guest.
    Files,
    Nothing,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    /// Store and provider agree.
    Keep,
    /// It lives: meet its guest, go on with its processes.
    Adopt,
    /// It was being stopped.
    FinishStop,
    /// It was being deleted.
    FinishDelete,
    /// It runs although it should not.
    StopStray,
    /// It was being created for the first time, and nobody was told of success.
    Undo,
    /// It is one of a fork that was not finished.
    UndoFork,
    /// The host went down and its processes with it.
    Stopped,
    /// It is no longer what the store promised; the reason's code says why.
    Failed(&'static str),
}

/// What to do with a sandbox of the store.
pub(crate) fn decide(state: SandboxState, deleting: bool, found: Found, same_boot: bool, ever_ready: bool) -> Action {
    use SandboxState::{Creating, Deleted, Failed, Paused, Ready, Stopped, Stopping};
    match (state, found) {
        (Deleted, Found::Nothing) => Action::Keep,
        (Deleted, Found::Running | Found::Files) => Action::FinishDelete,
        _ if deleting => Action::FinishDelete,
        (Creating | Ready | Paused, Found::Running) => Action::Adopt,
        (Stopping, Found::Running | Found::Files) => Action::FinishStop,
        (Stopped | Failed, Found::Running) => Action::StopStray,
        (Stopped | Failed, Found::Files) | (Failed, Found::Nothing) => Action::Keep,
        (Creating, Found::Files | Found::Nothing) if !ever_ready => Action::Undo,
        (Creating, Found::Files) if same_boot => Action::Failed("interrupted"),
        (Creating, Found::Files) => Action::Failed("host_restarted"),
        (Ready | Paused, Found::Files) if same_boot => Action::Failed("guest_died"),
        (Ready | Paused, Found::Files) => Action::Stopped,
        (Creating | Ready | Paused | Stopping | Stopped, Found::Nothing) => Action::Failed(LOST),
    }
}

fn detail(code: &str) -> &'static str {
    match code {
        "interrupted" => "The server ended while it was being started.",
        "host_restarted" => "The host was restarted.",
        "guest_died" => "It ended while the server was away.",
        LOST => "Its files are no longer there.",
        "guest_unreachable" => "It was found running, but did not answer.",
        _ => "It is not as it was left.",
    }
}

/// What each provider has: its sandboxes, and its snapshots if it can tell them.
pub(crate) type Looked = BTreeMap<&'static str, (Vec<sandbar_provider::Found>, Option<Vec<FoundSnapshot>>)>;

/// Changes nothing.
pub(crate) async fn look(providers: &BTreeMap<&'static str, Arc<dyn Provider>>) -> Result<Looked, OpenError> {
    let mut looked = Looked::new();
    for (name, provider) in providers {
        let sandboxes = provider.list().await.map_err(|source| OpenError::Provider { provider: name, source })?;
        // Nothing is concluded from not knowing.
        let snapshots = provider.snapshots().await.inspect_err(|error| {
            tracing::error!(provider = name, %error, "a provider cannot tell which snapshots it has");
        });
        looked.insert(name, (sandboxes, snapshots.ok()));
    }
    Ok(looked)
}

pub(crate) async fn reconcile(inner: &Arc<Inner>, same_boot: bool, looked: Looked, fit: Fit) -> Result<(), OpenError> {
    let rows = rows(inner).await?;
    let forking = snapshots::of_forks(inner).await?;
    let mut running: HashMap<SandboxId, Vec<Process>> = HashMap::new();
    for process in inner.store.running_processes().await.map_err(OpenError::Store)? {
        running.entry(process.sandbox.clone()).or_default().push(process);
    }
    // The pools decide about their own members.
    let members = pool_members(inner, fit).await?;
    let members = members.iter().map(|member| (member.provider.as_str(), &member.id));
    let known = rows.iter().map(|row| (row.sandbox.provider.as_str(), &row.sandbox.id));
    let known: HashSet<_> = known.chain(members).collect();
    let mut found = HashMap::new();
    let mut kept_snapshots = BTreeMap::new();
    for (name, (sandboxes, snapshots)) in looked {
        let Some(provider) = inner.providers.get(name) else { continue };
        for one in sandboxes {
            if known.contains(&(name, &one.id)) {
                strays::keep(inner, &**provider, Made::Sandbox(&one.id), one.mark.as_ref()).await;
                found.insert(one.id, if one.running { Found::Running } else { Found::Files });
            } else {
                strays::settle(inner, &**provider, Made::Sandbox(&one.id), one.mark, fit).await;
            }
        }
        kept_snapshots.insert(name, snapshots);
    }
    let mut settled = stream::iter(rows.into_iter().map(|row| {
        let found = found.get(&row.sandbox.id).copied().unwrap_or(Found::Nothing);
        let processes = running.remove(&row.sandbox.id).unwrap_or_default();
        let half_forked = row.sandbox.from.as_ref().is_some_and(|from| forking.contains(from));
        settle(inner, row, found, processes, Circumstances { same_boot, half_forked, fit })
    }))
    .buffer_unordered(AT_ONCE);
    while let Some(one) = settled.next().await {
        one?;
    }
    drop(settled);
    // Of sandboxes that were deleted: the server ended before their ends were written down.
    for process in running.into_values().flatten() {
        bury(inner, &process, SandboxState::Deleted).await?;
    }
    snapshots::reconcile(inner, kept_snapshots, fit).await
}

/// An older copy of the store may list a member that somebody has claimed since: it has their files, so it goes to nobody else.
async fn pool_members(inner: &Inner, fit: Fit) -> Result<Vec<PoolMember>, OpenError> {
    let members = inner.store.pool_members().await.map_err(OpenError::Store)?;
    if fit != Fit::Other {
        return Ok(members);
    }
    for member in &members {
        inner.store.remove_pool_member(&member.id).await.map_err(OpenError::Store)?;
    }
    Ok(Vec::new())
}

async fn rows(inner: &Inner) -> Result<Vec<SandboxRow>, OpenError> {
    let mut filter = SandboxFilter { limit: PAGE, ..SandboxFilter::default() };
    let mut rows = Vec::new();
    loop {
        let page = inner.store.sandboxes(&filter).await.map_err(OpenError::Store)?;
        let full = page.len() == PAGE as usize;
        filter.after = page.last().map(|row| row.sandbox.id.clone());
        rows.extend(page);
        if !full {
            return Ok(rows);
        }
    }
}

/// What else is known when a sandbox is settled.
pub(crate) struct Circumstances {
    /// Whether the host runs since before the last server ended.
    pub(crate) same_boot: bool,
    /// Whether it belongs to a fork that was cut off.
    pub(crate) half_forked: bool,
    pub(crate) fit: Fit,
}

pub(crate) async fn settle(
    inner: &Arc<Inner>,
    row: SandboxRow,
    found: Found,
    processes: Vec<Process>,
    Circumstances { same_boot, half_forked, fit }: Circumstances,
) -> Result<(), OpenError> {
    let sandbox = &row.sandbox;
    let missing = || OpenError::ProviderMissing { provider: sandbox.provider.clone(), sandbox: sandbox.name.clone() };
    let provider = inner.providers.get(sandbox.provider.as_str()).ok_or_else(missing)?.clone();
    let deleting = sandbox.reason.as_ref().is_some_and(owner::is_deleting);
    // What a cluster keeps did not go down with this host, and this host may be another than the last server's.
    let same_boot = same_boot || provider.is_elsewhere();
    // Only `start` changes a sandbox to `creating` after its birth.
    let ever_ready = sandbox.changed_at != sandbox.created_at;
    // A claim that was cut off: it runs, but not as it was asked for.
    let claiming = sandbox.reason.as_ref().is_some_and(pool::is_claiming);
    let found = if claiming && found == Found::Running { Found::Files } else { found };
    let action = match half_forked {
        true => Action::UndoFork,
        false => decide(sandbox.state, deleting, found, same_boot, ever_ready),
    };
    let action = match action {
        // The record says that it was being made, but an older copy of the store does not know how that went on.
        Action::Undo | Action::UndoFork if fit == Fit::Other && found != Found::Nothing => {
            Action::Failed("interrupted")
        }
        action => action,
    };
    let gate = inner.gates.restore(&*inner.store, &sandbox.id, &sandbox.session, &row.template).await?;
    let owner = Owner::new(inner, row, provider, gate);
    inner.registry.insert_name(&owner.handle);
    if let Err(problem) = carry_out(&owner, action, processes, ever_ready).await? {
        // It stays as it is: every verb, and the next start, tries again.
        tracing::error!(sandbox = %owner.handle.id, %problem, ?action, "a sandbox could not be brought into order");
    }
    if owner.handle.state() != SandboxState::Deleted {
        inner.owners.spawn(owner.run());
    }
    Ok(())
}

/// Outside: the store fails, and nothing can be opened. Inside: this one sandbox could not be settled.
type Settled = Result<Result<(), Problem>, OpenError>;

async fn carry_out(owner: &Owner, action: Action, processes: Vec<Process>, ever_ready: bool) -> Settled {
    let inner = &owner.inner;
    let id = &owner.handle.id;
    if action == Action::Adopt {
        return match meet(owner).await {
            Ok(met) => adopt(owner, met, processes).await,
            // It died in the middle of its first boot, with the server.
            Err(_) if !ever_ready && owner.handle.state() == SandboxState::Creating => Ok(undo(owner).await),
            Err(problem) => {
                tracing::error!(sandbox = %id, %problem, "a sandbox that was found running does not answer");
                if let Err(error) = owner.handle.provider.stop(id).await {
                    return Ok(Err(problem::from_provider(error)));
                }
                fail(owner, "guest_unreachable", processes).await
            }
        };
    }
    if let Action::Failed(code) = action {
        if code != LOST {
            // What is left of it in the kernel may stand still, and would keep what is started next from running.
            owner.clean_up().await;
        }
        return fail(owner, code, processes).await;
    }
    let how = match action {
        Action::FinishStop | Action::FinishDelete | Action::Undo | Action::UndoFork => SandboxState::Stopped,
        _ => owner.handle.state(),
    };
    for process in &processes {
        bury(inner, process, how).await?;
    }
    Ok(match action {
        Action::Keep | Action::Adopt | Action::Failed(_) => Ok(()),
        Action::StopStray => owner.handle.provider.stop(id).await.map_err(problem::from_provider),
        Action::FinishStop => owner.finish_stop().await.map(drop),
        Action::FinishDelete => owner.delete(owner.why_deleting()).await,
        Action::Undo => undo(owner).await,
        Action::UndoFork => {
            owner.delete(reason("interrupted", "The server ended while the fork it is of was being made.")).await
        }
        Action::Stopped => {
            // What idleness put away comes back for whoever needs it, as before.
            let why = match owner::is_put_away(&owner.handle.record.borrow()) {
                true => owner::idle(detail("host_restarted")),
                false => reason("host_restarted", detail("host_restarted")),
            };
            let why = || Some(why.clone());
            match owner.transition(SandboxState::Stopping, why()).await {
                Ok(_) => owner.transition(SandboxState::Stopped, why()).await.map(drop),
                Err(problem) => Err(problem),
            }
        }
    })
}

async fn undo(owner: &Owner) -> Result<(), Problem> {
    owner.discard(reason("interrupted", "The server ended while it was being created.")).await
}

async fn fail(owner: &Owner, code: &str, processes: Vec<Process>) -> Settled {
    for process in &processes {
        bury(&owner.inner, process, SandboxState::Failed).await?;
    }
    Ok(owner.transition(SandboxState::Failed, Some(reason(code, detail(code)))).await.map(drop))
}

async fn meet(owner: &Owner) -> Result<Met, Problem> {
    let (mut guest, door) = owner.meet().await?;
    let listed = guest.list(ListRequest {}).await.map_err(|status| problem::from_status(&status))?;
    Ok(Met { guest, door, listed: listed.into_inner().processes })
}

/// A guest that was found running.
struct Met {
    guest: Guest,
    door: Option<Door>,
    listed: Vec<ProcessStatus>,
}

async fn adopt(owner: &Owner, met: Met, processes: Vec<Process>) -> Settled {
    let (inner, handle) = (&owner.inner, &owner.handle);
    let Met { guest, door, listed } = met;
    handle.open(guest.clone(), door);
    let mut lives = HashSet::new();
    for status in listed {
        let Ok(process_id) = status.process_id.parse() else { continue };
        match inner.store.process(&handle.id, &process_id).await.map_err(OpenError::Store)? {
            Some(process) => {
                lives.insert(process_id);
                process::resume(inner, handle, process).await.map_err(OpenError::Store)?;
            }
            None => pump::discard(inner, handle, guest.clone(), process_id, status.output_start).await,
        }
    }
    for process in processes.iter().filter(|process| !lives.contains(&process.id)) {
        bury(inner, process, SandboxState::Failed).await?;
    }
    inner.metrics.adopted.inc();
    found_running(handle).await;
    // The server may have ended between holding it still, or letting it go, and the record of that.
    Ok(match handle.state() {
        SandboxState::Paused => {
            handle.hold();
            owner.freeze().await.map_err(problem::from_provider)
        }
        SandboxState::Creating => match owner.thaw().await {
            Ok(()) => owner.transition(SandboxState::Ready, None).await.map(drop),
            Err(problem) => Err(problem),
        },
        _ => owner.thaw().await,
    })
}

/// Processor time of before is no activity of today.
async fn found_running(handle: &Handle) {
    if handle.template.idle == Idle::default() {
        return;
    }
    if let Ok(Counters { cpu: Some(cpu), .. }) = handle.provider.counters(&handle.id).await {
        handle.activity.begin(cpu);
    }
}

/// Writes down the end of a process whose sandbox is not running. Killed if the sandbox was to end, else lost.
async fn bury(inner: &Inner, process: &Process, sandbox: SandboxState) -> Result<(), OpenError> {
    let stopped = matches!(sandbox, SandboxState::Stopping | SandboxState::Stopped | SandboxState::Deleted);
    let (state, exit) = match stopped {
        true => (ProcessState::Exited, Some(pump::killed_with_sandbox())),
        false => (ProcessState::Lost, None),
    };
    if !stopped {
        inner.metrics.lost.inc();
    }
    let kept = process.restart.is_some();
    inner.record_end(kept, &process.id, state, exit, clock::now()).await.map_err(OpenError::Store)
}

#[cfg(test)]
mod tests {
    use super::*;
    use SandboxState::*;

    #[test]
    fn every_case_of_the_table() {
        // state, deleting, found, same boot, ever ready → action
        let table = [
            (Ready, false, Found::Running, true, true, Action::Adopt),
            (Creating, false, Found::Running, true, false, Action::Adopt),
            (Paused, false, Found::Running, true, true, Action::Adopt),
            (Stopping, false, Found::Running, true, true, Action::FinishStop),
            (Stopping, false, Found::Files, false, true, Action::FinishStop),
            (Stopping, true, Found::Running, true, true, Action::FinishDelete),
            (Stopping, true, Found::Nothing, true, true, Action::FinishDelete),
            (Stopped, true, Found::Files, true, true, Action::FinishDelete),
            (Failed, true, Found::Nothing, false, true, Action::FinishDelete),
            (Ready, false, Found::Files, true, true, Action::Failed("guest_died")),
            (Ready, false, Found::Files, false, true, Action::Stopped),
            (Paused, false, Found::Files, false, true, Action::Stopped),
            (Creating, false, Found::Files, true, false, Action::Undo),
            (Creating, false, Found::Nothing, false, false, Action::Undo),
            (Creating, false, Found::Files, true, true, Action::Failed("interrupted")),
            (Creating, false, Found::Files, false, true, Action::Failed("host_restarted")),
            (Creating, false, Found::Nothing, true, true, Action::Failed("lost")),
            (Ready, false, Found::Nothing, true, true, Action::Failed("lost")),
            (Stopped, false, Found::Nothing, true, true, Action::Failed("lost")),
            (Stopped, false, Found::Files, true, true, Action::Keep),
            (Stopped, false, Found::Running, true, true, Action::StopStray),
            (Failed, false, Found::Files, true, true, Action::Keep),
            (Failed, false, Found::Nothing, true, true, Action::Keep),
            (Failed, false, Found::Running, true, true, Action::StopStray),
            (Deleted, false, Found::Files, true, true, Action::FinishDelete),
            (Deleted, false, Found::Running, true, true, Action::FinishDelete),
            (Deleted, false, Found::Nothing, true, true, Action::Keep),
        ];
        for (state, deleting, found, same_boot, ever_ready, want) in table {
            let got = decide(state, deleting, found, same_boot, ever_ready);
            assert_eq!(got, want, "{state:?} deleting={deleting} {found:?} boot={same_boot} ready={ever_ready}");
        }
    }

    #[test]
    fn states_it_leads_to_are_legal() {
        for state in SandboxState::ALL {
            for found in [Found::Running, Found::Files, Found::Nothing] {
                for flags in 0..8 {
                    let action = decide(state, flags & 1 != 0, found, flags & 2 != 0, flags & 4 != 0);
                    let legal = match action {
                        Action::Failed(code) => state.may_become(Failed) && !detail(code).is_empty(),
                        Action::Stopped => state.may_become(Stopping) && Stopping.may_become(Stopped),
                        Action::FinishStop => state == Stopping,
                        Action::Undo => state == Creating,
                        Action::Adopt => [Creating, Ready, Paused].contains(&state),
                        Action::FinishDelete | Action::UndoFork => state == Deleted || state.may_become(Deleted),
                        Action::Keep | Action::StopStray => true,
                    };
                    assert!(legal, "{state:?} {found:?} {flags}: {action:?}");
                }
            }
        }
    }
}
