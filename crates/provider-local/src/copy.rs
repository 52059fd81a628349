//! Copying a tree that a sandbox wrote, without following anything in it: owners, modes, times, links, holes and the
//! overlay's own marks are kept; file contents are shared where the filesystem can. Runs in a fork of the launcher that
//! may read whatever the sandbox's users may.

use std::{
    collections::HashMap,
    ffi::{CStr, CString, OsStr},
    fs, io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, SeekFrom, Stat, Timespec, Timestamps, XattrFlags},
    io::Errno,
};

/// Deeper trees cannot be copied by holding one descriptor a level.
const DEEPEST: usize = 400;
const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

#[derive(Debug, Default)]
pub(crate) struct Copied {
    /// Bytes that were written rather than shared.
    pub bytes: u64,
}

struct Copy {
    copied: Copied,
    /// Whether contents can be shared; found out with the first file.
    shares: bool,
    /// Files with several names, by inode: where the first one went.
    links: HashMap<(u64, u64), PathBuf>,
    top: OwnedFd,
}

/// Copies the directory `name` in `from` to the same name in `to`, which must not have it.
pub(crate) fn tree(from: impl AsFd, to: impl AsFd, name: &str) -> io::Result<Copied> {
    let top = rustix::fs::openat(&to, ".", DIRECTORY, Mode::empty())?;
    let mut copy = Copy { copied: Copied::default(), shares: true, links: HashMap::new(), top };
    let text = CString::new(name)?;
    let stat = rustix::fs::statat(&from, &text, AtFlags::SYMLINK_NOFOLLOW)?;
    copy.directory(from.as_fd(), to.as_fd(), &text, &stat, &PathBuf::from(name), 0)?;
    Ok(copy.copied)
}

