//! Who dies first when the host's memory is short, as `oom_score_adj` tells the kernel: workloads, then guests and their
//! launcher, and last of all the server, which everybody needs and which alone may have grown large.

use std::{
    fs::{self, File},
    io,
    os::fd::OwnedFd,
};

use sandbar_guest::OomScores;
use serde::{Deserialize, Serialize};

const OWN: &str = "/proc/self/oom_score_adj";
/// Of the server, where it may. Less than that says never.
const SERVER: i16 = -900;
/// Above the server's, or the usual one if that is lower. It is also what no process inside gets below, whatever fence it
/// has: the kernel takes what somebody privileged has set for the least.
const GUEST_ABOVE: i16 = 100;
const WORKLOAD: i16 = 900;
const MOST: i16 = 1000;

/// Has the kernel spare this process, which takes a capability. Without it the score stays: all others are higher. Who
/// started us with a low score has decided already.
pub fn spare_server() {
    if read().is_ok_and(|own| own >= 0)
        && let Err(error) = write(SERVER)
    {
        tracing::debug!(%error, "the server's oom_score_adj stays as it is");
    }
}

/// What a guest has, and its workloads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Scores {
    guest: i16,
    workload: i16,
}

impl Scores {
    fn above(server: i16) -> Self {
        let guest = (server.max(0) + GUEST_ABOVE).min(MOST);
        Self { guest, workload: guest.max(WORKLOAD) }
    }

    /// Takes a guest's score, for this process and all that it forks.
    pub(crate) fn take() -> io::Result<Self> {
        let scores = Self::above(read()?);
        write(scores.guest)?;
        Ok(scores)
    }

    /// Where a fork of ours can change its own, which it may not open itself.
    pub(crate) fn file_of(pid: i32) -> io::Result<OwnedFd> {
        Ok(File::options().write(true).open(format!("/proc/{pid}/oom_score_adj"))?.into())
    }

    pub(crate) fn of_guest(self, file: OwnedFd) -> OomScores {
        OomScores::new(file, self.guest, self.workload)
    }
}

fn read() -> io::Result<i16> {
    fs::read_to_string(OWN)?.trim().parse().map_err(io::Error::other)
}

fn write(score: i16) -> io::Result<()> {
    fs::write(OWN, score.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guests_are_between_the_server_and_workloads_wherever_there_is_room() {
        for (server, guest, workload) in
            [(-900, 100, 900), (0, 100, 900), (200, 300, 900), (850, 950, 950), (1000, 1000, 1000)]
        {
            assert_eq!(Scores::above(server), Scores { guest, workload }, "{server}");
        }
    }
}
