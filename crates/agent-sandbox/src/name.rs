//! Names as Kubernetes allows them, parsed once.

use std::fmt;

use crate::build::BuildError;

/// The name of an object: a DNS-1123 subdomain of at most 253 characters.
///
/// ```
/// use agent_sandbox::Name;
///
/// assert!("my-sandbox.v2".parse::<Name>().is_ok());
/// assert!("My_Sandbox".parse::<Name>().is_err());
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name(String);

impl Name {
    /// Checks and takes it.
    pub fn parse(name: impl Into<String>) -> Result<Self, BuildError> {
        let name = name.into();
        match is_subdomain(&name) {
            true => Ok(Self(name)),
            false => Err(BuildError::Name { name }),
        }
    }

    /// As text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<Name> for String {
    fn from(name: Name) -> Self {
        name.0
    }
}

impl std::str::FromStr for Name {
    type Err = BuildError;

    fn from_str(name: &str) -> Result<Self, BuildError> {
        Self::parse(name)
    }
}

impl TryFrom<&str> for Name {
    type Error = BuildError;

    fn try_from(name: &str) -> Result<Self, BuildError> {
        Self::parse(name)
    }
}

impl TryFrom<&String> for Name {
    type Error = BuildError;

    fn try_from(name: &String) -> Result<Self, BuildError> {
        Self::parse(name)
    }
}

impl TryFrom<String> for Name {
    type Error = BuildError;

    fn try_from(name: String) -> Result<Self, BuildError> {
        Self::parse(name)
    }
}

impl From<std::convert::Infallible> for BuildError {
    fn from(never: std::convert::Infallible) -> Self {
        match never {}
    }
}

pub(crate) fn is_subdomain(name: &str) -> bool {
    name.len() <= 253 && name.split('.').all(is_plain)
}

/// A DNS-1123 label: what Services, containers and volumes are called.
pub(crate) fn is_label(name: &str) -> bool {
    name.len() <= 63 && is_plain(name)
}

fn is_plain(part: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    !part.is_empty() && part.bytes().all(inner) && !part.starts_with('-') && !part.ends_with('-')
}

/// `name` or `prefix/name`, as keys of labels and annotations are.
pub(crate) fn is_qualified(key: &str) -> bool {
    match key.split_once('/') {
        Some((prefix, name)) => is_subdomain(prefix) && is_word(name) && !name.is_empty(),
        None => is_word(key) && !key.is_empty(),
    }
}

/// What values of labels are: empty, or at most 63 characters that begin and end with a letter or digit.
pub(crate) fn is_word(value: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let edge = |byte: Option<u8>| byte.is_none_or(|byte| byte.is_ascii_alphanumeric());
    value.len() <= 63 && value.bytes().all(inner) && edge(value.bytes().next()) && edge(value.bytes().next_back())
}

/// The names that every version of Kubernetes takes for variables.
pub(crate) fn is_env(name: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    !name.is_empty()
        && name.bytes().all(inner)
        && !name.starts_with(|first: char| first.is_ascii_digit())
        && name != "."
        && !name.starts_with("..")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_dns() {
        let long = "a".repeat(253);
        for good in ["a", "a-b", "0", "a.b.c", long.as_str()] {
            assert!(is_subdomain(good), "{good}");
        }
        let too_long = "a".repeat(254);
        for bad in ["", "-a", "a-", "A", "a_b", "a..b", ".a", "a.", "a b", "ä", too_long.as_str()] {
            assert!(!is_subdomain(bad), "{bad}");
        }
        assert!(is_label(&"a".repeat(63)) && !is_label(&"a".repeat(64)) && !is_label("a.b"));
    }

    #[test]
    fn keys_values_and_variables() {
        for good in ["a", "example.com/Key_1", "a/b"] {
            assert!(is_qualified(good), "{good}");
        }
        for bad in ["", "/a", "a/", "A.com/a", "a/b/c", "a/-b"] {
            assert!(!is_qualified(bad), "{bad}");
        }
        assert!(is_word("") && is_word("A-b_c.9") && !is_word("-a") && !is_word(&"a".repeat(64)));
        for good in ["PATH", "_x", "a.b-c", "-x", ".x"] {
            assert!(is_env(good), "{good}");
        }
        for bad in ["", "1A", "A=B", "A B", ".", "..", "..x"] {
            assert!(!is_env(bad), "{bad}");
        }
    }
}