/// Copies one file with its holes, or shares it. Whether it was shared, and how many bytes were written if not.
pub(crate) fn file(from: impl AsFd, to: impl AsFd, share: bool) -> io::Result<(bool, u64)> {
    if share {
        match rustix::fs::ioctl_ficlone(&to, &from) {
            Ok(()) => return Ok((true, 0)),
            Err(Errno::OPNOTSUPP | Errno::XDEV | Errno::INVAL | Errno::NOTTY) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    let size = rustix::fs::fstat(&from)?.st_size as u64;
    let (mut at, mut written) = (0, 0);
    while at < size {
        let data = match rustix::fs::seek(&from, SeekFrom::Data(at)) {
            Ok(data) => data,
            // Only a hole is left.
            Err(Errno::NXIO) => break,
            Err(errno) => return Err(errno.into()),
        };
        let end = rustix::fs::seek(&from, SeekFrom::Hole(data))?;
        let (mut source, mut target) = (data, data);
        while source < end {
            let wanted = usize::try_from(end - source).unwrap_or(usize::MAX).min(1 << 30);
            match rustix::fs::copy_file_range(&from, Some(&mut source), &to, Some(&mut target), wanted)? {
                0 => break,
                some => written += some as u64,
            }
        }
        at = end;
    }
    rustix::fs::ftruncate(&to, size)?;
    Ok((false, written))
}

impl Copy {
    fn directory(
        &mut self,
        from: BorrowedFd<'_>,
        to: BorrowedFd<'_>,
        name: &CStr,
        stat: &Stat,
        path: &Path,
        depth: usize,
    ) -> io::Result<()> {
        if depth > DEEPEST {
            return Err(io::Error::other(format!("its directories are more than {DEEPEST} deep")));
        }
        rustix::fs::mkdirat(to, name, Mode::RWXU)?;
        let source = rustix::fs::openat(from, name, DIRECTORY, Mode::empty())?;
        let target = rustix::fs::openat(to, name, DIRECTORY, Mode::empty())?;
        let mut entries = Dir::read_from(&source)?;
        while let Some(entry) = entries.read() {
            let entry = entry?;
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            let path = path.join(OsStr::from_bytes(name.to_bytes()));
            self.entry(source.as_fd(), target.as_fd(), name, &path, depth)
                .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
        }
        marks(&source, &target)?;
        finish(&target, stat)
    }

    fn entry(
        &mut self,
        from: BorrowedFd<'_>,
        to: BorrowedFd<'_>,
        name: &CStr,
        path: &Path,
        depth: usize,
    ) -> io::Result<()> {
        let stat = rustix::fs::statat(from, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        if kind == FileType::Directory {
            return self.directory(from, to, name, &stat, path, depth + 1);
        }
        if stat.st_nlink > 1 {
            let seen = self.links.get(&(stat.st_dev, stat.st_ino));
            if let Some(first) = seen {
                // A path too long for one call is rare enough to be copied once more.
                match rustix::fs::linkat(&self.top, first, to, name, AtFlags::empty()) {
                    Err(Errno::NAMETOOLONG) => {}
                    other => return Ok(other?),
                }
            } else {
                self.links.insert((stat.st_dev, stat.st_ino), path.to_owned());
            }
        }
        match kind {
            FileType::RegularFile => {
                let source = open_file(from, name)?;
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
                let target = rustix::fs::openat(to, name, flags, Mode::RUSR | Mode::WUSR)?;
                let (shared, written) = file(&source, &target, self.shares)?;
                self.shares = shared || stat.st_size == 0 && self.shares;
                self.copied.bytes += written;
                marks(&source, &target)?;
                finish(&target, &stat)
            }
            FileType::Symlink => {
                let goal = rustix::fs::readlinkat(from, name, Vec::new())?;
                rustix::fs::symlinkat(&goal, to, name)?;
                own(to, name, &stat)
            }
            FileType::CharacterDevice | FileType::BlockDevice if stat.st_rdev != 0 => {
                Err(io::Error::other("it is a device, which no sandbox can have made"))
            }
            // Pipes, sockets, and the overlay's marks of what was removed.
            kind => {
                rustix::fs::mknodat(to, name, kind, Mode::from_raw_mode(stat.st_mode & 0o777), stat.st_rdev)?;
                own(to, name, &stat)
            }
        }
    }
}

fn open_file(from: BorrowedFd<'_>, name: &CStr) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(from, name, flags, Mode::empty())?)
}

/// Extended attributes that a sandbox can set, among them the overlay's marks of what was removed or replaced.
fn marks(from: &OwnedFd, to: &OwnedFd) -> io::Result<()> {
    let mut names = vec![0_u8; 4096];
    let length = loop {
        match rustix::fs::flistxattr(from, names.as_mut_slice()) {
            Ok(length) => break length,
            Err(Errno::OPNOTSUPP) => return Ok(()),
            Err(Errno::RANGE) if names.len() < 1 << 20 => names.resize(names.len() * 4, 0),
            Err(errno) => return Err(errno.into()),
        }
    };
    for name in names[..length].split(|byte| *byte == 0).filter(|name| name.starts_with(b"user.")) {
        let name = CString::new(name)?;
        let mut value = vec![0_u8; 64 * 1024];
        let length = rustix::fs::fgetxattr(from, &name, value.as_mut_slice())?;
        rustix::fs::fsetxattr(to, &name, &value[..length], XattrFlags::empty())?;
    }
    Ok(())
}

/// Owner before mode: a change of owner clears bits of the mode.
fn finish(to: &OwnedFd, stat: &Stat) -> io::Result<()> {
    let (uid, gid) = (rustix::fs::Uid::from_raw(stat.st_uid), rustix::fs::Gid::from_raw(stat.st_gid));
    rustix::fs::fchown(to, Some(uid), Some(gid))?;
    rustix::fs::fchmod(to, Mode::from_raw_mode(stat.st_mode & 0o7777))?;
    Ok(rustix::fs::futimens(to, &times(stat))?)
}

fn own(to: BorrowedFd<'_>, name: &CStr, stat: &Stat) -> io::Result<()> {
    let (uid, gid) = (rustix::fs::Uid::from_raw(stat.st_uid), rustix::fs::Gid::from_raw(stat.st_gid));
    rustix::fs::chownat(to, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(rustix::fs::utimensat(to, name, &times(stat), AtFlags::SYMLINK_NOFOLLOW)?)
}

fn times(stat: &Stat) -> Timestamps {
    Timestamps {
        last_access: Timespec { tv_sec: stat.st_atime, tv_nsec: stat.st_atime_nsec as _ },
        last_modification: Timespec { tv_sec: stat.st_mtime, tv_nsec: stat.st_mtime_nsec as _ },
    }
}

/// A whole image file, by path.
pub(crate) fn image(from: &Path, to: &Path) -> io::Result<u64> {
    let source = fs::File::open(from)?;
    let target = rustix::fs::openat(
        CWD,
        to,
        OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC,
        Mode::RUSR | Mode::WUSR,
    )?;
    Ok(file(&source, &target, true)?.1)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};

    use super::*;

    fn scratch(name: &str) -> io::Result<PathBuf> {
        let path = std::env::temp_dir().join(format!("sandbar-copy-{name}-{}", std::process::id()));
        fs::create_dir_all(path.join("from/tree"))?;
        fs::create_dir_all(path.join("to"))?;
        Ok(path)
    }

    #[test]
    fn everything_a_sandbox_can_write_is_kept() -> io::Result<()> {
        let home = scratch("all")?;
        let tree_path = home.join("from/tree");
        fs::write(tree_path.join("one"), "1")?;
        fs::hard_link(tree_path.join("one"), tree_path.join("two"))?;
        fs::set_permissions(tree_path.join("one"), fs::Permissions::from_mode(0o640))?;
        std::os::unix::fs::symlink("/etc/shadow", tree_path.join("link"))?;
        rustix::fs::mknodat(CWD, tree_path.join("fifo"), FileType::Fifo, Mode::RUSR, 0)?;
        fs::create_dir(tree_path.join("locked"))?;
        fs::set_permissions(tree_path.join("locked"), fs::Permissions::from_mode(0o500))?;
        let sparse = fs::File::create(tree_path.join("sparse"))?;
        sparse.write_at(b"x", 64 << 20)?;
        let (from, to) = (fs::File::open(home.join("from"))?, fs::File::open(home.join("to"))?);
        tree(&from, &to, "tree")?;
        let copy = home.join("to/tree");
        assert_eq!(fs::read(copy.join("two"))?, b"1");
        let one = fs::metadata(copy.join("one"))?;
        assert_eq!((one.nlink(), one.mode() & 0o777), (2, 0o640));
        assert_eq!(one.mtime_nsec(), fs::metadata(tree_path.join("one"))?.mtime_nsec());
        assert_eq!(fs::read_link(copy.join("link"))?, Path::new("/etc/shadow"));
        assert_eq!(fs::metadata(copy.join("locked"))?.mode() & 0o777, 0o500);
        let sparse = fs::metadata(copy.join("sparse"))?;
        assert!(sparse.len() > 64 << 20 && sparse.blocks() < 4096, "{} blocks", sparse.blocks());
        fs::write(copy.join("one"), "changed")?;
        assert_eq!(fs::read(tree_path.join("one"))?, b"1", "a copy is never the same file");
        crate::remove::tree(&home)
    }

    #[test]
    fn a_tree_deeper_than_can_be_held_is_refused() -> io::Result<()> {
        let home = scratch("deep")?;
        let mut at = rustix::fs::open(home.join("from/tree"), DIRECTORY, Mode::empty())?;
        for _ in 0..DEEPEST + 2 {
            rustix::fs::mkdirat(&at, "d", Mode::RWXU)?;
            at = rustix::fs::openat(&at, "d", DIRECTORY, Mode::empty())?;
        }
        let (from, to) = (fs::File::open(home.join("from"))?, fs::File::open(home.join("to"))?);
        assert!(tree(&from, &to, "tree").is_err());
        crate::remove::tree(&home)
    }
}
