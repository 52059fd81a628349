//! The home: the directory that holds everything of one server, locked by it while it runs.

use std::{
    fs::{self, DirBuilder, File, OpenOptions, TryLockError},
    io::{ErrorKind, Read as _, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use crate::OpenError;

const LOCK: &str = "lock";
const BOOT: &str = "boot_id";
const KERNEL_BOOT: &str = "/proc/sys/kernel/random/boot_id";

/// Makes the home if need be, for its owner alone, and locks it until the returned file is closed.
pub(crate) fn prepare(home: &Path) -> Result<File, OpenError> {
    for directory in [home.to_owned(), home.join("templates")] {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&directory);
        made.map_err(not_writable(&directory))?;
    }
    let mode = fs::metadata(home).map_err(not_writable(home))?.permissions().mode();
    if mode & 0o022 != 0 {
        return Err(OpenError::HomeExposed { home: home.to_owned(), mode: mode & 0o7777 });
    }
    let path = home.join(LOCK);
    let opened = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(&path);
    let mut file = opened.map_err(not_writable(&path))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut text = String::new();
            // Who it is only helps to find it; that it is locked is certain.
            let pid = file.read_to_string(&mut text).ok().and_then(|_| text.trim().parse().ok());
            return Err(OpenError::HomeInUse { home: home.to_owned(), pid });
        }
        Err(TryLockError::Error(source)) => return Err(OpenError::HomeNotWritable { path, source }),
    }
    match file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id())) {
        // It only helps to find us, and it is by starting that a full disk can be freed.
        Err(error) if is_full(&error) => tracing::warn!("the disk is full: {} names nobody", path.display()),
        written => written.map_err(not_writable(&path))?,
    }
    Ok(file)
}

fn is_full(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}

fn not_writable(path: &Path) -> impl FnOnce(std::io::Error) -> OpenError + use<> {
    let path: PathBuf = path.to_owned();
    move |source| OpenError::HomeNotWritable { path, source }
}

/// Whether the host is known to have been up since the last time that [`record_boot`] was called.
pub(crate) fn same_boot(home: &Path) -> Result<bool, OpenError> {
    match fs::read_to_string(home.join(BOOT)) {
        Ok(last) => Ok(last == current_boot()?),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(not_writable(&home.join(BOOT))(error)),
    }
}

pub(crate) fn record_boot(home: &Path) -> Result<(), OpenError> {
    if same_boot(home)? {
        return Ok(());
    }
    let current = current_boot()?;
    // Renamed into place: a torn file would look like another boot.
    let (path, new) = (home.join(BOOT), home.join("boot_id.new"));
    match fs::write(&new, current).and_then(|()| fs::rename(&new, &path)) {
        Err(error) if is_full(&error) => {
            tracing::warn!("the disk is full: the next start will take this boot of the host for another");
            // The room that half a file takes is better used for anything else; if it stays, the next try replaces it.
            drop(fs::remove_file(&new));
            Ok(())
        }
        written => written.map_err(not_writable(&path)),
    }
}

fn current_boot() -> Result<String, OpenError> {
    fs::read_to_string(KERNEL_BOOT).map_err(|source| OpenError::Boot { source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_home_has_one_server_and_one_owner() {
        let directory = sandbar_test_harness::scratch().unwrap_or_else(|error| panic!("{error}"));
        let home = directory.path().join("a/home");
        let lock = prepare(&home).unwrap_or_else(|error| panic!("{error}"));
        let mode = fs::metadata(&home).map(|metadata| metadata.permissions().mode() & 0o777).ok();
        assert_eq!(mode, Some(0o700));
        match prepare(&home) {
            Err(OpenError::HomeInUse { pid, .. }) => assert_eq!(pid, Some(std::process::id())),
            other => panic!("{other:?}"),
        }
        drop(lock);
        assert!(prepare(&home).is_ok());
    }

    #[test]
    fn a_home_that_others_may_write_to_or_that_is_a_file_is_refused() {
        let directory = sandbar_test_harness::scratch().unwrap_or_else(|error| panic!("{error}"));
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o777)).unwrap_or_else(|e| panic!("{e}"));
        assert!(matches!(prepare(directory.path()), Err(OpenError::HomeExposed { mode: 0o777, .. })));
        let file = directory.path().join("file");
        fs::write(&file, "").unwrap_or_else(|error| panic!("{error}"));
        assert!(matches!(prepare(&file), Err(OpenError::HomeNotWritable { .. })));
    }

    #[test]
    fn another_boot_is_noticed_once() {
        let directory = sandbar_test_harness::scratch().unwrap_or_else(|error| panic!("{error}"));
        let home = directory.path();
        assert!(same_boot(home).is_ok_and(|same| !same), "nothing is known yet");
        record_boot(home).unwrap_or_else(|error| panic!("{error}"));
        assert!(same_boot(home).is_ok_and(|same| same));
        fs::write(home.join(BOOT), "another").unwrap_or_else(|error| panic!("{error}"));
        assert!(same_boot(home).is_ok_and(|same| !same));
        record_boot(home).unwrap_or_else(|error| panic!("{error}"));
        assert!(same_boot(home).is_ok_and(|same| same));
    }
}
