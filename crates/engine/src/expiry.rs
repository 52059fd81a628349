//! What happens by the clock: sandboxes past their time go, old events and records are pruned.

use std::{sync::Arc, time::Duration};

use chrono::{TimeDelta, Utc};
use sandbar_api::{Code, SandboxId};
use tokio::time;

use crate::{
    Inner,
    owner::{self, Verb},
};

/// The clock that timers use stands still while a laptop sleeps, so the wall clock is asked at least this often.
const LONGEST_SLEEP: Duration = Duration::from_secs(60);
const RETRY: Duration = Duration::from_secs(5);
const PRUNE_EVERY: Duration = Duration::from_secs(3600);
/// How long events, and records of what was deleted, are kept.
const RETENTION: TimeDelta = TimeDelta::days(7);
/// How long a conversation without a sandbox is kept that nobody asks for.
const FORGOTTEN: TimeDelta = TimeDelta::days(30);

pub(crate) async fn expire(inner: Arc<Inner>) {
    while !inner.closing.is_cancelled() {
        let wait = next(&inner).await;
        tokio::select! {
            () = inner.closing.cancelled() => return,
            () = inner.expiry.notified() => {}
            () = time::sleep(wait) => {}
        }
    }
}

/// Deletes what is due and returns how long to wait.
async fn next(inner: &Inner) -> Duration {
    let due = match inner.store.expired(Utc::now()).await {
        Ok(due) => due,
        Err(error) => {
            tracing::error!(error = &error as &dyn std::error::Error, "expired sandboxes cannot be found");
            return RETRY;
        }
    };
    let deleted = futures_util::future::join_all(due.iter().map(|id| delete(inner, id))).await;
    if deleted.contains(&false) {
        return RETRY;
    }
    match inner.store.next_expiry().await {
        Ok(None) => LONGEST_SLEEP,
        Ok(Some(at)) => (at - Utc::now()).to_std().unwrap_or(Duration::ZERO).min(LONGEST_SLEEP),
        Err(error) => {
            tracing::error!(error = &error as &dyn std::error::Error, "the next expiry cannot be found");
            RETRY
        }
    }
}

async fn delete(inner: &Inner, id: &SandboxId) -> bool {
    // Just now deleted by somebody else.
    let Some(handle) = inner.registry.by_id(id) else { return true };
    // Just now used, which put it off.
    if handle.record.borrow().expires_at.is_some_and(|at| at > Utc::now()) {
        return true;
    }
    match handle.ask(|reply| Verb::Delete(owner::expired(), reply)).await {
        Ok(()) => true,
        Err(problem) if problem.code == Code::SandboxGone => true,
        Err(problem) => {
            tracing::error!(sandbox = %id, %problem, "an expired sandbox is not deleted yet");
            false
        }
    }
}

pub(crate) async fn prune(inner: Arc<Inner>) {
    loop {
        match inner.store.prune(Utc::now() - RETENTION).await {
            Ok(pruned) => tracing::debug!(pruned.events, pruned.sandboxes, "old records were pruned"),
            Err(error) => {
                tracing::error!(error = &error as &dyn std::error::Error, "old records cannot be pruned");
            }
        }
        match inner.forget(Utc::now() - FORGOTTEN).await {
            Ok(sessions) => tracing::debug!(sessions, "forgotten conversations were deleted"),
            Err(problem) => tracing::error!(%problem, "forgotten conversations cannot be deleted"),
        }
        tokio::select! {
            () = inner.closing.cancelled() => return,
            () = time::sleep(PRUNE_EVERY) => {}
        }
    }
}
