//! Who the server is to the cluster, and what it may do there: `rights`, and nothing else.

use k8s_openapi::{
    api::{
        core::v1::{LocalObjectReference, ServiceAccount},
        rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef, Subject},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

use super::{
    Bad, NAME,
    document::Documents,
    labels, metadata,
    rights::{OWN_NAMESPACE, RIGHTS, Right, Scope},
    values::Values,
};

pub(super) fn push(values: &Values, documents: &mut Documents) -> Result<(), Bad> {
    let (server, sandboxes) = (&values.server.namespace, &values.sandboxes.namespace);
    let secrets = values.image_pull_secrets.iter().map(|name| LocalObjectReference { name: name.clone() });
    let account = ServiceAccount {
        metadata: metadata(NAME, server),
        image_pull_secrets: (!values.image_pull_secrets.is_empty()).then(|| secrets.collect()),
        ..ServiceAccount::default()
    };
    documents.push("Who the server is.", &account)?;

    let mut rules = of(Scope::Namespace);
    if values.server.outside {
        rules.extend(of(Scope::Outside));
    }
    let own = PolicyRule { resource_names: Some(vec![sandboxes.clone()]), ..rule(&OWN_NAMESPACE) };
    rules.push((OWN_NAMESPACE.why, own));
    let role = Role { metadata: metadata(NAME, sandboxes), rules: None };
    documents.push_rules("All it may do, in the sandboxes' namespace alone.", &role, &rules)?;
    let binding = RoleBinding {
        metadata: metadata(NAME, sandboxes),
        role_ref: role_ref("Role", NAME),
        subjects: Some(vec![subject(server)]),
    };
    documents.push("It may.", &binding)?;

    // Two installations in one cluster must not take each other's.
    let name = format!("{NAME}-{server}");
    let metadata = ObjectMeta { name: Some(name.clone()), labels: Some(labels()), ..ObjectMeta::default() };
    let role = ClusterRole { metadata: metadata.clone(), ..ClusterRole::default() };
    let why =
        "What has no namespace; only looked at, by `sandbar kubernetes check`, which says so where this is left out.";
    documents.push_rules(why, &role, &of(Scope::Cluster))?;
    let binding = ClusterRoleBinding {
        metadata,
        role_ref: role_ref("ClusterRole", &name),
        subjects: Some(vec![subject(server)]),
    };
    documents.push("It may.", &binding)
}

fn of(scope: Scope) -> Vec<(&'static str, PolicyRule)> {
    RIGHTS.iter().filter(|right| right.scope == scope).map(|right| (right.why, rule(right))).collect()
}

fn rule(right: &Right) -> PolicyRule {
    PolicyRule {
        api_groups: Some(vec![right.group.into()]),
        resources: Some(vec![right.resource.into()]),
        verbs: right.verbs.iter().map(|verb| (*verb).to_owned()).collect(),
        ..PolicyRule::default()
    }
}

fn role_ref(kind: &str, name: &str) -> RoleRef {
    RoleRef { api_group: "rbac.authorization.k8s.io".into(), kind: kind.into(), name: name.into() }
}

fn subject(namespace: &str) -> Subject {
    Subject { kind: "ServiceAccount".into(), name: NAME.into(), namespace: Some(namespace.into()), api_group: None }
}
