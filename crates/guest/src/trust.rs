//! The certificates that programs inside trust: the gate's authority alone, for programs that add to their own list, and
//! together with the system's, for programs that take one list.

use std::{
    fs::File,
    io::{self, Read as _, Write as _},
    os::fd::OwnedFd,
};

use rustix::{
    fs::{AtFlags, FileType, Mode, OFlags},
    io::Errno,
};

/// Names in the directory that is given at setup.
pub const AUTHORITY: &str = "ca.pem";
pub const BUNDLE: &str = "ca-certificates.crt";

/// Where systems keep the certificates they trust, as one file.
pub const SYSTEM_BUNDLES: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];
/// The usual one has 220 KiB.
const LONGEST_BUNDLE: u64 = 4 << 20;

/// Writes the authority, and with `bundle` the system's certificates and it.
pub(crate) fn install(directory: &OwnedFd, authority: &str, bundle: bool) -> io::Result<()> {
    put(directory, AUTHORITY, &[authority.as_bytes()])?;
    if bundle {
        put(directory, BUNDLE, &[&system(), b"\n", authority.as_bytes()])?;
    }
    Ok(())
}

/// None, where the root has none or something else has been put in its place: the authority is then all there is.
fn system() -> Vec<u8> {
    SYSTEM_BUNDLES.iter().find_map(|path| read(path).ok()).unwrap_or_default()
}

fn read(path: &str) -> io::Result<Vec<u8>> {
    // A workload that is root inside may have put a pipe there, which nobody writes to.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("not a file"));
    }
    let mut bytes = Vec::new();
    file.take(LONGEST_BUNDLE).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Programs may be reading the old one: it is replaced as a whole.
fn put(directory: &OwnedFd, name: &str, parts: &[&[u8]]) -> io::Result<()> {
    let draft = format!(".{name}");
    match rustix::fs::unlinkat(directory, &draft, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(errno) => return Err(errno.into()),
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut file = File::from(rustix::fs::openat(directory, &draft, flags, Mode::from_raw_mode(0o644))?);
    parts.iter().try_for_each(|part| file.write_all(part))?;
    Ok(rustix::fs::renameat(directory, &draft, directory, name)?)
}

/// Whether the bundle is a file of ours; before that it is a link to the system's.
pub(crate) fn is_bundled(directory: &OwnedFd) -> bool {
    let found = rustix::fs::statat(directory, BUNDLE, AtFlags::SYMLINK_NOFOLLOW);
    found.is_ok_and(|found| FileType::from_raw_mode(found.st_mode) == FileType::RegularFile)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_authority_is_replaced_as_a_whole_and_the_bundle_only_when_asked() -> io::Result<()> {
        let home = std::env::temp_dir().join(format!("sandbar-trust-{}", std::process::id()));
        std::fs::create_dir(&home)?;
        let directory = OwnedFd::from(File::open(&home)?);
        std::os::unix::fs::symlink("/nowhere", home.join(BUNDLE))?;
        install(&directory, "first", false)?;
        assert!(!is_bundled(&directory));
        // What a workload of the same uid may have left in the way.
        std::os::unix::fs::symlink("/nowhere", home.join(".ca.pem"))?;
        install(&directory, "second", true)?;
        assert_eq!(std::fs::read_to_string(home.join(AUTHORITY))?, "second");
        assert!(is_bundled(&directory));
        assert!(std::fs::read_to_string(home.join(BUNDLE))?.ends_with("\nsecond"));
        std::fs::remove_dir_all(home)
    }
}
