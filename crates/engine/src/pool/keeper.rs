//! The keeper: the one task that decides which members are made and which go. It fills pools below what people wait
//! for, replaces what is stale or dead, and gives memory back when it is short.

use std::{sync::Arc, sync::atomic::Ordering, time::Duration};

use futures_util::{StreamExt as _, stream};
use sandbar_api::{Code, Pool, Problem, Template};
use tokio::{
    sync::mpsc,
    time::{self, Instant},
};

use super::{
    Digest, Member, Order, State, Trouble, digest, lock,
    member::{admit, bury, make, spec},
    native, pick,
};
use crate::{Inner, owner, problem, store::PoolMember};

/// How often templates and memory are looked at, and how long each release waits for the last to show.
pub(crate) const TICK: Duration = if cfg!(test) { Duration::from_millis(50) } else { Duration::from_secs(1) };
/// Whoever claimed a member comes first: its place is filled a moment later.
const COURTESY: Duration = Duration::from_millis(10);
/// Members made at once, and while somebody waits for a create.
const AT_ONCE: u32 = 4;
const AT_ONCE_WHEN_BUSY: u32 = 1;
/// Members met again, or ended, at once.
const MANY_AT_ONCE: usize = 16;
/// How long whoever ends a pool waits for its members to be gone.
const PATIENCE: Duration = Duration::from_secs(30);
const LONGEST_BACKOFF: Duration = Duration::from_secs(60);

pub(super) fn backoff(failures: u32) -> Duration {
    TICK.saturating_mul(1 << failures.min(10)).min(LONGEST_BACKOFF)
}

pub(crate) async fn keep(inner: Arc<Inner>, mut orders: mpsc::Receiver<Order>, left: Vec<PoolMember>) {
    let closing = inner.closing.clone();
    let mut keeper = Keeper { inner, released: None };
    tokio::select! {
        () = closing.cancelled() => return,
        () = keeper.adopt(left) => {}
    }
    loop {
        let idle = tokio::select! {
            () = closing.cancelled() => return,
            idle = keeper.round() => idle,
        };
        tokio::select! {
            () = closing.cancelled() => return,
            Some(order) = orders.recv() => keeper.obey(order).await,
            () = keeper.inner.pools.changed.notified() => time::sleep(COURTESY).await,
            () = time::sleep(TICK), if !idle => {}
        }
    }
}

struct Keeper {
    inner: Arc<Inner>,
    /// When a member was last given up for its memory.
    released: Option<Instant>,
}

impl Keeper {
    async fn obey(&self, order: Order) {
        let Order { template, size, reply } = order;
        // What ends says so last.
        let _turn = if size == 0 { Some(self.inner.pools.turn(&template).await) } else { None };
        // Before the record: a server that ends in between finds a pool that is still wanted, and ends it when asked again.
        if size == 0
            && let Err(problem) = self.end_native(&template).await
        {
            drop(reply.send(Err(problem)));
            return;
        }
        if let Err(error) = self.inner.store.set_pool(&template, size).await {
            // A caller that went away needs no answer.
            drop(reply.send(Err(error.into())));
            return;
        }
        let (gone, mut making) = {
            let mut states = self.inner.pools.states();
            let state = states.entry(template.clone()).or_default();
            state.size = size;
            state.trouble = None;
            let mut surplus = state.members.len().saturating_sub(size as usize);
            let mut gone = Vec::new();
            while surplus > 0 {
                gone.extend(state.members.pop_back());
                surplus -= 1;
            }
            (gone, state.making.subscribe())
        };
        let inner = self.inner.clone();
        self.inner.tasks.spawn(async move {
            let burial = inner.tasks.spawn(bury_all(inner.clone(), gone));
            let made = async {
                // What a pool that ends was making is of no use to it, and goes as soon as it is made.
                if size == 0 {
                    drop(making.wait_for(|making| *making == 0).await);
                }
            };
            // It goes on if it takes longer; what it takes is then told by the log.
            let _in_time = time::timeout(PATIENCE, async { tokio::join!(burial, made) }).await;
            let shown = inner.pools.list().into_iter().find(|pool| pool.template == template);
            let pool = shown.unwrap_or(Pool { template, size, warm: 0, reason: None });
            drop(reply.send(Ok(pool)));
        });
    }

