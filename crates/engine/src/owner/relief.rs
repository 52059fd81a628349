//! Relief for a sandbox that has reached its process limit: whoever forks the most is killed, so that the rest goes on.

use std::{future::pending, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use sandbar_guest::protocol::{ExitReason, RelieveRequest};
use sandbar_provider::{Error, Guest};
use tokio::time::{self, Instant};

use super::{Owner, RETRY};
use crate::handle::Handle;

/// Not more often than this.
const EVERY: Duration = Duration::from_millis(100);
/// How long the guest may take to find and kill the culprit.
const PATIENCE: Duration = Duration::from_secs(5);

/// Forks that the limit refuses. The wait outlives the verbs that come in between.
pub(super) struct Refusals {
    handle: Arc<Handle>,
    waiting: Option<BoxFuture<'static, ()>>,
    not_before: Instant,
}

impl Refusals {
    pub(super) fn new(handle: &Arc<Handle>) -> Self {
        Self { handle: handle.clone(), waiting: None, not_before: Instant::now() }
    }

    /// Returns when a fork was refused. May be dropped and called again.
    pub(super) async fn next(&mut self) {
        if self.handle.template.limits.processes.is_none() {
            return pending().await;
        }
        let (handle, not_before) = (self.handle.clone(), self.not_before);
        self.waiting.get_or_insert_with(|| Box::pin(refused(handle, not_before))).await;
        self.waiting = None;
        self.not_before = Instant::now() + EVERY;
    }

    /// The sandbox does not run any more: the next wait is for another run.
    pub(super) fn reset(&mut self) {
        self.waiting = None;
    }
}

async fn refused(handle: Arc<Handle>, not_before: Instant) {
    while let Err(error) = handle.provider.refused_fork(&handle.id).await {
        tracing::warn!(sandbox = %handle.id, %error, "it cannot be seen whether the process limit refuses forks");
        time::sleep(RETRY).await;
    }
    time::sleep_until(not_before).await;
}

impl Owner {
    pub(super) async fn relieve(&self) {
        let Some(mut guest) = self.handle.guest() else { return };
        // Standing still, nothing forks faster than it is killed. Where that cannot be, the guest has to be fast.
        let frozen = match self.freeze().await {
            Ok(()) => true,
            Err(Error::Declined { .. } | Error::NotEnforceable { .. }) => false,
            Err(error) => {
                tracing::warn!(sandbox = %self.handle.id, %error, "a sandbox full of processes does not stand still");
                true
            }
        };
        let full = match self.handle.provider.counters(&self.handle.id).await {
            Ok(counters) => counters.processes_full,
            // Then the refusal is all that is known.
            Err(_) => true,
        };
        if full {
            self.kill_the_largest(&mut guest).await;
        }
        if frozen && let Err(problem) = self.thaw().await {
            tracing::error!(sandbox = %self.handle.id, %problem, "a sandbox stands still after relief");
        }
    }

    /// Only while it is full: whoever was refused a fork may have ended since, and the next command is not to blame.
    async fn kill_the_largest(&self, guest: &mut Guest) {
        let request = RelieveRequest { reason: ExitReason::PidsLimit.into() };
        match time::timeout(PATIENCE, guest.relieve(request)).await {
            Ok(Ok(reply)) => {
                let process = reply.into_inner().process_id;
                tracing::info!(sandbox = %self.handle.id, process, "killed at the process limit");
            }
            Ok(Err(status)) => {
                tracing::warn!(sandbox = %self.handle.id, message = status.message(), "no relief at the process limit");
            }
            Err(_) => tracing::warn!(sandbox = %self.handle.id, "no relief at the process limit in time"),
        }
    }
}
