//! A member of a pool, from being made to being gone.

use std::sync::Arc;

use sandbar_api::{Code, Problem, Requirement, SandboxId, Template, WorkspaceSource};
use sandbar_provider::{Error, Guest, Made, Mark, Provider, Spec};
use tokio::time;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{Digest, keeper::TICK};
use crate::{Inner, clock, create, ids, owner, problem, store::PoolMember};

pub(super) struct Member {
    pub(super) id: SandboxId,
    pub(super) template: String,
    pub(super) digest: Digest,
    pub(super) provider: Arc<dyn Provider>,
    /// Connected, so that a claim need not.
    pub(super) guest: Guest,
    /// Ends the watch over its guest when it leaves the pool.
    pub(super) watch: Option<DropGuard>,
}

/// As a provider makes it: what a claim gives it late is made up, or empty.
pub(super) fn spec(id: &SandboxId, template: &Template) -> Spec {
    Spec {
        id: id.clone(),
        hostname: ids::default_name(id),
        root: template.root.clone(),
        workspace: WorkspaceSource::Empty,
        layers: template.requirements(),
        user: template.user,
        limits: template.limits.clone(),
        from: None,
        skills: template.skills.clone(),
        template: template.name.clone(),
        kubernetes: template.kubernetes.clone(),
        origin: None,
    }
}

/// Makes one. It is recorded last: what a killed server was making has no row, and the next start destroys it.
pub(super) async fn make(inner: &Arc<Inner>, template: &Template, digest: Digest) -> Result<Member, Problem> {
    let provider = inner.provider(&template.provider)?;
    let created_at = clock::now();
    let id = ids::sandbox(created_at)?;
    let spec = Spec { origin: Some(inner.origin()), ..spec(&id, template) };
    provider.create(&spec).await.map_err(problem::from_provider)?;
    let warm = async {
        let guest = owner::greet(&*provider, &id).await?;
        let layers = provider.warm(&spec).await.map_err(problem::from_provider)?;
        // There is time to look before anybody has it: one whose fence does not hold is not handed out.
        if let Some(missing) =
            layers.into_iter().find(|layer| !layer.in_force && layer.requirement == Requirement::Required)
        {
            let what = format!("{} is required and not in force: {}.", missing.layer.title(), missing.evidence);
            return Err(Problem::new(Code::NotEnforceable, what, missing.fix.unwrap_or_default()));
        }
        let (template, provider) = (template.name.clone(), template.provider.clone());
        inner.store.add_pool_member(&PoolMember { id: id.clone(), template, digest, provider, created_at }).await?;
        Ok(guest)
    };
    match warm.await {
        Ok(guest) => {
            create::mark_kept(inner, &*provider, Made::Sandbox(&id), spec.origin).await;
            Ok(Member { id, template: template.name.clone(), digest, provider, guest, watch: None })
        }
        Err(problem) => {
            bury(inner, provider, id).await;
            Err(problem)
        }
    }
}

/// Takes a member that is warm into its pool, and watches over its guest. Returns one that the pool has no use for.
pub(super) fn admit(inner: &Arc<Inner>, mut member: Member) -> Option<Member> {
    let mut states = inner.pools.states();
    let wanted = states.get_mut(&member.template).filter(|state| {
        let current = state.digest.is_none_or(|digest| digest == member.digest);
        current && state.warm() < state.size
    });
    let Some(state) = wanted else { return Some(member) };
    // The lock is held until the member is in: a guest that is dead already is missed by nobody.
    member.watch = Some(watch(inner, &member));
    state.members.push_back(member);
    None
}

fn watch(inner: &Arc<Inner>, member: &Member) -> DropGuard {
    let (inner, template) = (inner.clone(), member.template.clone());
    let (id, provider) = (member.id.clone(), member.provider.clone());
    let left = CancellationToken::new();
    let guard = left.clone().drop_guard();
    inner.tasks.clone().spawn(async move {
        tokio::select! {
            () = left.cancelled() => return,
            () = inner.closing.cancelled() => return,
            () = gone(&*provider, &id) => {}
        }
        for dead in inner.pools.lose(&template, &id) {
            tracing::warn!(sandbox = %id, template, "a pool's sandbox died and is replaced");
            bury(&inner, dead.provider.clone(), dead.id.clone()).await;
            inner.pools.changed.notify_one();
        }
    });
    guard
}

async fn gone(provider: &dyn Provider, id: &SandboxId) {
    loop {
        match provider.gone(id).await {
            Ok(()) | Err(sandbar_provider::Error::Unknown(_)) => return,
            Err(error) => {
                tracing::warn!(sandbox = %id, %error, "a pool's sandbox cannot be watched");
                time::sleep(TICK).await;
            }
        }
    }
}

/// Ends one that is in no pool any more. What cannot be removed now is tried again until it is, by this server or by the
/// next: its row goes first, and its mark says before that no row is needed to remove it.
pub(super) async fn bury(inner: &Inner, provider: Arc<dyn Provider>, id: SandboxId) {
    let mut told = false;
    loop {
        let gone = async {
            // From here on it is nobody's, also for a server that finds it without its row.
            match provider.mark(Made::Sandbox(&id), &Mark::Begun(inner.origin())).await {
                Ok(()) | Err(Error::Unknown(_)) => {}
                Err(error) => return Err(problem::from_provider(error)),
            }
            inner.store.remove_pool_member(&id).await?;
            provider.destroy(&id).await.map_err(problem::from_provider)
        };
        let Err(problem) = gone.await else { return };
        if !told {
            tracing::error!(sandbox = %id, %problem, "a pool's sandbox is not removed yet");
            told = true;
        }
        tokio::select! {
            () = inner.closing.cancelled() => return,
            () = time::sleep(TICK) => {}
        }
    }
}
