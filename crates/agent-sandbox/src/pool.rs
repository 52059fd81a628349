//! Pools: scaled, and waited for.

use std::time::Duration;

use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::collection::{Collection, Target};
use crate::error::Result;
use crate::resources::SandboxWarmPool;

impl Collection<SandboxWarmPool> {
    /// Sets how many sandboxes wait, through the scale subresource: it needs no permission to change the pool itself.
    ///
    /// ```no_run
    /// # async fn f(client: agent_sandbox::AgentSandbox) -> agent_sandbox::Result<()> {
    /// use std::time::Duration;
    ///
    /// client.pools().scale("python", 8).await?;
    /// client.pools().wait_ready_replicas("python", 8, Duration::from_secs(60)).await?;
    /// # Ok(()) }
    /// ```
    pub async fn scale(&self, name: &str, replicas: u32) -> Result<()> {
        let patch = json!({"spec": {"replicas": replicas}});
        self.answer(self.api.patch_scale(name, &PatchParams::default(), &Patch::Merge(&patch)).await)?;
        Ok(())
    }

    /// Waits by watch until so many members are ready.
    pub async fn wait_ready_replicas(&self, name: &str, at_least: u32, timeout: Duration) -> Result<SandboxWarmPool> {
        let filled = |pool: &SandboxWarmPool| {
            let status = pool.status.as_ref()?;
            // Members of an earlier template or size do not count, where the controller says what it speaks of.
            let current = status.observed_generation.is_none_or(|seen| Some(seen) >= pool.metadata.generation);
            let ready = u32::try_from(status.ready_replicas).unwrap_or(0);
            (current && ready >= at_least).then(|| Ok(pool.clone()))
        };
        let target = Target { name: name.to_owned(), ..Target::default() };
        self.watch_one(&target, timeout, "filling the pool", filled, |_| None).await
    }
}
