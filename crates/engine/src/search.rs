//! Looking for names and lines in a sandbox's files; done inside by the guest, as the workload's user.

use bytes::Bytes;
use chrono::{DateTime, Utc};
use sandbar_api::{Code, EntryKind, Problem, check};
use sandbar_guest::protocol::{SearchRequest, search_reply::Event};

use crate::{Engine, files, problem};

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SearchQuery {
    /// A directory, or a file to look into.
    pub path: String,
    /// Glob over the paths below it; empty: all.
    pub names: String,
    /// Regular expression of lines; none: names alone.
    pub pattern: Option<String>,
    pub ignore_case: bool,
    /// Lines of context.
    pub before: u32,
    pub after: u32,
    /// Hits, after which it ends.
    pub most: u32,
    /// Also what is hidden, or in directories that nobody looks into.
    pub all: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hit {
    /// Relative to what was searched.
    pub path: String,
    pub kind: EntryKind,
    pub size: u64,
    pub modified_at: DateTime<Utc>,
    /// From 1; 0 where names alone were asked for.
    pub line: u64,
    pub text: Bytes,
    /// Shown because it is near a hit.
    pub context: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Hits {
    pub hits: Vec<Hit>,
    pub looked_at: u64,
    /// A limit ended it.
    pub more: bool,
    /// Left out because they could not be read.
    pub unreadable: u64,
}

impl Engine {
    pub async fn search(&self, sandbox: &str, query: SearchQuery) -> Result<Hits, Problem> {
        let path = check::path(&query.path)?;
        let handle = self.inner.handle(sandbox).await?;
        let mut inside = handle.enter().await?;
        let SearchQuery { names, pattern, ignore_case, before, after, most, all, .. } = query;
        let request = SearchRequest { path, names, pattern, ignore_case, before, after, most, all };
        let told = |status| problem::from_status(&status);
        let mut found = inside.guest.search(request).await.map_err(told)?.into_inner();
        let mut hits = Hits::default();
        while let Some(next) = found.message().await.map_err(told)? {
            match next.event {
                Some(Event::Hit(hit)) => hits.hits.push(Hit {
                    kind: files::kind(hit.kind()),
                    modified_at: DateTime::<Utc>::from_timestamp_millis(hit.modified_ms).unwrap_or_default(),
                    path: hit.path,
                    size: hit.size,
                    line: hit.line,
                    text: hit.text,
                    context: hit.context,
                }),
                Some(Event::End(end)) => {
                    (hits.looked_at, hits.more, hits.unreadable) = (end.looked_at, end.more, end.unreadable);
                    return Ok(hits);
                }
                None => {}
            }
        }
        Err(Problem::new(Code::Internal, "The search broke off.", "Try again."))
    }
}
