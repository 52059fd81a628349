//! The server's public key as people carry it: base64 of its SubjectPublicKeyInfo.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use sha2::{Digest as _, Sha256};

use super::Bad;

/// What stands before an Ed25519 key in its SubjectPublicKeyInfo (RFC 8410).
const ED25519: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];
const LENGTH: usize = 32;

/// As guests are told it.
pub fn shown(public_key: &[u8]) -> String {
    BASE64_STANDARD.encode(public_key)
}

/// Whose objects those of a server with this key are.
pub(super) fn instance(key: &str) -> Result<String, Bad> {
    let der = BASE64_STANDARD.decode(key).map_err(|_| Bad::Key(key.into()))?;
    if der.len() != ED25519.len() + LENGTH || !der.starts_with(&ED25519) {
        return Err(Bad::Key(key.into()));
    }
    Ok(Sha256::digest(&der).iter().take(8).map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_instance_is_that_of_the_identity() {
        let identity = sandbar_provider::identity::Identity::from_seed([3; 32]).unwrap_or_else(|bad| panic!("{bad}"));
        assert_eq!(instance(&shown(&identity.public_key())).ok(), Some(identity.instance()));
        for bad in ["", "a2V5", "not base64", &shown(&[0; 44])] {
            assert!(matches!(instance(bad), Err(Bad::Key(_))), "{bad}");
        }
    }
}
