//! Who dies first when the host's memory is short: workloads, long before the guest. What a process is forked from says
//! what it begins with, so the guest has the workload's score for the moment in which it forks a minder or a probe. The
//! child cannot set its own: a process that shows itself to nobody may not open that file, not even of itself.

use std::{
    fs::File,
    io::{self, Write as _},
    os::fd::OwnedFd,
};

use crate::sys::Forked;

/// How much likelier than others the kernel is to kill a process, up to 1000.
#[derive(Debug)]
pub struct OomScores {
    /// The guest's own `/proc/PID/oom_score_adj`, opened by somebody who may.
    file: File,
    guest: i16,
    workload: i16,
}

impl OomScores {
    /// `file` is that of the process which becomes the guest, and `guest` what it says.
    pub fn new(file: OwnedFd, guest: i16, workload: i16) -> Self {
        Self { file: file.into(), guest, workload }
    }

    /// The child and all that it forks have the workload's score.
    pub(crate) fn fork(&self, fork: impl FnOnce() -> io::Result<Forked>) -> io::Result<Forked> {
        self.set(self.workload)?;
        let forked = fork();
        // The file is the guest's, whoever writes to it.
        if !matches!(forked, Ok(Forked::Child)) {
            // Back to what it was is always allowed; and there is a child now, which an error would lose.
            let _ = self.set(self.guest);
        }
        forked
    }

    fn set(&self, score: i16) -> io::Result<()> {
        (&self.file).write_all(score.to_string().as_bytes())
    }
}
