//! What a pod is, and what it is warm for.

use std::time::{Duration, Instant};

use kube::api::ListParams;
use sandbar_api::{HumanSize, Layer, Limits, Requirement, Storage};
use sandbar_provider::{
    Error, Provider, Spec, cases,
    suite::{Case, Outcome, Subject as _, run, same},
};
use sandbar_provider_kubernetes::Kubernetes;

use crate::{Cluster, identity, said, spec};

const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) fn cases() -> Vec<Case<Cluster>> {
    cases![
        what_is_required_is_seen_to_be_in_force,
        stated_limits_are_seen_inside,
        a_pool_is_kept_warm_and_claimed_from,
        an_ephemeral_sandbox_cannot_be_stopped,
        another_server_sees_nothing_and_is_refused,
        two_servers_with_one_key_do_not_fight,
        the_pod_holds_no_credential,
        nobody_who_listens_can_be_reached,
        nothing_is_left_on_the_cluster,
    ]
}

async fn what_is_required_is_seen_to_be_in_force(cluster: &Cluster) -> Outcome {
    let provider = cluster.open().await?;
    let mut spec = spec()?;
    spec.layers.insert(Layer::ReadOnlyRoot, Requirement::Required);
    provider.create(&spec).await.map_err(said)?;
    let reports = provider.inspect(&spec).await.map_err(said)?;
    same("layers", &reports.len(), &Layer::ALL.len())?;
    for report in &reports {
        if report.requirement == Requirement::Required && !report.in_force {
            return Err(format!("{report:?}"));
        }
        same("evidence", &report.evidence.is_empty(), &false)?;
    }
    provider.destroy(&spec.id).await.map_err(said)
}

async fn stated_limits_are_seen_inside(cluster: &Cluster) -> Outcome {
    let provider = cluster.open().await?;
    let limits = Limits {
        memory: Some(HumanSize(128 << 20)),
        cpus: Some(0.5),
        open_files: Some(200),
        tmpfs: Some(HumanSize(8 << 20)),
        ..Limits::default()
    };
    let spec = Spec { limits, ..spec()? };
    provider.create(&spec).await.map_err(said)?;
    let guest = provider.connect(&spec.id).await.map_err(said)?;
    same("open files", &run(&guest, "ulimit -n").await?.output.as_str(), &"200\n")?;
    let full = run(&guest, "head -c 20000000 /dev/zero > /tmp/full; echo $?").await?.output;
    same("a full /tmp is said to be", &full.contains("No space left"), &true)?;
    for report in provider.inspect(&spec).await.map_err(said)? {
        if report.layer.is_limit() && report.requirement == Requirement::Required {
            same(&format!("{}: {}", report.layer.as_str(), report.evidence), &report.in_force, &true)?;
        }
    }
    provider.destroy(&spec.id).await.map_err(said)
}

