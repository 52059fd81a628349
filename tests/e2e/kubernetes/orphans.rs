//! What the server knows and what the cluster has are brought together, and nothing of anybody else's is touched.

use serde_json::{Value, json};

use crate::{
    kubernetes::place::{Place, until},
    support::Outcome,
};

const UNKNOWN: &str = "sbx-01m7aaaaaaaaaaaaaaaaaaaaaa";
const OTHERS: &str = "sbx-01m7bbbbbbbbbbbbbbbbbbbbbb";

/// A claim like the one of a sandbox, under another name and with more labels.
fn twin(claim: &Value, name: &str, instance: &Value) -> Value {
    json!({
        "apiVersion": claim["apiVersion"], "kind": "SandboxClaim", "spec": claim["spec"],
        "metadata": {"name": name, "labels": {
            "app.kubernetes.io/managed-by": "sandbar", "sandbar.dev/instance": instance,
        }},
    })
}

#[test]
fn claims_and_sandboxes_are_brought_together() -> Outcome {
    let Some(mut place) = Place::open("claims_and_sandboxes_are_brought_together", &[])? else { return Ok(()) };
    place.sandbar(&["create", "--name", "a"])?;
    place.sandbar(&["create", "--name", "b"])?;
    place.inside("a", "echo kept > f")?;
    let (a, b) = (place.id("a")?, place.id("b")?);
    let claim: Value = serde_json::from_str(&place.kubectl(&["get", "sandboxclaim", &a, "-o", "json"])?)?;
    let instance = &claim["metadata"]["labels"]["sandbar.dev/instance"];
    assert!(claim["spec"]["lifecycle"]["shutdownTime"].is_string(), "it would live for ever: {claim}");

    // One that the server never heard of, as if it had died before it could write it down; and somebody else's.
    place.server.kill()?;
    place.apply(&twin(&claim, UNKNOWN, instance))?;
    place.apply(&twin(&claim, OTHERS, &json!("0123456789abcdef")))?;
    // And one that went while it was away.
    place.kubectl(&["delete", "sandboxclaim", &b])?;
    place.server.restart()?;
    let claims = || place.namespace()?.names("sandboxclaims");
    until("the unknown one is gone", || Ok(!claims()?.iter().any(|name| name.ends_with(UNKNOWN))))?;
    assert!(claims()?.iter().any(|name| name.ends_with(OTHERS)), "it was not ours to remove");
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
