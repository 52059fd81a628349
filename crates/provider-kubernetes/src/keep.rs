//! What goes on by itself: claims are kept from expiring while a server is there to want them, and what nothing stands on
//! any more is removed.

use std::{sync::Arc, time::Duration};

use agent_sandbox::SandboxClaim;
use k8s_openapi::jiff::Timestamp;

use crate::{kubernetes::Shared, objects};

const ROUND: Duration = Duration::from_secs(60 * 60);
/// A lease is renewed when so much of it is used up, so that the API server hears of a claim once a day.
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

pub(crate) async fn keep(shared: Arc<Shared>) {
    loop {
        // Servers that start together do not all come at once.
        tokio::time::sleep(ROUND.mul_f64(0.75 + 0.5 * share(&shared.settings.instance))).await;
        if shared.seeing().await.is_err() {
            continue;
        }
        renew(&shared).await;
        let used = || shared.claims.list().iter().map(|claim| claim.spec.warm_pool_ref.name.clone()).collect();
        if let Err(error) = shared.blueprints.sweep(&shared.settings, used).await {
            tracing::warn!(%error, "templates and pools that nobody uses could not be removed");
        }
    }
}

async fn renew(shared: &Shared) {
    let now = Timestamp::now();
    for claim in shared.claims.list() {
        let Some(name) = claim.metadata.name.as_deref().filter(|_| is_due(&claim, now, shared.settings.lease)) else {
            continue;
        };
        let until = objects::expiry(now, shared.settings.lease).0;
        if let Err(error) = shared.cluster.claims().renew(name, claim.metadata.uid.as_deref(), until).await {
            tracing::warn!(claim = name, %error, "a claim could not be renewed, and is tried again in an hour");
        }
    }
}

fn is_due(claim: &SandboxClaim, now: Timestamp, lease: Duration) -> bool {
    if claim.metadata.deletion_timestamp.is_some() {
        return false;
    }
    let ends = claim.spec.lifecycle.as_ref().and_then(|lifecycle| lifecycle.shutdown_time.as_ref());
    let left = ends.map(|ends| ends.0.duration_since(now));
    // A lease of less than two days is renewed when half of it is gone.
    let fresh = lease.saturating_sub(DAY.min(lease / 2));
    left.is_none_or(|left| left.is_negative() || left.unsigned_abs() < fresh)
}

/// From 0 to 1, the same for the same server.
fn share(instance: &str) -> f64 {
    let first = instance.get(..2).and_then(|byte| u8::from_str_radix(byte, 16).ok()).unwrap_or_default();
    f64::from(first) / 255.0
}

#[cfg(test)]
mod tests {
    use agent_sandbox::Lifecycle;

    use super::*;

    #[test]
    fn a_claim_is_renewed_once_a_day() {
        let claim = |left: u64| {
            let mut claim = SandboxClaim::default();
            let shutdown_time = Some(objects::expiry(Timestamp::UNIX_EPOCH, Duration::from_secs(left)));
            claim.spec.lifecycle = Some(Lifecycle { shutdown_time, ..Lifecycle::default() });
            claim
        };
        let due = |left, lease: Duration| is_due(&claim(left), Timestamp::UNIX_EPOCH, lease);
        let (day, week) = (24 * 60 * 60, DAY * 7);
        assert!(!due(7 * day - 3600, week));
        assert!(due(6 * day - 1, week));
        assert!(due(0, week));
        assert!(!due(3000, Duration::from_secs(3600)));
        assert!(due(1700, Duration::from_secs(3600)));
        assert!(is_due(&SandboxClaim::default(), Timestamp::UNIX_EPOCH, week), "one that somebody made endless");
    }

    #[test]
    fn servers_are_spread() {
        assert_eq!(share("00ff"), 0.0);
        assert_eq!(share("ff00"), 1.0);
        assert_eq!(share("x"), 0.0);
    }
}
