//! What goes wrong on a cluster, each told as what it is.

use std::time::Duration;

use agent_sandbox::SandboxClaim;
use kube::{Api, api::DeleteParams};
use sandbar_api::{HumanSize, Limits, Root};
use sandbar_provider::{
    Error, Provider, Spec, cases,
    suite::{Case, Outcome, Subject as _, run, same},
};

use crate::{Cluster, said, spec};

const SOON: Duration = Duration::from_secs(60);

pub(crate) fn cases() -> Vec<Case<Cluster>> {
    cases![
        an_image_that_is_not_there_is_said_to_be,
        what_fits_nowhere_has_no_room,
        a_runtime_class_that_is_not_there_is_named,
        a_claim_deleted_under_us_is_noticed,
        a_pod_that_is_taken_away_is_noticed_and_started_again,
        a_guest_that_ran_out_of_memory_is_recovered,
        a_create_after_its_template_was_removed_makes_it_again,
    ]
}

/// Whether it is running, if it is there.
async fn listed(provider: &dyn Provider, spec: &Spec) -> Result<Option<bool>, String> {
    let found = provider.list().await.map_err(said)?;
    Ok(found.into_iter().find(|found| found.id == spec.id).map(|found| found.running))
}

async fn an_image_that_is_not_there_is_said_to_be(cluster: &Cluster) -> Outcome {
    let provider = cluster.open().await?;
    let spec = Spec { root: Root::Oci { image: "127.0.0.1:1/nothing:here".into() }, ..spec()? };
    match provider.create(&spec).await {
        Err(Error::BadTemplate { what, fix, .. }) if what == "the image" && !fix.is_empty() => {}
        other => return Err(format!("{other:?}")),
    }
    same("left", &listed(&*provider, &spec).await?, &None)
}

async fn what_fits_nowhere_has_no_room(cluster: &Cluster) -> Outcome {
    let provider = cluster.open().await?;
    let limits = Limits { memory: Some(HumanSize(1 << 50)), ..Limits::default() };
    let spec = Spec { limits, ..spec()? };
    match provider.create(&spec).await {
        Err(Error::NoRoom { cause, fix }) if cause.contains("nsufficient") && !fix.is_empty() => {}
        other => return Err(format!("{other:?}")),
    }
    same("left", &listed(&*provider, &spec).await?, &None)
}

async fn a_runtime_class_that_is_not_there_is_named(cluster: &Cluster) -> Outcome {
    let provider = cluster.open().await?;
    let mut spec = spec()?;
    spec.kubernetes.runtime_class = Some("no-such-class".into());
    match provider.create(&spec).await {
        Err(Error::BadTemplate { what, .. }) if what.contains("runtime_class") => {}
        other => return Err(format!("{other:?}")),
    }
    same("left", &listed(&*provider, &spec).await?, &None)
}

async fn a_claim_deleted_under_us_is_noticed(cluster: &Cluster) -> Outcome {
    let provider = cluster.open().await?;
    let spec = spec()?;
    provider.create(&spec).await.map_err(said)?;
    let claims: Api<SandboxClaim> = Api::namespaced(cluster.client.clone(), &cluster.settings.namespace);
    claims.delete(spec.id.as_str(), &DeleteParams::default()).await.map_err(|error| error.to_string())?;
    let gone = tokio::time::timeout(SOON, provider.gone(&spec.id)).await;
    gone.map_err(|_| "it was not noticed")?.map_err(said)?;
    same("listed", &listed(&*provider, &spec).await?, &None)?;
    same("start", &matches!(provider.start(&spec).await, Err(Error::Unknown(_))), &true)?;
    provider.destroy(&spec.id).await.map_err(said)
}

async fn a_pod_that_is_taken_away_is_noticed_and_started_again(cluster: &Cluster) -> Outcome {
    let provider = cluster.open().await?;
    let spec = spec()?;
    provider.create(&spec).await.map_err(said)?;
    let guest = provider.connect(&spec.id).await.map_err(said)?;
    same("made", &run(&guest, "echo kept > /workspace/f; echo made").await?.output.as_str(), &"made\n")?;
    let deleted = cluster.pods().delete(spec.id.as_str(), &DeleteParams::default()).await;
    deleted.map_err(|error| error.to_string())?;
    let gone = tokio::time::timeout(SOON, provider.gone(&spec.id)).await;
    gone.map_err(|_| "it was not noticed")?.map_err(said)?;
    // The controller puts another pod there, which is nobody's until it is started.
    if provider.connect(&spec.id).await.is_ok() {
        return Err("another guest was taken for it".into());
    }
    provider.stop(&spec.id).await.map_err(said)?;
    provider.start(&spec).await.map_err(said)?;
    let guest = provider.connect(&spec.id).await.map_err(said)?;
    same("kept", &run(&guest, "cat /workspace/f").await?.output.as_str(), &"kept\n")?;
    provider.destroy(&spec.id).await.map_err(said)
}

async fn a_guest_that_ran_out_of_memory_is_recovered(cluster: &Cluster) -> Outcome {
    let provider = cluster.open().await?;
    let limits = Limits { memory: Some(HumanSize(64 << 20)), ..Limits::default() };
    let spec = Spec { limits, ..spec()? };
    provider.create(&spec).await.map_err(said)?;
    let guest = provider.connect(&spec.id).await.map_err(said)?;
    run(&guest, "echo kept > /workspace/f").await?;
    // Memory that belongs to nobody cannot be freed by killing anybody but everybody.
    let filling = run(&guest, "head -c 200000000 /dev/zero > /dev/shm/full; sleep 60");
    let ended = tokio::time::timeout(SOON, async {
        tokio::select! {
            gone = provider.gone(&spec.id) => gone.map_err(said).map(|()| true),
            ran = filling => Ok(ran.is_err() && { provider.gone(&spec.id).await.map_err(said)?; true }),
        }
    });
    let ended = ended.await.map_err(|_| "nothing ended".to_owned())??;
    if ended {
        same("running", &listed(&*provider, &spec).await?, &Some(false))?;
        provider.start(&spec).await.map_err(said)?;
    }
    let guest = provider.connect(&spec.id).await.map_err(said)?;
    same("kept", &run(&guest, "cat /workspace/f").await?.output.as_str(), &"kept\n")?;
    provider.destroy(&spec.id).await.map_err(said)
}

async fn a_create_after_its_template_was_removed_makes_it_again(cluster: &Cluster) -> Outcome {
    let provider = cluster.open().await?;
    let first = Spec { template: "removed".into(), ..spec()? };
    provider.create(&first).await.map_err(said)?;
    provider.destroy(&first.id).await.map_err(said)?;
    let delete = DeleteParams::default();
    let pools: Api<agent_sandbox::SandboxWarmPool> =
        Api::namespaced(cluster.client.clone(), &cluster.settings.namespace);
    let templates: Api<agent_sandbox::SandboxTemplate> =
        Api::namespaced(cluster.client.clone(), &cluster.settings.namespace);
    let labels = kube::api::ListParams::default().labels("sandbar.dev/template=removed");
    pools.delete_collection(&delete, &labels).await.map_err(|error| error.to_string())?;
    templates.delete_collection(&delete, &labels).await.map_err(|error| error.to_string())?;
    let second = Spec { id: spec()?.id, ..first };
    provider.create(&second).await.map_err(said)?;
    provider.destroy(&second.id).await.map_err(said)
}
