//! What the apiserver refuses, and clusters that are not there.

use std::path::Path;
use std::time::Duration;

use agent_sandbox::{AgentSandbox, ClaimBuilder, Error, SandboxClaim, Version};
use k8s_openapi::api::rbac::v1::{PolicyRule, Role, RoleBinding, RoleRef, Subject};
use kube::api::{Api, PostParams};

use crate::cluster::place::{LONG, Place, sleeper};

#[tokio::test]
async fn a_verb_that_is_not_permitted_is_named() {
    let Some(place) = Place::new("rbac").await else { return };
    place.pool("pool", sleeper(), 0).await;
    let (kube, namespace) = (place.client.client(), place.client.namespace());
    let rule = |resource: &str, verbs: &[&str]| PolicyRule {
        api_groups: Some(vec!["extensions.agents.x-k8s.io".into()]),
        resources: Some(vec![resource.into()]),
        verbs: verbs.iter().map(|verb| (*verb).to_owned()).collect(),
        ..PolicyRule::default()
    };
    let mut role = Role { rules: Some(vec![rule("sandboxclaims", &["get", "create"])]), ..Role::default() };
    role.metadata.name = Some("claimer".into());
    Api::<Role>::namespaced(kube.clone(), namespace).create(&PostParams::default(), &role).await.expect("a role");
    let mut binding = RoleBinding {
        role_ref: RoleRef {
            api_group: "rbac.authorization.k8s.io".into(),
            kind: "Role".into(),
            name: "claimer".into(),
        },
        subjects: Some(vec![Subject {
            kind: "ServiceAccount".into(),
            name: "default".into(),
            namespace: Some(namespace.to_owned()),
            ..Subject::default()
        }]),
        ..RoleBinding::default()
    };
    binding.metadata.name = Some("claimer".into());
    let bindings: Api<RoleBinding> = Api::namespaced(kube.clone(), namespace);
    bindings.create(&PostParams::default(), &binding).await.expect("a binding");

    let mut config = place.config.clone();
    config.auth_info.impersonate = Some(format!("system:serviceaccount:{namespace}:default"));
    config.auth_info.impersonate_groups = Some(vec!["system:serviceaccounts".into(), "system:authenticated".into()]);
    let client = kube::Client::try_from(config).expect("a client");
    let limited = AgentSandbox::with_client(client, namespace).await.expect("discovery is for everybody");
    // Rights hold a moment after they are written.
    let permitted = async {
        loop {
            match limited.claim(ClaimBuilder::new("mine", "pool")).await {
                Err(Error::Forbidden { .. }) => tokio::time::sleep(Duration::from_millis(100)).await,
                claimed => break claimed.expect("create is permitted"),
            }
        }
    };
    let claimed = tokio::time::timeout(LONG, permitted).await.expect("it is not permitted");
    let forbidden = |error: Error, verb: &str, resource: &str| match &error {
        Error::Forbidden { verb: v, resource: r, .. } => {
            assert_eq!((v.as_str(), r.as_str()), (verb, resource), "{error}")
        }
        other => panic!("{other}"),
    };
    forbidden(limited.wait_ready(&claimed, LONG).await.expect_err("no watch"), "watch", "sandboxclaims");
    forbidden(limited.claims().delete("mine", None).await.expect_err("no delete"), "delete", "sandboxclaims");
    forbidden(limited.pools().scale("pool", 1).await.expect_err("no scale"), "patch", "sandboxwarmpools/scale");
    place.close().await;
}

#[tokio::test]
async fn names_the_apiserver_refuses_do_not_reach_it() {
    let Some(place) = Place::new("names").await else { return };
    let long = "a".repeat(254);
    let error = place.client.claim(ClaimBuilder::new(&long, "pool")).await.expect_err("too long");
    assert!(matches!(error, Error::Build(_)), "{error}");
    // What the builder refuses is what the apiserver refuses.
    let mut object = SandboxClaim::new(&long, Default::default());
    object.spec.warm_pool_ref.name = "pool".into();
    let error = place.client.claims().create(object).await.expect_err("too long");
    assert!(matches!(error, Error::Invalid { .. }), "{error}");
    place.close().await;
}

#[tokio::test]
async fn credentials_nobody_knows() {
    let Some(place) = Place::new("unauthorized").await else { return };
    let mut config = place.config.clone();
    config.auth_info = Default::default();
    config.auth_info.token = Some("expired".to_owned().into());
    let client = kube::Client::try_from(config).expect("a client");
    let error = AgentSandbox::with_client(client, "default").await.expect_err("401");
    assert!(matches!(error, Error::Unauthorized { .. }), "{error}");
    place.close().await;
}

#[tokio::test]
async fn a_context_that_is_not_in_the_kubeconfig() {
    let Some(place) = Place::new("context").await else { return };
    let path = std::env::var("SANDBAR_CLUSTER").expect("the kubeconfig");
    let error = AgentSandbox::from_kubeconfig(Some(Path::new(&path)), Some("absent"), None).await.expect_err("absent");
    assert!(matches!(&error, Error::ContextNotFound { context } if context == "absent"), "{error}");
    assert_eq!(place.client.version(), Version::V1Beta1);
    place.close().await;
}

/// What the apiserver thinks of an object, without keeping it.
async fn accepted(place: &Place, object: &SandboxClaim) -> bool {
    let params = PostParams { dry_run: true, ..PostParams::default() };
    match place.client.api::<SandboxClaim>().create(&params, object).await.map_err(Error::from) {
        Ok(_) => true,
        Err(Error::Invalid { .. }) => false,
        Err(error) => panic!("{error}"),
    }
}

#[tokio::test]
async fn builder_and_apiserver_agree() {
    let Some(place) = Place::new("agree").await else { return };
    let long = |length: usize| "a".repeat(length);
    let words = [
        "a",
        "A",
        "0",
        "-",
        "a-",
        "-a",
        "a.b",
        "a..b",
        ".a",
        "a.",
        "a_b",
        "a/b",
        "A/b",
        "a/B",
        "a/",
        "/a",
        "a/b/c",
        "a b",
        "ä",
        "a.b/c",
        "a_b/c",
        "a/_b",
        "a/b_c",
        "x.kubernetes.io/y",
        "",
    ];
    let lengths = [63, 64, 253, 254].map(long);
    let words: Vec<&str> = words.into_iter().chain(lengths.iter().map(String::as_str)).collect();
    for word in &words {
        let built = [
            ClaimBuilder::new(*word, "pool").build(),
            ClaimBuilder::new("mine", "pool").label(*word, "v").build(),
            ClaimBuilder::new("mine", "pool").label("k", *word).build(),
            ClaimBuilder::new("mine", "pool").annotation(*word, "any text at all").build(),
        ];
        let mut objects = [(); 4].map(|()| SandboxClaim::new("mine", Default::default()));
        let entry =
            |key: &str, value: &str| Some(std::collections::BTreeMap::from([(key.to_owned(), value.to_owned())]));
        objects[0].metadata.name = Some((*word).to_owned());
        objects[1].metadata.labels = entry(word, "v");
        objects[2].metadata.labels = entry("k", word);
        objects[3].metadata.annotations = entry(word, "any text at all");
        for (built, mut object) in built.into_iter().zip(objects) {
            object.spec.warm_pool_ref.name = "pool".into();
            assert_eq!(built.is_ok(), accepted(&place, &object).await, "{word:?}: {built:?}");
        }
    }
    place.close().await;
}
