//! The ledger: accounts of sessions in memory, every reservation and settlement in the store. A reservation is durable
//! before its call goes out; many are committed together.

use std::sync::Arc;

use sandbar_api::{SandboxId, SessionId};
use sandbar_gateway::{Held, Refused, Reservation, Reserve, Settlement};

use crate::store::Store;

#[derive(Clone)]
pub(crate) struct Ledger {}

impl Ledger {
    /// Ends what servers that died left held: it stands, estimated. Starts the task that writes.
    pub(crate) async fn open(store: Arc<dyn Store>) -> crate::store::Result<Self> {
        let _ = store;
        Ok(Self {})
    }

    /// Whether a budget holds for the session or one above it.
    pub(crate) fn budget(&self, session: &SessionId) -> Held {
        let _ = session;
        Held::Counted
    }

    /// The accounts of a session and those above it are in memory after this.
    pub(crate) async fn know(&self, session: &SessionId) -> crate::store::Result<()> {
        let _ = session;
        Ok(())
    }

    pub(crate) fn model(&self, session: &SessionId) -> Option<String> {
        let _ = session;
        None
    }

    pub(crate) async fn reserve(
        &self,
        session: &SessionId,
        sandbox: &SandboxId,
        call: Reserve,
    ) -> Result<Reservation, Refused> {
        let (_, _) = (session, sandbox);
        Err(Refused::Unavailable(format!("not built: {}", call.model)))
    }

    pub(crate) fn settle(&self, reservation: Reservation, end: Settlement) {
        let (_, _) = (reservation, end);
    }

    /// All that was settled is written when it returns.
    pub(crate) async fn close(&self) {}
}
