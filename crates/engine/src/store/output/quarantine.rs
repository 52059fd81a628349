//! Output of processes that the database does not know: marked and left where it is, so that the database it belongs to finds
//! it again.

use std::{
    fs,
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
};

use chrono::{DateTime, Utc};
use sandbar_api::ProcessId;
use sandbar_provider::Quarantine;

use super::{Output, Result, fault};

const MARK: &str = "quarantined";

impl Output {
    /// Whether it was not set aside before.
    pub(in crate::store) fn set_aside(&self, process: &ProcessId, since: DateTime<Utc>, reason: &str) -> Result<bool> {
        let quarantine = Quarantine { since, reason: reason.to_owned(), origin: None };
        let path = self.directory(process).join(MARK);
        let written = serde_json::to_vec(&quarantine)
            .map_err(io::Error::from)
            .and_then(|text| fs::File::options().write(true).create_new(true).mode(0o600).open(path)?.write_all(&text));
        match written {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            written => written.map(|()| true).map_err(fault),
        }
    }

    /// The database knows it after all. Whether it was set aside.
    pub(in crate::store) fn take_back(&self, process: &ProcessId) -> Result<bool> {
        match fs::remove_file(self.directory(process).join(MARK)) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(fault(error)),
        }
    }

    pub(in crate::store) fn quarantined(&self) -> Result<Vec<(ProcessId, Quarantine)>> {
        let mut found = Vec::new();
        for process in self.processes()? {
            let path = self.directory(&process).join(MARK);
            match fs::read(&path) {
                Ok(text) => {
                    // Whatever it says, somebody set it aside.
                    let unreadable = |error: serde_json::Error| Quarantine {
                        since: fs::metadata(&path)
                            .and_then(|found| found.modified())
                            .map(Into::into)
                            .unwrap_or_default(),
                        reason: format!("its mark cannot be read: {error}"),
                        origin: None,
                    };
                    found.push((process, serde_json::from_slice(&text).unwrap_or_else(unreadable)));
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(fault(error)),
            }
        }
        Ok(found)
    }

    pub(in crate::store) fn remove_quarantined(&self, process: &ProcessId) -> Result<()> {
        if self.directory(process).join(MARK).exists() { self.remove(process) } else { Ok(()) }
    }
}
