//! What our objects are called and how they are recognised.

use std::collections::BTreeMap;

use sha2::{Digest as _, Sha256};

use crate::Settings;

pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
pub const MANAGER: &str = "sandbar";
pub const INSTANCE: &str = "sandbar.dev/instance";
/// The template's name, on what is made for a template.
pub const TEMPLATE: &str = "sandbar.dev/template";
/// On a claim: where its sandbox's files are, which decides whether it can be stopped.
pub const STORAGE: &str = "sandbar.dev/storage";

/// On a claim: the store that knows of it. A claim of another store, or of none, is not ours to delete.
pub const STORE: &str = "sandbar.dev/store";
/// How far the event log of that store was.
pub const EPOCH: &str = "sandbar.dev/epoch";
/// On a claim that was set aside: since when and why.
pub const QUARANTINED: &str = "sandbar.dev/quarantined";

/// A pool's members add six characters, and the whole must be a host name.
const MAX: usize = 57;
const DIGEST: usize = 8;

pub(crate) fn labels(settings: &Settings) -> BTreeMap<String, String> {
    [(MANAGED_BY, MANAGER), (INSTANCE, &settings.instance)].map(|(key, value)| (key.into(), value.into())).into()
}

/// Finds exactly what has [`labels`].
pub fn selector(settings: &Settings) -> String {
    format!("{MANAGED_BY}={MANAGER},{INSTANCE}={}", settings.instance)
}

/// Of the SandboxTemplate and the SandboxWarmPool: another name whenever anything in the pod would be another.
pub(crate) fn blueprint(template: &str, content: &[u8]) -> String {
    let mut digest = Sha256::new();
    digest.update(template.as_bytes());
    digest.update([0]);
    digest.update(content);
    let digest = hex(&digest.finalize());
    let room = MAX - "sandbar--".len() - DIGEST;
    let plain = |found: char| if found.is_ascii_alphanumeric() { found.to_ascii_lowercase() } else { '-' };
    let name: String = template.chars().map(plain).take(room).collect();
    let name = name.trim_matches('-');
    match name.is_empty() {
        true => format!("sandbar-{}", &digest[..DIGEST]),
        false => format!("sandbar-{name}-{}", &digest[..DIGEST]),
    }
}

/// A label holds a name only if it is one, which the template's own rules nearly always make it.
pub(crate) fn label_value(name: &str) -> Option<String> {
    let inner = |found: char| found.is_ascii_alphanumeric() || matches!(found, '-' | '_' | '.');
    let edge = |found: Option<char>| found.is_some_and(|found| found.is_ascii_alphanumeric());
    let valid = name.len() <= 63 && name.chars().all(inner) && edge(name.chars().next()) && edge(name.chars().last());
    valid.then(|| name.to_owned())
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_host_names_whatever_the_template_is_called() {
        for template in ["default", "", "-", "Ünder_Score.dot", &"long".repeat(60)] {
            let name = blueprint(template, b"pod");
            let member = format!("{name}-abcde");
            assert!(member.len() <= 63, "{member}");
            assert!(member.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-'));
            assert!(name.starts_with("sandbar-") && !name.contains("--"), "{name}");
        }
    }

    #[test]
    fn other_content_or_another_template_is_another_name() {
        let name = blueprint("a", b"pod");
        assert_eq!(name, blueprint("a", b"pod"));
        assert_ne!(name, blueprint("a", b"pod2"));
        // Alike once they are made plain.
        assert_ne!(blueprint("a_b", b"pod"), blueprint("a.b", b"pod"));
        assert_ne!(blueprint(&"x".repeat(60), b""), blueprint(&"x".repeat(61), b""));
    }

    #[test]
    fn a_label_is_valid_or_left_out() {
        assert_eq!(label_value("python_3.12"), Some("python_3.12".into()));
        for bad in ["", "-a", "a-", "a b", "ü", &"a".repeat(64)] {
            assert_eq!(label_value(bad), None, "{bad}");
        }
    }
}
