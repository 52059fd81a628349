//! The verbs that change a sandbox: asked of the cluster in one request, and done when the one watch says so.

use std::time::Duration;

use agent_sandbox::{Error as Said, OperatingMode, SandboxClaim};
use k8s_openapi::jiff::Timestamp;
use sandbar_api::SandboxId;
use sandbar_provider::{Error, Spec};
use tokio::time::{Instant, sleep, timeout};

use crate::{
    failure, inspect,
    kubernetes::Kubernetes,
    life::{self, Life},
    objects::{Blueprint, INSTANCE},
    ownership,
    ready::ready,
};

/// For a pod to end, or for everything that a claim owns to be gone.
const ENDING: Duration = Duration::from_secs(120);
/// For an API server to come back, and between two tries to reach it.
const AWAY: Duration = Duration::from_secs(20);
const AGAIN: Duration = Duration::from_millis(500);

/// A claim of the sandbox's name.
pub(crate) enum Asked {
    Made,
    /// It was there, made by us or by another server with our key before the answer was lost.
    Found(Box<SandboxClaim>),
}

/// An error leaves none that was not there before.
pub(crate) async fn ask(cluster: &Kubernetes, spec: &Spec, blueprint: &Blueprint) -> Result<Asked, Error> {
    let shared = &cluster.shared;
    shared.blueprints.ensure(blueprint).await?;
    let wanted = blueprint.claim(&spec.id, spec.origin.as_ref(), &shared.settings, Timestamp::now());
    match post(cluster, &wanted).await {
        Ok(claim) => {
            shared.claims.remember(claim);
            Ok(Asked::Made)
        }
        Err(Said::AlreadyExists { .. }) => {
            let found = adopt(cluster, &wanted).await?;
            shared.claims.remember(found.clone());
            Ok(Asked::Found(Box::new(found)))
        }
        // No answer says nothing about what was done.
        Err(error @ Said::Unreachable { .. }) => {
            if let Err(error) = destroy(cluster, &spec.id).await {
                tracing::warn!(sandbox = %spec.id, %error, "a claim that may have been made could not be removed yet");
            }
            Err(failure::told(error))
        }
        Err(error) => Err(failure::told(error)),
    }
}

/// An API server that is being restarted is waited for: the claim has our name for it, so that a second POST makes no second
/// claim.
async fn post(cluster: &Kubernetes, wanted: &SandboxClaim) -> Result<SandboxClaim, Said> {
    let deadline = Instant::now() + AWAY;
    loop {
        match cluster.shared.cluster.claims().create(wanted.clone()).await {
            Err(Said::Unreachable { .. }) if Instant::now() < deadline => sleep(AGAIN).await,
            answer => return answer,
        }
    }
}

async fn adopt(cluster: &Kubernetes, wanted: &SandboxClaim) -> Result<SandboxClaim, Error> {
    let name = wanted.metadata.name.clone().unwrap_or_default();
    let found = cluster.shared.cluster.claims().get(&name).await.map_err(failure::told)?;
    let same = found.spec.warm_pool_ref == wanted.spec.warm_pool_ref;
    if is_ours(cluster, &found) && same && life::of(&found) != Life::Going {
        return Ok(found);
    }
    Err(Error::Cluster {
        cause: format!("there is a claim {name} that is not this server's, or is being deleted"),
        fix: "Create the sandbox again; if it stays so, look at that claim with `kubectl get sandboxclaim`.".into(),
    })
}

fn is_ours(cluster: &Kubernetes, claim: &SandboxClaim) -> bool {
    let instance = claim.metadata.labels.as_ref().and_then(|labels| labels.get(INSTANCE));
    instance == Some(&cluster.shared.settings.instance)
}

pub(crate) async fn start(
    cluster: &Kubernetes,
    spec: &Spec,
    blueprint: &Blueprint,
    claim: &SandboxClaim,
) -> Result<(), Error> {
    let shared = &cluster.shared;
    let past = match life::of(claim) {
        Life::Ready(place) if shared.met().get(&spec.id).is_some_and(|met| met.place == place) => return Ok(()),
        // The controller leaves a pod that ended, unless it is to have none.
        Life::Failed { reason, .. } if reason.starts_with("Pod") => {
            stop(cluster, &spec.id, claim).await?;
            Life::Suspended { over: true }
        }
        Life::Failed { message, .. } => {
            return Err(Error::Cluster {
                cause: format!("its claim has failed: {message}"),
                fix: "Delete the sandbox and create another.".into(),
            });
        }
        // A pod that ends after it was asked for again would be taken for one that failed.
        Life::Suspended { over: false } => {
            stop(cluster, &spec.id, claim).await?;
            Life::Suspended { over: true }
        }
        // The claim still shows the pod that is about to go.
        Life::Ready(_) | Life::Coming { .. } if is_to_be_suspended(cluster, claim).await? => {
            stop(cluster, &spec.id, claim).await?;
            Life::Suspended { over: true }
        }
        past => past,
    };
    if let Life::Suspended { .. } = past {
        shared.met().remove(&spec.id);
        let sandbox = sandbox(claim, &spec.id)?;
        shared.cluster.sandboxes().set_mode(&sandbox, OperatingMode::Running).await.map_err(failure::told)?;
    }
    usable(cluster, spec, blueprint, Some(past)).await
}

