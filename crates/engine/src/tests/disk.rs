//! A disk that is easily filled.

use std::{
    fs::File,
    io::{ErrorKind, Write as _},
    path::Path,
};

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use tempfile::TempDir;

/// A disk of a few mebibytes, gone at the end.
pub(crate) struct SmallDisk(TempDir);

impl SmallDisk {
    /// None, said by name, where the test may not mount.
    pub(crate) fn new(test: &str) -> std::io::Result<Option<Self>> {
        let directory = sandbar_test_harness::scratch()?;
        match mount("tmpfs", directory.path(), "tmpfs", MountFlags::empty(), Some(c"size=8m")) {
            Ok(()) => Ok(Some(Self(directory))),
            Err(error) => {
                // Not by the macro, whose words a test runner keeps to itself.
                sandbar_test_harness::not_run(test, &format!("mounting a tmpfs failed: {error}"));
                Ok(None)
            }
        }
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    /// Takes every byte there is.
    pub(crate) fn fill(&self) -> std::io::Result<()> {
        let mut file = File::options().create(true).append(true).open(self.path().join("filler"))?;
        for size in [64 * 1024, 4096, 1] {
            loop {
                match file.write(&vec![0; size]) {
                    Ok(0) => break,
                    Ok(_) => {}
                    Err(error) if error.kind() == ErrorKind::StorageFull => break,
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }

    pub(crate) fn free(&self) -> std::io::Result<()> {
        std::fs::remove_file(self.path().join("filler"))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        if let Err(error) = unmount(self.path(), UnmountFlags::DETACH) {
            eprintln!("{} stays mounted: {error}", self.path().display());
        }
    }
}
