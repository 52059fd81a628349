//! Claims that cannot become ready, each for its own reason.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::{Duration, Instant};

use agent_sandbox::{ClaimBuilder, Claimed, Error, PoolBuilder, SandboxClaim, Wait};
use k8s_openapi::api::core::v1::{Pod, ResourceQuota, ResourceQuotaSpec};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::api::{Api, PostParams};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::cluster::place::{LONG, Place, never_ready, sleeper};

/// What the claim itself suffers from: others may fill the node for a while.
async fn failure(place: &Place, builder: ClaimBuilder) -> Error {
    let claimed = place.client.claim(builder).await.expect("a claim");
    let deadline = Instant::now() + LONG;
    loop {
        let error = trouble(place, &claimed).await;
        if !matches!(error, Error::Unschedulable { .. }) || Instant::now() > deadline {
            return error;
        }
    }
}

async fn trouble(place: &Place, claimed: &Claimed) -> Error {
    let wait = Wait::new(LONG).look_after(Duration::from_millis(500)).patience(Duration::from_secs(3));
    place.client.wait_ready(claimed, wait).await.expect_err("it cannot become ready")
}

#[tokio::test]
async fn no_pool() {
    let Some(place) = Place::new("no_pool").await else { return };
    let error = failure(&place, ClaimBuilder::new("mine", "absent")).await;
    assert!(matches!(error, Error::WarmPoolNotFound { .. }), "{error}");
    place.close().await;
}

#[tokio::test]
async fn no_template() {
    let Some(place) = Place::new("no_template").await else { return };
    let pool = PoolBuilder::new("pool", "absent").replicas(0).build().expect("a pool");
    place.client.pools().create(pool).await.expect("a pool");
    let error = failure(&place, ClaimBuilder::new("mine", "pool")).await;
    assert!(matches!(error, Error::TemplateNotFound { .. }), "{error}");
    place.close().await;
}

#[tokio::test]
async fn no_image() {
    let Some(place) = Place::new("no_image").await else { return };
    let mut pod = sleeper();
    pod.containers[0].image = Some("sandbar.test/absent:1".into());
    pod.containers[0].image_pull_policy = Some("Never".into());
    place.pool("never", pod.clone(), 0).await;
    let error = failure(&place, ClaimBuilder::new("one", "never")).await;
    assert!(matches!(&error, Error::ImagePull { reason, .. } if reason == "ErrImageNeverPull"), "{error}");
    pod.containers[0].image_pull_policy = Some("IfNotPresent".into());
    place.pool("pull", pod.clone(), 0).await;
    let error = failure(&place, ClaimBuilder::new("two", "pull")).await;
    assert!(matches!(&error, Error::ImagePull { .. }), "{error}");
    pod.containers[0].image = Some("Not An Image".into());
    place.pool("name", pod, 0).await;
    let error = failure(&place, ClaimBuilder::new("three", "name")).await;
    assert!(matches!(&error, Error::ImagePull { reason, .. } if reason == "InvalidImageName"), "{error}");
    place.close().await;
}

#[tokio::test]
async fn no_room() {
    let Some(place) = Place::new("no_room").await else { return };
    let mut pod = sleeper();
    let requests = BTreeMap::from([("cpu".to_owned(), Quantity("10000".into()))]);
    pod.containers[0].resources.get_or_insert_default().requests = Some(requests);
    place.pool("huge", pod, 0).await;
    let claimed = place.client.claim(ClaimBuilder::new("mine", "huge")).await.expect("a claim");
    let error = trouble(&place, &claimed).await;
    assert!(matches!(error, Error::Unschedulable { .. }), "{error}");
    place.close().await;
}

#[tokio::test]
async fn no_configuration() {
    let Some(place) = Place::new("no_config").await else { return };
    let mut pod = sleeper();
    let source = serde_json::from_value(serde_json::json!([{"configMapRef": {"name": "absent"}}])).expect("a source");
    pod.containers[0].env_from = Some(source);
    place.pool("config", pod, 0).await;
    let error = failure(&place, ClaimBuilder::new("mine", "config")).await;
    assert!(matches!(error, Error::ContainerConfig { .. }), "{error}");
    place.close().await;
}

