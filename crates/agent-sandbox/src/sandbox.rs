//! Sandboxes: waited for, put to sleep and woken.

use std::time::Duration;

use jiff::Timestamp;
use kube::ResourceExt;
use serde_json::json;
use tokio::time::Instant;

use crate::build::whole_seconds;
use crate::collection::{Collection, Target};
use crate::error::{Error, Result};
use crate::resources::condition::{READY, SANDBOX_SUSPENDED, SUSPENDED};
use crate::resources::{Condition, Conditions, OperatingMode, Sandbox, Version};
use crate::state::{is_stale, sandbox_failure};

impl Collection<Sandbox> {
    /// Waits by watch until it can be used.
    pub async fn wait_ready(&self, name: &str, timeout: Duration) -> Result<Sandbox> {
        let target = Target { name: name.to_owned(), ..Target::default() };
        self.until_ready(&target, timeout).await
    }

    /// Deletes its pod and waits until it is gone; the object, its PVCs and its Service stay.
    ///
    /// ```no_run
    /// # async fn f(client: agent_sandbox::AgentSandbox) -> agent_sandbox::Result<()> {
    /// use std::time::Duration;
    ///
    /// client.sandboxes().suspend("mine", Duration::from_secs(60)).await?;
    /// let sandbox = client.sandboxes().resume("mine", Duration::from_secs(60)).await?;
    /// println!("{:?}", sandbox.status);
    /// # Ok(()) }
    /// ```
    pub async fn suspend(&self, name: &str, timeout: Duration) -> Result<Sandbox> {
        let deadline = Instant::now() + timeout;
        let patched = self.set_mode(name, OperatingMode::Suspended).await?;
        let suspended = |sandbox: &Sandbox| is_suspended(sandbox).then(|| Ok(sandbox.clone()));
        let done = match suspended(&patched) {
            Some(done) => done?,
            None => self.watch_one(&target(&patched), timeout, "suspension", suspended, suspension).await?,
        };
        // Old controllers say that they deleted the pod, not that it is gone.
        if done.condition(SUSPENDED).is_none() {
            let gone = self.client.without_pods(name);
            let late = || Error::Timeout { what: format!("the end of the pod of {name}"), after: timeout, last: None };
            tokio::time::timeout_at(deadline, gone).await.map_err(|_| late())??;
        }
        Ok(done)
    }

    /// Makes its pod again and waits until it can be used.
    pub async fn resume(&self, name: &str, timeout: Duration) -> Result<Sandbox> {
        let patched = self.set_mode(name, OperatingMode::Running).await?;
        if is_ready(&patched) {
            return Ok(patched);
        }
        self.until_ready(&target(&patched), timeout).await
    }

    /// Lets a sandbox without a claim live until this time.
    pub async fn renew(&self, name: &str, until: Timestamp) -> Result<Sandbox> {
        self.patch(name, &json!({"spec": {"shutdownTime": whole_seconds(until).to_string()}})).await
    }

    /// Asks for a mode and waits for nothing.
    pub async fn set_mode(&self, name: &str, mode: OperatingMode) -> Result<Sandbox> {
        let spec = match self.client.version() {
            Version::V1Beta1 => json!({"operatingMode": mode}),
            Version::V1Alpha1 => json!({"replicas": if mode == OperatingMode::Suspended { 0 } else { 1 }}),
        };
        self.patch(name, &json!({"spec": spec})).await
    }

    async fn until_ready(&self, target: &Target, timeout: Duration) -> Result<Sandbox> {
        let look = |sandbox: &Sandbox| match is_ready(sandbox) {
            true => Some(Ok(sandbox.clone())),
            false => sandbox_failure(sandbox).map(Err),
        };
        self.watch_one(target, timeout, "readiness", look, |one| one.ready()).await
    }
}

/// Where the controller says whether it is suspended; old ones have only one condition for everything.
fn suspension(sandbox: &Sandbox) -> Option<&Condition> {
    sandbox.condition(SUSPENDED).or(sandbox.ready())
}

fn is_suspended(sandbox: &Sandbox) -> bool {
    suspension(sandbox).is_some_and(|told| {
        let done = match told.type_.as_str() {
            SUSPENDED => told.status == "True",
            _ => told.reason == SANDBOX_SUSPENDED,
        };
        done && !is_stale(sandbox, told)
    })
}

/// A suspended sandbox keeps saying Ready until the controller has seen its new spec.
fn is_ready(sandbox: &Sandbox) -> bool {
    sandbox.condition(READY).is_some_and(|ready| ready.status == "True" && !is_stale(sandbox, ready))
}

fn target(sandbox: &Sandbox) -> Target {
    Target { name: sandbox.name_any(), uid: sandbox.uid(), from: sandbox.resource_version() }
}
