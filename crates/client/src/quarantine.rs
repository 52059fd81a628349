//! What the server found and does not know.

use reqwest::Method;
use sandbar_api::{AdoptQuarantined, Adopted, QuarantineList, Quarantined};

use crate::{Client, Result};

impl Client {
    /// Oldest first.
    pub async fn quarantine(&self) -> Result<Vec<Quarantined>> {
        Ok(self.get::<QuarantineList>(&["v1", "quarantine"]).await?.quarantined)
    }

    /// The server's database knows the sandbox or the snapshot from now on.
    pub async fn adopt_quarantined(&self, id: &str, request: &AdoptQuarantined) -> Result<Adopted> {
        self.post(&["v1", "quarantine", id, "adopt"], request).await
    }

    /// Removes its files for good.
    pub async fn remove_quarantined(&self, id: &str) -> Result<()> {
        self.empty(self.request(Method::DELETE, &["v1", "quarantine", id])).await
    }
}
