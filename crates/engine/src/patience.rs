//! How long others are waited for before something goes on without them. Tests change it.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

/// In `Inner`; in milliseconds.
pub(crate) struct Patience {
    calls: AtomicU64,
    transfers: AtomicU64,
    pools: AtomicU64,
}

impl Default for Patience {
    fn default() -> Self {
        // Tests that mean the refusal shorten it; for all others what ends is waited for, however slow the host is.
        let transfers = if cfg!(test) { 60_000 } else { 10_000 };
        Self { calls: AtomicU64::new(250), transfers: AtomicU64::new(transfers), pools: AtomicU64::new(30_000) }
    }
}

impl Patience {
    /// How long calls under way may take to end before they are paused with the rest.
    pub(crate) fn calls(&self) -> Duration {
        Duration::from_millis(self.calls.load(Ordering::Relaxed))
    }

    /// How long uploads and removals under way may take to end before a snapshot is refused for them.
    pub(crate) fn transfers(&self) -> Duration {
        Duration::from_millis(self.transfers.load(Ordering::Relaxed))
    }

    /// How long a provider may take to hear of a pool.
    pub(crate) fn pools(&self) -> Duration {
        Duration::from_millis(self.pools.load(Ordering::Relaxed))
    }

    #[cfg(test)]
    pub(crate) fn wait_for_calls(&self, seconds: u64) {
        self.calls.store(seconds * 1000, Ordering::Relaxed);
    }

    #[cfg(test)]
    pub(crate) fn wait_for_transfers(&self, seconds: u64) {
        self.transfers.store(seconds * 1000, Ordering::Relaxed);
    }

    #[cfg(test)]
    pub(crate) fn wait_for_pools(&self, seconds: u64) {
        self.pools.store(seconds * 1000, Ordering::Relaxed);
    }
}
