//! Looking for names and lines in a sandbox's files; done inside by the guest, as the workload's user.

use bytes::Bytes;
use chrono::{DateTime, Utc};
use sandbar_api::{Code, EntryKind, Problem, check};
use sandbar_guest::protocol::{SearchHit, SearchRequest, search_reply::Event};

use crate::{Engine, files, problem};

/// Several times what a guest tells at most.
const LARGEST_ANSWER: usize = 64 * 1024 * 1024;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SearchQuery {
    /// A directory, or a file to look into.
    pub path: String,
    /// Glob: with a slash over the paths below it, else over names at any depth; empty: all.
    pub names: String,
    /// Regular expression of lines, which come in the order of paths; none: names alone, the newest first.
    pub pattern: Option<String>,
    /// Of the expression; where names alone are asked for, of the glob.
    pub ignore_case: bool,
    /// Lines of context, at most 50.
    pub before: u32,
    pub after: u32,
    /// Hits, after which it ends; 0: 1000 lines or 10000 names.
    pub most: u32,
    /// Also what is hidden, or in directories that nobody looks into: node_modules, target, .venv, __pycache__.
    pub all: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hit {
    /// Relative to what was searched; its own name if that was a file.
    pub path: String,
    pub kind: EntryKind,
    pub size: u64,
    pub modified_at: DateTime<Utc>,
    /// From 1; 0 where names alone were asked for.
    pub line: u64,
    pub text: Bytes,
    /// Shown because it is near a hit.
    pub context: bool,
    /// The line is longer than `text`.
    pub cut: bool,
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
        let mut inside = handle.enter_if(self.asleep).await?;
        let SearchQuery { names, pattern, ignore_case, before, after, most, all, .. } = query;
        let request = SearchRequest { path, names, pattern, ignore_case, before, after, most, all };
        let told = |status| problem::from_status(&status);
        let mut found = inside.guest.search(request).await.map_err(told)?.into_inner();
        let mut hits = Hits::default();
        let mut size = 0;
        while let Some(next) = found.message().await.map_err(told)? {
            match next.event {
                Some(Event::Hit(hit)) => {
                    size += hit.path.len() + hit.text.len() + size_of::<Hit>();
                    if size > LARGEST_ANSWER {
                        let fix = "Ask for fewer hits.";
                        return Err(Problem::new(Code::Internal, "The guest tells more than it may.", fix));
                    }
                    hits.hits.push(told_hit(hit));
                }
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

fn told_hit(hit: SearchHit) -> Hit {
    Hit {
        kind: files::kind(hit.kind()),
        modified_at: DateTime::<Utc>::from_timestamp_millis(hit.modified_ms).unwrap_or_default(),
        path: hit.path,
        size: hit.size,
        line: hit.line,
        text: hit.text,
        context: hit.context,
        cut: hit.cut,
    }
}
