//! Sealing what must not be readable in a copy of the database: AES-256-GCM under a key in a file beside it.
//!
//! What is sealed is bound to a context (`secret:NAME`, `authority:CERTIFICATE`): it cannot be moved to another row.

mod key;
#[cfg(test)]
mod tests;

use std::path::Path;

use aws_lc_rs::{
    aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey},
    hmac,
};
use sandbar_api::{Code, Problem, SandboxId};
use zeroize::Zeroizing;

use crate::{OpenError, ids};

/// The name in the home.
const KEY_FILE: &str = "secret.key";
/// What each derived key is for; another use gets another label.
const SEALING: &[u8] = b"sandbar sealing 1";
const PLACEHOLDERS: &[u8] = b"sandbar placeholders 1";
const PREFIX: &str = "sbp_";
/// 200 bits: 40 letters and digits of 5 bits each.
const PLACEHOLDER_BYTES: usize = 25;
const LETTERS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

pub(crate) struct Vault {
    sealing: LessSafeKey,
    placeholders: hmac::Key,
    master: hmac::Key,
}

impl Vault {
    /// Reads the key, or makes one if there is none. One that others may read, or of a wrong length, is refused.
    pub(crate) fn open(home: &Path) -> Result<Self, OpenError> {
        let path = home.join(KEY_FILE);
        let opened = match key::read(&path) {
            Ok(None) => key::make(&path).and_then(|()| key::read(&path)),
            read => read,
        };
        let key = opened.and_then(|key| key.ok_or_else(|| "it was removed a moment after it was made".into()));
        key.and_then(|key| Self::with(&key)).map_err(|cause| OpenError::SecretKey { path, cause })
    }

    /// Puts a key that somebody else keeps into a home that has none. It may be a link, and others may be able to read it:
    /// that is how clusters show files.
    pub(crate) fn adopt(home: &Path, file: &Path) -> Result<(), OpenError> {
        let bad = |path: &Path| {
            let path = path.to_owned();
            move |cause| OpenError::SecretKey { path, cause }
        };
        let given = key::given(file).map_err(bad(file))?;
        let path = home.join(KEY_FILE);
        if key::read(&path).map_err(bad(&path))?.is_none() {
            key::put(&path, &given).map_err(bad(&path))?;
        }
        match key::read(&path).map_err(bad(&path))? {
            Some(own) if *own == *given => Ok(()),
            _ => Err(bad(&path)(format!("it is not the key in {}", file.display()))),
        }
    }

    fn with(key: &[u8; key::LENGTH]) -> Result<Self, String> {
        let master = hmac::Key::new(hmac::HMAC_SHA256, key);
        let sealing = UnboundKey::new(&AES_256_GCM, hmac::sign(&master, SEALING).as_ref());
        let sealing = sealing.map_err(|_| "no cipher takes it".to_owned())?;
        let placeholders = hmac::Key::new(hmac::HMAC_SHA256, hmac::sign(&master, PLACEHOLDERS).as_ref());
        Ok(Self { sealing: LessSafeKey::new(sealing), placeholders, master })
    }

    /// Under a key of its own for each purpose.
    pub(crate) fn mac(&self, purpose: &str, message: &[u8]) -> [u8; 32] {
        let key = hmac::Key::new(hmac::HMAC_SHA256, hmac::sign(&self.master, purpose.as_bytes()).as_ref());
        let mut mac = [0; 32];
        mac.copy_from_slice(hmac::sign(&key, message).as_ref());
        mac
    }

    /// The nonce stands in front: random, so that nothing has to be counted across restarts.
    pub(crate) fn seal(&self, context: &str, plain: &[u8]) -> Result<Vec<u8>, Problem> {
        let nonce: [u8; NONCE_LEN] = ids::random()?;
        let mut sealed = Vec::with_capacity(NONCE_LEN + plain.len() + AES_256_GCM.tag_len());
        sealed.extend_from_slice(&nonce);
        sealed.extend_from_slice(plain);
        let (nonce, aad) = (Nonce::assume_unique_for_key(nonce), Aad::from(context.as_bytes()));
        let tag = self.sealing.seal_in_place_separate_tag(nonce, aad, &mut sealed[NONCE_LEN..]).map_err(|_| {
            Problem::new(Code::Internal, "It could not be sealed.", "Try again; if it stays so, report it.")
        })?;
        sealed.extend_from_slice(tag.as_ref());
        Ok(sealed)
    }

    pub(crate) fn unseal(&self, context: &str, sealed: &[u8]) -> Result<Zeroizing<Vec<u8>>, Problem> {
        let closed = || {
            let detail = format!("What was sealed does not open with the key in `{KEY_FILE}`, or was changed.");
            Problem::new(
                Code::Internal,
                detail,
                format!("Restore `{KEY_FILE}` from a backup, or set the secret again."),
            )
        };
        let (nonce, sealed) = sealed.split_at_checked(NONCE_LEN).ok_or_else(closed)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| closed())?;
        let mut plain = Zeroizing::new(sealed.to_vec());
        let opened = self.sealing.open_in_place(nonce, Aad::from(context.as_bytes()), &mut plain);
        let length = opened.map_err(|_| closed())?.len();
        plain.truncate(length);
        Ok(plain)
    }

    /// What the sandbox holds instead of the secret: the same for the same two, of another sandbox another, and nothing
    /// can be told from it. `sbp_` and 40 letters and digits.
    pub(crate) fn placeholder(&self, sandbox: &SandboxId, secret: &str) -> String {
        let mut context = hmac::Context::with_key(&self.placeholders);
        for part in [sandbox.as_str().as_bytes(), b"\0", secret.as_bytes()] {
            context.update(part);
        }
        let tag = context.sign();
        let mut text = PREFIX.to_owned();
        for five in tag.as_ref()[..PLACEHOLDER_BYTES].chunks(5) {
            let bits = five.iter().fold(0_u64, |bits, byte| bits << 8 | u64::from(*byte));
            text.extend((0..8).rev().map(|at| char::from(LETTERS[(bits >> (5 * at) & 31) as usize])));
        }
        text
    }
}
