//! Waiting for a claim: one watch on the fast path, a second one on its pod when it takes long.

use std::mem::discriminant;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::ListParams;
use tokio::time::Instant;

use crate::cause::{self, Cause};
use crate::claim::{Claimed, sandbox_name};
use crate::client::AgentSandbox;
use crate::collection::Found;
use crate::error::{Error, Result};
use crate::follow::{Change, Follow};
use crate::resources::labels::pod_selector;
use crate::resources::{AssignedSandbox, Conditions, SandboxClaim};
use crate::state::ClaimState;

/// How long to wait, and when to lose hope earlier.
///
/// A [`Duration`] is a timeout with the usual patience.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    timeout: Duration,
    look_after: Duration,
    patience: Duration,
}

impl Wait {
    /// At most this long.
    pub fn new(timeout: Duration) -> Self {
        Self { timeout, look_after: Duration::from_secs(2), patience: Duration::from_secs(30) }
    }

    /// When to begin looking at the pod; until then one watch is all it costs.
    pub fn look_after(self, look_after: Duration) -> Self {
        Self { look_after, ..self }
    }

    /// How long a trouble of the pod may last that can pass by itself, such as a registry that does not answer or
    /// nodes that are full. One that cannot pass ends the wait at once.
    pub fn patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }
}

impl From<Duration> for Wait {
    fn from(timeout: Duration) -> Self {
        Self::new(timeout)
    }
}

/// A claim whose sandbox can be used.
#[derive(Clone, Debug)]
pub struct Ready {
    /// The claim.
    pub claim: SandboxClaim,
    /// Its sandbox; on the warm path the name is not that of the claim.
    pub sandbox_name: String,
    /// Addresses of the pod; none where only the Sandbox has them, and may not be read.
    pub pod_ips: Vec<String>,
}

/// The watch on the pod.
enum Looking {
    NotYet,
    At(String, Box<Follow<Pod>>),
    /// We may not read pods: the claim's own conditions must do.
    Cannot,
}

impl Looking {
    async fn next(&mut self) -> Change<Pod> {
        match self {
            Self::At(_, follow) => follow.next().await,
            Self::NotYet | Self::Cannot => std::future::pending().await,
        }
    }
}

impl AgentSandbox {
    /// Waits by watch until the sandbox of a claim can be used. Whatever keeps it from becoming ready for good is an
    /// error of its own; so is what its pod suffers from, when it lasts.
    ///
    /// ```no_run
    /// # async fn f(client: agent_sandbox::AgentSandbox, claimed: agent_sandbox::Claimed) -> agent_sandbox::Result<()> {
    /// use std::time::Duration;
    /// use agent_sandbox::{Error, Wait};
    ///
    /// let wait = Wait::new(Duration::from_secs(120)).patience(Duration::from_secs(60));
    /// match client.wait_ready(&claimed, wait).await {
    ///     Ok(ready) => println!("{:?}", ready.pod_ips),
    ///     Err(Error::ImagePull { message, .. }) => println!("no image: {message}"),
    ///     Err(error) => return Err(error),
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn wait_ready(&self, claimed: &Claimed, wait: impl Into<Wait>) -> Result<Ready> {
        let wait = wait.into();
        let start = Instant::now();
        let (deadline, look_at) = (start + wait.timeout, start + wait.look_after);
        let mut claim = claimed.claim.clone();
        if let Some(ready) = self.judge(&claim).await? {
            return Ok(ready);
        }
        let target = claimed.target();
        let mut claims = Follow::one(self.claims().api, &target.name, target.from.clone());
        let mut looking = Looking::NotYet;
        let mut trouble: Option<(Cause, Instant)> = None;
        loop {
            let lost_hope = match &trouble {
                Some((cause, since)) if !cause.in_hand => (*since + wait.patience).min(deadline),
                _ => deadline,
            };
            let found = tokio::select! {
                change = claims.next() => {
                    match target.find(change)? {
                        Found::Gone => return Err(Error::Deleted { kind: "SandboxClaim", name: target.name }),
                        Found::Nothing => continue,
                        Found::Object(newer) => claim = *newer,
                    }
                    if let Some(ready) = self.judge(&claim).await? {
                        return Ok(ready);
                    }
                    self.look_again(&mut looking, &claim);
                    match quota(&claim) {
                        Some(quota) => Some(quota),
                        None if matches!(trouble, Some((Cause { error: Error::QuotaExceeded { .. }, .. }, _))) => None,
                        None => continue,
                    }
                }
                change = looking.next() => match change {
                    // A pod that is not there says nothing: why it cannot be made stands in the claim.
                    Change::Listed(pods, _) => pods.iter().find_map(cause::of_pod).or_else(|| quota(&claim)),
                    Change::Applied(pod) => cause::of_pod(&pod).or_else(|| quota(&claim)),
                    Change::Lost { error, hopeless: true } => {
                        tracing::debug!(%error, "pods cannot be watched");
                        looking = Looking::Cannot;
                        continue;
                    }
                    Change::Deleted(_) => quota(&claim),
                    Change::Lost { .. } | Change::Resumed => continue,
                },
                () = tokio::time::sleep_until(look_at), if matches!(looking, Looking::NotYet) => {
                    looking = self.look(&claim);
                    continue;
                }
                () = tokio::time::sleep_until(lost_hope) => {
                    return Err(match trouble {
                        Some((cause, _)) => cause.error,
                        None => Error::Timeout {
                            what: format!("claim {}", target.name),
                            after: wait.timeout,
                            last: claim.ready().cloned().map(Box::new),
                        },
                    });
                }
            };
            trouble = match (found, trouble) {
                (Some(cause), _) if !cause.heals => return Err(cause.error),
                // The same trouble as before is not a new one: its time runs on.
                (Some(cause), Some((known, since)))
                    if discriminant(&cause.error) == discriminant(&known.error) && cause.in_hand == known.in_hand =>
                {
                    Some((cause, since))
                }
                (Some(cause), _) => Some((cause, Instant::now())),
                (None, _) => None,
            };
        }
    }

