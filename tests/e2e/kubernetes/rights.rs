//! A server that may not do something on the cluster.

use std::fs;

use serde_json::{Value, json};

use crate::{kubernetes::place::Place, support::Outcome};

/// Everything but the creation of claims.
fn role() -> Value {
    let extensions = ["extensions.agents.x-k8s.io"];
    let all = ["get", "list", "watch", "create", "update", "patch", "delete"];
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "weak"},
        "rules": [
            {"apiGroups": extensions, "resources": ["sandboxtemplates", "sandboxwarmpools"], "verbs": all},
            {"apiGroups": extensions, "resources": ["sandboxclaims"], "verbs": ["get", "list", "watch", "delete"]},
            {"apiGroups": ["agents.x-k8s.io"], "resources": ["sandboxes"], "verbs": all},
            {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch", "delete"]},
        ],
    })
}

#[test]
fn a_right_that_is_missing_is_named() -> Outcome {
    let Some(mut place) = Place::open("a_right_that_is_missing_is_named", &[])? else { return Ok(()) };
    place.sandbar(&["create", "--name", "a"])?;
    place.apply(&role())?;
    place.kubectl(&["create", "serviceaccount", "weak"])?;
    let account = format!("--serviceaccount={}:weak", place.namespace()?.name);
    place.kubectl(&["create", "rolebinding", "weak", "--role=weak", &account])?;
    let token = place.kubectl(&["create", "token", "weak"])?;
    let mut config: Value =
        serde_json::from_str(&place.kubectl(&["config", "view", "--raw", "--minify", "-o", "json"])?)?;
    config["users"][0]["user"] = json!({ "token": token.trim() });

    place.server.kill()?;
    let home = place.server.home.path().to_owned();
    fs::write(home.join("weak.json"), config.to_string())?;
    let settings = fs::read_to_string(home.join("kubernetes.toml"))?;
    let (_, rest) = settings.split_once('\n').ok_or("no second line")?;
    fs::write(home.join("kubernetes.toml"), format!("kubeconfig = {:?}\n{rest}", home.join("weak.json")))?;
    place.server.restart()?;
    // What it may do it does.
    assert_eq!(place.inside("a", "echo alive")?, "alive\n");
    let words = ["forbidden", "create", "sandboxclaims", "sandbar kubernetes manifests"];
    place.refused(&["create", "--name", "b"], 1, "cluster_failed", &words)?;
    let checked = place.tried(&["kubernetes", "check"])?;
    assert!(checked.code != Some(0) && checked.out.contains("sandboxclaims"), "{checked:?}");
    place.sandbar(&["rm", "a"])?;
    place.expect_nothing_left()
}
