//! Directories for tests that are not about the disk. In memory, a commit does not wait for a device that all tests share.

use std::{io, path::Path};

use tempfile::TempDir;

const MEMORY: &str = "/dev/shm";
/// As the kernel calls tmpfs.
const TMPFS: u64 = 0x0102_1994;
/// Containers often have much less there than tests write.
const ENOUGH: u64 = 2 << 30;

/// A directory that goes with the returned value: in memory if there is enough of it, else where temporary files are.
pub fn scratch() -> io::Result<TempDir> {
    if has_room(Path::new(MEMORY)) { TempDir::new_in(MEMORY) } else { TempDir::new() }
}

fn has_room(path: &Path) -> bool {
    let is_tmpfs = rustix::fs::statfs(path).is_ok_and(|found| found.f_type as u64 == TMPFS);
    let free = rustix::fs::statvfs(path).map_or(0, |found| found.f_bavail * found.f_frsize);
    is_tmpfs && free >= ENOUGH && rustix::fs::access(path, rustix::fs::Access::WRITE_OK).is_ok()
}
