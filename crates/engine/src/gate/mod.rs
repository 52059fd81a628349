//! The gate of each sandbox as the engine keeps it: what its rules are, which secrets it may use, what it may spend; and
//! the answers the gateway gets about them.

mod config;
mod facts;
mod ledger;
mod network;
mod secrets;
mod vault;

pub(crate) use config::Config;
pub(crate) use facts::Facts;
pub(crate) use ledger::Ledger;
pub(crate) use network::Rules;
pub(crate) use secrets::Secrets;
pub(crate) use vault::Vault;
