//! A file of the home as it is found: what it says, and how to see that it was changed.

use std::{
    fs::{self, Metadata},
    io::{ErrorKind, Read as _},
    os::unix::fs::MetadataExt as _,
    path::Path,
    time::{Duration, SystemTime},
};

/// A change so shortly before a look may be followed by another that cannot be told from it.
const SETTLED: Duration = Duration::from_secs(2);

/// Absent for a file that is not there.
pub(crate) fn read(path: &Path, most: u64) -> Result<Option<String>, String> {
    let metadata = match fs::metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        found => found.map_err(|error| error.to_string())?,
    };
    // Reading a pipe could wait for ever.
    if !metadata.is_file() {
        return Err("it is not a file".into());
    }
    let (mut text, file) = (String::new(), fs::File::open(path).map_err(|error| error.to_string())?);
    let length = file.take(most + 1).read_to_string(&mut text).map_err(|error| match error.kind() {
        ErrorKind::InvalidData => "it is not UTF-8".to_owned(),
        _ => error.to_string(),
    })?;
    if length as u64 > most {
        return Err(format!("it is larger than {} KiB", most >> 10));
    }
    Ok(Some(text))
}

/// Equal as long as a file was not changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stamp {
    /// Device, inode, size, time of change.
    identity: Option<(u64, u64, u64, i64, i64)>,
    /// Looks again next time in any case.
    fresh: Option<SystemTime>,
}

impl Stamp {
    pub(crate) fn of(path: &Path) -> Self {
        let metadata = fs::metadata(path).ok();
        let identity = |found: &Metadata| (found.dev(), found.ino(), found.size(), found.ctime(), found.ctime_nsec());
        let now = SystemTime::now();
        let since = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().saturating_sub(SETTLED).as_secs();
        let fresh = metadata.as_ref().is_some_and(|found| found.ctime() >= 0 && found.ctime().unsigned_abs() >= since);
        Self { identity: metadata.as_ref().map(identity), fresh: fresh.then_some(now) }
    }
}