async fn a_pool_is_kept_warm_and_claimed_from(cluster: &Cluster) -> Outcome {
    let provider = cluster.open().await?;
    let mut spec = spec()?;
    spec.template = "warm".into();
    spec.kubernetes.storage = Storage::Ephemeral;
    let since = Instant::now();
    while provider.pool(&spec, 2).await.map_err(said)?.ready < 2 {
        if since.elapsed() > PATIENCE {
            return Err(format!("the pool does not fill: {:?}", provider.pool(&spec, 2).await));
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let before = cluster.pod_names().await?;
    provider.create(&spec).await.map_err(said)?;
    let guest = provider.connect(&spec.id).await.map_err(said)?;
    // Its pod is one of those that were there, and has their name.
    let name = run(&guest, "hostname").await?.output;
    same("a warm one", &before.contains(&name.trim().to_owned()), &true)?;
    // A template that was changed has another pool, and the old one goes with the last sandbox from it.
    let changed = Spec { limits: Limits { memory: Some(HumanSize(64 << 20)), ..Limits::default() }, ..spec.clone() };
    provider.pool(&changed, 0).await.map_err(said)?;
    let left = provider.pool(&changed, 0).await.map_err(said)?;
    same("ready", &left.ready, &0)?;
    let again = run(&guest, "echo alive").await?.output;
    same("claimed before the change", &again.as_str(), &"alive\n")?;
    provider.destroy(&spec.id).await.map_err(said)
}

async fn an_ephemeral_sandbox_cannot_be_stopped(cluster: &Cluster) -> Outcome {
    let provider = cluster.open().await?;
    let mut spec = spec()?;
    spec.kubernetes.storage = Storage::Ephemeral;
    same("keeps files", &provider.keeps_files(&spec), &false)?;
    provider.create(&spec).await.map_err(said)?;
    let stopped = provider.stop(&spec.id).await;
    if !matches!(stopped, Err(Error::Declined { .. })) {
        return Err(format!("stopped: {stopped:?}"));
    }
    let guest = provider.connect(&spec.id).await.map_err(said)?;
    same("alive", &run(&guest, "echo alive").await?.output.as_str(), &"alive\n")?;
    provider.destroy(&spec.id).await.map_err(said)
}

async fn another_server_sees_nothing_and_is_refused(cluster: &Cluster) -> Outcome {
    let provider = cluster.open().await?;
    let spec = spec()?;
    provider.create(&spec).await.map_err(said)?;
    let other = identity()?;
    let settings = sandbar_provider_kubernetes::Settings {
        instance: other.instance(),
        server_keys: sandbar_provider_kubernetes::Settings::of(&other).server_keys,
        ..cluster.settings.clone()
    };
    let stranger = Kubernetes::open(settings.clone(), other.clone()).await.map_err(said)?;
    same("seen by another", &stranger.list().await.map_err(said)?, &vec![])?;
    same("known to another", &matches!(stranger.stop(&spec.id).await, Err(Error::Unknown(_))), &true)?;
    // Even one that finds the claim has not the key that the guest was told of.
    let thief = sandbar_provider_kubernetes::Settings { instance: cluster.settings.instance.clone(), ..settings };
    let thief = Kubernetes::open(thief, other).await.map_err(said)?;
    let taken = thief.connect(&spec.id).await;
    if !matches!(taken, Err(Error::Unreachable { .. })) {
        return Err(format!("a guest obeyed another server: {taken:?}"));
    }
    provider.destroy(&spec.id).await.map_err(said)
}

async fn two_servers_with_one_key_do_not_fight(cluster: &Cluster) -> Outcome {
    let (one, two) = (cluster.open().await?, cluster.open().await?);
    let spec = spec()?;
    let (first, second) = tokio::join!(one.create(&spec), two.create(&spec));
    first.and(second).map_err(said)?;
    let pods = cluster.pod_names().await?;
    same("pods", &pods.iter().filter(|name| name.contains(spec.id.as_str())).count(), &1)?;
    for provider in [&one, &two] {
        let guest = provider.connect(&spec.id).await.map_err(said)?;
        same("alive", &run(&guest, "echo alive").await?.output.as_str(), &"alive\n")?;
    }
    let (first, second) = tokio::join!(one.destroy(&spec.id), two.destroy(&spec.id));
    first.and(second).map_err(said)
}

async fn the_pod_holds_no_credential(cluster: &Cluster) -> Outcome {
    let provider = cluster.open().await?;
    let spec = spec()?;
    provider.create(&spec).await.map_err(said)?;
    let guest = provider.connect(&spec.id).await.map_err(said)?;
    let look = "ls /var/run/secrets/kubernetes.io 2>/dev/null; env | grep -c -e KUBERNETES -e SANDBAR_SERVER; true";
    same("inside", &run(&guest, look).await?.output.as_str(), &"0\n")?;
    provider.destroy(&spec.id).await.map_err(said)
}

/// The API server, another sandbox's guest, and the control: from here both can be reached.
async fn nobody_who_listens_can_be_reached(cluster: &Cluster) -> Outcome {
    let provider = cluster.open().await?;
    let (one, two) = (spec()?, spec()?);
    for spec in [&one, &two] {
        provider.create(spec).await.map_err(said)?;
    }
    let guest = provider.connect(&one.id).await.map_err(said)?;
    let found = cluster.pods().get(two.id.as_str()).await.map_err(|error| error.to_string())?;
    let neighbour = found.status.and_then(|status| status.pod_ip).ok_or("a pod without an address")?;
    for (host, port) in [cluster.server.clone(), (neighbour, 7229)] {
        let address = format!("{host}:{port}");
        if cluster.is_near() {
            let control = tokio::net::TcpStream::connect((host.as_str(), port)).await;
            same(&format!("control of {address}"), &control.is_ok(), &true)?;
        }
        let attempt =
            format!("timeout 3 bash -c 'exec 3<>/dev/tcp/{host}/{port}' 2>/dev/null && echo through || echo refused");
        same(&address, &run(&guest, &attempt).await?.output.as_str(), &"refused\n")?;
    }
    for spec in [&one, &two] {
        provider.destroy(&spec.id).await.map_err(said)?;
    }
    Ok(())
}

async fn nothing_is_left_on_the_cluster(cluster: &Cluster) -> Outcome {
    let since = Instant::now();
    let claims: kube::Api<agent_sandbox::SandboxClaim> =
        kube::Api::namespaced(cluster.client.clone(), &cluster.settings.namespace);
    let volumes: kube::Api<k8s_openapi::api::core::v1::PersistentVolumeClaim> =
        kube::Api::namespaced(cluster.client.clone(), &cluster.settings.namespace);
    loop {
        let text = |error: kube::Error| error.to_string();
        let claims = claims.list(&ListParams::default()).await.map_err(text)?.items.len();
        let volumes = volumes.list(&ListParams::default()).await.map_err(text)?.items.len();
        let pods: Vec<_> =
            cluster.pod_names().await?.into_iter().filter(|name| !name.starts_with("sandbar-warm-")).collect();
        if claims == 0 && volumes == 0 && pods.is_empty() {
            return Ok(());
        }
        if since.elapsed() > PATIENCE {
            return Err(format!("{claims} claims, {volumes} volumes, pods {pods:?}"));
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}
