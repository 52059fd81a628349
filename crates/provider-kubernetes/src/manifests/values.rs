//! What an operator says about an installation: a small TOML file, every key of which has a default.

use std::collections::BTreeMap;

use k8s_openapi::{api::core::v1::Toleration, apimachinery::pkg::api::resource::Quantity};
use sandbar_api::HumanSize;
use serde::Deserialize;
use toml::de::DeTable;

use crate::settings::{DEFAULT_IMAGE, GUEST_IMAGE, NAMESPACE};

/// Where the server is, unless somebody says otherwise.
pub const SERVER_NAMESPACE: &str = "sandbar";

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Values {
    /// As `sandbar kubernetes key` prints it; several while a key is replaced. Needed for templates only.
    pub server_keys: Vec<String>,
    /// Off where somebody else keeps sandboxes and server apart from the rest.
    pub network_policies: bool,
    pub image_pull_policy: Option<PullPolicy>,
    /// Names of Secrets that are in both namespaces.
    pub image_pull_secrets: Vec<String>,
    pub server: Server,
    pub store: Store,
    pub sandboxes: Sandboxes,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Server {
    /// It runs elsewhere and reaches guests through the API server: of itself only its account and its rights are made.
    pub outside: bool,
    pub namespace: String,
    pub image: String,
    /// Several need PostgreSQL.
    pub replicas: Option<u16>,
    pub service: ServiceType,
    /// A Secret of type `kubernetes.io/tls`.
    pub tls_secret: String,
    /// A Secret with `secret.key` in it.
    pub key_secret: String,
    pub resources: Resources,
    pub node_selector: BTreeMap<String, String>,
    pub tolerations: Vec<Toleration>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Store {
    pub kind: StoreKind,
    /// Of SQLite's volume.
    pub size: HumanSize,
    /// Of SQLite's volume; the cluster's default otherwise.
    pub storage_class: Option<String>,
    /// A Secret with PostgreSQL's address as `url`.
    pub url_secret: String,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Sandboxes {
    pub namespace: String,
    /// What templates without an image of their own run.
    pub image: String,
    /// Brings the guest into each pod.
    pub guest_image: String,
    /// How many of each template wait, by the template's name.
    pub pools: BTreeMap<String, u32>,
    pub node_selector: BTreeMap<String, String>,
    pub tolerations: Vec<Toleration>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Resources {
    pub requests: BTreeMap<String, Quantity>,
    pub limits: BTreeMap<String, Quantity>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StoreKind {
    Sqlite,
    Postgresql,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub enum ServiceType {
    #[serde(rename = "ClusterIP")]
    ClusterIp,
    NodePort,
    LoadBalancer,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub enum PullPolicy {
    Always,
    IfNotPresent,
    Never,
}

/// What is wrong with what was given, and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}{cause}", .line.map(|line| format!("line {line}: ")).unwrap_or_default())]
pub struct BadValues {
    /// Counted from 1.
    pub line: Option<usize>,
    /// One clause without a full stop.
    pub cause: String,
}

impl Values {
    pub fn read(text: &str) -> Result<Self, BadValues> {
        let values: Self = toml::from_str(text).map_err(|error| BadValues {
            line: error.span().map(|span| line(text, span.start)),
            cause: error.message().trim().trim_end_matches('.').replace('\n', ", "),
        })?;
        values.checked().map_err(|(key, cause)| BadValues { line: written(text, key), cause })
    }

    /// An error has the path of the key that is wrong.
    fn checked(self) -> Result<Self, (&'static str, String)> {
        let names = [
            ("server.namespace", &self.server.namespace),
            ("sandboxes.namespace", &self.sandboxes.namespace),
            ("server.tls_secret", &self.server.tls_secret),
            ("server.key_secret", &self.server.key_secret),
            ("store.url_secret", &self.store.url_secret),
        ];
        for (key, name) in
            names.into_iter().chain(self.image_pull_secrets.iter().map(|name| ("image_pull_secrets", name)))
        {
            if !is_label(name) {
                let name = name.escape_debug();
                return Err((key, format!("`{key}`: `{name}` is no name: use up to 63 of a-z, 0-9 and -")));
            }
        }
        if self.server.namespace == self.sandboxes.namespace {
            // Named is the one that is not the default, and so was written.
            let key = if self.sandboxes.namespace == NAMESPACE { "server.namespace" } else { "sandboxes.namespace" };
            let cause = "server and sandboxes need a namespace each: what holds sandboxes would hold the server too";
            return Err((key, format!("`{key}`: {cause}")));
        }
        let images = [
            ("server.image", &self.server.image),
            ("sandboxes.image", &self.sandboxes.image),
            ("sandboxes.guest_image", &self.sandboxes.guest_image),
        ];
        for (key, image) in images {
            if image.is_empty() || image.contains(char::is_whitespace) {
                return Err((key, format!("`{key}`: `{}` is no image", image.escape_debug())));
            }
        }
        let key = "server.replicas";
        match (self.replicas(), self.store.kind) {
            (0, _) => Err((key, format!("`{key}`: at least one server is needed"))),
            (2.., StoreKind::Sqlite) => {
                Err((key, format!("`{key}`: several servers need `kind = \"postgresql\"` in [store]")))
            }
            _ => Ok(self),
        }
    }

    pub fn replicas(&self) -> u16 {
        self.server.replicas.unwrap_or(match self.store.kind {
            StoreKind::Sqlite => 1,
            StoreKind::Postgresql => 2,
        })
    }
}

impl Default for Values {
    fn default() -> Self {
        Self {
            server_keys: Vec::new(),
            network_policies: true,
            image_pull_policy: None,
            image_pull_secrets: Vec::new(),
            server: Server::default(),
            store: Store::default(),
            sandboxes: Sandboxes::default(),
        }
    }
}

impl Default for Server {
    fn default() -> Self {
        Self {
            outside: false,
            namespace: SERVER_NAMESPACE.into(),
            image: GUEST_IMAGE.into(),
            replicas: None,
            service: ServiceType::ClusterIp,
            tls_secret: "sandbar-tls".into(),
            key_secret: "sandbar-key".into(),
            resources: Resources::default(),
            node_selector: BTreeMap::new(),
            tolerations: Vec::new(),
        }
    }
}

impl Default for Store {
    fn default() -> Self {
        Self {
            kind: StoreKind::Sqlite,
            size: HumanSize(10 << 30),
            storage_class: None,
            url_secret: "sandbar-postgresql".into(),
        }
    }
}

impl Default for Sandboxes {
    fn default() -> Self {
        Self {
            namespace: NAMESPACE.into(),
            image: DEFAULT_IMAGE.into(),
            guest_image: GUEST_IMAGE.into(),
            pools: BTreeMap::new(),
            node_selector: BTreeMap::new(),
            tolerations: Vec::new(),
        }
    }
}

impl Default for Resources {
    fn default() -> Self {
        let amounts = |amounts: &[(&str, &str)]| {
            amounts.iter().map(|(name, amount)| ((*name).to_owned(), Quantity((*amount).to_owned()))).collect()
        };
        Self { requests: amounts(&[("cpu", "250m"), ("memory", "256Mi")]), limits: amounts(&[("memory", "1Gi")]) }
    }
}

impl PullPolicy {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Always => "Always",
            Self::IfNotPresent => "IfNotPresent",
            Self::Never => "Never",
        }
    }
}

impl ServiceType {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ClusterIp => "ClusterIP",
            Self::NodePort => "NodePort",
            Self::LoadBalancer => "LoadBalancer",
        }
    }
}

/// A name that Kubernetes takes anywhere.
fn is_label(name: &str) -> bool {
    let letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = name.as_bytes();
    (1..=63).contains(&bytes.len())
        && bytes.iter().all(|byte| letter(*byte) || *byte == b'-')
        && bytes.first().copied().is_some_and(letter)
        && bytes.last().copied().is_some_and(letter)
}

fn line(text: &str, offset: usize) -> usize {
    let above = text.bytes().take(offset).filter(|byte| *byte == b'\n').count();
    (above + 1).min(text.lines().count().max(1))
}

/// Where the value of a key stands, by its path with dots, however its table is written. Nowhere, where it is a default.
fn written(text: &str, key: &str) -> Option<usize> {
    let document = DeTable::parse(text).ok()?;
    let mut keys = key.split('.');
    let first = document.get_ref().get(keys.next()?)?;
    let value = keys.try_fold(first, |table, key| table.get_ref().get(key))?;
    Some(line(text, value.span().start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_said_is_the_default_and_everything_can_be_said() {
        assert_eq!(Values::read(""), Ok(Values::default()));
        let text = r#"
server_keys = ["a2V5"]
network_policies = false
image_pull_policy = "Never"
image_pull_secrets = ["registry"]
[server]
namespace = "agents"
image = "images.example/sandbar:1"
replicas = 3
service = "LoadBalancer"
tls_secret = "tls"
key_secret = "key"
node_selector = { disk = "fast" }
tolerations = [{ key = "a", operator = "Exists", effect = "NoSchedule" }]
[server.resources]
requests = { cpu = "1" }
limits = { memory = "2Gi" }
[store]
kind = "postgresql"
size = "20GiB"
storage_class = "fast"
url_secret = "pg"
[sandboxes]
namespace = "boxes"
image = "images.example/python:3"
guest_image = "images.example/sandbar:1"
pools = { python = 4 }
node_selector = { pool = "boxes" }
tolerations = [{ operator = "Exists" }]
"#;
        let values = Values::read(text).unwrap_or_else(|bad| panic!("{bad}"));
        assert_eq!((values.replicas(), values.store.kind), (3, StoreKind::Postgresql));
        assert_eq!(values.sandboxes.pools.get("python"), Some(&4));
        assert_eq!(values.server.tolerations.first().and_then(|toleration| toleration.key.as_deref()), Some("a"));
    }

    #[test]
    fn mistakes_name_their_line() {
        for (text, line, says) in [
            ("imgae = \"x\"\n", Some(1), "imgae"),
            ("\n[server]\nreplica = 2\n", Some(3), "replica"),
            ("[server]\nreplicas = \"two\"\n", Some(2), "two"),
            ("[server]\nreplicas = 2\n", Some(2), "postgresql"),
            ("[store]\nkind = \"postgresql\"\n[server]\nreplicas = 0\n", Some(4), "at least one"),
            ("[store]\nkind = \"mysql\"\n", Some(2), "mysql"),
            ("[sandboxes]\nnamespace = \"sandbar\"\n", Some(2), "a namespace each"),
            ("[sandboxes]\nnamespace = \"Über\"\n", Some(2), "no name"),
            ("[server]\nnamespace = \"sandbar-sandboxes\"\n", Some(2), "`server.namespace`"),
            ("[server]\nnamespace = \"a\"\n[sandboxes]\nnamespace = \"a\"\n", Some(4), "a namespace each"),
            ("[server]\nimage = \"a b\"\n", Some(2), "no image"),
            ("image_pull_secrets = [\"Ü\"]\n", Some(1), "`image_pull_secrets`"),
            ("[server\n", Some(1), ""),
        ] {
            let bad = Values::read(text).err().unwrap_or_else(|| panic!("{text} is taken"));
            assert!(bad.line == line && bad.cause.contains(says), "{text}: {bad:?}");
        }
    }

    #[test]
    fn a_key_is_looked_for_in_its_own_table() {
        for (text, line, says) in [
            ("[server]\nnamespace = \"Ü\"\n[sandboxes]\nnamespace = \"boxes\"\n", 2, "`server.namespace`"),
            ("[sandboxes]\nnamespace = \"Ü\"\n[server]\nnamespace = \"a\"\n", 2, "`sandboxes.namespace`"),
            ("[sandboxes]\nguest_image = \"\"\nimage = \"a\"\n", 2, "`sandboxes.guest_image`"),
            ("[server]\nimage = \"a\"\n[sandboxes]\nimage = \"a b\"\n", 4, "`sandboxes.image`"),
            ("\nserver.namespace = \"Ü\"\nsandboxes.namespace = \"a\"\n", 2, "`server.namespace`"),
            ("\nserver = { image = \"a\", tls_secret = \"Ü\" }\n", 2, "`server.tls_secret`"),
            ("[server]\n\"key_secret\" = \"Ü\"\n[ store ] # of state\nurl_secret = \"a\"\n", 2, "`server.key_secret`"),
            ("[server.resources]\nlimits = {}\n[store]\nurl_secret = \"Ü\"\n", 4, "`store.url_secret`"),
        ] {
            let bad = Values::read(text).err().unwrap_or_else(|| panic!("{text} is taken"));
            assert!(bad.line == Some(line) && bad.cause.contains(says), "{text}: {bad:?}");
        }
        assert_eq!(written("[server]\nimage = \"a\"\n", "sandboxes.image"), None);
    }
}
