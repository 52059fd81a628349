//! Reservations that the database does not have yet. Each is appended here before its call goes out, and the database
//! takes many of them in one commit a moment later: a call does not wait for the disk. What was appended outlives the
//! server, however that dies; the next one finds here what never came to the database, and lets it stand.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use serde::{Deserialize, Serialize};

use crate::store::gate::CallRow;

const PREFIX: &str = "ledger-";
const SUFFIX: &str = ".journal";
/// A file is closed at this size, and goes when the database has all of it.
const LONGEST: u64 = 1 << 20;
const OWNER_ONLY: u32 = 0o600;

pub(super) struct Journal {
    home: PathBuf,
    files: Mutex<Files>,
}

struct Files {
    /// The one that is written to.
    number: u64,
    file: File,
    length: u64,
    /// How many of each file the database does not have.
    missing: BTreeMap<u64, usize>,
}

/// A line of it.
#[derive(Serialize, Deserialize)]
struct Line<'l>(#[serde(borrow)] std::borrow::Cow<'l, str>, String, String, String, String, i64, u64, u64);

impl Journal {
    /// Also what earlier servers left in it. Their files stay until [`Journal::forget`].
    pub(super) fn open(home: &Path) -> io::Result<(Self, Left)> {
        let mut left = Left { files: Vec::new(), calls: Vec::new() };
        let mut newest = 0;
        for entry in fs::read_dir(home)? {
            let path = entry?.path();
            let Some(number) = number(&path) else { continue };
            newest = newest.max(number);
            // A line that was cut off, also within a letter, is of a call that was never made.
            left.calls.extend(fs::read(&path)?.split(|byte| *byte == b'\n').filter_map(parse));
            left.files.push(path);
        }
        let number = newest + 1;
        let file = create(home, number)?;
        let files = Files { number, file, length: 0, missing: BTreeMap::new() };
        Ok((Self { home: home.to_owned(), files: Mutex::new(files) }, left))
    }

    /// Durable against the death of the server when it returns. Tells in which file it is.
    pub(super) fn append(&self, call: &CallRow) -> io::Result<u64> {
        let mut line = serde_json::to_vec(&Line(
            call.id.as_str().into(),
            call.session.to_string(),
            call.sandbox.to_string(),
            call.model.clone(),
            call.upstream.clone(),
            call.began_at.timestamp_micros(),
            call.held_tokens,
            call.held_micros,
        ))?;
        line.push(b'\n');
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        if files.length >= LONGEST {
            let number = files.number + 1;
            files.file = create(&self.home, number)?;
            (files.number, files.length) = (number, 0);
        }
        if let Err(error) = files.file.write_all(&line) {
            // Half a line would swallow the next one.
            let length = files.length;
            files.file.set_len(length)?;
            return Err(error);
        }
        files.length += line.len() as u64;
        let number = files.number;
        *files.missing.entry(number).or_default() += 1;
        Ok(number)
    }

    /// The database has these, by the file each is in.
    pub(super) fn committed(&self, numbers: impl Iterator<Item = u64>) {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        for number in numbers {
            if let Some(missing) = files.missing.get_mut(&number) {
                *missing = missing.saturating_sub(1);
            }
        }
        let done: Vec<u64> =
            files.missing.iter().filter(|(_, missing)| **missing == 0).map(|(number, _)| *number).collect();
        for number in done {
            let ended = if number == files.number {
                files.length = 0;
                files.file.set_len(0)
            } else {
                fs::remove_file(path(&self.home, number))
            };
            if let Err(error) = ended {
                // What is in it is found again and has no effect: the database has it.
                tracing::warn!(%error, "a journal of the ledger cannot be emptied");
            }
            files.missing.remove(&number);
        }
    }
}

/// What servers that died left.
#[derive(Default)]
pub(super) struct Left {
    files: Vec<PathBuf>,
    pub(super) calls: Vec<CallRow>,
}

impl Left {
    /// All of it is in the database.
    pub(super) fn forget(self) {
        for path in self.files {
            if let Err(error) = fs::remove_file(&path) {
                tracing::warn!(%error, "a journal of the ledger cannot be removed");
            }
        }
    }
}

fn path(home: &Path, number: u64) -> PathBuf {
    home.join(format!("{PREFIX}{number}{SUFFIX}"))
}

fn number(path: &Path) -> Option<u64> {
    path.file_name()?.to_str()?.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?.parse().ok()
}

fn create(home: &Path, number: u64) -> io::Result<File> {
    File::options().create(true).append(true).mode(OWNER_ONLY).open(path(home, number))
}

fn parse(line: &[u8]) -> Option<CallRow> {
    let Line(id, session, sandbox, model, upstream, began_at, held_tokens, held_micros) =
        serde_json::from_slice(line).ok()?;
    Some(CallRow {
        id: id.into_owned(),
        session: session.parse().ok()?,
        sandbox: sandbox.parse().ok()?,
        model,
        upstream,
        began_at: chrono::DateTime::from_timestamp_micros(began_at)?,
        held_tokens,
        held_micros,
    })
}

#[cfg(test)]
mod tests {
    use chrono::Utc;
    use sandbar_api::{SandboxId, SessionId};

    use super::*;

    fn call(id: usize) -> CallRow {
        CallRow {
            id: format!("llm-{id}"),
            session: SessionId::from_parts(1, [1; 10]),
            sandbox: SandboxId::from_parts(1, [2; 10]),
            model: "m \"x\"\n".into(),
            upstream: "u".into(),
            began_at: chrono::DateTime::from_timestamp_micros(Utc::now().timestamp_micros()).unwrap_or_default(),
            held_tokens: u64::MAX,
            held_micros: 7,
        }
    }

    #[test]
    fn what_the_database_has_not_is_found_again() -> io::Result<()> {
        let home = sandbar_test_harness::scratch()?;
        let (journal, left) = Journal::open(home.path())?;
        assert!(left.calls.is_empty());
        let calls = [call(1), call(2)];
        for call in &calls {
            journal.append(call)?;
        }
        // A server that died in the middle of a line.
        let mut file = File::options().append(true).open(path(home.path(), 1))?;
        file.write_all(b"[\"llm-3\",\"\xc3")?;
        drop(journal);
        let (journal, left) = Journal::open(home.path())?;
        assert_eq!(left.calls, calls);
        let number = journal.append(&call(4))?;
        left.forget();
        journal.committed([number].into_iter());
        drop(journal);
        let (_, left) = Journal::open(home.path())?;
        assert!(left.calls.is_empty(), "{:?}", left.calls);
        Ok(())
    }

    #[test]
    fn files_go_when_the_database_has_them_all() -> io::Result<()> {
        let home = sandbar_test_harness::scratch()?;
        let (journal, _) = Journal::open(home.path())?;
        let mut numbers = Vec::new();
        while numbers.last().is_none_or(|number| *number < 4) {
            numbers.push(journal.append(&call(numbers.len()))?);
        }
        let count = || fs::read_dir(home.path()).map(Iterator::count);
        assert_eq!(count()?, 4);
        // All but one of the first: that one keeps its file.
        journal.committed(numbers[1..].iter().copied());
        assert_eq!(count()?, 2);
        journal.committed(numbers[..1].iter().copied());
        assert_eq!(count()?, 1);
        assert_eq!(fs::metadata(path(home.path(), 4))?.len(), 0);
        Ok(())
    }
}
