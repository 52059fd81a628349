//! Browsers that are signed in. What a browser holds is good for this alone: it is no token, and counts at the one origin
//! where it was given out. The store knows its digest, beside those of tokens, so that it is listed, expires and is revoked
//! as they are.

use std::time::Duration;

use sandbar_api::{HumanDuration, NewToken, Problem, Role, Token};
use sha2::{Digest as _, Sha256};

use crate::{Caller, Engine, clock, ids, tokens};

/// No token begins so.
const PREFIX: &str = "sbw_";
const NAME: &str = "browser sign-in";

impl Engine {
    /// Signs a browser in as an admin at this origin; its secret goes into a cookie and nowhere else.
    pub async fn sign_browser_in(&self, origin: &str, lasts: Duration) -> Result<NewToken, Problem> {
        let now = clock::now();
        let token = Token {
            id: ids::token(now)?,
            name: NAME.to_owned(),
            role: Role::Admin,
            session: None,
            created_at: now,
            expires_at: Some(crate::create::expiry(now, HumanDuration(lasts))?),
        };
        let secret = tokens::secret(PREFIX, ids::random()?);
        self.inner.store.create_token(&token, digest(origin, &secret)).await?;
        Ok(NewToken { token, secret })
    }

    /// What its cookie opened ends at once.
    pub async fn sign_browser_out(&self, browser: &Caller) -> Result<(), Problem> {
        self.revoke_token(tokens::id_of(browser).unwrap_or_default()).await
    }

    /// Who is signed in by this secret at this origin.
    pub async fn authenticate_browser(&self, origin: &str, secret: &str) -> Result<Option<Caller>, Problem> {
        if !secret.starts_with(PREFIX) {
            return Ok(None);
        }
        let found = self.inner.store.token(digest(origin, secret), clock::now()).await?;
        Ok(found.map(tokens::caller))
    }
}

/// Not that of a token with the same secret, nor that of another origin: at neither is anything found by it.
fn digest(origin: &str, secret: &str) -> [u8; 32] {
    let mut digest = Sha256::new();
    for part in ["sandbar browser 1", origin, secret] {
        digest.update(part.as_bytes());
        digest.update(b"\n");
    }
    digest.finalize().into()
}
