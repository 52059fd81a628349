//! One file for each family of verbs: its options, and what it does through the client.

pub(crate) mod approval;
pub(crate) mod budget;
pub(crate) mod completions;
pub(crate) mod cp;
pub(crate) mod doctor;
pub(crate) mod events;
pub(crate) mod inspect;
pub(crate) mod life;
pub(crate) mod look;
pub(crate) mod net;
pub(crate) mod net_log;
pub(crate) mod pool;
pub(crate) mod process;
pub(crate) mod profile;
pub(crate) mod replay;
pub(crate) mod run;
pub(crate) mod sandbox;
pub(crate) mod secret;
pub(crate) mod session;
pub(crate) mod session_attach;
pub(crate) mod snapshot;
pub(crate) mod template;
pub(crate) mod token;
pub(crate) mod usage;
