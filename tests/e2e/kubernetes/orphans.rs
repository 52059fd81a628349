//! What the server knows and what the cluster has are brought together, and nothing of anybody else's is touched.

use std::fs;

use serde_json::{Value, json};

use crate::{
    kubernetes::place::{Place, until},
    support::Outcome,
};

const UNKNOWN: &str = "sbx-01m7aaaaaaaaaaaaaaaaaaaaaa";
const OTHERS: &str = "sbx-01m7bbbbbbbbbbbbbbbbbbbbbb";
const UNMARKED: &str = "sbx-01m7cccccccccccccccccccccc";

/// A claim like the one of a sandbox, under another name: of the server with this key, and of this store if any.
fn twin(claim: &Value, name: &str, instance: &Value, store: &Value) -> Value {
    let mut twin = json!({
        "apiVersion": claim["apiVersion"], "kind": "SandboxClaim", "spec": claim["spec"],
        "metadata": {"name": name, "labels": {
            "app.kubernetes.io/managed-by": "sandbar", "sandbar.dev/instance": instance,
        }},
    });
    if !store.is_null() {
        twin["metadata"]["labels"]["sandbar.dev/store"] = store.clone();
    }
    twin
}

#[test]
fn claims_and_sandboxes_are_brought_together() -> Outcome {
    let Some(mut place) = Place::open("claims_and_sandboxes_are_brought_together", &[])? else { return Ok(()) };
    place.sandbar(&["create", "--name", "a"])?;
    place.sandbar(&["create", "--name", "b"])?;
    place.inside("a", "echo kept > f")?;
    let (a, b) = (place.id("a")?, place.id("b")?);
    let claim: Value = serde_json::from_str(&place.kubectl(&["get", "sandboxclaim", &a, "-o", "json"])?)?;
    let labels = &claim["metadata"]["labels"];
    let (instance, store) = (&labels["sandbar.dev/instance"], &labels["sandbar.dev/store"]);
    assert!(store.as_str().is_some_and(|store| store.starts_with("ins-")), "{labels}");
    assert!(claim["spec"]["lifecycle"]["shutdownTime"].is_string(), "it would live for ever: {claim}");

    // Two with its key that the server never heard of, one of them said to be of its store; and one with another key.
    place.server.kill()?;
    place.apply(&twin(&claim, UNKNOWN, instance, store))?;
    place.apply(&twin(&claim, UNMARKED, instance, &Value::Null))?;
    place.apply(&twin(&claim, OTHERS, &json!("0123456789abcdef"), &Value::Null))?;
    // And one that went while it was away.
    place.kubectl(&["delete", "sandboxclaim", &b])?;
    place.server.restart()?;
    let claims = || place.namespace()?.names("sandboxclaims");
    let there =
        |id: &str| Ok::<_, Box<dyn std::error::Error + Send + Sync>>(claims()?.iter().any(|name| name.ends_with(id)));
    let mut quarantined: Vec<_> = place.sandbar(&["quarantine", "ls", "-q"])?.lines().map(str::to_owned).collect();
    quarantined.sort_unstable();
    assert_eq!(quarantined, [UNKNOWN, UNMARKED]);
    for id in [UNKNOWN, UNMARKED, OTHERS] {
        assert!(there(id)?, "{id} was not the server's to remove");
    }
    place.sandbar(&["quarantine", "rm", UNKNOWN, UNMARKED])?;
    until("what was removed is gone", || Ok(!there(UNKNOWN)? && !there(UNMARKED)?))?;
    assert!(there(OTHERS)?, "it was not ours to remove");
    let failed = place.until_state("b", "failed")?;
    assert!(failed["reason"]["detail"].as_str().is_some_and(|detail| !detail.is_empty()), "{failed}");
    assert_eq!(place.inside("a", "cat f")?, "kept\n");

    // Under the server's eyes.
    place.kubectl(&["delete", "sandboxclaim", &a])?;
    let failed = place.until_state("a", "failed")?;
    assert!(failed["reason"]["detail"].as_str().is_some_and(|detail| !detail.is_empty()), "{failed}");
    let start = place.tried(&["start", "a"])?;
    assert_ne!(start.code, Some(0), "its files are gone: {start:?}");
    assert!(start.err.contains("hint: "), "{start:?}");
    place.sandbar(&["rm", "a", "b"])?;
    assert_eq!(place.json(&["ls"])?["sandboxes"], json!([]));
    place.kubectl(&["delete", "sandboxclaim", OTHERS])?;
    place.expect_nothing_left()
}

/// The key is known and the database is not, as when somebody installs anew over what is there.
#[test]
fn a_lost_database_costs_no_claim() -> Outcome {
    let Some(mut place) = Place::open("a_lost_database_costs_no_claim", &[])? else { return Ok(()) };
    place.sandbar(&["create", "--name", "a"])?;
    place.inside("a", "echo precious > f")?;
    let id = place.id("a")?;
    let claim = |place: &Place| -> Outcome<Value> {
        Ok(serde_json::from_str(&place.kubectl(&["get", "sandboxclaim", &id, "-o", "json"])?)?)
    };
    let before = claim(&place)?;
    place.server.kill()?;
    for name in ["sandbar.db", "sandbar.db-wal", "sandbar.db-shm", "instance.json"] {
        drop(fs::remove_file(place.server.home.path().join(name)));
    }
    let told = place.server.refused(&[])?;
    for words in ["the database is empty or missing", "1 sandbox", "--adopt"] {
        assert!(told.contains(words), "{words}: {told}");
    }
    assert_eq!(claim(&place)?["metadata"]["resourceVersion"], before["metadata"]["resourceVersion"], "it was touched");

    place.server.restart_with(&["--adopt"])?;
    assert_eq!(place.json(&["ls"])?["sandboxes"], json!([]));
    assert_eq!(place.sandbar(&["quarantine", "ls", "-q"])?.trim(), id);
    let set_aside = claim(&place)?;
    assert_eq!(set_aside["metadata"]["uid"], before["metadata"]["uid"]);
    assert_eq!(set_aside["metadata"]["labels"]["sandbar.dev/store"], before["metadata"]["labels"]["sandbar.dev/store"]);
    until("its pod is gone", || Ok(claim(&place)?["status"].to_string().contains("SandboxSuspended")))?;
    place.refused(&["quarantine", "adopt", &id], 2, "bad_request", &["which template"])?;
    place.sandbar(&["quarantine", "adopt", &id, "--template", "default", "--name", "again"])?;
    place.sandbar(&["start", "again"])?;
    assert_eq!(place.inside("again", "cat f")?, "precious\n");
    assert_ne!(
        claim(&place)?["metadata"]["labels"]["sandbar.dev/store"],
        before["metadata"]["labels"]["sandbar.dev/store"]
    );
    place.sandbar(&["rm", "again"])?;
    place.expect_nothing_left()
}
