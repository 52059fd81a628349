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

    // Two installations share a cluster, or even the namespace of their sandboxes, and must not take each other's.
    let name = format!("{NAME}-{server}");
    let mut rules = of(Scope::Namespace);
    if values.server.outside {
        rules.extend(of(Scope::Outside));
    }
    let own = PolicyRule { resource_names: Some(vec![sandboxes.clone()]), ..rule(&OWN_NAMESPACE) };
    rules.push((OWN_NAMESPACE.why, own));
    let role = Role { metadata: metadata(&name, sandboxes), rules: None };
    documents.push_rules("All it may do, in the sandboxes' namespace alone.", &role, &rules)?;
    let binding = RoleBinding {
        metadata: metadata(&name, sandboxes),
        role_ref: role_ref("Role", &name),
        subjects: Some(vec![subject(server)]),
    };
    documents.push("It may.", &binding)?;

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

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::{super::render, *};

    /// Every object, by its kind, its namespace and its name.
    fn objects(server: &str, rest: &str) -> Vec<([String; 3], Value)> {
        let values = format!("[server]\nnamespace = \"{server}\"\n{rest}[sandboxes]\nnamespace = \"shared\"\n");
        let values = Values::read(&values).unwrap_or_else(|bad| panic!("{bad}"));
        let text = render(&values, &[], &[]).unwrap_or_else(|bad| panic!("{bad}"));
        let documents = text.split("---\n").skip(1).map(|document| {
            let object: Value = serde_saphyr::from_str(document).unwrap_or_else(|error| panic!("{error}\n{document}"));
            let part = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
            (["/kind", "/metadata/namespace", "/metadata/name"].map(part), object)
        });
        documents.collect()
    }

    #[test]
    fn two_installations_share_the_namespace_of_their_sandboxes_and_nothing_else() {
        let one = objects("one", "");
        for rest in ["", "outside = true\n"] {
            let two = objects("two", rest);
            let both: Vec<_> = one.iter().filter(|(name, _)| two.iter().any(|(other, _)| other == name)).collect();
            assert!(both.iter().all(|object| two.contains(object)), "one takes what is another's: {both:#?}");
            let names: Vec<_> = both.iter().map(|(name, _)| name.each_ref().map(String::as_str)).collect();
            assert_eq!(names, [["Namespace", "", "shared"], ["NetworkPolicy", "shared", "default-deny"]]);
        }
    }

    #[test]
    fn the_account_is_bound_to_its_own_role() {
        let objects = objects("one", "");
        let of = |kind: &str| objects.iter().find(|([of, ..], _)| of == kind).unwrap_or_else(|| panic!("no {kind}"));
        let ((role, _), (_, binding)) = (of("Role"), of("RoleBinding"));
        assert_eq!(binding["roleRef"]["name"], role[2]);
        assert_eq!(binding["subjects"][0]["namespace"], "one");
    }
}
