//! Whose a claim is: the label and the annotations that say it. Another server may have the same key, and a database may be
//! lost while its claims go on; neither makes a claim ours to delete.

use agent_sandbox::{OperatingMode, SandboxClaim};
use sandbar_api::{InstanceId, SandboxId, Storage};
use sandbar_provider::{Error, Mark, Origin, Quarantine};
use serde_json::{Value, json};

use crate::{
    failure,
    kubernetes::Kubernetes,
    life,
    objects::{EPOCH, QUARANTINED, STORE},
    settle,
};

/// A claim is made after its record, so that one that names a store was kept from the beginning.
pub(crate) fn of(claim: &SandboxClaim) -> Option<Mark> {
    let annotation = |name: &str| claim.metadata.annotations.as_ref()?.get(name).map(String::as_str);
    let origin = store(claim).map(|instance| {
        let epoch = annotation(EPOCH).and_then(|epoch| epoch.parse().ok()).unwrap_or(0);
        Origin { instance, epoch }
    });
    match annotation(QUARANTINED) {
        Some(text) => {
            let unreadable = |error: serde_json::Error| Quarantine {
                since: chrono::DateTime::UNIX_EPOCH,
                reason: format!("its mark cannot be read: {error}"),
                origin: origin.clone(),
            };
            Some(Mark::Quarantined(serde_json::from_str(text).unwrap_or_else(unreadable)))
        }
        None => origin.map(Mark::Kept),
    }
}

fn store(claim: &SandboxClaim) -> Option<InstanceId> {
    claim.metadata.labels.as_ref()?.get(STORE)?.parse().ok()
}

/// Only what has the label of the store that we work for. A server without a store has made what it deletes.
pub(crate) fn may_delete(claim: &SandboxClaim, ours: Option<&InstanceId>) -> Result<(), Error> {
    let Some(ours) = ours else { return Ok(()) };
    let theirs = store(claim);
    if theirs.as_ref() == Some(ours) {
        return Ok(());
    }
    let name = claim.metadata.name.as_deref().unwrap_or_default();
    let whose = theirs.map_or_else(|| "no store's".to_owned(), |theirs| format!("that of {theirs}"));
    Err(Error::Cluster {
        cause: format!("the claim {name} is not this server's ({ours}): it is {whose}"),
        fix: "Start the server again, which marks what its database knows; `sandbar quarantine ls` has the rest."
            .into(),
    })
}

/// One that is quarantined loses its pod, unless its files would go with it.
pub(crate) async fn mark(cluster: &Kubernetes, id: &SandboxId, claim: &SandboxClaim, mark: &Mark) -> Result<(), Error> {
    // From its making on, mostly: that is no request.
    if of(claim).as_ref() == Some(mark) {
        return Ok(());
    }
    let mut patch = match mark {
        Mark::Kept(Origin { instance, epoch }) | Mark::Begun(Origin { instance, epoch }) => json!({ "metadata": {
            "labels": { STORE: instance.as_str() },
            "annotations": { EPOCH: epoch.to_string(), QUARANTINED: Value::Null },
        } }),
        Mark::Quarantined(quarantine) => {
            let text = serde_json::to_string(quarantine)
                .map_err(|error| Error::io("write a mark")(std::io::Error::other(error)))?;
            json!({ "metadata": { "annotations": { QUARANTINED: text } } })
        }
    };
    if let Some(uid) = &claim.metadata.uid {
        // Refused for another claim that has the name by now.
        patch["metadata"]["uid"] = json!(uid);
    }
    let shared = &cluster.shared;
    let marked = shared.cluster.claims().patch(id.as_str(), &patch).await.map_err(failure::told)?;
    shared.claims.remember(marked);
    if mark.is_quarantined()
        && life::storage(claim) == Storage::Persistent
        && let Ok(sandbox) = settle::sandbox(claim, id)
    {
        shared.cluster.sandboxes().set_mode(&sandbox, OperatingMode::Suspended).await.map_err(failure::told)?;
        shared.met().remove(id);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(labels: Value, annotations: Value) -> SandboxClaim {
        let object = json!({
            "apiVersion": "extensions.agents.x-k8s.io/v1beta1", "kind": "SandboxClaim",
            "metadata": { "name": "sbx", "labels": labels, "annotations": annotations },
            "spec": { "warmPoolRef": { "name": "p" } },
        });
        serde_json::from_value(object).unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn only_what_has_our_label_is_deleted() {
        let (ours, theirs) = (InstanceId::from_parts(1, [1; 10]), InstanceId::from_parts(1, [2; 10]));
        let of = |labels| claim(labels, json!({}));
        let judged = |labels| may_delete(&of(labels), Some(&ours));
        assert!(judged(json!({ STORE: ours.as_str() })).is_ok());
        for labels in [json!({ STORE: theirs.as_str() }), json!({}), json!({ STORE: "nonsense" })] {
            assert!(judged(labels.clone()).is_err(), "{labels}");
            assert!(may_delete(&of(labels), None).is_ok());
        }
    }

    #[test]
    fn a_quarantine_counts_more_than_a_store() {
        let ours = InstanceId::from_parts(1, [1; 10]);
        let origin = Origin { instance: ours.clone(), epoch: 9 };
        let labels = json!({ STORE: ours.as_str() });
        assert_eq!(of(&claim(json!({}), json!({}))), None);
        assert_eq!(of(&claim(labels.clone(), json!({ EPOCH: "9" }))), Some(Mark::Kept(origin.clone())));
        let quarantine = Quarantine { since: Default::default(), reason: "x".into(), origin: Some(origin) };
        let text = serde_json::to_string(&quarantine).unwrap_or_default();
        let marked = claim(labels.clone(), json!({ EPOCH: "9", QUARANTINED: text }));
        assert_eq!(of(&marked), Some(Mark::Quarantined(quarantine)));
        assert!(matches!(of(&claim(labels, json!({ QUARANTINED: "{" }))), Some(Mark::Quarantined(_))));
    }
}
