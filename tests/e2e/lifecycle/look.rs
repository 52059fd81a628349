//! What there is, compared with the model; and what became of verbs that a killed server did not answer.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use futures_util::TryStreamExt as _;
use sandbar_api::{ProcessState, SandboxState};
use sandbar_client::{Client, SandboxQuery};

use crate::{
    lifecycle::act::{Answer, act},
    lifecycle::model::{Expected, Model, Step, Told, forks},
    support::{Outcome, until},
};

/// What the server says there is.
#[derive(Debug)]
struct Listed {
    sandboxes: BTreeMap<String, (String, SandboxState)>,
    snapshots: BTreeSet<String>,
    pools: BTreeMap<String, u32>,
}

async fn list(client: &Client) -> Outcome<Listed> {
    let sandboxes: Vec<_> = client.sandboxes(SandboxQuery::default()).try_collect().await?;
    let (snapshots, pools) = (client.snapshots().await?, client.pools().await?);
    if let Some(pool) = pools.iter().find(|pool| pool.warm > pool.size) {
        return Err(format!("more are warm than wanted: {pool:?}").into());
    }
    Ok(Listed {
        sandboxes: sandboxes.into_iter().map(|one| (one.name, (one.id.to_string(), one.state))).collect(),
        snapshots: snapshots.into_iter().map(|one| one.name).collect(),
        pools: pools.into_iter().map(|one| (one.template, one.size)).collect(),
    })
}

fn same<T: PartialEq + std::fmt::Debug>(what: &str, seen: &T, model: &T) -> Outcome {
    if seen == model {
        return Ok(());
    }
    Err(format!("{what}: there are {seen:?}, the model has {model:?}").into())
}

/// Ids, states, snapshots and pools are the model's, and the kernel agrees.
pub(crate) async fn agree(client: &Client, model: &Model, home: &Path) -> Outcome {
    let listed = list(client).await?;
    let sandboxes = model.sandboxes.iter().map(|(name, one)| (name.clone(), (one.id.clone(), one.state))).collect();
    same("sandboxes", &listed.sandboxes, &sandboxes)?;
    same("snapshots", &listed.snapshots, &model.snapshots.keys().cloned().collect())?;
    let pools = model.pools.iter().filter(|(_, size)| **size > 0).map(|(name, size)| ((*name).to_owned(), *size));
    same("pools", &listed.pools, &pools.collect())?;
    for (name, sandbox) in &model.sandboxes {
        same(&format!("processes of `{name}`"), &running(client, name).await?, &sandbox.running)?;
        let alive = matches!(sandbox.state, SandboxState::Ready | SandboxState::Paused);
        let guest = guest(home, &sandbox.id);
        same(&format!("whether `{name}` has a guest"), &guest.is_some(), &alive)?;
        if let Some(guest) = guest
            && model.freezes
        {
            let paused = sandbox.state == SandboxState::Paused;
            same(&format!("whether `{name}` stands still"), &is_frozen(guest)?, &paused)?;
        }
    }
    Ok(())
}

async fn running(client: &Client, name: &str) -> Outcome<BTreeSet<String>> {
    let processes = client.processes(name).await?.into_iter();
    let running = processes.filter(|process| !matches!(process.state, ProcessState::Exited | ProcessState::Lost));
    Ok(running.map(|process| process.id.to_string()).collect())
}

/// The pid of a sandbox's guest, if that lives.
fn guest(home: &Path, id: &str) -> Option<u32> {
    let text = fs::read_to_string(home.join("local").join(id).join("guest.pid")).ok()?;
    let pid = text.split_whitespace().next()?.parse().ok()?;
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    (!stat.rsplit(')').next()?.trim_start().starts_with('Z')).then_some(pid)
}

/// As the kernel says of the group that the guest keeps its workload in.
fn is_frozen(guest: u32) -> Outcome<bool> {
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    let mut mounts = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let unified = mounts.find(|fields| fields.get(2) == Some(&"cgroup2")).ok_or("no cgroup v2")?[1].to_owned();
    let groups = fs::read_to_string(format!("/proc/{guest}/cgroup"))?;
    let own = groups.lines().find_map(|line| line.strip_prefix("0::")).ok_or("no group")?;
    let own = own.strip_suffix("/guest").unwrap_or(own);
    let path = format!("{unified}{own}/work/cgroup.events");
    let events = fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
    Ok(events.lines().any(|line| line == "frozen 1"))
}