/// Whether the Sandbox was asked to give up its pod. The claim shows that later.
async fn is_to_be_suspended(cluster: &Kubernetes, claim: &SandboxClaim) -> Result<bool, Error> {
    let Some(named) = claim.sandbox() else { return Ok(false) };
    let sandbox = cluster.shared.cluster.sandboxes().get_opt(&named.name).await.map_err(failure::told)?;
    Ok(sandbox.is_some_and(|sandbox| sandbox.spec.operating_mode == Some(OperatingMode::Suspended)))
}

/// Returns when the sandbox is ready, knows whose it is, and holds what it was promised to.
pub(crate) async fn usable(
    cluster: &Kubernetes,
    spec: &Spec,
    blueprint: &Blueprint,
    past: Option<Life>,
) -> Result<(), Error> {
    let place = ready(cluster, &spec.id, blueprint, past).await?;
    let met = cluster.meet(&spec.id, &place).await?;
    let demanded = inspect::demand(cluster, spec, &blueprint.name, &place, &met.guest);
    let (demanded, ()) = tokio::join!(demanded, cluster.shared.connect_ahead(&met));
    if demanded.is_err() {
        cluster.shared.met().remove(&spec.id);
    }
    demanded
}

/// The name of the Sandbox that a claim has.
pub(crate) fn sandbox(claim: &SandboxClaim, id: &SandboxId) -> Result<String, Error> {
    let named = claim.sandbox().map(|sandbox| sandbox.name.clone());
    named.ok_or_else(|| failure::not_running(id, "the controller has not given it a Sandbox yet"))
}

pub(crate) async fn stop(cluster: &Kubernetes, id: &SandboxId, claim: &SandboxClaim) -> Result<(), Error> {
    let shared = &cluster.shared;
    if life::of(claim) != (Life::Suspended { over: true }) {
        let sandbox = sandbox(claim, id)?;
        shared.cluster.sandboxes().set_mode(&sandbox, OperatingMode::Suspended).await.map_err(failure::told)?;
    }
    let over = shared.claims.wait(id.as_str(), |claim| match claim.map(life::of) {
        Some(Life::Suspended { over: true }) => Some(Ok(())),
        None | Some(Life::Going) => Some(Err(Error::Unknown(id.clone()))),
        Some(_) => None,
    });
    let stopped = timeout(ENDING, over).await.unwrap_or_else(|_| {
        Err(failure::told(Said::Timeout {
            what: format!("stopping {id}"),
            after: ENDING,
            last: claim_ready(cluster, id),
        }))
    });
    shared.met().remove(id);
    stopped
}

fn claim_ready(cluster: &Kubernetes, id: &SandboxId) -> Option<Box<agent_sandbox::Condition>> {
    use agent_sandbox::Conditions as _;
    cluster.shared.claims.get(id.as_str())?.ready().cloned().map(Box::new)
}

/// The claim goes last, when all that it owns is gone.
pub(crate) async fn destroy(cluster: &Kubernetes, id: &SandboxId) -> Result<(), Error> {
    let shared = &cluster.shared;
    let known = shared.claims.get(id.as_str());
    let found = match &known {
        Some(claim) => Some(SandboxClaim::clone(claim)),
        // Made in vain, perhaps, and not seen yet. What has the name and is another server's is left alone.
        None => shared.cluster.claims().get_opt(id.as_str()).await.map_err(failure::told)?,
    };
    let Some(found) = found.filter(|found| is_ours(cluster, found)) else { return Ok(()) };
    ownership::may_delete(&found, shared.store.get())?;
    let uid = found.metadata.uid.clone();
    match shared.cluster.claims().delete(id.as_str(), uid.as_deref()).await {
        Ok(()) => {}
        // Another one has the name by now, so that this one is gone.
        Err(Said::Conflict { .. }) => return Ok(()),
        Err(error) => return Err(failure::told(error)),
    }
    if known.is_none() {
        return Ok(());
    }
    let gone =
        shared.claims.wait(id.as_str(), |claim| claim.is_none_or(|claim| claim.metadata.uid != uid).then_some(()));
    timeout(ENDING, gone)
        .await
        .map_err(|_| failure::told(Said::Timeout { what: format!("the deletion of {id}"), after: ENDING, last: None }))
}
