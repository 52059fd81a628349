//! Who the server is to guests that are reached over a network: one key pair, shown as a certificate of its own. Guests
//! know the public key from where they were made, and look at nothing else of it.

use std::{fmt, sync::Arc};

use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, PKCS_ED25519, PublicKeyData as _};
use rustls::{crypto::aws_lc_rs::sign::any_eddsa_type, pki_types::PrivatePkcs8KeyDer, sign::CertifiedKey};
use sha2::{Digest as _, Sha256};
use zeroize::{Zeroize as _, Zeroizing};

/// What stands before the seed in PKCS #8 of an Ed25519 key (RFC 8410).
const PKCS8: [u8; 16] =
    [0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20];
/// Bytes of the public key's digest that tell servers apart.
const TOLD: usize = 8;

/// The key cannot be used for TLS, which says more of the library than of the seed.
#[derive(Debug, thiserror::Error)]
#[error("the server's key pair cannot be made: {0}")]
pub struct BadIdentity(String);

/// Cheap to clone. The private key never leaves it.
#[derive(Clone)]
pub struct Identity {
    certified: Arc<CertifiedKey>,
    public_key: Arc<[u8]>,
}

impl Identity {
    /// The same seed makes the same key pair.
    pub fn from_seed(seed: [u8; 32]) -> Result<Self, BadIdentity> {
        let seed = Zeroizing::new(seed);
        let pkcs8 = Zeroizing::new([&PKCS8[..], &seed[..]].concat());
        let pkcs8 = PrivatePkcs8KeyDer::from(&pkcs8[..]);
        let failed = |error: rcgen::Error| BadIdentity(error.to_string());
        let mut key = KeyPair::from_pkcs8_der_and_sign_algo(&pkcs8, &PKCS_ED25519).map_err(failed)?;
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, "Sandbar server");
        let certificate = params.self_signed(&key).map_err(failed);
        let public_key = key.subject_public_key_info();
        key.zeroize();
        let signing = any_eddsa_type(&pkcs8).map_err(|error| BadIdentity(error.to_string()))?;
        let certified = Arc::new(CertifiedKey::new(vec![certificate?.der().clone()], signing));
        Ok(Self { certified, public_key: public_key.into() })
    }

    /// SubjectPublicKeyInfo in DER, as guests compare it.
    pub fn public_key(&self) -> Vec<u8> {
        self.public_key.to_vec()
    }

    /// Tells what this server made from what others made, as long as it has this key.
    pub fn instance(&self) -> String {
        Sha256::digest(&self.public_key).iter().take(TOLD).map(|byte| format!("{byte:02x}")).collect()
    }

    pub(crate) fn certified(&self) -> Arc<CertifiedKey> {
        Arc::clone(&self.certified)
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Identity").field(&self.instance()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seed_alone_makes_the_key() {
        let (one, same, other) = ([1; 32], [1; 32], [2; 32]);
        let [one, same, other] = [one, same, other].map(|seed: [u8; 32]| Identity::from_seed(seed).expect("a key"));
        assert_eq!((one.public_key(), one.instance()), (same.public_key(), same.instance()));
        assert_ne!(one.public_key(), other.public_key());
        assert_ne!(one.instance(), other.instance());
        assert!(one.instance().len() == 16 && one.instance().bytes().all(|byte| byte.is_ascii_hexdigit()));
    }

    /// The first test vector of RFC 8032: 7.1.
    #[test]
    fn the_key_is_ed25519_of_the_seed() {
        let bytes = |hex: &str| -> Vec<u8> {
            (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).expect("a byte")).collect()
        };
        let seed = bytes("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60");
        let public = bytes("d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a");
        let identity = Identity::from_seed(seed.try_into().expect("32 bytes")).expect("a key");
        assert_eq!(identity.public_key(), [bytes("302a300506032b6570032100"), public].concat());
    }

    #[test]
    fn nothing_secret_is_shown() {
        let identity = Identity::from_seed([7; 32]).expect("a key");
        assert_eq!(format!("{identity:?}"), format!("Identity(\"{}\")", identity.instance()));
    }
}
