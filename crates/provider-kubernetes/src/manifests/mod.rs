//! `sandbar kubernetes manifests`: everything an installation needs, as documents for `kubectl apply -f -`. Pure: the same
//! values and templates give the same text.
//!
//! Nothing secret is in it: where the server needs a secret, a comment says how to make it.

mod access;
mod config;
mod configured;
mod document;
mod key;
mod network;
#[cfg(test)]
mod restricted;
pub mod rights;
mod sandboxes;
mod server;
#[cfg(test)]
mod tests;
pub mod values;

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::Namespace,
    apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta},
};
use sandbar_api::Template;

use crate::settings::ServerPods;
use document::Documents;

pub use config::{BadFile, File, OF_A_HOME};
pub use key::shown as key_shown;
pub use values::{BadValues, Values};

/// Of the server's objects.
const NAME: &str = "sandbar";
/// What an API server has to serve: group, resource and version.
pub const NEEDED: [(&str, &str); 4] = [
    (agent_sandbox::GROUP, "sandboxes"),
    (agent_sandbox::EXTENSIONS_GROUP, "sandboxtemplates"),
    (agent_sandbox::EXTENSIONS_GROUP, "sandboxwarmpools"),
    (agent_sandbox::EXTENSIONS_GROUP, "sandboxclaims"),
];
pub const NEEDED_VERSION: &str = "v1beta1";
pub(crate) const INSTALL: &str =
    "Install agent-sandbox 1.0 or later: `manifest.yaml` and `extensions.yaml` of a release.";
/// Which level of Pod Security holds for a namespace.
pub const POD_SECURITY: &str = "pod-security.kubernetes.io/enforce";
pub const RESTRICTED: &str = "restricted";

#[derive(Debug, thiserror::Error)]
pub enum Bad {
    #[error("the manifests cannot be written: {0}")]
    Written(String),
    #[error("template `{template}` cannot be a SandboxTemplate")]
    Template { template: String, source: Box<sandbar_provider::Error> },
    #[error("a SandboxTemplate needs the public key of the server that its sandboxes obey, and there is none")]
    NoKey,
    #[error("`{0}` is no server's key")]
    Key(String),
    #[error("`{0}` in [sandboxes.pools] is none of the templates that were given")]
    NoTemplate(String),
    #[error(transparent)]
    File(#[from] BadFile),
    #[error("a server elsewhere reads its own home: no configuration can be brought along for it")]
    Elsewhere,
}

/// A template of Sandbar, and its file as it was written.
#[derive(Debug, Clone, PartialEq)]
pub struct Given {
    pub template: Template,
    pub text: String,
}

pub fn render(values: &Values, templates: &[Given], files: &[File]) -> Result<String, Bad> {
    config::check(files)?;
    if values.server.outside && !files.is_empty() {
        return Err(Bad::Elsewhere);
    }
    let mut documents = Documents::default();
    documents.comment(&preface(values));
    namespaces(values, &mut documents)?;
    if values.network_policies {
        network::push(values, &mut documents)?;
    }
    access::push(values, &mut documents)?;
    if !values.server.outside {
        server::push(values, templates, files, &mut documents)?;
    }
    sandboxes::push(values, templates, &mut documents)?;
    Ok(documents.finish())
}

/// How a sandbox's policy recognises the server; also for a server that finds itself in a cluster.
pub fn server_pods(namespace: &str) -> ServerPods {
    ServerPods { namespace: namespace.into(), labels: selector() }
}

fn preface(values: &Values) -> String {
    let crds: Vec<_> =
        NEEDED.iter().map(|(group, resource)| format!("  {resource}.{group} {NEEDED_VERSION}")).collect();
    let (namespace, server) = (&values.server.namespace, &values.server);
    let mut lines = vec![
        "Sandbar on Kubernetes. Needs agent-sandbox 1.0 or later with its extensions, that is to say:".to_owned(),
        crds.join("\n"),
        String::new(),
    ];
    if values.server.outside {
        lines.push(format!(
            "The server elsewhere uses the account made here: kubectl -n {namespace} create token {NAME}"
        ));
        return lines.join("\n");
    }
    lines.extend([
        format!("Make once in the namespace {namespace}, because it is not for a file:"),
        format!("  kubectl -n {namespace} create secret tls {} --cert=cert.pem --key=key.pem", server.tls_secret),
    ]);
    let key = format!("  kubectl -n {namespace} create secret generic {} --from-file=secret.key", server.key_secret);
    match values.store.kind {
        values::StoreKind::Sqlite => lines.extend([format!(
            "and only to bring a home's key along (otherwise the server makes one on its volume):\n{key}"
        )]),
        values::StoreKind::Postgresql => lines.extend([
            format!("{key}    # head -c 32 /dev/urandom > secret.key"),
            format!(
                "  kubectl -n {namespace} create secret generic {} --from-literal=url=postgresql://…",
                values.store.url_secret
            ),
        ]),
    }
    lines.join("\n")
}

fn namespaces(values: &Values, documents: &mut Documents) -> Result<(), Bad> {
    for (name, why) in [
        (&values.server.namespace, "Where the server is."),
        (
            &values.sandboxes.namespace,
            "Where sandboxes are, and nothing else: Pod Security refuses what is not restricted.",
        ),
    ] {
        let mut labels = labels();
        for mode in ["enforce", "warn", "audit"] {
            labels.insert(format!("pod-security.kubernetes.io/{mode}"), RESTRICTED.into());
        }
        let metadata = ObjectMeta { name: Some(name.clone()), labels: Some(labels), ..ObjectMeta::default() };
        documents.push(why, &Namespace { metadata, ..Namespace::default() })?;
    }
    Ok(())
}

fn metadata(name: &str, namespace: &str) -> ObjectMeta {
    ObjectMeta {
        name: Some(name.into()),
        namespace: Some(namespace.into()),
        labels: Some(labels()),
        ..ObjectMeta::default()
    }
}

/// On everything of ours.
fn labels() -> BTreeMap<String, String> {
    [("app.kubernetes.io/name", NAME), ("app.kubernetes.io/part-of", NAME)]
        .map(|(key, value)| (key.into(), value.into()))
        .into()
}

/// On the server's pods, and on no other.
fn selector() -> BTreeMap<String, String> {
    [("app.kubernetes.io/name", NAME), ("app.kubernetes.io/component", "server")]
        .map(|(key, value)| (key.into(), value.into()))
        .into()
}

fn selecting(labels: BTreeMap<String, String>) -> LabelSelector {
    LabelSelector { match_labels: (!labels.is_empty()).then_some(labels), match_expressions: None }
}
