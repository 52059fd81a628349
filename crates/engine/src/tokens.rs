//! Tokens: made here, shown once, stored as a digest, recognised by it.

use std::time::Duration;

use sandbar_api::{Code, CreateToken, NewToken, Problem, Role, SessionId, Token, token::MAX_NAME};
use sha2::{Digest as _, Sha256};
use tokio::time;

use crate::{Caller, Engine, clock, ids, problem, store};

/// So that a leaked secret is recognised by scanners and people.
pub(crate) const PREFIX: &str = "sbt_";
/// Before the id of a token that owns something.
const OWNER: &str = "token:";
/// The owner of what was made over the Unix socket.
const SOCKET: &str = "socket";
/// Clocks are set now and then.
const RECHECK: Duration = Duration::from_secs(60);

impl Engine {
    pub async fn create_token(&self, request: CreateToken) -> Result<NewToken, Problem> {
        if request.name.is_empty() || request.name.len() > MAX_NAME || request.name.chars().any(char::is_control) {
            return Err(Problem::new(
                Code::BadName,
                format!("`{}` cannot be the name of a token.", request.name.escape_debug()),
                format!("Use 1 to {MAX_NAME} bytes without control characters."),
            ));
        }
        let now = clock::now();
        let expires_at = request.ttl.map(|ttl| crate::create::expiry(now, ttl)).transpose()?;
        let session = match (request.role, request.session) {
            (Role::Agent, Some(session)) => Some(self.known_session(session).await?),
            (Role::Agent, None) => {
                return Err(Problem::new(
                    Code::BadRequest,
                    "An agent's token is bound to a session, and none was given.",
                    "Name the session; `sandbar inspect SANDBOX` shows a sandbox's.",
                ));
            }
            (_, None) => None,
            (role, Some(_)) => {
                return Err(Problem::new(
                    Code::BadRequest,
                    format!("A token with the role {} is not bound to a session.", role.as_str()),
                    "Leave the session out, or use the role agent.",
                ));
            }
        };
        let id = ids::token(now)?;
        let token = Token { id, name: request.name, role: request.role, session, created_at: now, expires_at };
        let secret = secret(PREFIX, ids::random()?);
        self.inner.store.create_token(&token, digest(&secret)).await?;
        Ok(NewToken { token, secret })
    }

    async fn known_session(&self, session: SessionId) -> Result<SessionId, Problem> {
        match self.inner.store.session(&session).await? {
            Some(row) if row.deleted_at.is_some() => Err(problem::session_ended(session.as_str())),
            Some(_) => Ok(session),
            None => Err(problem::unknown_session(session.as_str())),
        }
    }

    pub async fn tokens(&self) -> Result<Vec<Token>, Problem> {
        Ok(self.inner.store.tokens().await?)
    }

    pub async fn revoke_token(&self, id: &str) -> Result<(), Problem> {
        let unknown = || {
            Problem::new(
                Code::UnknownToken,
                format!("There is no token `{}`.", id.escape_debug()),
                "`sandbar token ls` shows those there are.",
            )
        };
        let id = id.parse().map_err(|_| unknown())?;
        self.inner.store.revoke_token(&id).await.map_err(|error| match error {
            store::Error::Missing(_) => unknown(),
            error => error.into(),
        })?;
        self.inner.revoked.send_modify(|count| *count += 1);
        Ok(())
    }

    /// Returns when the caller's token is revoked or expired, for calls that last; never for one who needs none.
    pub async fn turned_away(&self, caller: &Caller) -> Result<(), Problem> {
        let Some(id) = id_of(caller) else { return std::future::pending().await };
        let mut revoked = self.inner.revoked.subscribe();
        loop {
            revoked.mark_unchanged();
            let now = clock::now();
            let token = self.inner.store.token_of(id).await?;
            let left = match token.map(|token| token.expires_at) {
                None => return Ok(()),
                Some(None) => RECHECK,
                Some(Some(at)) => match (at - now).to_std() {
                    Ok(left) if !left.is_zero() => left.min(RECHECK),
                    _ => return Ok(()),
                },
            };
            tokio::select! {
                // It is never closed.
                _ = revoked.changed() => {}
                () = time::sleep(left) => {}
            }
        }
    }

    /// Whether what this owner was given still counts: a token's until it is revoked or expires.
    pub async fn is_valid(&self, owner: &str) -> Result<bool, Problem> {
        let Some(id) = owner.strip_prefix(OWNER) else { return Ok(owner == SOCKET) };
        let token = self.inner.store.token_of(id).await?;
        Ok(token.is_some_and(|token| token.expires_at.is_none_or(|at| clock::now() < at)))
    }

    /// Looked up by digest: how long that takes says nothing about the secret.
    pub async fn authenticate(&self, secret: &str) -> Result<Option<Caller>, Problem> {
        if !secret.starts_with(PREFIX) {
            return Ok(None);
        }
        let found = self.inner.store.token(digest(secret), clock::now()).await?;
        Ok(found.map(caller))
    }
}

/// Of the token that a caller has, if any.
pub(crate) fn id_of(caller: &Caller) -> Option<&str> {
    caller.owner.strip_prefix(OWNER)
}

pub(crate) fn caller(token: Token) -> Caller {
    Caller { owner: format!("{OWNER}{}", token.id), role: token.role, session: token.session }
}

/// Base64 for URLs, without padding: no shell, header or cookie gives it a meaning.
pub(crate) fn secret(prefix: &str, random: [u8; 32]) -> String {
    let text = sandbar_api::bytes::encode(&random).replace('+', "-").replace('/', "_");
    format!("{prefix}{}", text.trim_end_matches('='))
}

pub(crate) fn digest(secret: &str) -> [u8; 32] {
    Sha256::digest(secret.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_have_43_characters_safe_in_urls() {
        for byte in [0, 0xff, 0xfb] {
            let secret = secret(PREFIX, [byte; 32]);
            let body = secret.strip_prefix(PREFIX).unwrap_or_default();
            assert_eq!(body.len(), 43);
            assert!(body.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_'), "{body}");
        }
    }
}
