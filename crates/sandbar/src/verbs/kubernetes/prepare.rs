//! What comes before the server in its pod, whose image has nothing but this program: a home that is its own, with the key of
//! a Secret, and what ConfigMaps say, in it. A Secret's file belongs to another user, and a home takes only its own.

use std::{
    fs,
    io::ErrorKind,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use sandbar_engine::Engine;

use crate::{
    context::Context,
    exit::{self, Failure},
    up,
};

/// Names in the home.
const TEMPLATES: &str = "templates";
const CONFIG: &str = "kubernetes.toml";

#[derive(Debug, clap::Args)]
pub(crate) struct Prepare {
    /// The home's key; where there is no such file, the server makes one
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,

    /// The home's templates
    #[arg(long, value_name = "DIR")]
    templates: Option<PathBuf>,

    /// What the home says of its cluster, for the server and for `check` beside it
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

pub(super) fn prepare(args: &Prepare, context: &Context) -> Result<u8, Failure> {
    let home = context.home()?;
    up::make_home(&home)?;
    if let Some(key) = args.key.as_ref().filter(|key| key.exists()) {
        Engine::adopt_key(&home, key).map_err(|error| up::engine_failure(&error))?;
    }
    for (given, name) in [(&args.templates, TEMPLATES), (&args.config, CONFIG)] {
        if let Some(given) = given {
            link(given, &home.join(name))?;
        }
    }
    Ok(exit::OK)
}

/// Linked and not copied, so that a change of the ConfigMap holds for the next sandbox.
fn link(given: &Path, own: &Path) -> Result<(), Failure> {
    let failed = || Failure::io(format!("{} cannot be linked to {}", own.display(), given.display()));
    match fs::symlink_metadata(own) {
        Ok(found) if found.is_symlink() => fs::remove_file(own).map_err(failed())?,
        // Only an empty one: what somebody put there is not ours to take away.
        Ok(_) => fs::remove_dir(own).map_err(failed())?,
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(failed()(error)),
    }
    symlink(given, own).map_err(failed())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_are_linked_over_nothing_but_an_empty_directory() -> std::io::Result<()> {
        let place = tempfile::tempdir()?;
        let (given, own) = (place.path().join("given"), place.path().join(TEMPLATES));
        fs::create_dir(&given)?;
        fs::write(given.join("a.toml"), "")?;
        fs::create_dir(&own)?;
        for _ in 0..2 {
            assert!(link(&given, &own).is_ok());
            assert!(own.join("a.toml").exists());
        }
        let file = place.path().join(CONFIG);
        fs::write(&file, "mine")?;
        assert!(link(&given.join("a.toml"), &file).is_err() && fs::read(&file)? == b"mine");
        fs::remove_file(&own)?;
        fs::create_dir(&own)?;
        fs::write(own.join("mine.toml"), "")?;
        assert!(link(&given, &own).is_err() && own.join("mine.toml").exists());
        Ok(())
    }
}
