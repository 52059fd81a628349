//! What `sandbar doctor` says of the cluster: whether sandboxes can be made there at all. `sandbar kubernetes check` goes
//! into detail.

use sandbar_provider::{Finding, HostReport};

use crate::kubernetes::{NAME, Shared};

pub(crate) async fn probe(shared: &Shared) -> HostReport {
    let mut findings = Vec::new();
    let answered = shared.cluster.client().apiserver_version().await;
    findings.push(match &answered {
        Ok(version) => found("API server", format!("it answers, and is version {}", version.git_version)),
        Err(error) => missing("API server", error.to_string(), "Check that the cluster is up, and the kubeconfig."),
    });
    findings.push(found("agent-sandbox", format!("the cluster serves {}", shared.cluster.version())));
    findings.push(match shared.seeing().await {
        Ok(()) => found("watch", format!("{} claims of this server are followed", shared.claims.list().len())),
        Err(error) => {
            missing("watch", error.to_string(), "`sandbar kubernetes check` tells which permission is missing.")
        }
    });
    HostReport { provider: NAME.into(), findings }
}

fn found(layer: &str, evidence: String) -> Finding {
    Finding { layer: layer.into(), works: true, required: true, evidence, fix: None }
}

fn missing(layer: &str, evidence: String, fix: &str) -> Finding {
    Finding { layer: layer.into(), works: false, required: true, evidence, fix: Some(fix.into()) }
}
