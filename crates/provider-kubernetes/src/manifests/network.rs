//! Who may talk to whom, in place with the namespaces and so before any pod.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::networking::v1::{
        NetworkPolicy, NetworkPolicyIngressRule, NetworkPolicyPeer, NetworkPolicyPort, NetworkPolicySpec,
    },
    apimachinery::pkg::util::intstr::IntOrString,
};

use super::{
    Bad,
    document::Documents,
    metadata, selecting, selector,
    server::{HEALTH, PORT},
    values::Values,
};
use crate::objects::GUEST_PORT;

pub(super) fn push(values: &Values, documents: &mut Documents) -> Result<(), Bad> {
    let sandboxes = &values.sandboxes.namespace;
    documents.push(
        "No sandbox is reached and none reaches anything, but for what a policy beside this one says.",
        &NetworkPolicy {
            metadata: metadata("default-deny", sandboxes),
            spec: Some(NetworkPolicySpec {
                pod_selector: Some(selecting(BTreeMap::new())),
                policy_types: Some(["Ingress", "Egress"].map(Into::into).into()),
                ..NetworkPolicySpec::default()
            }),
        },
    )?;
    if values.server.outside {
        return Ok(());
    }
    let server = NetworkPolicyPeer {
        namespace_selector: Some(selecting(
            [("kubernetes.io/metadata.name".to_owned(), values.server.namespace.clone())].into(),
        )),
        pod_selector: Some(selecting(selector())),
        ip_block: None,
    };
    documents.push(
        "The server alone reaches guests, which let nobody else in either. What sandboxes may reach goes through it.",
        &NetworkPolicy {
            metadata: metadata(&format!("guests-from-{}", values.server.namespace), sandboxes),
            spec: Some(NetworkPolicySpec {
                pod_selector: Some(selecting(BTreeMap::new())),
                policy_types: Some(vec!["Ingress".into()]),
                ingress: Some(vec![NetworkPolicyIngressRule {
                    from: Some(vec![server]),
                    ports: Some(vec![tcp(GUEST_PORT)]),
                }]),
                ..NetworkPolicySpec::default()
            }),
        },
    )?;
    documents.push(
        "The server is reached at its port, and at one more where it tells whether it lives and nothing else.",
        &NetworkPolicy {
            metadata: metadata("server", &values.server.namespace),
            spec: Some(NetworkPolicySpec {
                pod_selector: Some(selecting(selector())),
                policy_types: Some(vec!["Ingress".into()]),
                ingress: Some(vec![NetworkPolicyIngressRule { from: None, ports: Some(vec![tcp(PORT), tcp(HEALTH)]) }]),
                ..NetworkPolicySpec::default()
            }),
        },
    )
}

fn tcp(port: u16) -> NetworkPolicyPort {
    NetworkPolicyPort { port: Some(IntOrString::Int(i32::from(port))), protocol: Some("TCP".into()), end_port: None }
}
