//! What looking shows: the API, agent-sandbox, the namespace, and what sandboxes would use.

use agent_sandbox::SandboxWarmPool;
use k8s_openapi::api::{
    authentication::v1::SelfSubjectReview, core::v1::Namespace, node::v1::RuntimeClass, storage::v1::StorageClass,
};
use kube::{
    Api, Client, ResourceExt as _,
    api::{ListParams, PostParams},
};
use sandbar_api::ClusterFinding;

use super::finding::{Line, answer, code, green, grey, red};
use crate::{
    Settings,
    manifests::{INSTALL, NEEDED, NEEDED_VERSION, POD_SECURITY, RESTRICTED},
    objects::{self, MANAGED_BY, MANAGER},
};

const MANIFESTS: &str = "Apply `sandbar kubernetes manifests`.";
const DEFAULT_CLASS: &str = "storageclass.kubernetes.io/is-default-class";
const LOG_IN: &str = "They are wrong or expired: log in again, and try `kubectl auth whoami`.";

/// Whether the API is there and knows us.
pub(super) async fn answers(client: &Client, findings: &mut Vec<ClusterFinding>) -> bool {
    match client.apiserver_version().await {
        Ok(version) => findings.push(green(Line::Api, format!("answers, Kubernetes {}", version.git_version))),
        Err(error) if code(&error).is_some() => findings.push(green(Line::Api, "answers")),
        Err(error) => {
            let fix =
                "Look whether the cluster runs, and whether the kubeconfig's server is its address: `kubectl version`.";
            findings.push(red(Line::Api, answer(&error), fix));
            return false;
        }
    }
    let reviews = Api::<SelfSubjectReview>::all(client.clone());
    match reviews.create(&PostParams::default(), &SelfSubjectReview::default()).await {
        Ok(review) => {
            let user = review.status.and_then(|status| status.user_info).and_then(|user| user.username);
            findings.push(green(Line::Credentials, format!("taken, as {}", user.unwrap_or_else(|| "somebody".into()))));
            true
        }
        Err(error) if code(&error) == Some(401) => {
            findings.push(red(Line::Credentials, format!("refused: {}", answer(&error)), LOG_IN));
            false
        }
        // Known, but not told by which name: that needs a cluster of 1.28, or a right that everybody has.
        Err(error) => {
            findings.push(grey(Line::Credentials, format!("not observed: {}", answer(&error)), None));
            true
        }
    }
}

/// By discovery, which is open to everybody: what is served, not what is installed.
pub(super) async fn served(client: &Client, findings: &mut Vec<ClusterFinding>) -> bool {
    let groups = match client.list_api_groups().await {
        Ok(groups) => groups.groups,
        Err(error) => {
            findings.push(grey(Line::AgentSandbox, format!("not observed: {}", answer(&error)), None));
            return false;
        }
    };
    let (mut missing, mut seen) = (Vec::new(), Vec::new());
    for group in [agent_sandbox::GROUP, agent_sandbox::EXTENSIONS_GROUP] {
        let versions: Vec<_> = groups
            .iter()
            .filter(|found| found.name == group)
            .flat_map(|found| found.versions.iter().map(|version| version.version.clone()))
            .collect();
        let listed = match versions.iter().any(|version| version == NEEDED_VERSION) {
            true => client.list_api_group_resources(&format!("{group}/{NEEDED_VERSION}")).await.ok(),
            false => None,
        };
        let names: Vec<_> = listed.into_iter().flat_map(|list| list.resources).map(|resource| resource.name).collect();
        let wanted = NEEDED.iter().filter(|(of, _)| *of == group).map(|(_, resource)| *resource);
        missing.extend(wanted.filter(|resource| !names.iter().any(|name| name == resource)));
        seen.push(match versions.is_empty() {
            true => format!("{group} not served"),
            false => format!("{group} {}", versions.join(", ")),
        });
    }
    let evidence = seen.join("; ");
    if missing.is_empty() {
        findings.push(green(Line::AgentSandbox, evidence));
        return true;
    }
    let evidence = format!("{} in {NEEDED_VERSION} missing ({evidence})", missing.join(", "));
    findings.push(red(Line::AgentSandbox, evidence, INSTALL));
    false
}