    /// Looks at every pool once. Whether there is nothing to come back for.
    async fn round(&mut self) -> bool {
        let names: Vec<String> = self.inner.pools.states().keys().cloned().collect();
        let pressure = lock(&self.inner.pools.pressure).clone();
        let short = pressure();
        lock(&self.inner.pools.short).clone_from(&short);
        let mut idle = true;
        for name in names {
            let wanted = self.inner.pools.exists(&name);
            idle &= !wanted;
            if !wanted {
                continue;
            }
            let template = self.inner.template(&name).await;
            self.retire(&name, &template);
            match template {
                Ok(template) => match native::keeper_of(&self.inner, &template) {
                    Some(provider) => self.order(provider, template),
                    None if short.is_none() => self.fill(template),
                    None => {}
                },
                Err(problem) if problem.code == Code::UnknownTemplate && !self.inner.pools.waits(&name) => {
                    // Somebody who is telling it something is waited for by coming back.
                    let Some(_turn) = self.inner.pools.turn_if_free(&name) else { continue };
                    if let Err(problem) = native::give_up(&self.inner, &name).await {
                        tracing::warn!(template = name, %problem, "a pool whose template is gone is still kept");
                    }
                }
                Err(_) => {}
            }
        }
        if short.is_some() {
            self.release();
        }
        idle
    }

    /// What was made from another template than the one there is now goes.
    fn retire(&self, name: &str, template: &Result<Template, Problem>) {
        let stale = {
            let mut states = self.inner.pools.states();
            let Some(state) = states.get_mut(name) else { return };
            match template {
                Ok(template) => {
                    let current = digest(template);
                    if state.digest != current {
                        // What was wrong with the old one may be right by now.
                        state.trouble = None;
                    }
                    state.digest = current;
                    pick(state, |member| Some(member.digest) != current)
                }
                Err(problem) => {
                    let cause = format!("{} {}", problem.detail, problem.fix);
                    // A provider that does not hear of its end goes on being asked ever less often.
                    let last = state.trouble.take().map(|last| (last.failures, last.again));
                    let (failures, again) = last.unwrap_or_else(|| (0, Instant::now()));
                    state.trouble = Some(Trouble { cause, failures, again });
                    // One that only cannot be read now is perhaps being edited: nobody can claim of it meanwhile.
                    pick(state, |_| problem.code == Code::UnknownTemplate)
                }
            }
        };
        self.dismiss(stale);
    }

    /// A provider that keeps its pools itself is told, in a task of its own: it may take long, or fail.
    fn order(&self, provider: Arc<dyn sandbar_provider::Provider>, template: Template) {
        if self.inner.pools.is_ordered(&template) {
            return;
        }
        {
            let mut states = self.inner.pools.states();
            let Some(state) = states.get_mut(&template.name) else { return };
            if *state.making.borrow() > 0 {
                return;
            }
            state.making.send_modify(|making| *making += 1);
        }
        let inner = self.inner.clone();
        self.inner.tasks.spawn(async move {
            let _turn = inner.pools.turn(&template.name).await;
            let size = inner.pools.states().get(&template.name).map_or(0, |state| state.size);
            // One that has ended meanwhile was told so.
            if size > 0
                && let Err(problem) = native::order(&inner, provider, &template, size).await
            {
                tracing::warn!(template = template.name, %problem, "a pool is not kept");
            }
            if let Some(state) = inner.pools.states().get_mut(&template.name) {
                state.making.send_modify(|making| *making = making.saturating_sub(1));
            }
            inner.pools.changed.notify_one();
        });
    }

    async fn end_native(&self, name: &str) -> Result<(), Problem> {
        match self.inner.template(name).await {
            Ok(template) => match native::keeper_of(&self.inner, &template) {
                Some(provider) => native::order(&self.inner, provider, &template, 0).await.map(drop),
                None => Ok(()),
            },
            Err(_) => native::give_up(&self.inner, name).await,
        }
    }

