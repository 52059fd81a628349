//! What these credentials may do: every verb of every right is asked for.

use k8s_openapi::api::authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec};
use kube::{Api, Client, api::PostParams};
use sandbar_api::{ClusterFinding, Verdict};

use super::finding::{Line, answer};
use crate::{
    Settings,
    manifests::rights::{OWN_NAMESPACE, RIGHTS, Right, Scope},
};

/// Tells whether everything that sandboxes need is allowed.
pub(super) async fn look(
    client: &Client,
    settings: &Settings,
    outside: bool,
    findings: &mut Vec<ClusterFinding>,
) -> bool {
    let mut enough = true;
    let rights = RIGHTS.into_iter().chain([OWN_NAMESPACE]);
    for right in rights.filter(|right| right.scope != Scope::Outside || outside) {
        let finding = review(client, &right, &settings.namespace).await;
        enough &= !right.required || finding.verdict == Verdict::Green;
        findings.push(finding);
    }
    enough
}

async fn review(client: &Client, right: &Right, namespace: &str) -> ClusterFinding {
    let (mut may, mut may_not) = (Vec::new(), Vec::new());
    for verb in right.verbs {
        match allowed(client, right, verb, namespace).await {
            Ok(true) => may.push(*verb),
            Ok(false) => may_not.push(*verb),
            Err(error) => {
                let evidence = format!("not observed: {}", answer(&error));
                return finding(right, Verdict::Grey, evidence, None);
            }
        }
    }
    if may_not.is_empty() {
        return finding(right, Verdict::Green, format!("may {}", may.join(", ")), None);
    }
    let fix = match right.scope {
        Scope::Cluster => "Apply the ClusterRole of `sandbar kubernetes manifests`, or do without this line.",
        Scope::Outside => {
            "Say `outside = true` in [server] of the values, and apply `sandbar kubernetes manifests` again."
        }
        Scope::Namespace => "Apply the Role of `sandbar kubernetes manifests`, for the account that the server uses.",
    };
    let reason = format!("may not {} ({})", may_not.join(", "), right.why.trim_end_matches('.'));
    finding(right, Verdict::Red, reason, Some(fix.into()))
}

async fn allowed(client: &Client, right: &Right, verb: &str, namespace: &str) -> Result<bool, kube::Error> {
    let (resource, subresource) = match right.resource.split_once('/') {
        Some((resource, sub)) => (resource, Some(sub.to_owned())),
        None => (right.resource, None),
    };
    let asked = ResourceAttributes {
        group: Some(right.group.into()),
        resource: Some(resource.into()),
        subresource,
        verb: Some(verb.into()),
        namespace: (right.scope != Scope::Cluster).then(|| namespace.to_owned()),
        name: (*right == OWN_NAMESPACE).then(|| namespace.to_owned()),
        ..ResourceAttributes::default()
    };
    let review = SelfSubjectAccessReview {
        spec: SelfSubjectAccessReviewSpec { resource_attributes: Some(asked), non_resource_attributes: None },
        ..SelfSubjectAccessReview::default()
    };
    let answer = Api::<SelfSubjectAccessReview>::all(client.clone()).create(&PostParams::default(), &review).await?;
    Ok(answer.status.is_some_and(|status| status.allowed))
}

fn finding(right: &Right, verdict: Verdict, evidence: String, fix: Option<String>) -> ClusterFinding {
    let check = format!("{}: {}", Line::Permissions.name(), right.resource);
    ClusterFinding { check, verdict, required: right.required, evidence, fix }
}
