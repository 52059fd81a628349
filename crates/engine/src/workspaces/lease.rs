//! The lease of a workspace: its time counts from its last use. Written down when half of it is over, so that a use costs
//! nothing most of the time.

use sandbar_api::SandboxId;

use crate::{Inner, clock, create, handle::Handle, store};

impl Inner {
    /// A sandbox was used as a workspace. What cannot be written down is told to the log: it is tried with the next use.
    pub(crate) async fn used(&self, sandbox: &SandboxId) {
        if let Some(handle) = self.registry.by_id(sandbox)
            && is_due(&handle)
            && let Err(cause) = self.renew(&handle).await
        {
            tracing::warn!(%sandbox, cause, "a workspace's time is not put off");
        }
    }

    async fn renew(&self, handle: &Handle) -> Result<(), String> {
        let Some(lease) = handle.lease else { return Ok(()) };
        let expires_at = create::expiry(clock::now(), lease).map_err(|problem| problem.detail)?;
        match self.store.renew(&handle.id, expires_at).await {
            Ok(row) => {
                handle.record.send_modify(|sandbox| sandbox.expires_at = row.sandbox.expires_at);
                Ok(())
            }
            // Just now deleted.
            Err(store::Error::Missing(_)) => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    }
}

fn is_due(handle: &Handle) -> bool {
    let expires_at = handle.record.borrow().expires_at;
    let (Some(lease), Some(expires_at)) = (handle.lease, expires_at) else { return false };
    let left = (expires_at - clock::now()).to_std().unwrap_or_default();
    left < lease.0 / 2
}
