//! Git repositories that are here already. Hooks and settings in a `.git` run programs on this machine, as soon as somebody
//! works in it; a copy out of a sandbox does not change them unasked.

use std::{
    collections::HashMap,
    ffi::{OsStr, OsString},
    os::fd::BorrowedFd,
    path::{Component, Path, PathBuf},
};

use rustix::fs::AtFlags;

use crate::exit::{self, Failure};

pub(super) const GIT: &str = ".git";
pub(super) const KEPT: &str = "it is here already, and is overwritten with --force only";

/// What becomes of a `.git` that is here already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Repositories {
    Keep,
    Overwrite,
}

impl Repositories {
    /// Refuses a destination that is such a `.git`, or in one.
    pub(super) fn check(self, to: &Path) -> Result<(), Failure> {
        if self == Self::Overwrite {
            return Ok(());
        }
        let whole = whole(to);
        let inside = whole.ancestors().find(|part| part.file_name().is_some_and(is_git) && is_there(part));
        inside.map_or(Ok(()), |there| Err(kept(there)))
    }

    /// The one directly in this directory, if it is to be kept.
    pub(super) fn kept_in(self, directory: &Path) -> Option<PathBuf> {
        let there = directory.join(GIT);
        (self == Self::Keep && is_there(&there)).then_some(there)
    }
}

pub(super) fn kept(there: &Path) -> Failure {
    Failure::new(exit::CONFLICT, format!("`{}` is here already; nothing was copied", there.display())).hint(
        "Copy to another place, or add --force if you trust what is in the sandbox: a `.git` can run programs here.",
    )
}

/// Also on filesystems that take capitals for the same name.
fn is_git(name: &OsStr) -> bool {
    name.eq_ignore_ascii_case(GIT)
}

fn is_there(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}

/// Without links and `..`, as far as it exists.
fn whole(path: &Path) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let Some((part, mut known)) = path.ancestors().find_map(|part| Some((part, part.canonicalize().ok()?))) else {
        return path;
    };
    for step in path.strip_prefix(part).into_iter().flat_map(Path::components) {
        match step {
            // Of what is to be made on the way, which is no link.
            Component::ParentDir => drop(known.pop()),
            step => known.push(step),
        }
    }
    known
}

/// Judges the entries of one archive.
pub(super) struct Guard {
    repositories: Repositories,
    /// Those that the archive names, and whether they were here before it.
    known: HashMap<Vec<OsString>, bool>,
}

pub(super) enum Judged {
    Fine,
    /// It would change one that is kept; which one, when it is the first such entry.
    Kept(Option<PathBuf>),
}

impl Guard {
    pub(super) fn new(repositories: Repositories) -> Self {
        Self { repositories, known: HashMap::new() }
    }

    pub(super) fn judge(&mut self, root: BorrowedFd<'_>, parts: &[OsString]) -> Judged {
        if self.repositories == Repositories::Overwrite {
            return Judged::Fine;
        }
        for (index, _) in parts.iter().enumerate().filter(|(_, part)| is_git(part)) {
            let git = &parts[..=index];
            let path = || git.iter().collect::<PathBuf>();
            match self.known.get(git) {
                Some(false) => {}
                Some(true) => return Judged::Kept(None),
                None => {
                    let kept = rustix::fs::statat(root, path(), AtFlags::SYMLINK_NOFOLLOW).is_ok();
                    self.known.insert(git.to_vec(), kept);
                    if kept {
                        return Judged::Kept(Some(path()));
                    }
                }
            }
        }
        Judged::Fine
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    #[test]
    fn what_is_in_a_repository_that_is_here_is_no_destination() -> std::io::Result<()> {
        let place = tempfile::tempdir()?;
        let at = |path: &str| place.path().join(path);
        fs::create_dir_all(at("work/.git/hooks"))?;
        fs::create_dir(at("worktree"))?;
        fs::write(at("worktree/.git"), "gitdir: elsewhere")?;
        symlink("work/.git", at("link"))?;
        for kept in [
            "work/.git",
            "work/.git/config",
            "work/.git/hooks/new/file",
            "worktree/.git",
            "link/config",
            "work/a/../.git",
        ] {
            assert!(Repositories::Keep.check(&at(kept)).is_err(), "{kept}");
            assert!(Repositories::Overwrite.check(&at(kept)).is_ok(), "{kept}");
        }
        for fine in ["work", "work/src", "new/.git/config", "work/.gitignore", "work/git"] {
            assert!(Repositories::Keep.check(&at(fine)).is_ok(), "{fine}");
        }
        assert_eq!(Repositories::Keep.kept_in(&at("work")), Some(at("work/.git")));
        assert_eq!(Repositories::Overwrite.kept_in(&at("work")), None);
        assert_eq!(Repositories::Keep.kept_in(&at("new")), None);
        Ok(())
    }
}
