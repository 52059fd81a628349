//! A claim: a create that finds a warm sandbox of its template. It costs one commit, which turns the member into the
//! sandbox; its guest is connected already.
//!
//! Name and workspace are bound late. A host name may be bound while the disk takes the record, since it is bound again
//! whenever a member is adopted. A workspace may not: the record comes first, as `creating`, so that a server killed in
//! between leaves a sandbox that the next one removes, and never a member that somebody's files are bound to.

use std::{sync::Arc, time::Instant};

use sandbar_api::{Problem, SandboxState, WorkspaceSource};
use sandbar_provider::{Error, Gate, Guest, Made, Spec};

use super::{claiming, member, member::Member};
use crate::{
    CreateOutcome, Inner, create,
    gate::{self, Furnished},
    ids, owner,
    owner::Owner,
    problem,
    store::{self, Created, NewSandbox, SandboxRow},
};

/// What a claim gives a member that it does not have.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Late {
    Nothing,
    Name,
    Workspace,
}

/// The gate given back: nothing fitting is warm, and the sandbox is to be made.
pub(crate) async fn claim(
    inner: &Arc<Inner>,
    new: &NewSandbox,
    begun: Instant,
    gate: Furnished,
) -> Result<Result<CreateOutcome, Problem>, Furnished> {
    let sandbox = &new.row.sandbox;
    if sandbox.from.is_some() {
        return Err(gate);
    }
    let binds = sandbox.workspace != WorkspaceSource::Empty;
    let Some(member) = inner.pools.take(&new.row.template, binds) else { return Err(gate) };
    let outcome = make_of(inner, member, new.clone(), gate).await;
    match &outcome {
        Ok(outcome) if !outcome.replayed => {
            inner.metrics.creates.inc();
            inner.metrics.claims.inc();
            inner.metrics.create_seconds.observe(begun.elapsed().as_secs_f64());
        }
        _ => {}
    }
    Ok(outcome)
}

async fn make_of(
    inner: &Arc<Inner>,
    member: Member,
    mut new: NewSandbox,
    gate: Furnished,
) -> Result<CreateOutcome, Problem> {
    let late = fit(&mut new, &member);
    let spec = create::spec(&new.row.sandbox, &new.row.template);
    // Called `creating` until all of it is done, also where the record says `ready` at once.
    let (mut row, budget) = (new.row.clone(), new.budget.clone());
    row.sandbox.state = SandboxState::Creating;
    let claimed = Owner::new(inner, row, member.provider.clone(), gate);
    // Bound meanwhile only where nothing is known that could refuse the record: a member that was bound and then refused
    // is used up.
    let joins = !new.new_session || new.parent.is_some();
    let free = new.marks.name.is_none() && !inner.registry.has_name(&new.row.sandbox.name);
    let early = late == Late::Name && new.key.is_none() && !joins && free;
    let bind = || member.provider.bind(&spec);
    claimed.handle.announce();
    // Whom it trusts is told again to whoever claims a member that is given back.
    let (recorded, bound, gate) = tokio::join!(
        inner.store.claim_pool_member(new),
        async { if early { Some(bind().await) } else { None } },
        prepare_gate(&claimed, &member.guest),
    );
    let row = match recorded {
        Ok(Created::New(row)) => row,
        refused => {
            inner.registry.remove(&claimed.handle);
            claimed.handle.close();
            let unchanged = !early && is_unchanged(&refused, joins);
            give_back(inner, member, unchanged);
            return match refused {
                Ok(Created::New(row) | Created::Replayed(row)) => create::replay(inner, row).await,
                Err(error) => Err(create::refusal(error)),
            };
        }
    };
    inner.registry.insert_name(&claimed.handle);
    inner.expiry.notify_one();
    // So that nothing has to be looked up when its gate is opened.
    let _born = (!joins).then(|| inner.gates.ledger.born(&claimed.handle.session(), &budget));
    let bound = match bound {
        Some(bound) => bound,
        None if late == Late::Nothing => Ok(()),
        None => bind().await,
    };
    let guest = match bound {
        Ok(()) => gate.map(|gate| (member.guest, gate)),
        Err(Error::Declined { .. }) if late == Late::Workspace => {
            inner.pools.bind_no_workspace(&row.template.name);
            make_anew(&claimed, &spec).await
        }
        Err(error) => Err(problem::from_provider(error)),
    };
    let opened = match guest {
        Ok((guest, gate)) => open(&claimed, guest, gate, row).await,
        Err(problem) => Err(problem),
    };
    if let Err(problem) = &opened {
        inner.metrics.creates_failed.inc();
        if let Err(left) = claimed.discard(owner::reason("start_failed", problem.detail.clone())).await {
            tracing::error!(sandbox = %claimed.handle.id, problem = %left, "a claim that failed is not removed");
        }
    }
    let sandbox = claimed.handle.sandbox();
    inner.owners.spawn(claimed.run());
    opened.map(|()| CreateOutcome { sandbox, replayed: false })
}

