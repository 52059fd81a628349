//! What comes back from an upstream: its answer without what belongs to its connection or tells whose account it is, and
//! never the key, which some servers repeat in their errors.

use bytes::Bytes;
use hyper::{HeaderMap, header};
use sandbar_policy::Swap;

use crate::{Secret, headers::strip_own};

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

/// What the client gets of an answer's headers. `same_length`: its body stays as long as it is. `key` in all its forms.
pub(super) fn headers(mut headers: HeaderMap, same_length: bool, key: &[Secret]) -> HeaderMap {
    for name in KEPT_BACK {
        headers.remove(*name);
    }
    strip_own(&mut headers);
    if !same_length {
        headers.remove(header::CONTENT_LENGTH);
    }
    let telling = |value: &header::HeaderValue| {
        let mut forms = key.iter().map(|form| form.expose().as_bytes()).filter(|form| !form.is_empty());
        forms.any(|form| value.as_bytes().windows(form.len()).any(|window| window == form))
    };
    let telling: Vec<_> = headers.iter().filter(|(_, value)| telling(value)).map(|(name, _)| name.clone()).collect();
    for name in telling {
        headers.remove(name);
    }
    headers
}

/// Takes the key out of an error as it passes.
pub(super) struct Scrub(Swap);

impl Scrub {
    /// Nothing where there is no key.
    pub(super) fn new(key: &[Secret]) -> Option<Self> {
        let forms: Vec<_> = key.iter().map(|form| form.expose().as_bytes()).filter(|form| !form.is_empty()).collect();
        let pairs: Vec<_> = forms.into_iter().map(|form| (form.to_vec(), INSTEAD.to_vec())).collect();
        (!pairs.is_empty()).then(|| Self(Swap::new(pairs)))
    }

    pub(super) fn push(&mut self, chunk: &[u8]) -> Bytes {
        self.0.push(chunk).into()
    }

    pub(super) fn finish(&mut self) -> Bytes {
        self.0.finish().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_is_taken_out_in_all_its_forms_however_it_is_cut() {
        let key = ["sk-1", "c2stMQ", "dTpzay0x", ""].map(|form| Secret::new(form.into()));
        let text = b"a sk-1 b Basic dTpzay0x= c c2stMQ== d sk-2";
        for size in 1..text.len() {
            let mut scrub = Scrub::new(&key).expect("a key");
            let mut passed: Vec<u8> = text.chunks(size).flat_map(|chunk| scrub.push(chunk)).collect();
            passed.extend_from_slice(&scrub.finish());
            assert_eq!(String::from_utf8_lossy(&passed), "a [key] b Basic [key]= c [key]== d sk-2", "by {size}");
        }
        let mut told = HeaderMap::new();
        for (name, value) in [("x-a", "sk-1"), ("x-b", "Basic dTpzay0x"), ("x-c", "c2stMQ=="), ("x-d", "sk-2")] {
            told.insert(name, header::HeaderValue::from_static(value));
        }
        let passed = headers(told, true, &key);
        assert_eq!(passed.keys().map(|name| name.as_str()).collect::<Vec<_>>(), ["x-d"]);
        assert!(Scrub::new(&[Secret::new(String::new())]).is_none());
    }
}
