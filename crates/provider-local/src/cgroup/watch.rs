//! A file of the kernel's that tells when it changes.

use std::{fs, io, os::fd::OwnedFd, path::Path};

use tokio::io::{Interest, unix::AsyncFd};

use crate::sys;

/// Longer than any file of a group that is watched.
const MOST: usize = 4096;

/// Waits until a file says what is wanted. What is judged is what was read through the watched descriptor itself: that
/// reading arms the next notice, so that a change is either in what was read or told afterwards. Judged by another
/// reading, a change between the two would be told to nobody.
pub(super) async fn until(path: &Path, mut wanted: impl FnMut(&str) -> bool) -> io::Result<()> {
    let file: AsyncFd<OwnedFd> = sys::watch_for(fs::File::open(path)?.into(), Interest::PRIORITY)?;
    let mut bytes = [0; MOST];
    loop {
        let length = rustix::io::pread(file.get_ref(), &mut bytes, 0)?;
        if wanted(&String::from_utf8_lossy(&bytes[..length])) {
            return Ok(());
        }
        file.ready(Interest::PRIORITY).await?.clear_ready();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::cgroup::find::Hierarchies;

    #[tokio::test]
    async fn a_change_while_one_looks_is_told() -> io::Result<()> {
        let top = Hierarchies::read().unified(rustix::process::geteuid().is_root());
        let group = top.map(|top| top.join(format!("sandbar-watch-{}", std::process::id())));
        let Some(group) = group.filter(|group| fs::create_dir(group).is_ok()) else {
            sandbar_test_harness::not_run(
                "a_change_while_one_looks_is_told",
                "this host lets us make no group of cgroup v2",
            );
            return Ok(());
        };
        let (mut looks, mut written) = (Vec::new(), None);
        let waited = tokio::time::timeout(
            Duration::from_secs(30),
            until(&group.join("cgroup.events"), |text| {
                // After the reading and before the wait: a group without processes stands still at once.
                written.get_or_insert_with(|| fs::write(group.join("cgroup.freeze"), "1"));
                looks.push(text.contains("frozen 1"));
                text.contains("frozen 1")
            }),
        )
        .await;
        fs::remove_dir(&group)?;
        written.transpose()?;
        // Elapsed: the change was told to nobody.
        waited??;
        assert_eq!(looks, [false, true]);
        Ok(())
    }
}
