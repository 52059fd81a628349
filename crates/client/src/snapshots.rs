//! Snapshots of a sandbox's files, and forks.

use reqwest::Method;
use sandbar_api::{CreateSnapshot, Fork, Forked, Sandbox, Snapshot, SnapshotList};

use crate::{Client, Result};

impl Client {
    /// Keeps the sandbox's files as they are now; the snapshot outlives it.
    pub async fn snapshot(&self, sandbox: &str, request: &CreateSnapshot) -> Result<Snapshot> {
        self.post(&["v1", "sandboxes", sandbox, "snapshots"], request).await
    }

    pub async fn snapshots(&self) -> Result<Vec<Snapshot>> {
        Ok(self.get::<SnapshotList>(&["v1", "snapshots"]).await?.snapshots)
    }

    /// By id or name.
    pub async fn snapshot_named(&self, snapshot: &str) -> Result<Snapshot> {
        self.get(&["v1", "snapshots", snapshot]).await
    }

    /// Sandboxes made from it keep their files.
    pub async fn delete_snapshot(&self, snapshot: &str) -> Result<()> {
        self.empty(self.request(Method::DELETE, &["v1", "snapshots", snapshot])).await
    }

    /// Independent sandboxes with the files this one has now; returns when all are ready.
    pub async fn fork(&self, sandbox: &str, request: &Fork) -> Result<Vec<Sandbox>> {
        Ok(self.post::<Forked>(&["v1", "sandboxes", sandbox, "fork"], request).await?.sandboxes)
    }
}
