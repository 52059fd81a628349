//! The certificates that programs inside trust: the gate's authority alone, for programs that add to their own list, and
//! together with the system's, for programs that take one list.

use std::{
    fs::File,
    io::{self, Write as _},
    os::fd::OwnedFd,
};

use rustix::{
    fs::{AtFlags, FileType, Mode, OFlags},
    io::Errno,
};

use crate::{
    children::Forker,
    error::Fault,
    files::Job,
    worker::{Frame, Worker},
};

/// Names in the directory that is given at setup.
pub const AUTHORITY: &str = "ca.pem";
pub const BUNDLE: &str = "ca-certificates.crt";

/// Where systems keep the certificates they trust, as one file.
pub const SYSTEM_BUNDLES: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];
/// The usual one has 220 KiB.
const LONGEST_BUNDLE: u64 = 4 << 20;

/// Writes the authority, and where the system's certificates are given, those and it.
pub(crate) fn install(directory: &OwnedFd, authority: &str, system: Option<&[u8]>) -> io::Result<()> {
    put(directory, AUTHORITY, &[authority.as_bytes()])?;
    match system {
        Some(system) => put(directory, BUNDLE, &[system, b"\n", authority.as_bytes()]),
        None => Ok(()),
    }
}

/// What the root trusts, read by a file worker: it is a path of the workload's. Nothing, where the root has none or
/// something else has been put in its place: the authority is then all there is.
pub(crate) async fn system(forker: &Forker) -> Vec<u8> {
    for path in SYSTEM_BUNDLES {
        if let Ok(bytes) = read(forker, path).await {
            return bytes;
        }
    }
    Vec::new()
}

async fn read(forker: &Forker, path: &str) -> Result<Vec<u8>, Fault> {
    let job = Job::Read { path: path.into(), offset: 0, length: Some(LONGEST_BUNDLE) };
    let mut worker = Worker::start(forker, job).await?;
    let mut bytes = Vec::new();
    loop {
        match worker.receiver.next().await? {
            Frame::Data(data) => bytes.extend_from_slice(&data),
            Frame::Entry(_) | Frame::Found(_) => {}
            Frame::Done(_) => return Ok(bytes),
        }
    }
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
        install(&directory, "first", None)?;
        assert!(!is_bundled(&directory));
        // What a workload of the same uid may have left in the way.
        std::os::unix::fs::symlink("/nowhere", home.join(".ca.pem"))?;
        install(&directory, "second", Some(b"system"))?;
        assert_eq!(std::fs::read_to_string(home.join(AUTHORITY))?, "second");
        assert!(is_bundled(&directory));
        assert!(std::fs::read_to_string(home.join(BUNDLE))?.eq("system\nsecond"));
        std::fs::remove_dir_all(home)
    }
}
