//! The verbs of a sandbox's life as surfaces call them, and the lists: sandboxes, events, host reports.

use futures_util::future::join_all;
use sandbar_api::{ClusterCheck, ClusterReport, Code, Event, Problem, Sandbox, SandboxId, SandboxPage, check};
use sandbar_provider::HostReport;
use tokio::sync::watch;

use crate::{
    Engine, ListQuery,
    owner::{self, Reply, Verb},
    problem,
    registry::Known,
    store::{self, SandboxFilter},
};

const DEFAULT_LIMIT: u32 = 100;
const MAX_LIMIT: u32 = 1000;

impl Engine {
    pub async fn list(&self, query: ListQuery) -> Result<SandboxPage, Problem> {
        check::labels(&query.labels)?;
        let limit = query.limit.unwrap_or(DEFAULT_LIMIT);
        if !(1..=MAX_LIMIT).contains(&limit) {
            return Err(Problem::new(
                Code::BadRequest,
                format!("A page cannot have {limit} sandboxes."),
                format!("Ask for 1 to {MAX_LIMIT}."),
            ));
        }
        let after = query.cursor.as_deref().map(decode_cursor).transpose()?;
        // One more than asked tells whether there is a next page.
        let filter = SandboxFilter { labels: query.labels, states: query.states, after, limit: limit + 1 };
        let mut rows = self.inner.store.sandboxes(&filter).await?;
        let more = rows.len() > limit as usize;
        rows.truncate(limit as usize);
        let sandboxes: Vec<_> = rows.into_iter().map(|row| row.sandbox).collect();
        let next_cursor = sandboxes.last().filter(|_| more).map(|last| encode_cursor(&last.id));
        Ok(SandboxPage { sandboxes, next_cursor })
    }

    /// By id also one that is deleted, until it is pruned; its name may be another's by now.
    pub async fn get(&self, sandbox: &str) -> Result<Sandbox, Problem> {
        match self.inner.find(sandbox).await? {
            Known::Live(handle) => Ok(handle.sandbox()),
            Known::Gone(gone) if gone.id.as_str() == sandbox => Ok(*gone),
            Known::Gone(_) => Err(problem::gone(sandbox)),
        }
    }

    /// Returns when it is gone; deleting it again is no error.
    pub async fn delete(&self, sandbox: &str) -> Result<(), Problem> {
        let Known::Live(handle) = self.inner.find(sandbox).await? else { return Ok(()) };
        match handle.ask(|reply| Verb::Delete(owner::requested_delete(), reply)).await {
            Err(problem) if problem.code == Code::SandboxGone => Ok(()),
            answer => answer,
        }
    }

    pub async fn stop(&self, sandbox: &str) -> Result<Sandbox, Problem> {
        self.ask(sandbox, Verb::Stop).await
    }

    pub async fn start(&self, sandbox: &str) -> Result<Sandbox, Problem> {
        self.ask(sandbox, Verb::Start).await
    }

    /// Holds every process still; what runs and what it wrote is kept.
    pub async fn pause(&self, sandbox: &str) -> Result<Sandbox, Problem> {
        self.ask(sandbox, Verb::Pause).await
    }

    pub async fn resume(&self, sandbox: &str) -> Result<Sandbox, Problem> {
        self.ask(sandbox, Verb::Resume).await
    }

    async fn ask(&self, sandbox: &str, verb: impl FnOnce(Reply<Sandbox>) -> Verb) -> Result<Sandbox, Problem> {
        let handle = self.inner.handle(sandbox).await?;
        handle.activity.touch();
        handle.ask(verb).await
    }

    /// Events with `seq > after`.
    pub async fn events(&self, after: u64, limit: u32, sandbox: Option<&str>) -> Result<Vec<Event>, Problem> {
        let id = match sandbox {
            None => None,
            Some(text) => Some(match self.inner.find(text).await? {
                Known::Live(handle) => handle.id.clone(),
                Known::Gone(gone) => gone.id,
            }),
        };
        self.inner.store.events(after, limit, id.as_ref()).await.map_err(|error| match error {
            store::Error::Dropped { from, first_kept } => Problem::new(
                Code::EventsDropped,
                format!("Events from {from} on are no longer all kept; the first one kept is {first_kept}."),
                format!("Read from {first_kept}."),
            )
            .with_first_kept(first_kept),
            error => error.into(),
        })
    }

    /// The newest event's number; it grows after the event can be read.
    pub fn head(&self) -> watch::Receiver<u64> {
        self.inner.store.head()
    }

    pub async fn host(&self) -> Vec<HostReport> {
        join_all(self.inner.providers.values().map(|provider| provider.probe())).await
    }

    /// Whether the cluster of the provider that has one can hold sandboxes.
    pub async fn kubernetes_check(&self, asked: &ClusterCheck) -> Result<ClusterReport, Problem> {
        for provider in self.inner.providers.values() {
            if let Some(report) = provider.check(asked).await {
                return Ok(report);
            }
        }
        Err(Problem::new(
            Code::UnknownProvider,
            "This server has no cluster.",
            "Start it with `sandbar up --provider kubernetes`, or look without a server: `sandbar kubernetes check`.",
        ))
    }

    /// Whether requests that change something can succeed.
    pub async fn ready(&self) -> Result<(), Problem> {
        if self.inner.closing.is_cancelled() {
            return Err(problem::shutting_down());
        }
        Ok(self.inner.store.check().await?)
    }
}

/// Ids ascend, so the last one of a page says where the next begins.
fn encode_cursor(last: &SandboxId) -> String {
    last.to_string()
}

fn decode_cursor(cursor: &str) -> Result<SandboxId, Problem> {
    cursor.parse().map_err(|_| {
        Problem::new(
            Code::BadCursor,
            format!("`{}` is not a cursor.", cursor.escape_debug()),
            "Pass `next_cursor` of the page before, unchanged, or none for the first page.",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_come_back_and_others_are_refused() {
        let id = SandboxId::from_parts(7, [9; 10]);
        assert_eq!(decode_cursor(&encode_cursor(&id)), Ok(id));
        for cursor in ["", "1", "sbx-", "prc-00000000000000000000000000"] {
            assert_eq!(decode_cursor(cursor).map_err(|problem| problem.code), Err(Code::BadCursor), "{cursor}");
        }
    }
}
