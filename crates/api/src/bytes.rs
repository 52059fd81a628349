//! Bytes in JSON: base64, exact whatever they are.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

pub fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&STANDARD.encode(bytes))
}

pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    let text = std::borrow::Cow::<str>::deserialize(deserializer)?;
    STANDARD.decode(text.as_bytes()).map_err(D::Error::custom)
}

pub fn encode(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

pub fn decode(text: &str) -> Option<Vec<u8>> {
    STANDARD.decode(text).ok()
}
