//! What programs inside are told by their environment: where the gate is, whom to trust, where language models are, and
//! placeholders instead of secrets. Anything a template, a sandbox or a request sets wins over it.

use std::collections::BTreeMap;

use sandbar_gateway::{Grant, llm::Format};
use sandbar_guest::trust::{AUTHORITY, BUNDLE};
use sandbar_policy::Placement;

use crate::{Inner, handle::Handle};

/// Of the trust directory of a sandbox.
const TRUST: &str = "/run/sandbar";

/// Programs that take one list of certificates, by the variable they read.
const BUNDLES: [&str; 8] = [
    "SSL_CERT_FILE", // OpenSSL, Go, rustls with native certificates
    "CURL_CA_BUNDLE",
    "REQUESTS_CA_BUNDLE",
    "PIP_CERT",
    "GIT_SSL_CAINFO",
    "CARGO_HTTP_CAINFO",
    "AWS_CA_BUNDLE",
    "NPM_CONFIG_CAFILE",
];

/// Programs that add to their own list.
const ADDITIONS: [&str; 2] = ["NODE_EXTRA_CA_CERTS", "DENO_CERT"];

/// Nothing where there is no gate.
pub(crate) fn environment(inner: &Inner, handle: &Handle) -> BTreeMap<String, String> {
    environment_at(inner, handle, handle.gate_port())
}

/// For a sandbox that is not open yet.
pub(crate) fn environment_at(inner: &Inner, handle: &Handle, port: Option<u16>) -> BTreeMap<String, String> {
    let Some(port) = port else { return BTreeMap::new() };
    let mut env = BTreeMap::new();
    let gate = format!("http://127.0.0.1:{port}");
    for name in ["HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"] {
        env.insert(name.to_owned(), gate.clone());
    }
    for name in ["NO_PROXY", "no_proxy"] {
        env.insert(name.to_owned(), "localhost,127.0.0.1,::1".to_owned());
    }
    // Node reads the proxy's variables only when it is told to.
    env.insert("NODE_USE_ENV_PROXY".into(), "1".into());
    env.extend(BUNDLES.map(|name| (name.to_owned(), format!("{TRUST}/{BUNDLE}"))));
    env.extend(ADDITIONS.map(|name| (name.to_owned(), format!("{TRUST}/{AUTHORITY}"))));
    env.insert("APT_CONFIG".into(), format!("{TRUST}/apt.conf"));
    let loaded = inner.gates.loaded();
    for format in loaded.catalogue.upstreams.values().map(|upstream| upstream.format) {
        let (url, key, path) = match format {
            Format::OpenAi => ("OPENAI_BASE_URL", "OPENAI_API_KEY", "openai/v1"),
            Format::Anthropic => ("ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY", "anthropic"),
        };
        env.insert(url.to_owned(), format!("{gate}/llm/{path}"));
        // Clients refuse to start without one. The gate knows whose call it is by where it comes from.
        env.insert(key.to_owned(), inner.gates.vault.placeholder(&handle.id, key));
    }
    let grants = inner.gates.secrets.grants(&inner.gates.vault, &handle.id, &handle.rules.secrets());
    env.extend(grants.iter().map(|grant| (grant.name.clone(), grant.placeholder.clone())));
    git(&grants, &mut env);
    env
}

/// Git is given the header it would make of a user and a password, so that it never asks for them.
fn git(grants: &[Grant], env: &mut BTreeMap<String, String>) {
    let mut count = 0;
    for grant in grants {
        let Placement::Basic { user } = &grant.placement else { continue };
        let credentials = sandbar_api::bytes::encode(format!("{user}:{}", grant.placeholder).as_bytes());
        for host in &grant.hosts {
            env.insert(format!("GIT_CONFIG_KEY_{count}"), format!("http.https://{host}/.extraHeader"));
            env.insert(format!("GIT_CONFIG_VALUE_{count}"), format!("Authorization: Basic {credentials}"));
            count += 1;
        }
    }
    if count > 0 {
        env.insert("GIT_CONFIG_COUNT".into(), count.to_string());
    }
}
