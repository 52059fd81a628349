//! The token of a workspace: an agent's, bound to the session. Its secret follows from its id and the home's key, so that
//! it can be told again and again though nothing of it is stored.

use sandbar_api::{Problem, Role, SessionId, Token, TokenId};

use crate::{Inner, clock, ids, store, tokens};

const PURPOSE: &str = "sandbar workspace token 1";

impl Inner {
    /// Of the token there is, or of a new one.
    pub(super) async fn workspace_secret(&self, session: &SessionId) -> Result<String, Problem> {
        if let Some(known) = self.known_workspace_secret(session).await? {
            return Ok(known);
        }
        let now = clock::now();
        let id = ids::token(now)?;
        let digest = tokens::digest(&self.secret_of(&id));
        let name = format!("workspace {session}");
        let token =
            Token { id, name, role: Role::Agent, session: Some(session.clone()), created_at: now, expires_at: None };
        // Of those who come at the same time the first one's is everybody's.
        let made = self.store.add_workspace_token(&token, digest).await.map_err(|error| match error {
            store::Error::Missing(_) => crate::problem::unknown_session(session.as_str()),
            error => error.into(),
        })?;
        Ok(self.secret_of(&made))
    }

    pub(super) async fn known_workspace_secret(&self, session: &SessionId) -> Result<Option<String>, Problem> {
        Ok(self.store.workspace_token(session).await?.map(|id| self.secret_of(&id)))
    }

    fn secret_of(&self, id: &TokenId) -> String {
        tokens::secret(tokens::PREFIX, self.gates.vault.mac(PURPOSE, id.as_str().as_bytes()))
    }
}
