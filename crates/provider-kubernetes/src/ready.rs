//! Waiting for a claim to be ready: by the one watch, and by a look at its pod where that takes long.

use std::{sync::Arc, time::Duration};

use agent_sandbox::{Claimed, Error as Said, SandboxClaim, Wait};
use sandbar_api::SandboxId;
use sandbar_provider::Error;
use tokio::time::{Instant, timeout, timeout_at};

use crate::{
    failure,
    kubernetes::Kubernetes,
    life::{self, Life, Place},
    objects::Blueprint,
};

/// What takes longer than this is looked into: why a pod does not come up is not told by its claim.
const PROMPT: Duration = Duration::from_secs(10);
/// A trouble of the pod's that may pass, such as a full node, is given this long.
const TROUBLE: Duration = Duration::from_secs(30);

/// What the watch showed, of which waiting longer changes nothing.
enum Shown {
    Ready(Place),
    Failed(String, String),
    /// What the claim stands on was removed by somebody.
    NoBlueprint,
    /// The controller repeats what the API server told it.
    Refused(Error),
    Gone,
}

/// Returns when the claim is ready. `past` is what it was before it was asked to change, and says nothing.
pub(crate) async fn ready(
    cluster: &Kubernetes,
    id: &SandboxId,
    blueprint: &Blueprint,
    past: Option<Life>,
) -> Result<Place, Error> {
    let shared = &cluster.shared;
    let deadline = Instant::now() + shared.settings.patience;
    // What was so before it was asked to change says nothing.
    let mut past = past.filter(|past| !matches!(past, Life::Ready(_)));
    let mut restored = false;
    let mut patient = true;
    loop {
        let look = |claim: Option<&SandboxClaim>| {
            let Some(claim) = claim else { return Some(Shown::Gone) };
            let life = life::of(claim);
            if past.as_ref() == Some(&life) {
                return None;
            }
            past = None;
            match life {
                Life::Ready(place) => Some(Shown::Ready(place)),
                Life::Failed { reason, message } => Some(Shown::Failed(reason, message)),
                Life::Going => Some(Shown::Gone),
                Life::Coming { reason, .. }
                    if !restored && matches!(reason.as_str(), "TemplateNotFound" | "WarmPoolNotFound") =>
                {
                    Some(Shown::NoBlueprint)
                }
                Life::Coming { message, .. } if !patient => failure::reconciling(&message).map(Shown::Refused),
                Life::Coming { .. } | Life::Suspended { .. } => None,
            }
        };
        let shown = shared.claims.wait(id.as_str(), look);
        let shown = match patient {
            true => match timeout(PROMPT, shown).await {
                Ok(shown) => shown,
                Err(_) => {
                    patient = false;
                    continue;
                }
            },
            false => match explained(cluster, id, deadline, shown).await? {
                Some(shown) => shown,
                None => continue,
            },
        };
        match shown {
            Shown::Ready(place) => return Ok(place),
            Shown::NoBlueprint => {
                restored = true;
                shared.blueprints.forget(&blueprint.name);
                shared.blueprints.ensure(blueprint).await?;
            }
            Shown::Refused(error) => return Err(error),
            Shown::Failed(reason, message) => {
                let said = match shared.claims.get(id.as_str()).and_then(|claim| claimed(&claim)) {
                    Some(claimed) => shared.cluster.wait_ready(&claimed, PROMPT).await.err(),
                    None => None,
                };
                let plain = || Error::Cluster {
                    cause: format!("{reason}: {message}"),
                    fix: "Look at the claim and its pod with `kubectl describe`.".into(),
                };
                return Err(said.map_or_else(plain, failure::told));
            }
            Shown::Gone => {
                return Err(Error::Cluster {
                    cause: "its claim was deleted by somebody else".into(),
                    fix: "Create the sandbox again.".into(),
                });
            }
        }
    }
}

/// Waits on while its pod is looked at; an error is what keeps it from coming up.
async fn explained(
    cluster: &Kubernetes,
    id: &SandboxId,
    deadline: Instant,
    shown: impl Future<Output = Shown>,
) -> Result<Option<Shown>, Error> {
    let shared = &cluster.shared;
    let rest = deadline.saturating_duration_since(Instant::now());
    let late = || {
        failure::told(Said::Timeout { what: format!("the claim {id}"), after: shared.settings.patience, last: None })
    };
    let looked = async {
        match shared.claims.get(id.as_str()).and_then(|claim| claimed(&claim)) {
            Some(claimed) => {
                let wait = Wait::new(rest).look_after(Duration::ZERO).patience(TROUBLE);
                match shared.cluster.wait_ready(&claimed, wait).await {
                    // The watch that counts says so in a moment.
                    Ok(_) | Err(Said::Unreachable { .. }) => std::future::pending().await,
                    Err(error) => failure::told(error),
                }
            }
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        biased;
        shown = timeout_at(deadline, shown) => shown.map(Some).map_err(|_| late()),
        error = looked => Err(error),
    }
}

fn claimed(claim: &Arc<SandboxClaim>) -> Option<Claimed> {
    let (name, uid) = (claim.metadata.name.clone()?, claim.metadata.uid.clone()?);
    Some(Claimed { name, uid, adopted: true, claim: SandboxClaim::clone(claim) })
}
