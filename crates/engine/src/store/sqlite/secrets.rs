//! Secrets, sealed.

use async_trait::async_trait;

use super::SqliteStore;
use crate::store::{
    Error, Result,
    gate::{SecretRow, SecretStore},
};

#[async_trait]
impl SecretStore for SqliteStore {
    async fn set_secret(&self, _row: &SecretRow) -> Result<()> {
        Err(Error::Unreadable("not built".into()))
    }

    async fn secrets(&self) -> Result<Vec<SecretRow>> {
        Ok(Vec::new())
    }

    async fn remove_secret(&self, _name: &str) -> Result<()> {
        Err(Error::Unreadable("not built".into()))
    }
}