/// Every file of every sandbox that runs.
pub(crate) async fn read_all(client: &Client, model: &Model) -> Outcome {
    let ready = model.sandboxes.iter().filter(|(_, sandbox)| sandbox.state == SandboxState::Ready);
    for (name, sandbox) in ready {
        same(&format!("files of `{name}`"), &read(client, name).await?, &sandbox.files.shown())?;
    }
    Ok(())
}

async fn read(client: &Client, name: &str) -> Outcome<String> {
    match act(client, &Step::Write { name: name.to_owned(), writes: vec![] }).await? {
        Answer::Done(told) => Ok(told.output),
        answer => Err(format!("the files of `{name}` cannot be read: {answer:?}").into()),
    }
}

/// An answer that came has to be the model's, which goes on from it. Whether it was done.
pub(crate) fn judge(model: &mut Model, step: &Step, answer: &Answer) -> Outcome<bool> {
    let expected = model.expects(step);
    match (expected, answer) {
        (Expected::Done, Answer::Done(told)) => {
            if let Some(shown) = model.shown_after(step) {
                same("files", &told.output, &shown)?;
            }
            model.takes(step, told);
            Ok(true)
        }
        (Expected::DoneOr(_), Answer::Done(_)) => Ok(false),
        (Expected::Refused(want) | Expected::DoneOr(want), Answer::Refused(code, _)) if *code == want => Ok(false),
        _ => Err(format!("{step:?} is answered {answer:?} instead of {expected:?}").into()),
    }
}

/// A server was killed before it answered: what it was asked for was done, or was not, or only those ways in between
/// that it is allowed to leave.
pub(crate) async fn settle(client: &Client, model: &mut Model, step: &Step) -> Outcome<bool> {
    if model.expects(step) != Expected::Done {
        return Ok(false);
    }
    let listed = list(client).await?;
    let state = |name: &String| listed.sandboxes.get(name).map(|(_, state)| *state);
    let before = |name: &String| model.sandboxes.get(name).map(|sandbox| sandbox.state);
    let mut told = Told::default();
    let done = match step {
        Step::Create { name, .. } => {
            told.ids.extend(listed.sandboxes.get(name).map(|(id, _)| id.clone()));
            !told.ids.is_empty()
        }
        Step::Fork { prefix, count, .. } => {
            let made = forks(prefix, *count).into_iter().filter_map(|fork| listed.sandboxes.get(&fork));
            told.ids = made.map(|(id, _)| id.clone()).collect();
            if !told.ids.is_empty() && told.ids.len() < *count as usize {
                return Err(format!("half of {step:?} is there: {listed:?}").into());
            }
            !told.ids.is_empty()
        }
        Step::Write { name, writes } => {
            let known = model.sandboxes.get(name).map(|sandbox| sandbox.running.clone()).unwrap_or_default();
            // It goes on without the server; or is ended at any point, if the server had not recorded it yet.
            until("the command ends", async || Ok(running(client, name).await? == known)).await?;
            let seen = read(client, name).await?;
            let so_far = |count: usize| Step::Write { name: name.clone(), writes: writes[..count].to_vec() };
            let mut points = (0..=writes.len()).rev().map(so_far);
            let Some(point) = points.find(|point| model.shown_after(point).as_ref() == Some(&seen)) else {
                return Err(format!("{step:?} left {seen:?}").into());
            };
            model.takes(&point, &told);
            return Ok(point == *step);
        }
        Step::Run { name } => {
            let known = model.sandboxes.get(name).map(|sandbox| sandbox.running.clone()).unwrap_or_default();
            told.ids = running(client, name).await?.difference(&known).cloned().collect();
            !told.ids.is_empty()
        }
        // Begun, and cut off: it says so, and can be started again, with all its files.
        Step::Start { name } | Step::Delete { name } if state(name) == Some(SandboxState::Failed) => {
            model.turn(name, SandboxState::Failed);
            return Ok(true);
        }
        Step::Pause { name } | Step::Resume { name } | Step::Stop { name } | Step::Start { name } => {
            state(name) != before(name)
        }
        Step::Delete { name } => state(name).is_none(),
        Step::Snapshot { snapshot, .. } => listed.snapshots.contains(snapshot),
        Step::DeleteSnapshot { snapshot } => !listed.snapshots.contains(snapshot),
        Step::SetPool { template, size } => listed.pools.get(*template).copied().unwrap_or(0) == *size,
    };
    if done {
        model.takes(step, &told);
    }
    Ok(done)
}
