//! Scoped tokens, `v1.<claims>.<signature>`, as agent-sandbox defines them: good for one sandbox until they expire. Whoever
//! has the key can make them, so that it can be shared with what mints them elsewhere.

use std::{io, time::Duration};

use aws_lc_rs::hmac;
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use chrono::{DateTime, Utc};
use sandbar_engine::Engine;
use serde::{Deserialize, Serialize};

use crate::BindError;

/// In the home; if it is not there, the key is one that nobody else has.
const FILE: &str = "router.key";
const SHORTEST_KEY: usize = 32;
const VERSION: &str = "v1";
/// Before the claims in what is signed, so that the key signs nothing else.
const PURPOSE: &str = "agent-sandbox/scoped-token/v1.";

pub(crate) struct Key(hmac::Key);

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Claims {
    pub(super) ns: String,
    pub(super) name: String,
    /// In seconds since 1970; at that very second it is over.
    exp: i64,
}

impl Claims {
    /// Until it is over.
    pub(super) fn left(&self) -> Duration {
        let millis = self.exp.saturating_mul(1000).saturating_sub(Utc::now().timestamp_millis());
        Duration::from_millis(u64::try_from(millis).unwrap_or_default())
    }
}

impl Key {
    pub(crate) fn of(engine: &Engine) -> Result<Self, BindError> {
        let path = engine.home().join(FILE);
        let unusable = |cause: String| BindError::RouterKey { path: path.clone(), cause };
        match std::fs::read(&path) {
            Ok(bytes) => Self::new(bytes.trim_ascii()).ok_or_else(|| unusable("it is too short".to_owned())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Ok(Self(hmac::Key::new(hmac::HMAC_SHA256, &engine.mac("router scoped tokens 1", b""))))
            }
            Err(error) => Err(unusable(error.to_string())),
        }
    }

    fn new(key: &[u8]) -> Option<Self> {
        (key.len() >= SHORTEST_KEY).then(|| Self(hmac::Key::new(hmac::HMAC_SHA256, key)))
    }

    /// A token for the sandbox of this id or name.
    pub(crate) fn mint(&self, sandbox: &str, expires_at: DateTime<Utc>) -> Result<String, serde_json::Error> {
        let claims = Claims { ns: "default".to_owned(), name: sandbox.to_owned(), exp: expires_at.timestamp() };
        let claims = URL_SAFE_NO_PAD.encode(serde_json::to_vec(&claims)?);
        let signature = hmac::sign(&self.0, format!("{PURPOSE}{claims}").as_bytes());
        Ok(format!("{VERSION}.{claims}.{}", URL_SAFE_NO_PAD.encode(signature)))
    }

    /// What it says, if we or those who share the key have said it, and while it holds.
    pub(super) fn open(&self, token: &str) -> Option<Claims> {
        let (version, rest) = token.split_once('.')?;
        let (claims, signature) = rest.split_once('.')?;
        let signature = URL_SAFE_NO_PAD.decode(signature).ok().filter(|_| version == VERSION)?;
        // Takes the same time wherever they differ.
        hmac::verify(&self.0, format!("{PURPOSE}{claims}").as_bytes(), &signature).ok()?;
        let claims: Claims = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claims).ok()?).ok()?;
        (Utc::now().timestamp() < claims.exp).then_some(claims)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(byte: u8) -> Key {
        Key::new(&[byte; 32]).unwrap_or_else(|| panic!("a key"))
    }

    fn token(key: &Key, after: i64) -> String {
        key.mint("web", Utc::now() + chrono::TimeDelta::seconds(after)).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Signed as everybody can who has the key.
    fn signed(key: &Key, purpose: &str, claims: &str) -> String {
        let claims = URL_SAFE_NO_PAD.encode(claims);
        let signature = hmac::sign(&key.0, format!("{purpose}{claims}").as_bytes());
        format!("v1.{claims}.{}", URL_SAFE_NO_PAD.encode(signature))
    }

    #[test]
    fn a_token_is_what_the_contract_says() {
        let made = key(b'k').mint("web", DateTime::from_timestamp(4_102_444_800, 0).unwrap_or_default());
        // Computed with another program from the same key and claims.
        let want = "v1.eyJucyI6ImRlZmF1bHQiLCJuYW1lIjoid2ViIiwiZXhwIjo0MTAyNDQ0ODAwfQ.92rCZBuoHq5Ulcvxk5VbGFFs9H82SAs0Vs9Wx7GAoQE";
        assert_eq!(made.ok().as_deref(), Some(want));
        let opened = key(b'k').open(want);
        assert_eq!(opened.map(|claims| (claims.ns, claims.name)), Some(("default".to_owned(), "web".to_owned())));
    }

    #[test]
    fn what_is_not_signed_by_us_counts_for_nothing() {
        let key = key(b'k');
        let good = token(&key, 60);
        assert!(key.open(&good).is_some());
        let (head, signature) = good.rsplit_once('.').unwrap_or_default();
        let claims = r#"{"ns":"default","name":"web","exp":9999999999}"#;
        let unsigned = URL_SAFE_NO_PAD.encode(claims);
        for bad in [
            String::new(),
            "v1..".to_owned(),
            format!("v1.{unsigned}."),
            format!("v1.{unsigned}.{signature}"),
            format!("v2.{}", good.trim_start_matches("v1.")),
            format!("none.{unsigned}."),
            format!("{good}="),
            format!("{good}.{signature}"),
            format!("{head}.{}", &signature[..signature.len() - 2]),
            token(&super::tests::key(b'l'), 60),
            signed(&key, "", claims),
            signed(&key, "agent-sandbox/scoped-token/v2.", claims),
            signed(&key, PURPOSE, r#"{"ns":"default","name":"web"}"#),
            signed(&key, PURPOSE, r#"{"ns":"default","name":"web","exp":"9999999999"}"#),
            signed(&key, PURPOSE, "no claims"),
        ] {
            assert_eq!(key.open(&bad), None, "{bad}");
        }
        assert!(key.open(&signed(&key, PURPOSE, claims)).is_some());
    }

    #[test]
    fn at_its_last_second_it_is_over() {
        let key = key(b'k');
        assert!(key.open(&token(&key, 0)).is_none() && key.open(&token(&key, -1)).is_none());
    }

    #[test]
    fn short_keys_are_no_keys() {
        assert!(Key::new(&[0; 31]).is_none());
    }
}
