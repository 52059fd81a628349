//! What clusters that serve more or less than a release does have to say of their version.

use agent_sandbox::{AgentSandbox, Error, Version};
use serde_json::{Value, json};

use crate::protocol::stand_in::{Answer, Asked, StandIn, refusal};

/// Serves discovery of these `group/version` pairs.
fn discovery(asked: &Asked, served: &[(&str, &[&str])]) -> Answer {
    let Some((_, plurals)) = served.iter().find(|(group_version, _)| asked.path == format!("/apis/{group_version}"))
    else {
        return Answer::Json(404, refusal(404, "NotFound", "the server could not find the requested resource"));
    };
    let resources: Vec<Value> = plurals
        .iter()
        .map(|plural| json!({"name": plural, "singularName": "", "namespaced": true, "kind": "X", "verbs": ["get"]}))
        .collect();
    Answer::Json(
        200,
        json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "g", "resources": resources}),
    )
}

const ALL: &[&str] = &["sandboxclaims", "sandboxtemplates", "sandboxwarmpools"];

async fn discover(served: &'static [(&'static str, &'static [&'static str])]) -> Result<AgentSandbox, Error> {
    let stand_in = StandIn::start(move |asked, _| discovery(asked, served)).await;
    AgentSandbox::with_client(stand_in.client.client().clone(), "ns").await
}

#[tokio::test]
async fn the_newer_version_is_preferred() {
    let both = discover(&[
        ("agents.x-k8s.io/v1beta1", &["sandboxes"]),
        ("extensions.agents.x-k8s.io/v1beta1", ALL),
        ("agents.x-k8s.io/v1alpha1", &["sandboxes"]),
        ("extensions.agents.x-k8s.io/v1alpha1", ALL),
    ]);
    assert_eq!(both.await.expect("a client").version(), Version::V1Beta1);
}

#[tokio::test]
async fn extensions_that_were_forgotten_are_named_in_the_version_that_is_there() {
    for (core, version) in
        [("agents.x-k8s.io/v1beta1", Version::V1Beta1), ("agents.x-k8s.io/v1alpha1", Version::V1Alpha1)]
    {
        let stand_in = StandIn::start(move |asked, _| discovery(asked, &[(core, &["sandboxes"])])).await;
        let error = AgentSandbox::with_client(stand_in.client.client().clone(), "ns").await.expect_err("no extensions");
        assert!(matches!(&error, Error::CrdsMissing { version: told, .. } if *told == version), "{error:?}");
        let text = error.to_string();
        assert!(text.contains("sandboxclaims.extensions.agents.x-k8s.io"), "{text}");
        assert!(!text.contains("sandboxes.agents"), "{text}");
    }
}
