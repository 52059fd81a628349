//! Removing files and trees.

use std::{fs, io, path::Path};

use crate::error::{Code, Fault};

/// They belong to the sandbox: only what is in them can go.
const FIXED: [&str; 2] = ["/", "/workspace"];

pub(super) fn path(path: &Path, recursive: bool) -> Result<u64, Fault> {
    if FIXED.iter().any(|fixed| Path::new(fixed) == path) {
        return if recursive {
            clear(path)
        } else {
            let message = format!("`{}` itself cannot be removed.", path.display());
            Err(Fault::new(Code::DirectoryNotEmpty, message))
        };
    }
    remove(path, recursive)?;
    Ok(1)
}

fn remove(path: &Path, recursive: bool) -> Result<(), Fault> {
    let is_directory = fs::symlink_metadata(path).map_err(|error| failed(path, &error))?.is_dir();
    match (is_directory, recursive) {
        (false, _) => fs::remove_file(path),
        (true, false) => fs::remove_dir(path),
        (true, true) => fs::remove_dir_all(path),
    }
    .map_err(|error| failed(path, &error))
}

/// Goes on after a failure, so that one busy mount does not keep the rest; the first failure is told.
fn clear(path: &Path) -> Result<u64, Fault> {
    let mut outcome = Ok(1);
    for entry in fs::read_dir(path).map_err(|error| failed(path, &error))? {
        let entry = entry.map_err(|error| failed(path, &error))?;
        if let Err(fault) = remove(&entry.path(), true) {
            outcome = outcome.and(Err(fault));
        }
    }
    outcome
}

fn failed(path: &Path, error: &io::Error) -> Fault {
    Fault::file(&format!("remove `{}`", path.display()), error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fixed_directory_is_emptied_and_stays() -> io::Result<()> {
        let directory = tempfile::tempdir()?;
        fs::create_dir_all(directory.path().join("a/b"))?;
        fs::write(directory.path().join("file"), "x")?;
        assert_eq!(clear(directory.path()), Ok(1));
        assert_eq!(fs::read_dir(directory.path())?.count(), 0);
        assert_eq!(path(Path::new("/workspace"), false).map_err(|fault| fault.code), Err(Code::DirectoryNotEmpty));
        Ok(())
    }
}