#[tokio::test]
async fn a_container_that_keeps_ending() {
    let Some(place) = Place::new("crash").await else { return };
    let mut pod = sleeper();
    pod.containers[0].command = Some(["sh", "-c", "exit 3"].map(String::from).to_vec());
    // Without a probe it counts as ready in the moment between two crashes.
    pod.containers[0].readiness_probe = Some(never_ready());
    place.pool("crash", pod.clone(), 0).await;
    let error = failure(&place, ClaimBuilder::new("again", "crash")).await;
    assert!(matches!(error, Error::CrashLoop { .. }), "{error}");
    pod.restart_policy = Some("Never".into());
    place.pool("once", pod, 0).await;
    let error = failure(&place, ClaimBuilder::new("once", "once")).await;
    assert!(matches!(&error, Error::PodFailed { message, .. } if message.contains("ended with 3")), "{error}");
    place.close().await;
}

#[tokio::test]
async fn no_quota() {
    let Some(place) = Place::new("no_quota").await else { return };
    let pods: Api<Pod> = Api::namespaced(place.client.client().clone(), place.client.namespace());
    let mut pod = Pod { spec: Some(sleeper()), ..Pod::default() };
    pod.metadata.name = Some("tried".into());
    place.pool("pool", sleeper(), 0).await;
    limit(&place, "pods", "0", &pods, &pod).await;
    let error = failure(&place, ClaimBuilder::new("mine", "pool")).await;
    assert!(matches!(error, Error::QuotaExceeded { .. }), "{error}");

    let claim = ClaimBuilder::new("tried", "pool").build().expect("a claim");
    let claims: Api<SandboxClaim> = Api::namespaced(place.client.client().clone(), place.client.namespace());
    limit(&place, "count/sandboxclaims.extensions.agents.x-k8s.io", "1", &claims, &claim).await;
    let error = place.client.claim(ClaimBuilder::new("other", "pool")).await.expect_err("one claim is there");
    assert!(matches!(error, Error::QuotaExceeded { .. }), "{error}");
    place.close().await;
}

/// A quota that is in force: its own controller has to count before the API server refuses `tried`.
async fn limit<K>(place: &Place, what: &str, hard: &str, api: &Api<K>, tried: &K)
where
    K: Clone + Debug + DeserializeOwned + Serialize,
{
    let quotas: Api<ResourceQuota> = Api::namespaced(place.client.client().clone(), place.client.namespace());
    let hard = BTreeMap::from([(what.to_owned(), Quantity(hard.into()))]);
    let mut quota = ResourceQuota {
        spec: Some(ResourceQuotaSpec { hard: Some(hard), ..ResourceQuotaSpec::default() }),
        ..ResourceQuota::default()
    };
    quota.metadata.generate_name = Some("limit-".into());
    quotas.create(&PostParams::default(), &quota).await.expect("a quota");
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    let in_force = async {
        loop {
            match api.create(&dry, tried).await {
                Err(kube::Error::Api(status)) if status.message.contains("exceeded quota") => break,
                // The namespace's service account is made a moment after it.
                Err(kube::Error::Api(status)) if status.message.contains("serviceaccount") => {}
                tried => tried.map(drop).expect("a quota is the only thing in its way"),
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    tokio::time::timeout(LONG, in_force).await.expect("the quota is not enforced");
}

#[tokio::test]
async fn metadata_and_environment_the_controller_refuses() {
    let Some(place) = Place::new("refused").await else { return };
    place.pool("pool", sleeper(), 0).await;
    let label = ClaimBuilder::new("one", "pool").allowed_label_domains(["example.com"]).pod_label("example.com/a", "b");
    let error = failure(&place, label).await;
    assert!(matches!(error, Error::InvalidMetadata { .. }), "{error}");
    let error = failure(&place, ClaimBuilder::new("two", "pool").env("A", "b")).await;
    assert!(matches!(error, Error::EnvVarsInjectionRejected { .. }), "{error}");
    let volume = serde_json::from_value(serde_json::json!({"metadata": {"name": "data"}, "spec":
        {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}}}))
    .expect("a volume");
    let error = failure(&place, ClaimBuilder::new("three", "pool").volume(volume)).await;
    assert!(matches!(error, Error::VolumeClaimTemplatesError { .. }), "{error}");
    let past = jiff::Timestamp::now() - Duration::from_secs(60);
    let error = failure(&place, ClaimBuilder::new("four", "pool").shutdown_time(past)).await;
    assert!(matches!(error, Error::ClaimExpired { .. }), "{error}");
    place.close().await;
}
