//! `kubernetes.toml`: which cluster, and what an operator decides about it.

use std::{collections::BTreeMap, path::PathBuf};

use sandbar_api::{HumanDuration, HumanSize};
use serde::Deserialize;

use crate::settings::{Reach, ServerPods, Settings};

/// Everything may be left out.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct File {
    kubeconfig: Option<PathBuf>,
    context: Option<String>,
    namespace: Option<String>,
    image: Option<String>,
    guest_image: Option<String>,
    image_pull_policy: Option<String>,
    image_pull_secrets: Vec<String>,
    reach: Option<Reach>,
    lease: Option<HumanDuration>,
    patience: Option<HumanDuration>,
    disk: Option<HumanSize>,
    node_selector: BTreeMap<String, String>,
    /// As in a pod's specification.
    tolerations: Vec<k8s_openapi::api::core::v1::Toleration>,
    server: Option<Pods>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Pods {
    namespace: String,
    labels: BTreeMap<String, String>,
}

/// What is wrong with the file, and on which line.
#[derive(Debug, thiserror::Error)]
#[error("{}{cause}", .line.map(|line| format!("line {line}: ")).unwrap_or_default())]
pub struct BadConfig {
    pub line: Option<usize>,
    pub cause: String,
}

impl Settings {
    /// As the file says; what it does not say stays.
    pub fn configure(&mut self, text: &str) -> Result<(), BadConfig> {
        let file: File = toml::from_str(text).map_err(|error| {
            let line = error.span().map(|span| text[..span.start].matches('\n').count() + 1);
            BadConfig { line, cause: error.message().trim().replace('\n', ", ") }
        })?;
        let bad = |cause: &str| BadConfig { line: None, cause: cause.to_owned() };
        if file.lease.is_some_and(|lease| lease.0 < LEAST_LEASE) {
            return Err(bad("`lease` is shorter than an hour: a restart of the server would take longer than that"));
        }
        if file.patience.is_some_and(|patience| patience.0.is_zero()) {
            return Err(bad("`patience` is zero: state how long a sandbox may take to be ready"));
        }
        if file.server.as_ref().is_some_and(|server| server.labels.is_empty()) {
            return Err(bad("[server] has no labels: every pod of its namespace could connect to guests"));
        }
        self.kubeconfig = file.kubeconfig.or_else(|| self.kubeconfig.take());
        self.context = file.context.or_else(|| self.context.take());
        set(&mut self.namespace, file.namespace);
        set(&mut self.default_image, file.image);
        set(&mut self.guest_image, file.guest_image);
        self.image_pull_policy = file.image_pull_policy.or_else(|| self.image_pull_policy.take());
        self.image_pull_secrets.extend(file.image_pull_secrets);
        set(&mut self.reach, file.reach);
        set(&mut self.lease, file.lease.map(|lease| lease.0));
        set(&mut self.patience, file.patience.map(|patience| patience.0));
        set(&mut self.disk, file.disk);
        self.node_selector.extend(file.node_selector);
        self.tolerations.extend(file.tolerations);
        if let Some(Pods { namespace, labels }) = file.server {
            self.server = Some(ServerPods { namespace, labels });
        }
        Ok(())
    }
}

const LEAST_LEASE: std::time::Duration = std::time::Duration::from_secs(60 * 60);

fn set<T>(place: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *place = value;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn configured(text: &str) -> Result<Settings, BadConfig> {
        let mut settings = Settings::new("instance", vec![]);
        settings.configure(text).map(|()| settings)
    }

    #[test]
    fn what_is_said_holds_and_the_rest_stays() -> Result<(), BadConfig> {
        let text = "namespace = \"agents\"\nimage = \"python:3.12\"\nreach = \"port_forward\"\nlease = \"2d\"\n\
                    [server]\nnamespace = \"sandbar\"\nlabels = { app = \"sandbar\" }\n";
        let settings = configured(text)?;
        assert_eq!((settings.namespace.as_str(), settings.default_image.as_str()), ("agents", "python:3.12"));
        assert_eq!((settings.reach, settings.lease.as_secs()), (Reach::PortForward, 2 * 86_400));
        assert_eq!(settings.guest_image, Settings::new("instance", vec![]).guest_image);
        assert_eq!(settings.server.map(|server| server.namespace), Some("sandbar".into()));
        Ok(())
    }

    #[test]
    fn mistakes_are_told_with_their_line() {
        for (text, line, word) in [
            ("\nnamspace = \"a\"", Some(2), "namspace"),
            ("reach = \"carrier pigeon\"", Some(1), "carrier pigeon"),
            ("lease = \"1m\"", None, "hour"),
            ("patience = \"0s\"", None, "zero"),
            ("server = { namespace = \"a\", labels = {} }", None, "labels"),
            ("namespace = ", Some(1), ""),
        ] {
            let Err(bad) = configured(text) else { panic!("it was taken: {text}") };
            assert_eq!(bad.line, line, "{text}: {bad}");
            assert!(bad.cause.contains(word), "{text}: {bad}");
        }
    }
}
