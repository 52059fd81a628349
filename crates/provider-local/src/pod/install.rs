//! Puts this program into a volume that the sandbox's own container has, too. Needs no other program and no writable
//! place but that volume.

use std::{
    ffi::OsString,
    fs::{self, File, Permissions},
    io,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

const NAME: &str = "sandbar";

pub(super) fn install(mut arguments: impl Iterator<Item = OsString>) -> Result<(), String> {
    let (Some(directory), None) = (arguments.next().map(PathBuf::from), arguments.next()) else {
        return Err("`sandbar guest install` takes one directory".into());
    };
    copy(Path::new("/proc/self/exe"), &directory)
        .map_err(|error| format!("failed to install into {}: {error}", directory.display()))
}

/// Under a name of its own first: there is a whole program under the right one, or none.
fn copy(program: &Path, directory: &Path) -> io::Result<()> {
    let draft = directory.join(format!(".{NAME}.{}", std::process::id()));
    let copied = || -> io::Result<()> {
        let mut file = File::options().write(true).create(true).truncate(true).open(&draft)?;
        io::copy(&mut File::open(program)?, &mut file)?;
        file.set_permissions(Permissions::from_mode(0o755))?;
        drop(file);
        fs::rename(&draft, directory.join(NAME))
    };
    copied().inspect_err(|_| {
        // The first failure is the one to tell.
        fs::remove_file(&draft).ok();
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_is_whole_or_not_there() -> io::Result<()> {
        let directory = std::env::temp_dir().join(format!("sandbar-install-{}", std::process::id()));
        fs::create_dir(&directory)?;
        let own = std::env::current_exe()?;
        for _repeated in 0..2 {
            copy(&own, &directory)?;
            assert_eq!(fs::read(directory.join(NAME))?, fs::read(&own)?);
            assert_eq!(fs::metadata(directory.join(NAME))?.permissions().mode() & 0o777, 0o755);
        }
        assert!(copy(Path::new("/nowhere"), &directory).is_err());
        assert_eq!(fs::read_dir(&directory)?.count(), 1, "a draft was left");
        fs::remove_dir_all(&directory)?;
        assert!(install([OsString::from(&directory)].into_iter()).is_err());
        assert!(install(std::iter::empty()).is_err());
        Ok(())
    }
}