    fn fill(&self, template: Template) {
        let Some(digest) = digest(&template) else { return };
        let mut states = self.inner.pools.states();
        let most = if self.inner.pools.busy.load(Ordering::Relaxed) > 0 { AT_ONCE_WHEN_BUSY } else { AT_ONCE };
        let making: u32 = states.values().map(|state| *state.making.borrow()).sum();
        let Some(state) = states.get_mut(&template.name) else { return };
        if state.trouble.as_ref().is_some_and(Trouble::lasts) {
            return;
        }
        let missing = state.size.saturating_sub(state.warm() + *state.making.borrow());
        // After a failure one is enough to see whether it still fails.
        let most = if state.trouble.is_some() { 1 } else { most };
        let begun = missing.min(most.saturating_sub(making));
        state.making.send_modify(|making| *making += begun);
        drop(states);
        for _ in 0..begun {
            self.inner.tasks.spawn(add(self.inner.clone(), template.clone(), digest));
        }
    }

    /// Gives up one member of the largest pool, and then waits to see whether that was enough.
    fn release(&mut self) {
        if self.released.is_some_and(|last| last.elapsed() < TICK) {
            return;
        }
        let member = {
            let mut states = self.inner.pools.states();
            states.values_mut().max_by_key(|state| state.members.len()).and_then(|state| state.members.pop_back())
        };
        if member.is_some() {
            self.released = Some(Instant::now());
        }
        self.dismiss(member.into_iter().collect());
    }

    fn dismiss(&self, members: Vec<Member>) {
        if members.is_empty() {
            return;
        }
        let inner = self.inner.clone();
        self.inner.tasks.spawn(async move {
            bury_all(inner.clone(), members).await;
            inner.pools.changed.notify_one();
        });
    }

    /// Meets the members again that an earlier server left. What cannot be handed out any more goes.
    async fn adopt(&self, left: Vec<PoolMember>) {
        let met = left.into_iter().map(|row| async move {
            let Some(provider) = self.inner.providers.get(row.provider.as_str()).cloned() else {
                tracing::error!(sandbox = %row.id, provider = row.provider, "a pool's sandbox is of a provider that is not here");
                return;
            };
            if let Err(problem) = self.meet(&row, provider.clone()).await {
                tracing::info!(sandbox = %row.id, %problem, "a pool's sandbox is not kept");
                bury(&self.inner, provider, row.id).await;
            }
        });
        stream::iter(met).buffer_unordered(MANY_AT_ONCE).collect::<()>().await;
    }

    async fn meet(&self, row: &PoolMember, provider: Arc<dyn sandbar_provider::Provider>) -> Result<(), Problem> {
        let stale = || Problem::new(Code::Declined, "Its pool has no use for it.", "Nothing is to be done.");
        if !self.inner.pools.exists(&row.template) {
            return Err(stale());
        }
        let template = self.inner.template(&row.template).await?;
        if digest(&template) != Some(row.digest) {
            return Err(stale());
        }
        let guest = owner::greet(&*provider, &row.id).await?;
        // A claim that a crash cut off may have given it a name already.
        match provider.bind(&spec(&row.id, &template)).await {
            Ok(()) | Err(sandbar_provider::Error::Declined { .. }) => {}
            Err(error) => return Err(problem::from_provider(error)),
        }
        let (id, template) = (row.id.clone(), row.template.clone());
        let member = Member { id, template, digest: row.digest, provider, guest, watch: None };
        if admit(&self.inner, member).is_some() {
            return Err(stale());
        }
        self.inner.metrics.adopted.inc();
        Ok(())
    }
}

/// Makes one member for a place that was counted as being filled.
async fn add(inner: Arc<Inner>, template: Template, digest: Digest) {
    let made = make(&inner, &template, digest).await;
    let change = |change: &dyn Fn(&mut State)| {
        if let Some(state) = inner.pools.states().get_mut(&template.name) {
            change(state);
            state.making.send_modify(|making| *making = making.saturating_sub(1));
        }
    };
    match made {
        Ok(member) => {
            if let Some(member) = admit(&inner, member) {
                bury(&inner, member.provider.clone(), member.id.clone()).await;
            }
            change(&|state| state.trouble = None);
        }
        Err(problem) => {
            tracing::warn!(template = template.name, %problem, "a pool could not be filled");
            change(&|state| {
                state.trouble = Some(Trouble::after(state.trouble.take(), &problem));
            });
        }
    }
    inner.pools.changed.notify_one();
}

async fn bury_all(inner: Arc<Inner>, members: Vec<Member>) {
    let burials = members.into_iter().map(|member| bury(&inner, member.provider.clone(), member.id.clone()));
    stream::iter(burials).buffer_unordered(MANY_AT_ONCE).collect::<()>().await;
}
