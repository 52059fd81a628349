//! What comes back from an upstream: its answer without what belongs to its connection or tells whose account it is, and
//! never the key, which some servers repeat in their errors.

use bytes::Bytes;
use hyper::{HeaderMap, header};
use sandbar_policy::Swap;

use crate::Secret;

/// Headers that end here.
const KEPT_BACK: &[&str] = &[
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "alt-svc",
    "location",
    "set-cookie",
    "strict-transport-security",
    "openai-organization",
    "openai-project",
    "anthropic-organization-id",
];
const INSTEAD: &[u8] = b"[key]";

/// What the client gets of an answer's headers. `same_length`: its body stays as long as it is.
pub(super) fn headers(mut headers: HeaderMap, same_length: bool, key: Option<&Secret>) -> HeaderMap {
    for name in KEPT_BACK {
        headers.remove(*name);
    }
    if !same_length {
        headers.remove(header::CONTENT_LENGTH);
    }
    let Some(key) = key.map(|key| key.expose().as_bytes()).filter(|key| !key.is_empty()) else { return headers };
    let telling = |value: &header::HeaderValue| value.as_bytes().windows(key.len()).any(|window| window == key);
    let telling: Vec<_> = headers.iter().filter(|(_, value)| telling(value)).map(|(name, _)| name.clone()).collect();
    for name in telling {
        headers.remove(name);
    }
    headers
}

/// Takes the key out of an error as it passes.
pub(super) struct Scrub(Swap);

impl Scrub {
    pub(super) fn new(key: &Secret) -> Option<Self> {
        let key = key.expose().as_bytes();
        (!key.is_empty()).then(|| Self(Swap::new(vec![(key.to_vec(), INSTEAD.to_vec())])))
    }

    pub(super) fn push(&mut self, chunk: &[u8]) -> Bytes {
        self.0.push(chunk).into()
    }

    pub(super) fn finish(&mut self) -> Bytes {
        self.0.finish().into()
    }
}
