//! `sandbar kubernetes check`: whether a cluster can hold sandboxes, each line seen and not assumed. What looking cannot
//! show is shown by four pods that are made for it; they have an end of their own, and are removed before the report is told.

mod access;
mod cluster;
mod connect;
mod finding;
mod probe;
pub mod reach;
#[cfg(test)]
mod tests;

use sandbar_api::{ClusterCheck, ClusterFinding, ClusterReport};
use tokio_util::sync::CancellationToken;

use crate::{Settings, settings::Reach};
use finding::{Line, grey, red};

/// Everything that is looked at, in this order. Ends early, but with everything removed, when it is cancelled.
pub async fn run(settings: &Settings, asked: &ClusterCheck, cancelled: &CancellationToken) -> ClusterReport {
    let mut findings = Vec::new();
    look(settings, asked, cancelled, &mut findings).await;
    ClusterReport { namespace: settings.namespace.clone(), findings }
}

async fn look(
    settings: &Settings,
    asked: &ClusterCheck,
    cancelled: &CancellationToken,
    findings: &mut Vec<ClusterFinding>,
) {
    let client = match connect::client(settings).await {
        Ok(client) => client,
        Err(unusable) => {
            findings.push(red(Line::Api, unusable.cause, unusable.fix));
            return findings.extend(unseen("the API was not reached"));
        }
    };
    if !cluster::answers(&client, findings).await {
        return findings.extend(unseen("the API does not let us in"));
    }
    let allowed = access::look(&client, settings, is_outside(settings), findings).await;
    let served = cluster::served(&client, findings).await;
    cluster::namespace(&client, &settings.namespace, findings).await;
    cluster::storage(&client, asked.storage_class.as_deref(), findings).await;
    let runtime = cluster::runtime(&client, asked.runtime_class.as_deref(), findings).await;
    if served {
        cluster::pools(&client, settings, findings).await;
    }
    let hindrance = match () {
        () if asked.look_only => Some("nothing was to be made in the cluster"),
        () if !served => Some("agent-sandbox 1.0 is not there"),
        () if !allowed => Some("a permission is missing"),
        () if !runtime => Some("the RuntimeClass is not there"),
        () if cancelled.is_cancelled() => Some("it was interrupted"),
        () => None,
    };
    match hindrance {
        Some(why) => findings.extend(Line::OBSERVED.map(|line| grey(line, format!("not observed: {why}"), None))),
        None => findings.extend(probe::run(&client, settings, asked, cancelled).await),
    }
}

/// By itself, so that whoever asked may hang up and nothing stays behind.
pub async fn apart(settings: Settings, asked: ClusterCheck) -> ClusterReport {
    let namespace = settings.namespace.clone();
    let looking = tokio::spawn(async move { run(&settings, &asked, &CancellationToken::new()).await });
    looking.await.unwrap_or_else(|error| ClusterReport {
        namespace,
        findings: vec![red(
            Line::Api,
            format!("the check was cut off: {error}"),
            "Try again; if it stays so, report it.",
        )],
    })
}

/// Only whether there is a cluster that serves what manifests are about.
pub async fn agent_sandbox(settings: &Settings) -> Vec<ClusterFinding> {
    let mut findings = Vec::new();
    match connect::client(settings).await {
        Ok(client) => {
            if cluster::answers(&client, &mut findings).await {
                cluster::served(&client, &mut findings).await;
            }
        }
        Err(unusable) => findings.push(red(Line::Api, unusable.cause, unusable.fix)),
    }
    findings
}

/// What nothing can be said of.
fn unseen(why: &str) -> impl Iterator<Item = ClusterFinding> {
    let looked =
        [Line::Credentials, Line::Permissions, Line::AgentSandbox, Line::PodSecurity, Line::Storage, Line::Pools];
    looked.into_iter().chain(Line::OBSERVED).map(move |line| grey(line, format!("not observed: {why}"), None))
}

/// Whether guests are reached through the API server.
fn is_outside(settings: &Settings) -> bool {
    match settings.reach {
        Reach::PortForward => true,
        Reach::PodIp => false,
        Reach::Auto => !connect::is_inside(settings),
    }
}