/// Makes the sandbox that was planned the one that the member is.
fn fit(new: &mut NewSandbox, member: &Member) -> Late {
    let sandbox = &mut new.row.sandbox;
    let made_up = ids::default_name(&member.id);
    if sandbox.name == ids::default_name(&sandbox.id) {
        sandbox.name.clone_from(&made_up);
    }
    sandbox.id = member.id.clone();
    let late = match sandbox.workspace {
        WorkspaceSource::Bind { .. } => Late::Workspace,
        WorkspaceSource::Empty if sandbox.name != made_up => Late::Name,
        WorkspaceSource::Empty => Late::Nothing,
    };
    if late == Late::Workspace {
        sandbox.reason = Some(claiming());
    } else {
        sandbox.state = SandboxState::Ready;
    }
    late
}

/// Not every host can bind a workspace late: then it is made after all, under the id that is recorded.
async fn make_anew(claimed: &Owner, spec: &Spec) -> Result<(Guest, Option<Gate>), Problem> {
    let provider = &claimed.handle.provider;
    provider.destroy(&spec.id).await.map_err(problem::from_provider)?;
    let spec = Spec { origin: Some(claimed.inner.origin()), ..spec.clone() };
    provider.create(&spec).await.map_err(problem::from_provider)?;
    create::mark_kept(&claimed.inner, &**provider, Made::Sandbox(&spec.id), spec.origin).await;
    let guest = claimed.greet().await?;
    let gate = prepare_gate(claimed, &guest).await?;
    Ok((guest, gate))
}

/// What can be done for the gate before it is certain whose it is.
async fn prepare_gate(claimed: &Owner, guest: &Guest) -> Result<Option<Gate>, Problem> {
    let handle = &claimed.handle;
    let taken = gate::take(&*handle.provider, &handle.id).await?;
    if taken.is_some() {
        gate::trust(&claimed.inner, handle, guest.clone()).await?;
    }
    Ok(taken)
}

/// Lets work in, and then calls it ready.
async fn open(claimed: &Owner, guest: Guest, gate: Option<Gate>, row: SandboxRow) -> Result<(), Problem> {
    let door = claimed.serve_gate(gate).await?;
    claimed.serve_runtimes(&guest, door.as_ref()).await?;
    let row = match row.sandbox.state {
        SandboxState::Ready => row,
        _ => claimed.inner.store.transition(&row.sandbox.id, SandboxState::Ready, None).await?,
    };
    claimed.handle.open(guest, door);
    claimed.publish(row.sandbox);
    Ok(())
}

/// Whether the store certainly left the member as it was.
fn is_unchanged(refused: &store::Result<Created>, joins: bool) -> bool {
    match refused {
        Ok(_)
        | Err(
            store::Error::NameTaken(_)
            | store::Error::SessionNameTaken(_)
            | store::Error::SessionEnded(_)
            | store::Error::KeyReused
            | store::Error::DiskFull,
        ) => true,
        // There is no such session; otherwise it is the member that is missing.
        Err(store::Error::Missing(_)) => joins,
        Err(_) => false,
    }
}

fn give_back(inner: &Arc<Inner>, member: Member, unchanged: bool) {
    let used = if unchanged { member::admit(inner, member) } else { Some(member) };
    if let Some(used) = used {
        let inner = inner.clone();
        inner.tasks.clone().spawn(async move {
            member::bury(&inner, used.provider.clone(), used.id.clone()).await;
            inner.pools.changed.notify_one();
        });
    }
}
