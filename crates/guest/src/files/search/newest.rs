//! The newest of all that match, however many do.

use std::{cmp::Reverse, collections::BinaryHeap, os::fd::BorrowedFd, path::Path};

use rustix::fs::{AtFlags, statat};

use super::{
    Progress, hit,
    walk::{Finder, Sight},
};
use crate::{
    error::Fault,
    files::below,
    protocol::{Entry, SearchHit},
};

/// Seconds and nanoseconds.
type Time = (i64, i64);

/// Ordered by time, then by path from the end, so that of equally old ones the first in order stay; paths differ, so the
/// rest never decides.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Kept {
    modified: Time,
    path: Reverse<String>,
    kind: i32,
    size: u64,
    modified_ms: i64,
}

pub(super) struct Newest {
    most: usize,
    /// The oldest on top, the first to go.
    kept: BinaryHeap<Reverse<Kept>>,
    dropped: bool,
}

impl Newest {
    pub(super) fn new(most: usize) -> Self {
        Self { most, kept: BinaryHeap::new(), dropped: false }
    }

    pub(super) fn add(&mut self, modified: Time, hit: SearchHit) {
        let SearchHit { path, kind, size, modified_ms, .. } = hit;
        self.kept.push(Reverse(Kept { modified, path: Reverse(path), kind, size, modified_ms }));
        if self.kept.len() > self.most {
            self.kept.pop();
            self.dropped = true;
        }
    }

    pub(super) fn tell(self, progress: &mut Progress<'_>) -> Result<(), Fault> {
        progress.end.more |= self.dropped;
        // Sorted by the reverse of age: the newest first.
        for Reverse(Kept { path: Reverse(path), kind, size, modified_ms, .. }) in self.kept.into_sorted_vec() {
            if !progress.tell(SearchHit { path, kind, size, modified_ms, ..SearchHit::default() })? {
                break;
            }
        }
        Ok(())
    }
}

impl Finder for Newest {
    fn seen(&mut self, sight: &Sight<'_>, progress: &mut Progress<'_>) -> bool {
        let Ok(stat) = statat(sight.directory, sight.name, AtFlags::SYMLINK_NOFOLLOW) else {
            progress.end.unreadable += 1;
            return false;
        };
        let Entry { kind, size, modified_ms, .. } = below::entry(String::new(), &stat);
        let found = SearchHit { kind, size, modified_ms, ..hit(&sight.parent.join(sight.name)) };
        let time = (stat.st_mtime, i64::try_from(stat.st_mtime_nsec).unwrap_or_default());
        self.add(time, found);
        false
    }

    fn file(&mut self, _: BorrowedFd<'_>, _: &Path, _: &mut Progress<'_>) -> Result<(), Fault> {
        Ok(())
    }
}
