//! Ids: a prefix naming the kind, then 26 characters of lower-case base32, time-ordered.
//! They are valid DNS labels, so they serve as Kubernetes names and router headers as they are.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// Crockford's alphabet: no i, l, o, u, so that ids can be read aloud; ascending, so that ids sort by time.
const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
const LENGTH: usize = 26;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a {kind} id: expected `{prefix}` and {LENGTH} characters of 0-9 a-z")]
pub struct BadId {
    text: String,
    kind: &'static str,
    prefix: &'static str,
}

/// 48 bits of milliseconds and 80 random bits, most significant first.
fn encode(millis: u64, random: [u8; 10]) -> String {
    let mut value = u128::from(millis) << 80;
    for (at, byte) in random.iter().enumerate() {
        value |= u128::from(*byte) << (8 * (9 - at));
    }
    (0..LENGTH).rev().map(|digit| ALPHABET[(value >> (5 * digit)) as usize & 31] as char).collect()
}

fn well_formed(body: &str) -> bool {
    body.len() == LENGTH && body.bytes().all(|byte| ALPHABET.contains(&byte))
}

macro_rules! ids {
    ($($name:ident $prefix:literal $kind:literal)*) => {$(
        #[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, utoipa::ToSchema)]
        #[serde(try_from = "String", into = "String")]
        #[schema(value_type = String)]
        pub struct $name(String);

        impl $name {
            pub const PREFIX: &'static str = $prefix;

            /// The caller brings clock and randomness: this crate has neither.
            pub fn from_parts(millis: u64, random: [u8; 10]) -> Self {
                Self(format!("{}{}", $prefix, encode(millis, random)))
            }
            pub fn as_str(&self) -> &str { &self.0 }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { f.write_str(&self.0) }
        }
        impl FromStr for $name {
            type Err = BadId;
            fn from_str(text: &str) -> Result<Self, BadId> {
                match text.strip_prefix($prefix) {
                    Some(body) if well_formed(body) => Ok(Self(text.to_owned())),
                    _ => Err(BadId { text: text.to_owned(), kind: $kind, prefix: $prefix }),
                }
            }
        }
        impl TryFrom<String> for $name {
            type Error = BadId;
            fn try_from(text: String) -> Result<Self, BadId> { text.parse() }
        }
        impl From<$name> for String {
            fn from(id: $name) -> String { id.0 }
        }
    )*};
}

ids! {
    SandboxId "sbx-" "sandbox"
    SessionId "ses-" "session"
    ProcessId "prc-" "process"
    SnapshotId "snp-" "snapshot"
    TokenId "tok-" "token"
    ApprovalId "apr-" "approval"
    WebhookId "whk-" "webhook"
    InstanceId "ins-" "instance"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_sort_by_time_and_parse_back() {
        let early = SandboxId::from_parts(1, [0xff; 10]);
        let late = SandboxId::from_parts(2, [0; 10]);
        assert!(early < late);
        assert_eq!(early.as_str().parse::<SandboxId>().as_ref(), Ok(&early));
        assert!(early.as_str().len() <= 63);
    }

    #[test]
    fn foreign_text_is_no_id() {
        for text in [
            "",
            "sbx-",
            "prc-00000000000000000000000000",
            "sbx-0000000000000000000000000!",
            "sbx-../../../../etc/passwd",
        ] {
            assert!(text.parse::<SandboxId>().is_err(), "{text}");
        }
    }
}