pub(super) async fn namespace(client: &Client, name: &str, findings: &mut Vec<ClusterFinding>) {
    match Api::<Namespace>::all(client.clone()).get_opt(name).await {
        Ok(Some(namespace)) => {
            findings.push(green(Line::Namespace, format!("`{name}` is there")));
            findings.push(match namespace.labels().get(POD_SECURITY).map(String::as_str) {
                Some(RESTRICTED) => green(Line::PodSecurity, format!("{RESTRICTED} is enforced")),
                Some(level) => red(Line::PodSecurity, format!("{level} is enforced, not {RESTRICTED}"), MANIFESTS),
                None => red(Line::PodSecurity, "no level is enforced", MANIFESTS),
            });
        }
        Ok(None) => findings.push(red(Line::Namespace, format!("there is no namespace `{name}`"), MANIFESTS)),
        Err(error) => {
            for line in [Line::Namespace, Line::PodSecurity] {
                findings.push(grey(line, format!("not observed: {}", answer(&error)), None));
            }
        }
    }
}

pub(super) async fn storage(client: &Client, wanted: Option<&str>, findings: &mut Vec<ClusterFinding>) {
    let classes = match Api::<StorageClass>::all(client.clone()).list(&ListParams::default()).await {
        Ok(classes) => classes.items,
        Err(error) => {
            return findings.push(grey(Line::Storage, format!("not observed: {}", answer(&error)), None));
        }
    };
    let names: Vec<_> = classes.iter().map(kube::ResourceExt::name_any).collect();
    let there = if names.is_empty() { "there is none".to_owned() } else { format!("there are {}", names.join(", ")) };
    let found = classes.iter().find(|class| match wanted {
        Some(wanted) => class.name_any() == wanted,
        None => class.annotations().get(DEFAULT_CLASS).is_some_and(|value| value == "true"),
    });
    findings.push(match (found, wanted) {
        (Some(class), Some(_)) => green(Line::Storage, format!("{} ({})", class.name_any(), class.provisioner)),
        (Some(class), None) => {
            green(Line::Storage, format!("{} is the default ({})", class.name_any(), class.provisioner))
        }
        (None, Some(wanted)) => {
            red(Line::Storage, format!("no class `{wanted}`; {there}"), "Make it, or name another in the template.")
        }
        (None, None) => red(
            Line::Storage,
            format!("no default class; {there}"),
            "Make one the default, name one in the template's [kubernetes], or say storage = \"ephemeral\" there.",
        ),
    });
}

/// Whether the class that was asked for, if any, is there.
pub(super) async fn runtime(client: &Client, wanted: Option<&str>, findings: &mut Vec<ClusterFinding>) -> bool {
    let Some(wanted) = wanted else { return true };
    match Api::<RuntimeClass>::all(client.clone()).get_opt(wanted).await {
        Ok(Some(class)) => {
            findings.push(green(Line::RuntimeClass, format!("`{wanted}` is there, handler {}", class.handler)));
            true
        }
        Ok(None) => {
            let fix = "Install the runtime on the nodes and make a RuntimeClass with its handler.";
            findings.push(red(Line::RuntimeClass, format!("there is no RuntimeClass `{wanted}`"), fix));
            false
        }
        Err(error) => {
            findings.push(grey(Line::RuntimeClass, format!("not observed: {}", answer(&error)), None));
            true
        }
    }
}

/// Of this server; where which one is meant is not known, of every Sandbar.
pub(super) async fn pools(client: &Client, settings: &Settings, findings: &mut Vec<ClusterFinding>) {
    let (selector, whose) = match settings.instance.is_empty() {
        true => (format!("{MANAGED_BY}={MANAGER}"), " (of every Sandbar in the namespace)"),
        false => (objects::selector(settings), ""),
    };
    let params = ListParams::default().labels(&selector);
    let pools = match Api::<SandboxWarmPool>::namespaced(client.clone(), &settings.namespace).list(&params).await {
        Ok(pools) => pools.items,
        Err(error) => {
            return findings.push(grey(Line::Pools, format!("not observed: {}", answer(&error)), None));
        }
    };
    let wanted: Vec<_> = pools.iter().filter(|pool| pool.spec.replicas != Some(0)).collect();
    if wanted.is_empty() {
        return findings.push(grey(Line::Pools, "nothing is kept warm", None));
    }
    let ready = |pool: &SandboxWarmPool| pool.status.as_ref().map_or(0, |status| status.ready_replicas);
    let size = |pool: &SandboxWarmPool| pool.spec.replicas.unwrap_or(1);
    let told: Vec<_> =
        wanted.iter().map(|pool| format!("{} {}/{}", pool.name_any(), ready(pool), size(pool))).collect();
    findings.push(match wanted.iter().all(|pool| ready(pool) >= size(pool)) {
        true => green(Line::Pools, format!("ready{whose}: {}", told.join(", "))),
        false => red(
            Line::Pools,
            format!("not all are ready{whose}: {}", told.join(", ")),
            "They may still be starting; `kubectl describe` their sandboxes and pods for what they wait for.",
        ),
    });
}
