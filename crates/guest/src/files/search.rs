//! Looking for names and for lines below a directory, within bounds: whatever is there, it ends, and says what ended it.

mod lines;
mod names;
mod newest;
mod walk;

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::Path,
    time::{Duration, Instant},
};

use self::{lines::Lines, names::Names, newest::Newest, walk::Walk};
use super::{frames::Outbox, list, unheard};
use crate::{
    error::{Code, Fault},
    protocol::{SearchEnd, SearchHit, SearchReply, SearchRequest, search_reply::Event},
};

const MOST_HITS: u32 = 10_000;
const USUAL_LINES: u32 = 1000;
const MOST_CONTEXT: u32 = 50;

/// After its own limit a worker ends in order; one that is stuck in a single line is given up by the guest later.
pub(crate) const LONGEST: Duration = Duration::from_secs(60);

/// What a path, a name or a line costs beside its bytes.
const HOLDING: usize = 64;

struct Limits {
    entries: u64,
    time: Duration,
    /// Of all paths and lines of the answer, with what holding them costs: somebody outside holds it in memory.
    answer: usize,
    /// Of a file that is read.
    file: u64,
    /// Of the names that wait for their turn, with what holding them costs.
    names: usize,
}

const LIMITS: Limits = Limits {
    entries: 2_000_000,
    time: LONGEST,
    answer: 16 * 1024 * 1024,
    file: 64 * 1024 * 1024,
    names: 256 * 1024 * 1024,
};

pub(super) fn below(path: &Path, request: &SearchRequest, outbox: &mut Outbox) -> Result<u64, Fault> {
    within(&LIMITS, path, request, outbox)
}

fn within(limits: &Limits, path: &Path, request: &SearchRequest, outbox: &mut Outbox) -> Result<u64, Fault> {
    let names_alone = request.pattern.is_none();
    let names = Names::new(path, &request.names, request.ignore_case && names_alone, request.all)?;
    let lines = request.pattern.as_deref().map(|pattern| Lines::new(pattern, request)).transpose()?;
    let most = match request.most {
        0 if lines.is_some() => USUAL_LINES,
        0 => MOST_HITS,
        stated => stated.min(MOST_HITS),
    };
    let mut progress = Progress {
        limits,
        outbox,
        deadline: Instant::now() + limits.time,
        end: SearchEnd::default(),
        left: most,
        answered: 0,
    };
    let metadata = fs::metadata(path).map_err(|error| failed(path, &error))?;
    match lines {
        Some(mut lines) if metadata.is_file() => {
            progress.end.looked_at = 1;
            lines.only(path, &mut progress)?;
        }
        Some(mut lines) => Walk::open(path, &names)?.go(&mut lines, &mut progress)?,
        None => {
            let mut newest = Newest::new(usize::try_from(most).unwrap_or(usize::MAX));
            if metadata.is_dir() {
                Walk::open(path, &names)?.go(&mut newest, &mut progress)?;
            } else {
                progress.end.looked_at = 1;
                let name = Path::new(path.file_name().unwrap_or(path.as_os_str()));
                if names.matches(Path::new(""), name.as_os_str()) {
                    let entry = list::entry(String::new(), &metadata, String::new());
                    let hit =
                        SearchHit { kind: entry.kind, modified_ms: entry.modified_ms, size: entry.size, ..hit(name) };
                    newest.add((metadata.mtime(), metadata.mtime_nsec()), hit);
                }
            }
            newest.tell(&mut progress)?;
        }
    }
    let Progress { end, .. } = progress;
    outbox.found(&SearchReply { event: Some(Event::End(end)) }).map_err(unheard)?;
    Ok(end.looked_at)
}

/// What was found so far, and how far it may still go.
struct Progress<'a> {
    limits: &'a Limits,
    outbox: &'a mut Outbox,
    deadline: Instant,
    end: SearchEnd,
    /// Hits that may still be told.
    left: u32,
    answered: usize,
}

impl Progress<'_> {
    /// Whether another entry may be looked at.
    fn look(&mut self) -> bool {
        if self.end.looked_at >= self.limits.entries || self.is_late() {
            self.end.more = true;
            return false;
        }
        self.end.looked_at += 1;
        true
    }

    fn is_late(&mut self) -> bool {
        let is_late = Instant::now() >= self.deadline;
        self.end.more |= is_late;
        is_late
    }

    /// Whether the answer has room for more after it.
    fn tell(&mut self, hit: SearchHit) -> Result<bool, Fault> {
        let size = hit.path.len() + hit.text.len() + HOLDING;
        if self.answered + size > self.limits.answer {
            self.end.more = true;
            self.left = 0;
            return Ok(false);
        }
        self.answered += size;
        self.outbox.found(&SearchReply { event: Some(Event::Hit(hit)) }).map_err(unheard)?;
        Ok(true)
    }
}

fn hit(path: &Path) -> SearchHit {
    SearchHit { path: path.to_string_lossy().into_owned(), ..SearchHit::default() }
}

/// `reason` may be of several lines, of which the last says what is wrong.
fn bad(what: &str, reason: &str) -> Fault {
    let reason = reason.lines().last().unwrap_or_default().trim().trim_start_matches("error: ");
    Fault::new(Code::BadRequest, format!("{what}: {reason}."))
}

fn failed(path: &Path, error: &std::io::Error) -> Fault {
    Fault::file(&format!("search `{}`", path.display()), error)
}

#[cfg(test)]
mod tests;
