//! Keeping a snapshot of a sandbox: between two verbs of its life, with all of it standing still.

use std::time::Duration;

use sandbar_api::{Code, Problem, SandboxState, Snapshot, SnapshotId, WorkspaceSource};
use sandbar_provider::{Error, Made};
use tokio::time;

use super::Owner;
use crate::{
    clock, create, problem, runtimes,
    store::{NewSnapshot, SnapshotRow},
};

/// A snapshot to be taken.
pub(crate) struct Keep {
    pub(crate) id: SnapshotId,
    pub(crate) name: String,
    pub(crate) hidden: bool,
    /// Who asked.
    pub(crate) owner: String,
}

impl Owner {
    /// Recorded only when the provider has it: what a server that ends in between leaves is discarded by the next.
    pub(super) async fn keep(&self, keep: Keep) -> Result<SnapshotRow, Problem> {
        let sandbox = self.handle.sandbox();
        let whole = matches!(sandbox.state, SandboxState::Ready | SandboxState::Paused | SandboxState::Stopped);
        if !whole || self.is_going() {
            return Err(problem::wrong_state(&sandbox));
        }
        if let WorkspaceSource::Bind { path } = &sandbox.workspace {
            return Err(Problem::new(
                Code::WorkspaceBound,
                format!("The workspace of `{}` is the host's {}, which no snapshot holds.", sandbox.name, path),
                "Use a sandbox with a workspace of its own, and copy the files in.",
            ));
        }
        // Before anything stands still for it; the store decides.
        if self.inner.store.snapshot_named(&keep.name).await?.is_some_and(|row| !row.deleted) {
            return Err(problem::snapshot_taken(&keep.name));
        }
        let size = match sandbox.state {
            SandboxState::Ready => self.copy_while_still(&keep.id).await?,
            SandboxState::Paused => {
                // A pause does not wait for long uploads.
                let _held = self.hold_runtimes().await?;
                self.settle_files().await?;
                self.copy(&keep.id).await?
            }
            _ => self.copy(&keep.id).await?,
        };
        let snapshot = Snapshot {
            id: keep.id,
            name: keep.name,
            sandbox: sandbox.id,
            template: sandbox.template,
            provider: sandbox.provider,
            created_at: clock::now(),
            size,
        };
        let template = self.handle.template.clone();
        let row = SnapshotRow { snapshot, template, hidden: keep.hidden, deleted: false };
        let id = row.snapshot.id.clone();
        match self.inner.store.create_snapshot(NewSnapshot { row, owner: keep.owner }).await {
            Ok(row) => {
                // One that serves a fork is never kept.
                if !row.hidden {
                    create::mark_kept(&self.inner, &*self.handle.provider, Made::Snapshot(&id), None).await;
                }
                Ok(row)
            }
            Err(error) => {
                self.forget(&id).await;
                Err(problem::of_snapshot(error))
            }
        }
    }

    async fn copy(&self, id: &SnapshotId) -> Result<u64, Problem> {
        self.handle.provider.snapshot(&self.handle.id, id).await.map_err(problem::from_provider)
    }

    async fn copy_while_still(&self, id: &SnapshotId) -> Result<u64, Problem> {
        // File workers do not stand still with the workload: who wants to change files from now on waits. Through runtimes
        // first, while what is on its way to them still gets in.
        let _held = self.hold_runtimes().await?;
        self.handle.hold();
        let copied = match self.settle_files().await {
            Ok(()) => self.freeze_and_copy(id).await,
            Err(problem) => Err(problem),
        };
        let thawed = self.thaw().await;
        match &thawed {
            Ok(()) => self.handle.release(),
            // It stands still and stays held, as `thaw` has recorded.
            Err(_) if copied.is_ok() => self.forget(id).await,
            Err(_) => {}
        }
        copied.and_then(|size| thawed.map(|()| size))
    }

    async fn freeze_and_copy(&self, id: &SnapshotId) -> Result<u64, Problem> {
        self.freeze().await.map_err(|error| cannot_stand_still(error, &self.handle.name()))?;
        self.copy(id).await
    }

    async fn hold_runtimes(&self) -> Result<runtimes::Held, Problem> {
        let patience = self.inner.patience.transfers();
        let held = tokio::select! {
            held = time::timeout(patience, runtimes::hold(&self.handle)) => held,
            () = self.inner.closing.cancelled() => return Err(problem::shutting_down()),
        };
        held.unwrap_or_else(|_| Err(files_in_transfer(&self.handle.name(), patience)))
    }

    async fn settle_files(&self) -> Result<(), Problem> {
        let patience = self.inner.patience.transfers();
        let settled = tokio::select! {
            settled = self.handle.settle_files(patience) => settled,
            () = self.inner.closing.cancelled() => return Err(problem::shutting_down()),
        };
        if settled { Ok(()) } else { Err(files_in_transfer(&self.handle.name(), patience)) }
    }

    async fn forget(&self, id: &SnapshotId) {
        if let Err(error) = self.handle.provider.discard(id).await {
            // The next start of the server tries again.
            tracing::error!(snapshot = %id, %error, "a snapshot that nobody was told of is not discarded");
        }
    }
}

fn files_in_transfer(name: &str, waited: Duration) -> Problem {
    let waited = waited.as_secs();
    Problem::new(
        Code::WrongState,
        format!(
            "Files of the sandbox `{name}` are being transferred or removed, and that did not end within {waited} s."
        ),
        "Nothing was changed: try again when the transfer is over.",
    )
}

fn cannot_stand_still(error: Error, name: &str) -> Problem {
    let error = match error {
        // Nobody asked for the pause.
        Error::Declined { provider, .. } => Error::Declined { provider, verb: "snapshot" },
        error => error,
    };
    let stop = format!("Or `sandbar stop {name}` first: what is stopped needs no pause.");
    match problem::from_provider(error) {
        problem if problem.code == Code::NotEnforceable => {
            let fix = format!("{} {stop}", problem.fix);
            Problem { fix, ..problem }
        }
        problem => problem,
    }
}
