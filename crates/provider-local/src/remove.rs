//! Removes a tree that a sandbox made. Its shape is hostile: directories nested deeper than any stack or descriptor
//! table, and modes that keep even their owner out. So every directory is moved up before it is entered.

use std::{
    ffi::CStr,
    io,
    os::fd::{AsFd, OwnedFd},
    path::Path,
};

use rustix::{
    fs::{AtFlags, Dir, FileType, Mode, OFlags},
    io::Errno,
};

/// Directories moved up before the first of them is emptied: on a full disk the top has no room for many names.
const AT_ONCE: usize = 32;

/// Removes `path` and everything in it; fine if it is not there. Nothing may be running in it any more.
pub(crate) fn tree(path: &Path) -> io::Result<()> {
    tree_then(path, &[])
}

/// The same; the files of these names in `path` itself go when everything else is gone, in this order.
pub(crate) fn tree_then(path: &Path, last: &'static [&'static str]) -> io::Result<()> {
    let Some(top) = open(rustix::fs::CWD, path)? else { return Ok(()) };
    let mut moved = Moved { next: 0, waiting: vec![], last };
    while let Left::More = empty(&top, &top, &mut moved)? {
        while let Some(name) = moved.waiting.last().cloned() {
            if let Some(directory) = open(&top, Path::new(&name))?
                && let Left::More = empty(&directory, &top, &mut moved)?
            {
                continue;
            }
            gone(rustix::fs::unlinkat(&top, name.as_str(), AtFlags::REMOVEDIR))?;
            moved.waiting.retain(|waiting| *waiting != name);
        }
    }
    for name in last {
        gone(rustix::fs::unlinkat(&top, *name, AtFlags::empty()))?;
    }
    gone(rustix::fs::unlinkat(rustix::fs::CWD, path, AtFlags::REMOVEDIR))
}

/// Full directories that now lie in the top, the newest last.
struct Moved {
    next: u64,
    waiting: Vec<String>,
    /// What stays in the top until all else is gone.
    last: &'static [&'static str],
}

enum Left {
    Nothing,
    /// It has to be looked at again, once those that were moved are gone.
    More,
}

/// Unlinks what is no directory; empty directories go, full ones are moved to `top` and wait there.
fn empty(directory: &OwnedFd, top: &OwnedFd, moved: &mut Moved) -> io::Result<Left> {
    let is_top = std::ptr::eq(directory, top);
    let mut left = if is_top && !moved.waiting.is_empty() { Left::More } else { Left::Nothing };
    let mut room = AT_ONCE;
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        if is_top && moved.last.iter().any(|last| last.as_bytes() == name.to_bytes()) {
            continue;
        }
        if entry.file_type() != FileType::Directory {
            match rustix::fs::unlinkat(directory, name, AtFlags::empty()) {
                // Filesystems that do not tell kinds say `Unknown`.
                Err(Errno::ISDIR) => {}
                other => {
                    gone(other)?;
                    continue;
                }
            }
        }
        match rustix::fs::unlinkat(directory, name, AtFlags::REMOVEDIR) {
            Err(Errno::NOTEMPTY | Errno::EXIST) => {}
            other => {
                gone(other)?;
                continue;
            }
        }
        // Reading on in the top shows what was just moved there.
        if is_top {
            left = Left::More;
            if name.to_str().is_ok_and(|name| moved.waiting.iter().any(|waiting| waiting == name)) {
                continue;
            }
        }
        if room == 0 {
            return Ok(Left::More);
        }
        room -= 1;
        moved.up(directory, name, top)?;
    }
    Ok(left)
}

impl Moved {
    fn up(&mut self, directory: &OwnedFd, name: &CStr, top: &OwnedFd) -> io::Result<()> {
        // Moving a directory writes its `..`, so its owner needs to be let in first.
        rustix::fs::chmodat(directory, name, Mode::RWXU, AtFlags::empty())?;
        loop {
            let place = format!(".removing-{}", self.next);
            self.next += 1;
            match rustix::fs::renameat(directory, name, top, place.as_str()) {
                // The sandbox used that very name.
                Err(Errno::NOTEMPTY | Errno::EXIST) => {}
                other => {
                    other?;
                    self.waiting.push(place);
                    return Ok(());
                }
            }
        }
    }
}

fn open(at: impl AsFd, path: &Path) -> io::Result<Option<OwnedFd>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::openat(&at, path, flags, Mode::empty()) {
        Ok(directory) => Ok(Some(directory)),
        Err(Errno::NOENT) => Ok(None),
        Err(Errno::ACCESS) => {
            rustix::fs::chmodat(&at, path, Mode::RWXU, AtFlags::empty())?;
            Ok(Some(rustix::fs::openat(&at, path, flags, Mode::empty())?))
        }
        Err(errno) => Err(errno.into()),
    }
}

fn gone(result: Result<(), Errno>) -> io::Result<()> {
    match result {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt};

    use super::*;

    #[test]
    fn deep_locked_and_linked_trees_go_and_nothing_else_does() -> io::Result<()> {
        let home = std::env::temp_dir().join(format!("sandbar-remove-{}", std::process::id()));
        let (tree_path, outside) = (home.join("tree"), home.join("outside"));
        fs::create_dir_all(&tree_path)?;
        fs::create_dir_all(&outside)?;
        fs::write(outside.join("kept"), "x")?;
        std::os::unix::fs::symlink(&outside, tree_path.join("link"))?;
        fs::create_dir_all(tree_path.join("locked/inner"))?;
        fs::write(tree_path.join("locked/inner/file"), "x")?;
        fs::set_permissions(tree_path.join("locked"), fs::Permissions::from_mode(0o000))?;
        // Deeper than a path may be long, made one step at a time.
        let mut at = rustix::fs::open(&tree_path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
        for _ in 0..5000 {
            rustix::fs::mkdirat(&at, "deep", Mode::RWXU)?;
            at = rustix::fs::openat(&at, "deep", OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
        }
        tree(&tree_path)?;
        assert!(!tree_path.exists());
        assert!(outside.join("kept").exists());
        tree(&tree_path)?;
        tree(&home)
    }
}
