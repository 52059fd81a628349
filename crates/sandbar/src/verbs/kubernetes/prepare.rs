//! What comes before the server in its pod, whose image has no other program: a home that is its own, with the key of
//! a Secret, and what ConfigMaps say, in it. A Secret's file belongs to another user, and a home takes only its own.

use std::{
    fs,
    io::{ErrorKind, Write as _},
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use sandbar_engine::Engine;
use sandbar_provider_kubernetes::manifests::OF_A_HOME;

use crate::{
    context::Context,
    exit::{self, Failure},
    up,
};

/// Names in the home.
const TEMPLATES: &str = "templates";
const ROUTER_KEY: &str = "router.key";

#[derive(Debug, clap::Args)]
pub(crate) struct Prepare {
    /// The home's key; where there is no such file, the server makes one. A router.key beside it comes along
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,

    /// The home's templates
    #[arg(long, value_name = "DIR")]
    templates: Option<PathBuf>,

    /// The home's configuration: kubernetes.toml, gateway.toml, sets.toml and workspaces.toml, each if it is there
    #[arg(long, value_name = "DIR")]
    config: Option<PathBuf>,
}

pub(super) fn prepare(args: &Prepare, context: &Context) -> Result<u8, Failure> {
    let home = context.home()?;
    up::make_home(&home)?;
    if let Some(key) = args.key.as_ref().filter(|key| key.exists()) {
        Engine::adopt_key(&home, key).map_err(|error| up::engine_failure(&error))?;
    }
    let router = args.key.as_ref().map(|key| key.with_file_name(ROUTER_KEY));
    if let Some(key) = router.filter(|key| key.exists()) {
        copy(&key, &home.join(ROUTER_KEY))?;
    }
    if let Some(templates) = &args.templates {
        link(templates, &home.join(TEMPLATES))?;
    }
    // Also to what is not there, which reads as absent: a ConfigMap may have it later.
    if let Some(config) = &args.config {
        for name in OF_A_HOME {
            link(&config.join(name), &home.join(name))?;
        }
    }
    Ok(exit::OK)
}

/// For nobody but the server.
fn copy(given: &Path, own: &Path) -> Result<(), Failure> {
    let failed = || Failure::io(format!("{} cannot be copied to {}", given.display(), own.display()));
    let place = own.parent().unwrap_or(own);
    // Made with such a mode.
    let mut file = tempfile::NamedTempFile::new_in(place).map_err(failed())?;
    file.write_all(&fs::read(given).map_err(failed())?).map_err(failed())?;
    file.persist(own).map(drop).map_err(|error| failed()(error.error))
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
    fn a_key_for_the_router_is_copied_for_the_server_alone() -> std::io::Result<()> {
        use std::os::unix::fs::PermissionsExt;
        let place = tempfile::tempdir()?;
        let (given, own) = (place.path().join("given"), place.path().join(ROUTER_KEY));
        for key in ["a key", "another"] {
            fs::write(&given, key)?;
            fs::set_permissions(&given, PermissionsExt::from_mode(0o444))?;
            assert!(copy(&given, &own).is_ok());
            assert_eq!(
                (fs::read_to_string(&own)?.as_str(), fs::metadata(&own)?.permissions().mode() & 0o777),
                (key, 0o600)
            );
            fs::remove_file(&given)?;
        }
        assert!(copy(&given, &own).is_err() && own.exists());
        Ok(())
    }

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
        let file = place.path().join("gateway.toml");
        fs::write(&file, "mine")?;
        assert!(link(&given.join("a.toml"), &file).is_err() && fs::read(&file)? == b"mine");
        fs::remove_file(&own)?;
        fs::create_dir(&own)?;
        fs::write(own.join("mine.toml"), "")?;
        assert!(link(&given, &own).is_err() && own.join("mine.toml").exists());
        Ok(())
    }
}