    fn look(&self, claim: &SandboxClaim) -> Looking {
        let sandbox = sandbox_name(claim);
        let pods = Api::namespaced(self.client().clone(), self.namespace());
        let follow = Follow::labels(pods, Some(pod_selector(&sandbox)));
        Looking::At(sandbox, Box::new(follow))
    }

    /// The claim may turn out to have another sandbox than was thought.
    fn look_again(&self, looking: &mut Looking, claim: &SandboxClaim) {
        if matches!(looking, Looking::At(sandbox, _) if *sandbox != sandbox_name(claim)) {
            *looking = self.look(claim);
        }
    }

    async fn judge(&self, claim: &SandboxClaim) -> Result<Option<Ready>> {
        if claim.metadata.deletion_timestamp.is_some() {
            let name = claim.metadata.name.clone().unwrap_or_default();
            return Err(Error::Deleted { kind: "SandboxClaim", name });
        }
        match claim.state() {
            ClaimState::Ready(sandbox) => Ok(Some(self.ready(claim, sandbox).await?)),
            ClaimState::Pending(_) => Ok(None),
            ClaimState::Failed(error) => match self.confirm(claim, error).await {
                Some(error) => Err(error),
                None => Ok(None),
            },
        }
    }

    async fn ready(&self, claim: &SandboxClaim, sandbox: &AssignedSandbox) -> Result<Ready> {
        let mut pod_ips = sandbox.pod_ips.clone();
        if pod_ips.is_empty() {
            // Old controllers do not copy the addresses.
            pod_ips = match self.sandboxes().get(&sandbox.name).await {
                Ok(sandbox) => sandbox.status.unwrap_or_default().pod_ips,
                Err(Error::Forbidden { .. }) => pod_ips,
                Err(error) => return Err(error),
            };
        }
        Ok(Ready { claim: claim.clone(), sandbox_name: sandbox.name.clone(), pod_ips })
    }

    /// The failure, unless it is about an object that exists by now; with more detail where the pod has some.
    async fn confirm(&self, claim: &SandboxClaim, error: Error) -> Option<Error> {
        match error {
            Error::WarmPoolNotFound { .. } | Error::TemplateNotFound { .. } => {
                // The controller may not have seen yet what was created just before the claim.
                let pool = self.pools().get_opt(&claim.spec.warm_pool_ref.name).await.ok().flatten();
                let exists = match (&error, pool) {
                    (_, None) => false,
                    (Error::WarmPoolNotFound { .. }, Some(_)) => true,
                    (_, Some(pool)) => {
                        let template = self.templates().get_opt(&pool.spec.sandbox_template_ref.name).await;
                        template.is_ok_and(|template| template.is_some())
                    }
                };
                (!exists).then_some(error)
            }
            Error::PodFailed { claim: name, message } => {
                let message = self.end_of_pod(claim).await.unwrap_or(message);
                Some(Error::PodFailed { claim: name, message })
            }
            error => Some(error),
        }
    }

    async fn end_of_pod(&self, claim: &SandboxClaim) -> Option<String> {
        let pods: Api<Pod> = Api::namespaced(self.client().clone(), self.namespace());
        let params = ListParams::default().labels(&pod_selector(&sandbox_name(claim)));
        pods.list(&params).await.ok()?.iter().find_map(cause::of_end)
    }
}

fn quota(claim: &SandboxClaim) -> Option<Cause> {
    claim.ready().and_then(|ready| cause::of_quota(&ready.message))
}
