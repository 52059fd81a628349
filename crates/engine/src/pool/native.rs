//! Pools that a provider keeps itself: it is told what is wanted when that changes, and asked how many are ready when
//! somebody wants to know. No member is made here; a create asks the provider, which hands out what it has warm.

use std::{io, sync::Arc};

use sandbar_api::{Pool, Problem, Template};
use sandbar_provider::{Error, Provider, Spec};
use tokio::{
    sync::OwnedMutexGuard,
    time::{self, Instant},
};

use super::{Digest, Pools, Trouble, digest, keeper, member};
use crate::{Inner, ids, problem};

/// What the provider was told last.
#[derive(Clone)]
pub(super) struct Ordered {
    provider: Arc<dyn Provider>,
    spec: Spec,
    digest: Digest,
    size: u32,
    ready: u32,
    reason: Option<String>,
}

impl Ordered {
    pub(super) fn show(&self, template: &str, trouble: Option<String>) -> Pool {
        let reason = if self.ready < self.size { trouble.or_else(|| self.reason.clone()) } else { None };
        Pool { template: template.to_owned(), size: self.size, warm: self.ready, reason }
    }
}

/// Its provider, if that keeps the pools of its templates itself.
pub(super) fn keeper_of(inner: &Inner, template: &Template) -> Option<Arc<dyn Provider>> {
    inner.provider(&template.provider).ok().filter(|provider| provider.keeps_pools())
}

/// Tells the provider what is wanted, and remembers what it said. Whoever calls it has the pool's turn.
pub(super) async fn order(
    inner: &Inner,
    provider: Arc<dyn Provider>,
    template: &Template,
    size: u32,
) -> Result<Pool, Problem> {
    // Which sandbox it would be is nobody's business yet.
    let spec = member::spec(&ids::sandbox(crate::clock::now())?, template);
    let Some(digest) = digest(template) else { return Err(problem::shutting_down()) };
    let ordered = Ordered { provider, spec, digest, size, ready: 0, reason: None };
    ask(inner, &template.name, ordered).await
}

async fn ask(inner: &Inner, template: &str, mut ordered: Ordered) -> Result<Pool, Problem> {
    // The pool's turn is held meanwhile, and the keeper of all pools may wait for it.
    let told = time::timeout(inner.patience.pools(), ordered.provider.pool(&ordered.spec, ordered.size)).await;
    let told = told.unwrap_or_else(|_| Err(Error::io("tell the provider of a pool")(io::ErrorKind::TimedOut.into())));
    let told = told.map_err(problem::from_provider);
    let mut states = inner.pools.states();
    let state = states.entry(template.to_owned()).or_default();
    match told {
        Ok(warm) => {
            (ordered.ready, ordered.reason) = (warm.ready, warm.reason);
            state.trouble = None;
            let shown = ordered.show(template, None);
            state.ordered = (ordered.size > 0).then_some(ordered);
            Ok(shown)
        }
        Err(problem) => {
            state.trouble = Some(Trouble::after(state.trouble.take(), &problem));
            Err(problem)
        }
    }
}

impl Pools {
    /// To be held while the provider of a pool is told something, from the look at what is wanted on.
    pub(super) async fn turn(&self, template: &str) -> OwnedMutexGuard<()> {
        let turn = self.states().entry(template.to_owned()).or_default().turn.clone();
        turn.lock_owned().await
    }

    pub(super) fn turn_if_free(&self, template: &str) -> Option<OwnedMutexGuard<()>> {
        self.states().get(template)?.turn.clone().try_lock_owned().ok()
    }

    /// Whether the provider failed, and is not to be asked again yet.
    pub(super) fn waits(&self, template: &str) -> bool {
        self.states().get(template).and_then(|state| state.trouble.as_ref()).is_some_and(Trouble::lasts)
    }

    /// Whether the provider has nothing new to be told.
    pub(super) fn is_ordered(&self, template: &Template) -> bool {
        let states = self.states();
        let Some(state) = states.get(&template.name) else { return true };
        let waits = state.trouble.as_ref().is_some_and(Trouble::lasts);
        let current = digest(template);
        waits || state.ordered.as_ref().is_some_and(|last| last.size == state.size && Some(last.digest) == current)
    }
}

/// The present word of each provider on its pools. One that does not answer leaves the last.
pub(super) async fn refresh(inner: &Inner) {
    let names: Vec<String> = {
        let states = inner.pools.states();
        states.iter().filter(|(_, state)| state.ordered.is_some()).map(|(name, _)| name.clone()).collect()
    };
    for name in names {
        // Whoever has the turn brings the provider's word.
        let Some(_turn) = inner.pools.turn_if_free(&name) else { continue };
        let ordered = inner.pools.states().get(&name).and_then(|state| state.ordered.clone());
        let Some(ordered) = ordered else { continue };
        if let Err(problem) = ask(inner, &name, ordered).await {
            tracing::warn!(template = name, %problem, "a provider does not tell how many are warm");
        }
    }
}

/// Of a pool whose template is gone: the provider still keeps it, as it was told last. Whoever calls it has the pool's turn.
pub(super) async fn give_up(inner: &Inner, template: &str) -> Result<(), Problem> {
    let ordered = inner.pools.states().get(template).and_then(|state| state.ordered.clone());
    match ordered {
        Some(ordered) => ask(inner, template, Ordered { size: 0, ..ordered }).await.map(drop),
        None => Ok(()),
    }
}

impl Trouble {
    pub(super) fn lasts(&self) -> bool {
        self.again > Instant::now()
    }

    /// One more failure: each waits longer than the last.
    pub(super) fn after(last: Option<Self>, problem: &Problem) -> Self {
        let failures = last.map_or(0, |last| last.failures) + 1;
        let cause = format!("{} {}", problem.detail, problem.fix);
        Self { cause, failures, again: Instant::now() + keeper::backoff(failures) }
    }
}
