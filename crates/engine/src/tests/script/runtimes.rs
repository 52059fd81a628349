//! Runtimes of scripted guests: what was asked of them, who waits for them, and who changes files through them.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicU32, AtomicU64, Ordering},
};

use futures_util::stream;
use sandbar_guest::protocol::{HoldReply, ServeRequest};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::Status;

use super::{
    Script,
    dial::{OLD, TAKEN},
    guest::{Boxed, refuse},
    lock,
};

pub(super) struct Runtimes {
    served: Mutex<Vec<ServeRequest>>,
    drained: AtomicU64,
    awaited: AtomicU32,
    /// Of whoever changes files, or holds them.
    changes: Arc<Semaphore>,
}

impl Default for Runtimes {
    fn default() -> Self {
        let changes = Arc::new(Semaphore::new(1));
        Self { served: Mutex::default(), drained: AtomicU64::new(0), awaited: AtomicU32::new(0), changes }
    }
}

impl Runtimes {
    pub(super) fn serve(&self, request: ServeRequest) -> Result<(), Status> {
        match request.legacy.as_ref().and_then(|legacy| u16::try_from(legacy.port).ok()) {
            Some(TAKEN) => return Err(refuse("wrong_state")),
            Some(OLD) => return Err(Status::unimplemented("serve")),
            _ => lock(&self.served).push(request),
        }
        Ok(())
    }

    pub(super) fn drain(&self) {
        self.drained.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn awaited(&self) -> u32 {
        self.awaited.load(Ordering::Relaxed)
    }

    pub(super) async fn hold(&self) -> Result<Boxed<HoldReply>, Status> {
        let held = self.changes.clone().acquire_owned().await.map_err(|error| Status::internal(error.to_string()))?;
        Ok(Box::pin(stream::once(async move {
            let _held = held;
            std::future::pending().await
        })))
    }
}

impl Script {
    /// The runtimes it was asked to serve, each time.
    pub(in crate::tests) fn served(&self) -> Vec<ServeRequest> {
        lock(&self.runtimes().served).clone()
    }

    /// How often it was asked to end what they run.
    pub(in crate::tests) fn drained(&self) -> u64 {
        self.runtimes().drained.load(Ordering::Relaxed)
    }

    /// So many wait for commands of theirs.
    pub(in crate::tests) fn await_runtimes(&self, callers: u32) {
        self.runtimes().awaited.store(callers, Ordering::Relaxed);
    }

    /// Files are being changed through them as long as this is kept; nothing while they are held.
    pub(in crate::tests) fn change_through_runtimes(&self) -> Option<OwnedSemaphorePermit> {
        self.runtimes().changes.clone().try_acquire_owned().ok()
    }
}
