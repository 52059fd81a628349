//! What the manifests grant and what the check asks for are the same: an API server allows what the printed roles say, and
//! one right after the other is taken away.

use std::{
    io,
    sync::{Arc, Mutex, PoisonError},
};

use sandbar_api::{ClusterFinding, Verdict};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::{StandIn, good, look_only};
use crate::{
    Settings,
    manifests::{Values, render},
    settings::Reach,
};

/// One verb on one resource, as a role grants it.
#[derive(Debug, Clone, PartialEq)]
struct Grant {
    verb: String,
    group: String,
    resource: String,
    /// Nothing, where it holds in all of them.
    namespace: Value,
    /// Nothing, where it holds for all objects.
    names: Value,
}

impl Grant {
    fn allows(&self, asked: &Value) -> bool {
        let resource = match asked["subresource"].as_str() {
            Some(sub) => format!("{}/{sub}", asked["resource"].as_str().unwrap_or_default()),
            None => asked["resource"].as_str().unwrap_or_default().to_owned(),
        };
        asked["verb"] == self.verb
            && asked["group"].as_str().unwrap_or_default() == self.group
            && resource == self.resource
            && (self.namespace.is_null() || asked["namespace"] == self.namespace)
            && self.names.as_array().is_none_or(|names| names.contains(&asked["name"]))
    }
}

fn words(list: &Value) -> impl Iterator<Item = String> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned)
}

/// Every right of every role that is printed for these values.
fn granted(values: &str) -> Vec<Grant> {
    let values = Values::read(values).unwrap_or_else(|bad| panic!("{bad}"));
    let text = render(&values, &[], &[]).unwrap_or_else(|bad| panic!("{bad}"));
    let mut grants = Vec::new();
    for document in text.split("---\n").skip(1) {
        let document: Value = serde_saphyr::from_str(document).unwrap_or_else(|error| panic!("{error}\n{document}"));
        for rule in document["rules"].as_array().into_iter().flatten() {
            for group in words(&rule["apiGroups"]) {
                for resource in words(&rule["resources"]) {
                    grants.extend(words(&rule["verbs"]).map(|verb| Grant {
                        verb,
                        group: group.clone(),
                        resource: resource.clone(),
                        namespace: document["metadata"]["namespace"].clone(),
                        names: rule["resourceNames"].clone(),
                    }));
                }
            }
        }
    }
    grants
}

#[tokio::test]
async fn what_is_granted_is_what_is_asked_for() -> io::Result<()> {
    for (values, reach) in [("", Reach::PodIp), ("[server]\noutside = true\n", Reach::PortForward)] {
        let grants = granted(values);
        assert!(grants.len() > 20, "{grants:?}");
        let held = Arc::new(Mutex::new(grants.clone()));
        let rights = Arc::clone(&held);
        let cluster = StandIn::start(move |method, path, body| {
            let (code, mut answer) = good(method, path, body);
            if path.contains("/selfsubjectaccessreviews") {
                let rights = rights.lock().unwrap_or_else(PoisonError::into_inner);
                let asked = &body["spec"]["resourceAttributes"];
                answer["status"]["allowed"] = json!(rights.iter().any(|grant| grant.allows(asked)));
            }
            (code, answer)
        })
        .await?;
        let settings = Settings {
            kubeconfig: Some(cluster.kubeconfig()?),
            reach,
            ..Settings::new("instance", vec!["key".into()])
        };
        let missed = async || -> Vec<ClusterFinding> {
            let report = super::super::run(&settings, &look_only(), &CancellationToken::new()).await;
            let permissions = report.findings.into_iter().filter(|finding| finding.check.starts_with("permissions"));
            permissions.filter(|finding| finding.verdict != Verdict::Green).collect()
        };
        assert_eq!(missed().await, [], "what is asked for is not granted");
        for grant in &grants {
            let rest = grants.iter().filter(|other| *other != grant).cloned().collect();
            *held.lock().unwrap_or_else(PoisonError::into_inner) = rest;
            let missed = missed().await;
            let [finding] = missed.as_slice() else { panic!("without {grant:?}: {missed:#?}") };
            assert_eq!(finding.check, format!("permissions: {}", grant.resource), "{finding:?}");
            assert!(finding.evidence.starts_with(&format!("may not {} (", grant.verb)), "{grant:?}: {finding:?}");
            assert_eq!(finding.verdict, Verdict::Red, "{finding:?}");
        }
    }
    Ok(())
}
