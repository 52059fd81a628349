//! The provider `kubernetes` of a server: who it is to its guests, and what `kubernetes.toml` says.

use std::{
    io::ErrorKind,
    path::{Path, PathBuf},
};

use sandbar_engine::Engine;
use sandbar_provider::identity::Identity;
use sandbar_provider_kubernetes::{Kubernetes, Settings};

use super::{engine_failure, provider_failure};
use crate::exit::{self, Failure};

/// What guests know a server by is derived from its home's key, so that it stays the same and one key is all there is to keep.
const PURPOSE: &str = "sandbar guests 1";
const FILE: &str = "kubernetes.toml";

/// Of the server with this home, also of one that does not run.
pub(crate) fn identity(home: &Path) -> Result<Identity, Failure> {
    let seed = Engine::derive(home, PURPOSE).map_err(|error| engine_failure(&error))?;
    Identity::from_seed(seed).map_err(|error| {
        Failure::new(exit::FAILED, format!("the server's key cannot be made: {}", exit::chain(&error)))
    })
}

pub(crate) fn settings(home: &Path, file: Option<&Path>, identity: &Identity) -> Result<Settings, Failure> {
    let mut settings = Settings::of(identity);
    configure(&mut settings, home, file)?;
    Ok(settings)
}

/// As the file says; without one, or without being named, as usual.
pub(crate) fn configure(settings: &mut Settings, home: &Path, file: Option<&Path>) -> Result<(), Failure> {
    let path = file.map_or_else(|| home.join(FILE), PathBuf::from);
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound && file.is_none() => return Ok(()),
        Err(error) => {
            return Err(Failure::usage(format!("{} cannot be read: {error}", path.display()))
                .hint("Give a readable file with --kubernetes-config, or none."));
        }
    };
    settings.configure(&text).map_err(|bad| {
        let line = bad.line.map(|line| format!(":{line}")).unwrap_or_default();
        Failure::usage(format!("{}{line}: {}", path.display(), bad.cause)).hint("Correct the file.")
    })
}

pub(crate) async fn open(home: &Path, file: Option<&Path>) -> Result<Kubernetes, Failure> {
    let identity = identity(home)?;
    let settings = settings(home, file, &identity)?;
    Kubernetes::open(settings, identity).await.map_err(|error| provider_failure(&error))
}
