//! The lines of a file that match, with those around them. What is not text is passed over.

use std::{
    collections::VecDeque,
    fs::File,
    io::{self, Read},
    os::{
        fd::BorrowedFd,
        unix::{ffi::OsStrExt, fs::MetadataExt},
    },
    path::Path,
};

use bytes::Bytes;
use regex::bytes::{Regex, RegexBuilder};
use rustix::fs::{Mode, OFlags, openat};

use super::{
    MOST_CONTEXT, Progress, bad, failed, hit,
    walk::{Finder, Sight},
};
use crate::{
    error::{Code, Fault},
    files::{list, read},
    protocol::{EntryKind, SearchHit, SearchRequest},
};

/// What is shown of a line.
const LONGEST_LINE: usize = 2000;
/// Where a file tells that it is not text.
const HEAD: usize = 8 * 1024;
const LONGEST_PATTERN: usize = 64 * 1024;

pub(super) struct Lines {
    pattern: Regex,
    before: usize,
    after: usize,
    /// Kept from file to file.
    text: Vec<u8>,
}

impl Lines {
    pub(super) fn new(pattern: &str, request: &SearchRequest) -> Result<Self, Fault> {
        if request.before.max(request.after) > MOST_CONTEXT {
            return Err(Fault::new(Code::BadRequest, format!("At most {MOST_CONTEXT} lines of context are shown.")));
        }
        if pattern.len() > LONGEST_PATTERN {
            let message = format!("The expression has {} bytes, {LONGEST_PATTERN} is the most.", pattern.len());
            return Err(Fault::new(Code::BadRequest, message));
        }
        let compiled = RegexBuilder::new(pattern).case_insensitive(request.ignore_case).build();
        let pattern = compiled.map_err(|error| {
            let reason = error.to_string();
            let place = position(&reason).map_or_else(String::new, |position| format!(" (at character {position})"));
            bad(&format!("The regular expression is wrong{place}"), &reason)
        })?;
        let count = |lines: u32| usize::try_from(lines).unwrap_or_default();
        Ok(Self { pattern, before: count(request.before), after: count(request.after), text: Vec::new() })
    }

    /// The file itself was asked for, so nothing of it is passed over.
    pub(super) fn only(&mut self, path: &Path, progress: &mut Progress<'_>) -> Result<(), Fault> {
        let file = read::open_regular(path)?;
        match self.load(file, progress.limits.file, false) {
            Ok(Loaded::Text(about)) => {
                let name = Path::new(path.file_name().unwrap_or(path.as_os_str()));
                self.scan(&about.hit(name), progress)
            }
            Ok(Loaded::Other) => Ok(()),
            Ok(Loaded::TooLarge) => {
                let message = format!("`{}` has more than {} bytes.", path.display(), progress.limits.file);
                Err(Fault::new(Code::TooLarge, message))
            }
            Err(error) => Err(failed(path, &error)),
        }
    }

    fn load(&mut self, file: File, most: u64, text_only: bool) -> io::Result<Loaded> {
        let metadata = file.metadata()?;
        // It may be another one than was listed.
        if !metadata.is_file() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        if metadata.size() > most {
            return Ok(Loaded::TooLarge);
        }
        self.text.clear();
        // One more than allowed, to see that it grew.
        let mut rest = file.take(most + 1);
        (&mut rest).take(HEAD as u64).read_to_end(&mut self.text)?;
        if text_only && self.text.contains(&0) {
            return Ok(Loaded::Other);
        }
        rest.read_to_end(&mut self.text)?;
        if self.text.len() as u64 > most {
            return Ok(Loaded::TooLarge);
        }
        let modified_ms = list::modified_ms(&metadata);
        Ok(Loaded::Text(About { modified_ms, size: metadata.size() }))
    }

    /// `about` is what all hits of this file have in common.
    fn scan(&self, about: &SearchHit, progress: &mut Progress<'_>) -> Result<(), Fault> {
        let mut recent = VecDeque::with_capacity(self.before);
        let mut owed = 0;
        if self.text.is_empty() {
            return Ok(());
        }
        let text = self.text.strip_suffix(b"\n").unwrap_or(&self.text);
        for (number, line) in (1..).zip(text.split(|byte| *byte == b'\n')) {
            if (number % 1024 == 0 || line.len() > HEAD) && progress.is_late() {
                return Ok(());
            }
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            let shown = |number, line, context| SearchHit { line: number, context, ..shown(about, line) };
            if progress.left > 0 && self.pattern.is_match(line) {
                for (number, line) in recent.drain(..) {
                    if !progress.tell(shown(number, line, true))? {
                        return Ok(());
                    }
                }
                progress.left -= 1;
                owed = self.after;
                if !progress.tell(shown(number, line, false))? {
                    return Ok(());
                }
            } else if owed > 0 {
                owed -= 1;
                if !progress.tell(shown(number, line, true))? {
                    return Ok(());
                }
            } else if self.before > 0 {
                if recent.len() == self.before {
                    recent.pop_front();
                }
                recent.push_back((number, line));
            }
            if progress.left == 0 && owed == 0 {
                progress.end.more = true;
                return Ok(());
            }
        }
        // The context of the last hit ended with its file.
        progress.end.more |= progress.left == 0;
        Ok(())
    }
}

impl Finder for Lines {
    fn seen(&mut self, sight: &Sight<'_>, _: &mut Progress<'_>) -> bool {
        sight.is_file
    }

    fn file(&mut self, root: BorrowedFd<'_>, path: &Path, progress: &mut Progress<'_>) -> Result<(), Fault> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let opened = openat(root, path.as_os_str().as_bytes(), flags, Mode::empty()).map_err(io::Error::from);
        match opened.and_then(|file| self.load(file.into(), progress.limits.file, true)) {
            Ok(Loaded::Text(about)) => self.scan(&about.hit(path), progress),
            Ok(Loaded::Other) => Ok(()),
            Ok(Loaded::TooLarge) | Err(_) => {
                progress.end.unreadable += 1;
                Ok(())
            }
        }
    }
}

enum Loaded {
    Text(About),
    Other,
    TooLarge,
}

struct About {
    modified_ms: i64,
    size: u64,
}

impl About {
    fn hit(&self, path: &Path) -> SearchHit {
        let Self { modified_ms, size } = *self;
        SearchHit { kind: EntryKind::File.into(), modified_ms, size, ..hit(path) }
    }
}

/// Cut between characters, where it has any.
fn shown(about: &SearchHit, line: &[u8]) -> SearchHit {
    let cut = line.len() > LONGEST_LINE;
    let is_inside = |end: &usize| line.get(*end).is_some_and(|byte| byte & 0b1100_0000 == 0b1000_0000);
    let end = if cut {
        (LONGEST_LINE - 3..=LONGEST_LINE).rev().find(|end| !is_inside(end)).unwrap_or(LONGEST_LINE)
    } else {
        line.len()
    };
    SearchHit { text: Bytes::copy_from_slice(&line[..end]), cut, ..about.clone() }
}

/// Where the expression is wrong, counted from 1: its error shows that by a mark below the expression.
fn position(error: &str) -> Option<usize> {
    let mark = error.lines().nth(2)?;
    let indented = mark.strip_prefix("    ")?;
    let (before, _) = indented.split_once('^')?;
    before.chars().all(|one| one == ' ').then(|| before.len() + 1)
}
